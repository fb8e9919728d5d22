"""The estimate against what llama.cpp itself says it takes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from modeld.hardware.footprint import Footprint
from modeld.library.estimate import estimate_file
from tests.component.library import tiny_models
from tests.harness.models_minilm import minilm
from tests.harness.models_vision import adapter, projector, seer, seer_with_projector

pytestmark = pytest.mark.engine

MIB = 1024**2

PROGRAM = """
import json, signal, sys
import xllamacpp
from modeld.worker.loaders.llama_server.xllama import configure

options = json.loads(sys.argv[1])
params = xllamacpp.CommonParams()
configure(params, options)
for key in ("cache_type_k", "cache_type_v"):
    if key in options:
        setattr(params, key, getattr(xllamacpp.ggml_type, "GGML_TYPE_" + options[key].upper()))
params.verbosity = 5
server = xllamacpp.Server(params)
while True:
    signal.pause()
"""

LAST = "listening on unix:"
"""What the engine says last; its log is written by a thread, and an early end would cut it short."""


def said(model: Path, socket: Path, options: dict[str, Any]) -> dict[str, float]:
    """Load a model as the worker does, and return the engine's figures in MiB, buffer → sum."""
    settings = {"model": str(model), "socket": str(socket), "threads": 1, **options}
    lines: list[str] = []
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line)
            if LAST in line:
                break
        process.kill()
    log = "".join(lines)
    assert LAST in log, log[-2000:]
    # First it tries how much would fit, without taking memory; the same lines come a second time in earnest.
    _, mark, log = log.rpartition("fitting params to free memory took")
    assert mark
    found: dict[str, float] = {}
    for name, size in re.findall(r"(model|KV|RS|compute|output) buffer size =\s+([\d.]+) MiB", log):
        found[name] = found.get(name, 0.0) + float(size)
    return found


def part(footprint: Footprint, label: str) -> float:
    """Return the MiB of the lines whose label begins like this."""
    return sum(line.size for line in footprint.lines if line.label.startswith(label)) / MIB


async def check(
    model: Path, short_dir: Path, options: dict[str, Any], compute: float, usecase: str = "generate"
) -> None:
    """Compare all buffers; `compute` is how far that one may be off, as a part of it."""
    more = {"embeddings": True, "pooling": "mean"} if usecase == "embed" else {}
    engine = said(model, short_dir / "e.sock", {**options, **more})
    guess = await estimate_file(model, "llama_server", options, gpu=False, usecase=usecase)
    # The log has two digits after the point, for each of the buffers summed here.
    digits = 0.011
    assert part(guess, "weights") == pytest.approx(engine["model"], abs=digits)
    assert part(guess, "KV cache") == pytest.approx(engine.get("KV", 0) + engine.get("RS", 0), abs=2 * digits)
    assert part(guess, "answers") == pytest.approx(engine["output"], abs=digits)
    assert part(guess, "compute buffer") == pytest.approx(engine["compute"], rel=compute, abs=0.1)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_ctx": 300, "parallel": 3},
        {"n_ctx": 0, "parallel": 2},
        {"extra_args": ["--ubatch-size", "128"]},
        {"cache_type_k": "q4_0", "cache_type_v": "q8_0"},
    ],
    ids=str,
)
async def test_the_demo_model(demo_gguf: Path, short_dir: Path, options: dict[str, Any]) -> None:
    """Weights, cache, answers and compute buffer of a real model are the engine's own figures."""
    await check(demo_gguf, short_dir, options, 0.01)


@pytest.mark.parametrize("write", [tiny_models.grouped, tiny_models.windowed, tiny_models.hybrid])
@pytest.mark.parametrize("options", [{"n_ctx": 4096}, {"n_ctx": 2000, "parallel": 3}], ids=str)
async def test_ways_of_remembering(
    write: Callable[[Path], Path], tmp_path: Path, short_dir: Path, options: dict[str, Any]
) -> None:
    """Grouped heads, a sliding window and a recurrent state, as this llama.cpp lays them out."""
    await check(write(tmp_path / "tiny.gguf"), short_dir, options, 0.01)


@pytest.mark.parametrize(
    "options",
    [{}, {"n_ctx": 512}, {"n_ctx": 0}, {"n_ctx": 512, "parallel": 2}, {"n_ctx": 256, "n_batch": 64}],
    ids=str,
)
async def test_an_embedding_model(short_dir: Path, options: dict[str, Any]) -> None:
    """Whole inputs go through at once: the batch is the context's, and so is the compute buffer."""
    await check(minilm(), short_dir, options, 0.01, "embed")


@pytest.mark.parametrize("options", [{"n_ctx": 1024}, {"n_ctx": 512, "parallel": 2}], ids=str)
async def test_a_language_model_that_embeds(
    demo_gguf: Path, tmp_path: Path, short_dir: Path, options: dict[str, Any]
) -> None:
    """It scores every word after every token, which is most of what it takes."""
    await check(demo_gguf, short_dir, options, 0.01, "embed")
    (short_dir / "e.sock").unlink(missing_ok=True)
    await check(tiny_models.grouped(tmp_path / "tiny.gguf"), short_dir, options, 0.05, "embed")


async def test_a_draft_model(demo_gguf: Path, short_dir: Path) -> None:
    """The engine's figures for both models together; the draft's cache has the usual types."""
    options = {"n_ctx": 1024, "parallel": 2, "draft_model": str(demo_gguf), "cache_type_k": "q8_0"}
    engine = said(demo_gguf, short_dir / "e.sock", options)
    guess = await estimate_file(demo_gguf, "llama_server", options, gpu=False)
    for label, name in (("weights", "model"), ("KV cache", "KV"), ("answers", "output")):
        both = part(guess, label) + part(guess, f"draft model: {label}")
        assert both == pytest.approx(engine[name], abs=0.05)
    both = part(guess, "compute buffer") + part(guess, "draft model: compute buffer")
    assert both == pytest.approx(engine["compute"], rel=0.01)


async def test_an_adapter_counts_by_its_size() -> None:
    """Its numbers lie beside those of the model."""
    options = {"lora": [{"path": str(adapter()), "scale": 1.0}] * 2}
    guess = await estimate_file(seer(), "llama_server", options, gpu=False)
    assert part(guess, "LoRA adapters") * MIB == 2 * adapter().stat().st_size


async def test_a_projector_beside_the_model(short_dir: Path) -> None:
    """It counts where the loader would take it, and not where it would not."""
    model, options = seer_with_projector(), {"n_ctx": 512}
    beside = model.with_name("mmproj-seer.gguf").stat().st_size / MIB
    for more, usecase, size in (
        ({}, "generate", beside),
        ({"mmproj": "none"}, "generate", 0),
        ({}, "embed", 0),
        ({"mmproj": str(projector())}, "generate", beside),
    ):
        guess = await estimate_file(model, "llama_server", {**options, **more}, gpu=False, usecase=usecase)
        assert sum(line.size for line in guess.lines if line.label == "projector") / MIB == size
