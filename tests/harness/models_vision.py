"""Tiny models of made-up numbers that see, and what goes with them: projectors and a LoRA adapter.

The answers are gibberish that depends on text and picture, is the same each time at temperature 0, and never
ends by itself. The layouts are those of llama.cpp's `llama` architecture and of its Gemma 3 projector, which
makes 4 tokens of 8 by 8 patches.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness.daemon import Daemon, running
from tests.harness.models import CACHE, llama

WIDTH = 64
"""Of the language model; a projector must have the same."""

PICTURE_TOKENS = 4
"""Tokens that a picture of any size becomes, beside those that begin and end it."""

LATE = ("late", "late-blind")
"""Models that the daemon loads when they are asked for."""

CONTEXT = 4096
_LAYERS, _HEADS, _INNER = 2, 4, 128
_SIDE, _PATCH, _EYE_WIDTH, _EYE_HEADS, _EYE_INNER = 64, 8, 32, 2, 64
_BEGIN, _END, _STOP = "<|turn|>", "<|done|>", "<|stop|>"
_TEMPLATE = (
    "{% for message in messages %}"
    + _BEGIN
    + "{{ message.role }}\n{{ message.content }}"
    + _END
    + "\n{% endfor %}{% if add_generation_prompt %}"
    + _BEGIN
    + "assistant\n{% endif %}"
)


def seer() -> Path:
    """Return the language model, made once, in a folder of its own without a projector."""
    return _made("blind/seer.gguf", _language_model)


def projector() -> Path:
    """Return the projector that fits it, made once."""
    return _made("projectors/mmproj-seer.gguf", lambda path: _projector(path, WIDTH))


def wrong_projector() -> Path:
    """Return a projector for a wider model, made once."""
    return _made("projectors/mmproj-wider.gguf", lambda path: _projector(path, WIDTH + 32))


def seer_with_projector() -> Path:
    """Return the language model in a folder with its projector, made once."""
    _made("seeing/mmproj-seer.gguf", lambda path: _projector(path, WIDTH))
    return _made("seeing/seer.gguf", _language_model)


def adapter() -> Path:
    """Return a LoRA adapter for the language model, made once."""
    return _made("adapters/seer-lora.gguf", _adapter)


@asynccontextmanager
async def vision_daemon(folder: Path, host: str) -> AsyncIterator[Daemon]:
    """Run a daemon with `eyes`, which sees, and `blind`, both loaded, and with `late` and `late-blind`, the
    same on demand; of private addresses it may fetch from `host`.
    """
    models = [llama("eyes", seer_with_projector(), n_ctx=1024), llama("blind", seer(), n_ctx=1024)]
    late = [{**model, "name": name, "load": "on_demand"} for model, name in zip(models, LATE, strict=True)]
    media = {"fetch": "public", "fetch_hosts": [host]}
    async with running(folder, {"models": [*models, *late], "media": media}) as daemon:
        for model in models:
            await daemon.until(str(model["name"]), "ready")
        yield daemon


def _made(name: str, write: Callable[[Path], None]) -> Path:
    path = CACHE / "vision-1" / name
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, new = tempfile.mkstemp(dir=path.parent, prefix=".new-")
        os.close(handle)
        write(Path(new))
        Path(new).replace(path)
    return path


class _File:
    """A GGUF file under way; its numbers are always the same."""

    def __init__(self, path: Path, architecture: str, seed: int) -> None:
        import gguf
        import numpy as np

        self.writer = gguf.GGUFWriter(path, architecture)
        self._random = np.random.default_rng(seed)
        self._half = np.float16

    def matrix(self, name: str, rows: int, columns: int, spread: float) -> None:
        """Add a matrix as f16."""
        values = self._random.normal(0.0, spread, (rows, columns))
        self.writer.add_tensor(name, values.astype(self._half))

    def floats(self, name: str, values: Any) -> None:
        """Add an array as f32."""
        import numpy as np

        self.writer.add_tensor(name, np.asarray(values, dtype=np.float32))

    def layer_norm(self, name: str, width: int) -> None:
        """Add a norm that changes nothing, with its bias."""
        self.floats(f"{name}.weight", [1.0] * width)
        self.floats(f"{name}.bias", [0.0] * width)

    def close(self) -> None:
        """Write it all."""
        self.writer.write_header_to_file()
        self.writer.write_kv_data_to_file()
        self.writer.write_tensors_to_file()
        self.writer.close()


def _words() -> list[str]:
    """Return a vocabulary of single bytes, as byte-level BPE spells them, and the marks of turns."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    spelled = {byte: chr(byte) for byte in printable}
    spelled |= {byte: chr(256 + at) for at, byte in enumerate(others)}
    return [*(spelled[byte] for byte in range(256)), "Ġt", _STOP, _BEGIN, _END]


