"""A real whisper model for tests, built once: OpenAI's tiny.en, in whisper.cpp's format."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.harness.models import resolved


def whisper_tiny_en() -> Path:
    """Return the model file, about 78 MB, made at the first call."""
    return resolved("demo:whisper")


def whisper(name: str, model: Path, **more: Any) -> dict[str, Any]:
    """Return a model entry for whisper.cpp, with one thread: two stall on a busy machine."""
    return {
        "name": name,
        "model": str(model),
        "usecase": "transcription",
        "loader": "whispercpp",
        "whispercpp_config": {"n_threads": 1},
        **more,
    }
