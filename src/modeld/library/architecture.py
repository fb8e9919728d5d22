"""What the keys and tensors of a GGUF file mean for memory, architecture by architecture. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from modeld.library.metadata import Layer, Metadata, Vision

MOST_LAYERS = 1024
"""Layers that are looked at; models have up to 130."""

WINDOW_PERIODS = {
    "cohere2": 4,
    "exaone4": 4,
    "gemma2": 2,
    "gemma3": 6,
    "gemma3n": 5,
    "gpt-oss": 2,
    "llama4": 4,
    "olmo2": 4,
    "smallthinker": 4,
}
"""Architecture → every how many layers one looks back over everything; the others have a window.

From llama.cpp, for files that do not carry the pattern. An architecture that is missing here counts as one
without a window, which is too much rather than too little.
"""

WITHOUT_CACHE = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "jina-bert-v2", "jina-bert-v3"),
        *("gemma-embedding", "dream", "llada", "llada-moe", "wavtokenizer-dec"),
    }
)
"""Architectures for which llama.cpp makes no KV cache."""

LLAMA4_CHUNK = 8192
"""Tokens that llama4's chunked layers look back; its files do not say."""

_STATE_TYPE = 4
"""Bytes of an element of recurrent state: llama.cpp keeps it as f32."""

_BLOCK = re.compile(r"(?:enc\.|dec\.)?blk\.(\d+)\.(.+)")
_RECURRENT = ("ssm_", "shortconv", "time_mix")


class Tensor(msgspec.Struct, frozen=True, gc=False):
    """One tensor as the file lists it: name, dimensions (fastest first), type's name, bytes, place."""

    name: str
    shape: tuple[int, ...]
    type: str
    size: int
    end: int

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        return math.prod(self.shape)


def described(keys: Mapping[str, Any], tensors: Sequence[Tensor], size: int) -> Metadata:
    """Return what a file's keys and tensors mean; pure. `size`: bytes on disk."""
    arch = str(keys.get("general.architecture", ""))
    own = {key.removeprefix(f"{arch}."): value for key, value in keys.items() if key.startswith(f"{arch}.")}
    embedding = next((each for each in tensors if each.name == "token_embd.weight" and each.shape), None)
    names = {tensor.name for tensor in tensors}
    blocks, before, after = _weighed(tensors)
    return Metadata(
        format="gguf",
        size=size,
        architecture=arch,
        name=str(keys.get("general.name") or keys.get("general.basename") or ""),
        parameters=sum(tensor.elements for tensor in tensors),
        quantization=str(keys.get("general.file_type", "")) or _main_type(tensors),
        context_length=_whole(own, "context_length") or None,
        layers=_layers(arch, own, blocks, tensors),
        input_weights=before,
        output_weights=after,
        tied=embedding is not None and "output.weight" not in names,
        embedding_length=_whole(own, "embedding_length"),
        feed_forward_length=_feed_forward(own),
        n_head=_whole(own, "attention.head_count"),
        vocabulary=embedding.shape[-1] if embedding is not None else _whole(own, "vocab_size"),
        n_experts=_whole(own, "expert_count"),
        n_experts_used=_whole(own, "expert_used_count"),
        has_chat_template="tokenizer.chat_template" in keys,
        vision=_vision(own) if arch == "clip" else None,
    )


def _whole(keys: Mapping[str, Any], name: str, default: int = 0) -> int:
    """Return a number, the greatest where there is one for each layer."""
    value = keys.get(name, default)
    numbers = [int(each) for each in (value if isinstance(value, list) else [value]) if _is_number(each)]
    return max(0, max(numbers, default=default))


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and abs(value) < 2**63


def _each(keys: Mapping[str, Any], name: str, count: int, default: int) -> list[int]:
    """Return one number for each layer, from a list or from one number for all."""
    value = keys.get(name, default)
    if not isinstance(value, list):
        return [_whole({name: value}, name, default)] * count
    return [_whole({name: value[i]}, name) if i < len(value) else default for i in range(count)]


def _weighed(tensors: Sequence[Tensor]) -> tuple[dict[int, list[Tensor]], int, int]:
    """Return the tensors of each block, and the bytes before the blocks and after them."""
    blocks: dict[int, list[Tensor]] = {}
    before = after = 0
    for tensor in tensors:
        if block := _BLOCK.fullmatch(tensor.name):
            blocks.setdefault(int(block[1]), []).append(tensor)
        elif tensor.name.startswith(("token_", "position_embd", "per_layer_token_embd")):
            before += tensor.size
        else:
            after += tensor.size
    return blocks, before, after