def _language_model(path: Path) -> None:
    from gguf import TokenType

    file = _File(path, "llama", 1)
    out, words = file.writer, _words()
    marks = {_STOP, _BEGIN, _END}
    out.add_context_length(CONTEXT)
    out.add_embedding_length(WIDTH)
    out.add_block_count(_LAYERS)
    out.add_feed_forward_length(_INNER)
    out.add_head_count(_HEADS)
    out.add_head_count_kv(_HEADS)
    out.add_layer_norm_rms_eps(1e-5)
    out.add_rope_dimension_count(WIDTH // _HEADS)
    out.add_vocab_size(len(words))
    out.add_tokenizer_model("gpt2")
    out.add_tokenizer_pre("gpt-2")
    out.add_token_list(words)
    out.add_token_types([TokenType.CONTROL if word in marks else TokenType.NORMAL for word in words])
    out.add_token_merges(["Ġ t"])
    out.add_bos_token_id(words.index(_BEGIN))
    out.add_eos_token_id(words.index(_END))
    out.add_add_bos_token(False)
    out.add_chat_template(_TEMPLATE)
    file.matrix("token_embd.weight", len(words), WIDTH, 1.0)
    for layer in range(_LAYERS):
        block = f"blk.{layer}"
        file.floats(f"{block}.attn_norm.weight", [1.0] * WIDTH)
        file.floats(f"{block}.ffn_norm.weight", [1.0] * WIDTH)
        for name in ("attn_q", "attn_k", "attn_v", "attn_output"):
            file.matrix(f"{block}.{name}.weight", WIDTH, WIDTH, 2.0 / WIDTH**0.5)
        file.matrix(f"{block}.ffn_gate.weight", _INNER, WIDTH, 1.0 / WIDTH**0.5)
        file.matrix(f"{block}.ffn_up.weight", _INNER, WIDTH, 1.0 / WIDTH**0.5)
        file.matrix(f"{block}.ffn_down.weight", WIDTH, _INNER, 2.0 / _INNER**0.5)
    file.floats("output_norm.weight", [1.0] * WIDTH)
    _output(file, words, marks)
    file.close()


def _output(file: _File, words: list[str], marks: set[str]) -> None:
    """Add the output's weights: what is no ASCII letter or mark of its own is never said."""
    import numpy as np

    values = file._random.normal(0.0, 1.0, (len(words), WIDTH))
    for row, word in enumerate(words):
        if word in marks or not word.isascii():
            values[row] = 0.0
    file.writer.add_tensor("output.weight", values.astype(np.float16))


def _projector(path: Path, width: int) -> None:
    file = _File(path, "clip", 2)
    out = file.writer
    out.add_clip_has_vision_encoder(True)
    out.add_clip_projector_type("gemma3")
    out.add_vision_image_size(_SIDE)
    out.add_vision_patch_size(_PATCH)
    out.add_vision_embedding_length(_EYE_WIDTH)
    out.add_vision_feed_forward_length(_EYE_INNER)
    out.add_vision_block_count(1)
    out.add_vision_head_count(_EYE_HEADS)
    out.add_vision_projection_dim(width)
    out.add_vision_attention_layernorm_eps(1e-6)
    out.add_vision_use_gelu(True)
    out.add_vision_image_mean([0.5, 0.5, 0.5])
    out.add_vision_image_std([0.5, 0.5, 0.5])
    patches = (_SIDE // _PATCH) ** 2
    pixels = file._random.normal(0.0, 0.05, (_EYE_WIDTH, 3, _PATCH, _PATCH))
    out.add_tensor("v.patch_embd.weight", pixels.astype(file._half))
    file.floats("v.patch_embd.bias", [0.0] * _EYE_WIDTH)
    file.floats("v.position_embd.weight", file._random.normal(0.0, 0.3, (patches, _EYE_WIDTH)))
    for norm in ("v.blk.0.ln1", "v.blk.0.ln2", "v.post_ln"):
        file.layer_norm(norm, _EYE_WIDTH)
    for name in ("attn_q", "attn_k", "attn_v", "attn_out"):
        file.matrix(f"v.blk.0.{name}.weight", _EYE_WIDTH, _EYE_WIDTH, 1.0 / _EYE_WIDTH**0.5)
        file.floats(f"v.blk.0.{name}.bias", [0.0] * _EYE_WIDTH)
    file.matrix("v.blk.0.ffn_up.weight", _EYE_INNER, _EYE_WIDTH, 1.0 / _EYE_WIDTH**0.5)
    file.floats("v.blk.0.ffn_up.bias", [0.0] * _EYE_INNER)
    file.matrix("v.blk.0.ffn_down.weight", _EYE_WIDTH, _EYE_INNER, 1.0 / _EYE_INNER**0.5)
    file.floats("v.blk.0.ffn_down.bias", [0.0] * _EYE_WIDTH)
    file.floats("mm.soft_emb_norm.weight", [1.0] * _EYE_WIDTH)
    file.matrix("mm.input_projection.weight", _EYE_WIDTH, width, 1.0 / _EYE_WIDTH**0.5)
    file.close()


def _adapter(path: Path, rank: int = 4) -> None:
    from gguf import GGUFType

    file = _File(path, "llama", 3)
    file.writer.add_type(GGUFType.ADAPTER)
    file.writer.add_string("adapter.type", "lora")
    file.writer.add_float32("adapter.lora.alpha", float(rank))
    for layer in range(_LAYERS):
        for name in ("attn_q", "attn_v"):
            tensor = f"blk.{layer}.{name}.weight"
            file.floats(f"{tensor}.lora_a", file._random.normal(0.0, 1.0, (rank, WIDTH)))
            file.floats(f"{tensor}.lora_b", file._random.normal(0.0, 1.0, (WIDTH, rank)))
    file.close()
