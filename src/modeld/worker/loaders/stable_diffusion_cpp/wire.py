"""The frames between the worker and its child, in the framing of the worker link.

The worker sends one Load, which the child answers with Progress and then Ready or Refused; then any number of
Draws, one at a time, each answered with Progress and Previews and then Drawn or Failed. End-of-file is death.
Pixels go as bare rows: 3 bytes each, red, green and blue, or 1 for a mask.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

LIMIT = 2**31 - 1
"""Bytes of a frame; how large pictures may be has been decided before."""


class _Frame(msgspec.Struct, frozen=True, array_like=True):
    pass


class Load(_Frame, frozen=True, array_like=True, tag="load"):
    """Load a model. `arguments` are those of the library's `StableDiffusion`; `sample_method` and `scheduler`
    are names that pictures will be drawn with, to be checked. `probe`: draw one small picture, to find out
    which sizes are possible.
    """

    arguments: dict[str, Any]
    sample_method: str = "default"
    scheduler: str = "default"
    probe: bool = True


class Draw(_Frame, frozen=True, array_like=True, tag="draw"):
    """Draw one picture. `image` and `mask` are of its size; a mask is white where to draw.

    `loras`: files, each with its strength.
    """

    prompt: str
    negative_prompt: str
    width: int
    height: int
    steps: int
    guidance: float
    seed: int
    sample_method: str = "default"
    scheduler: str = "default"
    vae_tiling: bool = False
    previews: int = 0
    image: bytes | None = None
    mask: bytes | None = None
    strength: float = 0.75
    loras: tuple[tuple[str, float], ...] = ()


ToChild: TypeAlias = Load | Draw


class Progress(_Frame, frozen=True, array_like=True, tag="progress"):
    """`done` of `total`: tensors while loading, denoising steps while drawing."""

    done: int
    total: int


class Ready(_Frame, frozen=True, array_like=True, tag="ready"):
    """The model draws. `multiple`: sides are multiples of it, 0 when it was not probed.

    `backend` is ggml's, such as "CPU" or "CUDA0"; `family` the kind of model as the library calls it.
    """

    version: str
    backend: str
    family: str
    multiple: int


class Refused(_Frame, frozen=True, array_like=True, tag="refused"):
    """The model did not load; the child ends after this."""

    message: str


class Preview(_Frame, frozen=True, array_like=True, tag="preview"):
    """An unfinished picture."""

    width: int
    height: int
    pixels: bytes


class Drawn(_Frame, frozen=True, array_like=True, tag="drawn"):
    """The picture."""

    width: int
    height: int
    pixels: bytes


class Failed(_Frame, frozen=True, array_like=True, tag="failed"):
    """There is no picture; the child goes on."""

    message: str


FromChild: TypeAlias = Progress | Ready | Refused | Preview | Drawn | Failed
