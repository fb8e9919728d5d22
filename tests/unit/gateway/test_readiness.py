from __future__ import annotations

import pytest

from modeld.gateway.families.health import readiness
from modeld.gateway.families.models import card
from modeld.protocol.messages import Facts
from modeld.supervisor.states import State
from tests.fakes.pool import model

READY, FAILED = State.READY, State.FAILED


@pytest.mark.parametrize(
    ("states", "word"),
    [
        ([], "empty"),
        ([State.STOPPED], "empty"),
        ([READY], "ok"),
        ([READY, State.STOPPED, State.DRAINING, State.STOPPING], "ok"),
        ([READY, State.WAITING], "starting"),
        ([State.STARTING], "starting"),
        ([READY, State.LOADING, FAILED], "starting"),
        ([State.BACKOFF], "starting"),
        ([READY, FAILED], "degraded"),
        ([FAILED], "failed"),
    ],
)
def test_the_word_and_the_flag(states: list[State], word: str) -> None:
    """Ready is true exactly when something is expected and all of it serves."""
    answer = readiness([model(f"m{at}", state=state) for at, state in enumerate(states)])
    assert answer["status"] == word
    assert answer["ready"] == (word == "ok")


@pytest.mark.parametrize("state", sorted(set(State) - {READY, FAILED}))
def test_a_model_on_demand_that_is_not_loaded_is_not_expected(state: State) -> None:
    """Unloaded, waiting for memory or under way in a swap: the daemon stays ready, with or without others."""
    sleeper = model("sleeper", state=state, on_demand=True)
    for others in ([], [model("a")]):
        answer = readiness([*others, sleeper])
        assert (answer["status"], answer["ready"]) == ("ok", True)
        assert answer["models_expected"] == answer["models_loaded"] == [other.name for other in others]
        assert answer["models_on_demand"] == ["sleeper"]
        assert answer["models_pending"] == {}
    assert readiness([model("b", state=State.WAITING), sleeper])["status"] == "starting"


def test_a_model_on_demand_counts_when_it_is_loaded_or_has_failed() -> None:
    """A failure is told whoever asked for the model; a loaded one serves like any other."""
    loaded = readiness([model("a", on_demand=True)])
    assert (loaded["status"], loaded["models_loaded"], loaded["models_on_demand"]) == ("ok", ["a"], [])
    broken = model("b", state=FAILED, message="not GGUF", on_demand=True)
    assert readiness([broken])["status"] == "failed"
    for other in (model("a"), model("a", state=State.STOPPED, on_demand=True)):
        answer = readiness([other, broken])
        assert (answer["status"], answer["models_failed"]) == ("degraded", {"b": "not GGUF"})


def test_reasons_are_told() -> None:
    """What failed says why, what is coming says where it stands."""
    models = [model("a"), model("b", state=FAILED, message="not GGUF"), model("c", state=State.LOADING)]
    answer = readiness(models)
    assert answer["models_loaded"] == ["a"]
    assert answer["models_expected"] == ["a", "b", "c"]
    assert answer["models_failed"] == {"b": "not GGUF"}
    assert answer["models_pending"]["c"]["state"] == "loading"


def test_cards_hold_openai_s_fields_and_ours() -> None:
    """Facts appear once they are known, and the card is whole before."""
    facts = Facts(loader="fake", device="cpu", capabilities=("chat", "vision"), context_length=512)
    known = card(model("a/b", facts=facts), "a/b", 7)
    assert {key: known[key] for key in ("id", "object", "created", "owned_by")} == {
        "id": "a/b",
        "object": "model",
        "created": 7,
        "owned_by": "modeld",
    }
    assert known["modeld"]["capabilities"] == ["chat", "vision"]
    assert known["modeld"]["context_length"] == 512
    unknown = card(model("x", state=State.STOPPED), "x", 7)["modeld"]
    assert (unknown["state"], unknown["capabilities"], unknown["context_length"]) == ("stopped", [], None)
    assert (unknown["footprint"], unknown["replicas"]) == (None, {"ready": 0, "total": 0})
