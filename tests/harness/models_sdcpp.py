"""A tiny model for stable-diffusion.cpp with random weights: real parts, and pictures of coloured noise.

The library has the widths of the Stable Diffusion families built in, so the smallest of those would be of
650 MB; of the Flux-like "Ovis-Image" it reads most of them from the file. So that, in one GGUF file: a text
encoder of one layer, a transformer of one block, and a narrow VAE. Most of it is the table of the 151,936
tokens that the library's tokenizer has. The VAE's encoder, wide and of 68 MB, can be left out, as it is in
files for drawing from words only.
"""

from __future__ import annotations

import json
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

CACHE = Path(__file__).parents[2] / ".nox" / "cache"
RECIPE = 1
"""Raised when the model changes."""

TOKENS = 151_936
TEXT = 32
"""Width of the text encoder; its heads are given by the library."""

QUERY, KEY, HEAD = 32 * 128, 8 * 128, 128

WIDTH = 128
"""Of the transformer: one head."""

PATCH, LATENT = 64, 16
"""Values in a patch of 2x2 latents of 16 channels."""

NARROW = 32
"""Channels of the decoder where it is as long as the picture: its norms have 32 groups."""

WIDE = 128
"""The same of the encoder, which the library reads from no file: most of a file with an encoder."""

LEVELS = (1, 2, 4, 4)
"""Each level of the VAE is so many times as wide, and half as long as the one before."""


def sdcpp_model(*, encoder: bool = True, cache: Path = CACHE) -> Path:
    """Return the model's file, built once; without the encoder it takes no pictures in."""
    words = "" if encoder else "-words"
    return (
        _built(cache / f"tiny-sdcpp-{RECIPE}{words}", lambda folder: _whole(folder, encoder)) / "image.gguf"
    )


def sdcpp_parts(cache: Path = CACHE) -> dict[str, Path]:
    """Return the model without an encoder in three files, built once: "diffusion", "llm" and "vae"."""
    folder = _built(cache / f"tiny-sdcpp-{RECIPE}-parts", _parts)
    return {name: folder / f"{name}.gguf" for name in ("diffusion", "llm", "vae")}


def sdcpp_lora(path: Path) -> None:
    """Write a LoRA for the model, a safetensors file, that changes one of its layers."""
    import numpy

    random = numpy.random.default_rng(20)
    layer = "lora_unet_double_blocks_0_img_attn_proj"
    header: dict[str, Any] = {}
    body = b""
    for name, shape in (("lora_up", (WIDTH, 2)), ("lora_down", (2, WIDTH))):
        data = random.normal(0, 1, shape).astype("<f4").tobytes()
        header[f"{layer}.{name}.weight"] = {
            "dtype": "F32",
            "shape": shape,
            "data_offsets": [len(body), len(body) + len(data)],
        }
        body += data
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + body)


def sdcpp(name: str, model: Path, **options: Any) -> dict[str, Any]:
    """Return a model entry with one thread, since two stall on a busy machine, and little to do.

    Without guidance a prompt is read once, not twice.
    """
    return {
        "name": name,
        "model": str(model),
        "usecase": "image",
        "loader": "stable_diffusion_cpp",
        "num_gpus": 0,
        "stable_diffusion_cpp_config": {"n_threads": 1, "sample_steps": 3, "cfg_scale": 1.0, **options},
    }


class _File:
    """A GGUF file of random tensors; `numpy` and `gguf` are needed only to build one."""

    def __init__(self, path: Path, seed: int) -> None:
        import numpy
        from gguf import GGMLQuantizationType, GGUFWriter
        from gguf.quants import quantize

        self._numpy, self._kinds, self._quantize = numpy, GGMLQuantizationType, quantize
        self._random = numpy.random.default_rng(seed)
        self._writer = GGUFWriter(path, "sd")

    def tensor(self, name: str, values: Any, kind: str = "F32") -> None:
        number = self._kinds[kind]
        data = self._quantize(self._numpy.ascontiguousarray(values, dtype=self._numpy.float32), number)
        self._writer.add_tensor(name, data, raw_dtype=number)

    def ones(self, name: str, size: int) -> None:
        self.tensor(name, self._numpy.ones(size))

    def linear(
        self, name: str, out: int, into: int, kind: str = "F16", *, bias: bool = True, gain: float = 1.0
    ) -> None:
        self.tensor(f"{name}.weight", self._random.normal(0, gain / into**0.5, (out, into)), kind)
        if bias:
            self.tensor(f"{name}.bias", self._random.normal(0, 0.02, out))

    def convolution(self, name: str, out: int, into: int, side: int = 3) -> None:
        values = self._random.normal(0, 1 / side / into**0.5, (out, into, side, side))
        self.tensor(f"{name}.weight", values, "F16")
        self.tensor(f"{name}.bias", self._numpy.zeros(out))

    def norm(self, name: str, size: int) -> None:
        self.ones(f"{name}.weight", size)
        self.tensor(f"{name}.bias", self._numpy.zeros(size))

    def close(self) -> None:
        self._writer.write_header_to_file()
        self._writer.write_kv_data_to_file()
        self._writer.write_tensors_to_file()
        self._writer.close()


