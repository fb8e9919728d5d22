"""Reads what a safetensors file, or a folder with a config.json, says of itself; no tensor data is touched.

A safetensors file begins with the length of its header (8 bytes, little-endian) and the header, JSON that
maps names to dtype, shape and place. A folder's config.json is Hugging Face's; its fields vary with the
model, so what is missing or of another type counts as unknown.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, TypeAlias

import msgspec

from modeld.errors import LoadFailed
from modeld.library import template
from modeld.library.about import IMAGE_TENSORS, About
from modeld.library.metadata import Layer, Metadata

LONGEST_HEADER = 100 * 1024**2
"""Bytes of a header; the format's own limit."""

MOST_READ = 4 * 1024**2
"""Bytes of a header that is read, twice the longest of today; with a longer one only the size is known."""

MOST_CONFIG = 1024**2
"""Bytes of a config.json that are read."""

MOST_IN_BYTE = 4
"""Numbers in a byte: today's densest types have two."""

MOST_LAYERS = 4096
"""Layers beyond which a config.json is not believed."""


_Size: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**53)]
_Shape: TypeAlias = Annotated[tuple[_Size, ...], msgspec.Meta(max_length=16)]
_Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**62)]
# Bounded, for the product of many large numbers takes for ever.


class _Tensor(msgspec.Struct, gc=False):
    dtype: str
    shape: _Shape
    data_offsets: tuple[_Offset, _Offset]


def describe(path: Path, files: Sequence[Path]) -> Metadata:
    """Return the metadata of a folder, or of a file, whose weights are `files`.

    Raises LoadFailed (permanent) for a header that cannot be read, and a file that is cut short.
    """
    parameters, kinds = 0, dict[str, int]()
    for file in files:
        for kind, count in _counted(file).items():
            kinds[kind] = kinds.get(kind, 0) + count
            parameters += count
    main = max(kinds, key=lambda kind: kinds[kind], default="")
    size = sum(file.stat().st_size for file in files)
    config = _json(path / "config.json") if path.is_dir() else {}
    text = config.get("text_config")
    # Models that see or hear keep what describes their language part one level down.
    language = {**config, **text} if isinstance(text, dict) else config
    quantized = config.get("quantization_config")
    method = str(quantized.get("quant_method", "")) if isinstance(quantized, dict) else ""
    names = config.get("architectures")
    experts = _number(language, "num_local_experts", "num_experts", "n_routed_experts")
    active = _number(language, "num_experts_per_tok") * _number(language, "moe_intermediate_size")
    return Metadata(
        format="safetensors",
        size=size,
        architecture=str(names[0]) if isinstance(names, list) and names else "",
        name=path.name if path.is_dir() else path.stem,
        parameters=parameters or None,
        quantization=method or main,
        context_length=_number(language, "max_position_embeddings", "n_positions", "max_sequence_length")
        or None,
        layers=_layers(language),
        tied=language.get("tie_word_embeddings") is True,
        embedding_length=_number(language, "hidden_size", "n_embd", "d_model"),
        feed_forward_length=max(_number(language, "intermediate_size", "n_inner"), active),
        n_head=_number(language, "num_attention_heads", "n_head"),
        vocabulary=_number(language, "vocab_size"),
        n_experts=experts,
        n_experts_used=_number(language, "num_experts_per_tok"),
        has_chat_template=path.is_dir() and _has_template(path),
    )


def about(file: Path) -> About:
    """Return what a file of weights is that lies by itself, told by the names of its tensors.

    Raises LoadFailed as `describe` does.
    """
    names = list(_header(file))
    if any(".lora_" in name or "lora_down" in name or name.startswith("lora_") for name in names):
        return About(kind="lora")
    pictures = any(name.startswith(IMAGE_TENSORS) for name in names)
    return About(kind="model", capabilities=("image",) if pictures else ())


def weights_in(folder: Path) -> list[Path]:
    """Return the files that hold a folder's weights, subfolders (of a diffusers pipeline) included.

    Of a file in several precisions (x.safetensors and x.fp16.safetensors) the plain one counts.
    """
    found = [
        Path(parent) / name
        for parent, _, names in os.walk(folder)
        for name in names
        if not name.startswith(".")
    ]
    chosen = [path for path in found if path.suffix == ".safetensors"]
    chosen = chosen or [path for path in found if path.suffix in (".bin", ".pt", ".pth", ".onnx", ".gguf")]
    there = {str(path) for path in chosen}
    return sorted(
        path for path in chosen if not (plain_name(str(path)) != str(path) and plain_name(str(path)) in there)
    )


