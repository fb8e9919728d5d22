"""An interpreter for each loader: from the file to the worker's options, and to what changes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modeld.config.diff import Wanted, diff, wanted_models
from modeld.config.load import from_document

LOADERS = ("vllm", "diffusers", "llama_server", "stable_diffusion_cpp", "whispercpp", "sherpa_onnx")
BASE = Path("/srv")


def _wanted(loader: str, engines: dict[str, Any]) -> tuple[Wanted, ...]:
    usecase = "image" if loader in ("diffusers", "stable_diffusion_cpp") else "generate"
    usecase = {"whispercpp": "transcription", "sherpa_onnx": "tts"}.get(loader, usecase)
    model = {"name": "m", "model": "./m", "usecase": usecase, "loader": loader}
    return wanted_models(from_document({"models": [model], "engines": engines}, BASE), BASE)


@pytest.mark.parametrize("loader", LOADERS)
def test_each_loader_may_have_one(loader: str) -> None:
    """It reaches the options of that loader's models, anchored, and is absent without."""
    (one,) = _wanted(loader, {loader: {"python": "./venv/bin/python"}})
    assert one.options["python"] == "/srv/venv/bin/python"
    (other,) = _wanted(loader, {name: {"python": "/x"} for name in LOADERS if name != loader})
    assert "python" not in other.options


@pytest.mark.parametrize("loader", LOADERS)
def test_another_interpreter_is_another_worker(loader: str) -> None:
    """A change replaces the models of that loader, and is named; one for another loader changes nothing."""
    before, after = _wanted(loader, {}), _wanted(loader, {loader: {"python": "/opt/python"}})
    assert before[0].fingerprint != after[0].fingerprint
    assert diff(before, after, additive=False).replaces == (("m", (f"engines.{loader}.python",)),)
    elsewhere = "vllm" if loader != "vllm" else "diffusers"
    assert diff(
        before, _wanted(loader, {elsewhere: {"python": "/opt/python"}}), additive=False
    ).unchanged == ("m",)
