"""The scripted loader keeps the contract that the real engines keep, so that tests may stand on it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from modeld.protocol.tasks import CompletionTask, Finish, Sampling, SpeechTask
from tests.harness.loader_contract import MIB, Case, LoaderContract


def scripted_failure(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Make a load fail with words of its own."""
    return model, {"load_error": "the script says no"}


class TestFake(LoaderContract):
    """The scripted loader."""

    case = Case(
        loader="fake",
        usecase="generate",
        model=lambda: Path("none"),
        options={"tokens": 100_000, "token_delay": 0.01, "slots": 2, "memory": 50 * MIB, "junk_stdout": True},
        capabilities=frozenset({"chat", "completion"}),
        short=CompletionTask(prompt="x", sampling=Sampling(max_tokens=5)),
        ends=Finish,
        long=CompletionTask(prompt="x"),
        bad=CompletionTask(prompt="x", suffix="y"),
        foreign=SpeechTask(text="x", voice="x"),
        broken=scripted_failure,
        words="the script says no",
        log="not text",
        pieces=5,
        slots=2,
    )