def _built(folder: Path, build: Callable[[Path], None]) -> Path:
    if not folder.exists():
        folder.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix="building-", dir=folder.parent))
        try:
            build(new)
            try:
                new.rename(folder)
            except OSError:  # somebody else was faster
                if not folder.exists():
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return folder


def _whole(folder: Path, encoder: bool) -> None:
    file = _File(folder / "image.gguf", 20)
    _text_encoder(file, "text_encoders.llm.model.")
    _transformer(file, "model.diffusion_model.")
    _decoder(file, "first_stage_model.decoder.")
    if encoder:
        _encoder(file, "first_stage_model.encoder.")
    file.close()


def _parts(folder: Path) -> None:
    for name, build, at in (
        ("diffusion", _transformer, ""),
        ("llm", _text_encoder, "model."),
        ("vae", _decoder, "decoder."),
    ):
        file = _File(folder / f"{name}.gguf", 20)
        build(file, at)
        file.close()


def _text_encoder(file: _File, at: str) -> None:
    layer = f"{at}layers.0"
    file.linear(f"{at}embed_tokens", TOKENS, TEXT, "Q4_0", bias=False, gain=TEXT**0.5)
    for name, out, into in (("q", QUERY, TEXT), ("k", KEY, TEXT), ("v", KEY, TEXT), ("o", TEXT, QUERY)):
        file.linear(f"{layer}.self_attn.{name}_proj", out, into, "Q8_0", bias=False)
    for name, out, into in (("gate", 64, TEXT), ("up", 64, TEXT), ("down", TEXT, 64)):
        file.linear(f"{layer}.mlp.{name}_proj", out, into, bias=False)
    for name in ("q_norm", "k_norm"):
        file.ones(f"{layer}.self_attn.{name}.weight", HEAD)
    for name in (f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm", f"{at}norm"):
        file.ones(f"{name}.weight", TEXT)


def _transformer(file: _File, at: str) -> None:
    file.linear(f"{at}img_in", WIDTH, PATCH)
    file.linear(f"{at}txt_in", WIDTH, TEXT)
    file.ones(f"{at}txt_norm.scale", TEXT)
    file.linear(f"{at}time_in.in_layer", WIDTH, 256)
    file.linear(f"{at}time_in.out_layer", WIDTH, WIDTH)
    for stream in ("img", "txt"):
        block = f"{at}double_blocks.0.{stream}"
        file.linear(f"{block}_mod.lin", 6 * WIDTH, WIDTH, gain=4.0)
        file.linear(f"{block}_attn.qkv", 3 * WIDTH, WIDTH)
        file.linear(f"{block}_attn.proj", WIDTH, WIDTH)
        for name in ("query_norm", "key_norm"):
            file.ones(f"{block}_attn.norm.{name}.scale", HEAD)
        for name, out, into in (("gate", 512, WIDTH), ("up", 512, WIDTH), ("down", WIDTH, 512)):
            file.linear(f"{block}_mlp.{name}_proj", out, into)
    file.linear(f"{at}final_layer.adaLN_modulation.1", 2 * WIDTH, WIDTH)
    file.linear(f"{at}final_layer.linear", PATCH, WIDTH)


def _residual(file: _File, at: str, into: int, out: int) -> None:
    file.norm(f"{at}.norm1", into)
    file.convolution(f"{at}.conv1", out, into)
    file.norm(f"{at}.norm2", out)
    file.convolution(f"{at}.conv2", out, out)
    if into != out:
        file.convolution(f"{at}.nin_shortcut", out, into, 1)


def _middle(file: _File, at: str, size: int) -> None:
    _residual(file, f"{at}mid.block_1", size, size)
    file.norm(f"{at}mid.attn_1.norm", size)
    for name in ("q", "k", "v", "proj_out"):
        file.convolution(f"{at}mid.attn_1.{name}", size, size, 1)
    _residual(file, f"{at}mid.block_2", size, size)


def _decoder(file: _File, at: str) -> None:
    size = LEVELS[-1] * NARROW
    file.convolution(f"{at}conv_in", size, LATENT)
    _middle(file, at, size)
    for level in reversed(range(len(LEVELS))):
        for block in range(3):
            _residual(file, f"{at}up.{level}.block.{block}", size, LEVELS[level] * NARROW)
            size = LEVELS[level] * NARROW
        if level:
            file.convolution(f"{at}up.{level}.upsample.conv", size, size)
    file.norm(f"{at}norm_out", size)
    file.convolution(f"{at}conv_out", 3, size)


def _encoder(file: _File, at: str) -> None:
    size = WIDE
    file.convolution(f"{at}conv_in", size, 3)
    for level, times in enumerate(LEVELS):
        for block in range(2):
            _residual(file, f"{at}down.{level}.block.{block}", size, times * WIDE)
            size = times * WIDE
        if level < len(LEVELS) - 1:
            file.convolution(f"{at}down.{level}.downsample.conv", size, size)
    _middle(file, at, size)
    file.norm(f"{at}norm_out", size)
    file.convolution(f"{at}conv_out", 2 * LATENT, size)  # mean and spread
