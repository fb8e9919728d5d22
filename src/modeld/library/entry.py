"""One model in a list of models."""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from modeld.library.about import About, Kind
from modeld.library.metadata import Metadata

Format: TypeAlias = Literal["gguf", "safetensors", "diffusers", "ggml", "onnx", "other"]


class Entry(msgspec.Struct, frozen=True, omit_defaults=True):
    """One model on this disk, or something that looks like one and is broken: then `error` says how.

    `path`: absolute; what a configuration has after `model:`, the file (the first, of several) or the folder.
    `files`: of the weights, by name below the folder of `path`; `size`: their bytes. `missing`: pieces that
    are not there. `mmproj`: paths of the projectors that belong to it; the first is the one that llama.cpp's
    loader takes, and `projector` what that says of itself. `capabilities`: in the words of
    `protocol.messages.Facts`, the projector's included; of what the engine may add nothing is known. `loader`
    and `usecase`: what a configuration would have; "" where there is none. `changed`: when the newest of its
    files was, in seconds since 1970.
    """

    path: str
    format: Format
    kind: Kind = "unknown"
    name: str = ""
    size: int = 0
    files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    mmproj: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()
    loader: str = ""
    usecase: str = ""
    changed: float = 0.0
    error: str = ""
    metadata: Metadata | None = None
    about: About | None = None
    projector: Metadata | None = None


_LOADERS = {"safetensors": "vllm", "diffusers": "diffusers", "ggml": "whispercpp", "onnx": "sherpa_onnx"}
_USECASES = {
    "embed": "embed",
    "rerank": "embed",
    "transcription": "transcription",
    "speech": "tts",
    "image": "image",
    "completion": "generate",
}


def served_by(format: Format, capabilities: tuple[str, ...]) -> tuple[str, str]:
    """Return the loader and the usecase that a model would be served by; both are "" if there is none."""
    usecase = next((usecase for able, usecase in _USECASES.items() if able in capabilities), "")
    if not usecase or (format == "onnx" and usecase != "tts"):
        return "", ""
    if format == "gguf":
        known = {"generate": "llama_server", "embed": "llama_server", "image": "stable_diffusion_cpp"}
        return known.get(usecase, ""), usecase if usecase in known else ""
    if format == "safetensors" and usecase == "image":
        return "stable_diffusion_cpp", usecase
    if format == "safetensors" and usecase not in ("generate", "embed"):
        return "", ""
    return _LOADERS.get(format, ""), usecase
