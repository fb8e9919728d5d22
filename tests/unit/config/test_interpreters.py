"""An interpreter for each loader: from the file to the worker's options, and to what changes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from modeld.config.diff import Wanted, diff, wanted_models
from modeld.config.load import from_document
from modeld.config.model import Model, plain

LOADERS = ("vllm", "diffusers", "llama_server", "stable_diffusion_cpp", "whispercpp", "sherpa_onnx")
BASE = Path("/srv")


def _wanted(loader: str, engines: dict[str, Any], **fields: Any) -> tuple[Wanted, ...]:
    usecase = "image" if loader in ("diffusers", "stable_diffusion_cpp") else "generate"
    usecase = {"whispercpp": "transcription", "sherpa_onnx": "tts"}.get(loader, usecase)
    model = {"name": "m", "model": "./m", "usecase": usecase, "loader": loader, **fields}
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


@pytest.mark.parametrize("loader", LOADERS)
def test_a_model_may_have_its_own(loader: str) -> None:
    """The model's interpreter goes before its loader's; it is anchored, and travels through the store."""
    (one,) = _wanted(loader, {loader: {"python": "/opt/python"}}, python="./own/bin/python")
    assert one.options["python"] == "/srv/own/bin/python"
    again = Model.model_validate(json.loads(json.dumps(plain(one.model))))
    assert again == one.model
    assert _wanted(loader, {}, python="python3.12")[0].options["python"] == "python3.12"


def test_what_changes_is_named_where_it_was_written() -> None:
    """A model's own interpreter is told as the model's, its loader's as the loader's, and one that is hidden
    by the model's own changes nothing.
    """
    by_loader, by_model = {"vllm": {"python": "/a"}}, {"python": "/b"}
    plain_one, with_loader = _wanted("vllm", {}), _wanted("vllm", by_loader)
    own, both = _wanted("vllm", {}, **by_model), _wanted("vllm", by_loader, **by_model)
    assert diff(plain_one, own, additive=False).replaces == (("m", ("python",)),)
    assert diff(with_loader, both, additive=False).replaces == (("m", ("python",)),)
    assert diff(plain_one, with_loader, additive=False).replaces == (("m", ("engines.vllm.python",)),)
    assert diff(own, both, additive=False).unchanged == ("m",)


def test_without_an_interpreter_nothing_is_said_of_one() -> None:
    """Where an engine is found is no part of a model: installing one changes no fingerprint."""
    (one,) = _wanted("whispercpp", {})
    assert "python" not in one.options