def _layers(
    arch: str, own: Mapping[str, Any], blocks: Mapping[int, list[Tensor]], tensors: Sequence[Tensor]
) -> tuple[Layer, ...]:
    count = max(_whole(own, "block_count"), max(blocks, default=-1) + 1)
    if arch == "clip" or count > max(len(tensors), 1):
        count = max(blocks, default=-1) + 1
    count = min(count, MOST_LAYERS, max(len(tensors), 1))
    heads = _whole(own, "attention.head_count")
    kv_heads = _each(own, "attention.head_count_kv", count, heads)
    width = _whole(own, "embedding_length") // heads if heads else 0
    windows, state = _windows(arch, own, count), _state(own)
    # The last blocks may use the cache of earlier ones, or serve prediction of several tokens only.
    cached = count - _whole(own, "nextn_predict_layers") - _whole(own, "attention.shared_kv_layers")
    layers = []
    for index in range(count):
        parts = blocks.get(index, [])
        names = [tensor.name.split(".", 2)[-1] for tensor in parts]
        recurrent = any(name.startswith(_RECURRENT) for name in names)
        # Blocks with linear attention have a joint attn_qkv, but nothing that grows with the context.
        attends = any(name.startswith(("attn_k.", "attn_k_b", "attn_kv")) for name in names) or (
            any(name.startswith("attn_qkv") for name in names) and not recurrent
        )
        kv = kv_heads[index]
        if not attends or index >= cached or arch in WITHOUT_CACHE or own.get("attention.causal") is False:
            kv = 0
        swa = "_swa" if windows[index] and "attention.key_length_swa" in own else ""
        layers.append(
            Layer(
                weights=sum(tensor.size for tensor in parts),
                experts=sum(tensor.size for tensor in parts if "_exps." in tensor.name),
                keys=kv * _whole(own, f"attention.key_length{swa}", width),
                # With latent attention the values are a view of the keys.
                values=0
                if "attention.key_length_mla" in own
                else kv * _whole(own, f"attention.value_length{swa}", width),
                window=windows[index] if kv else 0,
                state=state if recurrent else 0,
            )
        )
    return tuple(layers)


def _windows(arch: str, own: Mapping[str, Any], count: int) -> list[int]:
    window = _whole(own, "attention.sliding_window") or (LLAMA4_CHUNK if arch == "llama4" else 0)
    pattern = own.get("attention.sliding_window_pattern", WINDOW_PERIODS.get(arch, 1))
    if isinstance(pattern, list):
        return [window if index < len(pattern) and pattern[index] else 0 for index in range(count)]
    period = _whole({"": pattern}, "", 1)
    return [window if period == 0 or index % period < period - 1 else 0 for index in range(count)]


def _state(own: Mapping[str, Any]) -> int:
    """Return the bytes of one sequence's state in one recurrent layer, as llama.cpp lays it out."""
    embedding, inner, width = (
        _whole(own, name) for name in ("embedding_length", "ssm.inner_size", "ssm.state_size")
    )
    past = max(_whole(own, "ssm.conv_kernel") - 1, 0)
    if head := _whole(own, "wkv.head_size"):
        elements = _whole(own, "token_shift_count", 2) * embedding + embedding * head
    elif cache := _whole(own, "shortconv.l_cache"):
        elements = embedding * (cache - 1)
    elif head := _whole(own, "kda.head_dim"):
        heads = _whole(own, "attention.head_count")
        elements = 3 * past * heads * head + heads * head * head
    else:
        elements = past * (inner + 2 * _whole(own, "ssm.group_count") * width) + width * inner
    return elements * _STATE_TYPE


def _feed_forward(own: Mapping[str, Any]) -> int:
    active = _whole(own, "expert_used_count") * _whole(own, "expert_feed_forward_length")
    return max(_whole(own, "feed_forward_length"), active)


def _main_type(tensors: Sequence[Tensor]) -> str:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size
    return max(sizes, key=lambda name: sizes[name], default="")


def _vision(own: Mapping[str, Any]) -> Vision:
    return Vision(
        projector=str(own.get("projector_type") or own.get("vision.projector_type") or ""),
        images=bool(own.get("has_vision_encoder", True)),
        audio=bool(own.get("has_audio_encoder", False)),
        image_size=_whole(own, "vision.image_size"),
        patch_size=_whole(own, "vision.patch_size"),
        embedding_length=_whole(own, "vision.embedding_length"),
        feed_forward_length=_whole(own, "vision.feed_forward_length"),
    )