def plain_name(path: str) -> str:
    """Return a file's name without what tells its precision: x.fp16.safetensors is x.safetensors."""
    folder, slash, name = path.rpartition("/")
    first, _, rest = name.partition(".")
    return f"{folder}{slash}{first}.{rest.rpartition('.')[2]}"


def _counted(file: Path) -> dict[str, int]:
    """Return how many numbers of each dtype a file holds; nothing for another format."""
    if file.suffix != ".safetensors":
        return {}
    tensors, size = _header(file), file.stat().st_size
    counts: dict[str, int] = {}
    end = 0
    for tensor in tensors.values():
        counts[tensor.dtype] = counts.get(tensor.dtype, 0) + math.prod(tensor.shape)
        end = max(end, tensor.data_offsets[1])
    if end > size:
        raise _damaged(file, f"its tensors take {end} bytes, the file has {size}")
    if sum(counts.values()) > size * MOST_IN_BYTE:
        raise _damaged(file, f"it would hold {sum(counts.values())} numbers in {size} bytes")
    return counts


def _header(file: Path) -> dict[str, _Tensor]:
    """Return a file's tensors, placed from the file's beginning; none when there are too many to read."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if size < 8 or length > min(LONGEST_HEADER, size - 8):
                raise _damaged(file, f"its header would take {length} bytes of {size}")
            if length > MOST_READ:
                return {}
            header = msgspec.json.decode(stream.read(length), type=dict[str, msgspec.Raw])
        header.pop("__metadata__", None)
        tensors = {name: msgspec.json.decode(text, type=_Tensor) for name, text in header.items()}
    except OSError as error:
        raise LoadFailed(f"{file} cannot be read: {error.strerror}", permanent=True) from error
    except (ValueError, RecursionError) as error:
        raise _damaged(file, "its header cannot be read") from error
    for tensor in tensors.values():
        tensor.data_offsets = (tensor.data_offsets[0] + 8 + length, tensor.data_offsets[1] + 8 + length)
    return tensors


def _damaged(file: Path, why: str) -> LoadFailed:
    return LoadFailed(f"{file} is cut short or damaged: {why}; fetch it again", permanent=True)


def _layers(config: Mapping[str, Any]) -> tuple[Layer, ...]:
    heads = _number(config, "num_attention_heads", "n_head")
    kv_heads = _number(config, "num_key_value_heads", "num_kv_heads") or heads
    hidden = _number(config, "hidden_size", "n_embd", "d_model")
    width = _number(config, "head_dim") or (hidden // heads if heads else 0)
    keys = values = kv_heads * width
    if latent := _number(config, "kv_lora_rank"):
        # Multi-head latent attention keeps one compressed vector and the rotary part of the key.
        keys, values = latent + _number(config, "qk_rope_head_dim"), 0
    window = _number(config, "sliding_window") if config.get("use_sliding_window", True) is not False else 0
    kinds = config.get("layer_types")
    layers = []
    for index in range(min(_number(config, "num_hidden_layers", "n_layer"), MOST_LAYERS)):
        kind = str(kinds[index]) if isinstance(kinds, list) and index < len(kinds) else ""
        if kind in ("linear_attention", "mamba", "conv", "recurrent"):
            layers.append(Layer())
        else:
            # Without a list of kinds the whole model has the window, or none does: the latter takes more.
            layers.append(
                Layer(keys=keys, values=values, window=window if kind == "sliding_attention" else 0)
            )
    return tuple(layers)


def _number(config: Mapping[str, Any], *names: str) -> int:
    """Return the first of these fields that is a sensible whole number, else 0."""
    for name in names:
        value = config.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value < 2**53:
            return value
    return 0


def _has_template(folder: Path) -> bool:
    return (folder / "chat_template.jinja").is_file() or bool(template.of_tokenizer(folder))


def _json(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as stream:
            found = json.loads(stream.read(MOST_CONFIG))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
