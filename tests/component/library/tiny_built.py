"""A model that is built from two tiny packages, known also to the program that builds.

Every Python started with `folder` on PYTHONPATH knows it. How its converter behaves is said by a variable.
"""

from __future__ import annotations

import hashlib
import os
import sys
import types
from collections.abc import Callable
from pathlib import Path

from modeld.library.built.catalogue import CATALOGUE, Built, Made, Part
from tests.component.library.packages import CONTENT, SHA256

BEHAVIOUR = "MODELD_TEST_TINY"
"""Unset: as it should. "wrong": other bytes. "numpy": something is missing. A path: wait until it is gone."""

SECOND = b"GGUF second"
MADE = CONTENT + SECOND

TINY = Built(
    name="tiny",
    about="A tiny model",
    licence="none",
    parts=(
        Part("tiny-model", "1.0", 1000, {"tiny_model/m.gguf": SHA256}),
        Part("tiny-second", "1.0", 1000, {"tiny_second/m.gguf": hashlib.sha256(SECOND).hexdigest()}),
    ),
    files=(
        Made("a.onnx", len(MADE), hashlib.sha256(MADE).hexdigest()),
        Made("b.txt", 2, hashlib.sha256(b"b\n").hexdigest()),
    ),
)


def install() -> None:
    """Put the model into the catalogue and its converter into the package, in this process."""
    converter = types.ModuleType("modeld.library.built.tiny")
    vars(converter)["build"] = _build
    sys.modules[converter.__name__] = converter
    assert isinstance(CATALOGUE, dict)
    CATALOGUE[TINY.name] = TINY


def installer(folder: Path) -> Path:
    """Write into `folder` what makes a starting program that builds know the model; return the folder."""
    folder.mkdir()
    root = str(Path(__file__).parents[3])
    lines = (
        "import sys",
        "if 'modeld.library.built' in sys.orig_argv:",
        f"    sys.path.append({root!r})",
        f"    from {__name__} import install",
        "    install()",
    )
    (folder / "sitecustomize.py").write_text("\n".join(lines) + "\n")
    return folder


def _build(source: Callable[[str], Path], target: Path) -> None:
    behaviour = os.environ.get(BEHAVIOUR, "")
    if behaviour == "numpy":
        raise ModuleNotFoundError("No module named 'numpy'")
    if behaviour.startswith("/"):
        Path(behaviour).with_suffix(".begun").touch()
        (target / "a.onnx").write_bytes(b"half")
        with open(behaviour, "rb") as pipe:  # opens once somebody writes
            pipe.read()
        (target / "a.onnx").unlink()
    parts = [source(f"{name}/m.gguf").read_bytes() for name in ("tiny_model", "tiny_second")]
    (target / "a.onnx").write_bytes(b"".join(parts) + (b"!" if behaviour == "wrong" else b""))
    (target / "b.txt").write_bytes(b"b\n")
