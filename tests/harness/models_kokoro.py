"""A real speech model for tests, built once: Kokoro-82M for sherpa-onnx, a folder with five voices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modeld.library.built.kokoro import VOICES, onnx_metadata
from tests.harness.models import resolved

__all__ = ["VOICES", "kokoro", "kokoro_model", "onnx_metadata"]


def kokoro_model() -> Path:
    """Return the model's folder, built when it is not there yet; safe beside other processes."""
    return resolved("demo:kokoro")


def kokoro(name: str, model: Path, **more: Any) -> dict[str, Any]:
    """Return a model entry for sherpa-onnx."""
    return {"name": name, "model": str(model), "usecase": "tts", "loader": "sherpa_onnx", **more}
