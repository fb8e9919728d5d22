from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld import errors
from modeld.protocol import messages as m
from modeld.protocol.framing import FrameDecoder, FrameEncoder


def _all(root: type[errors.ModeldError]) -> list[type[errors.ModeldError]]:
    return [root, *(found for sub in root.__subclasses__() for found in _all(sub))]


CLASSES = [cls for cls in _all(errors.ModeldError) if cls.__module__ == errors.__name__]


def _over_the_wire(error: BaseException) -> errors.ModeldError:
    frame = FrameEncoder().encode(m.Failed(1, m.to_failure(error)))
    ((message, _),) = FrameDecoder[Any](m.ToDaemon).feed(bytes(frame))
    return m.from_failure(message.failure)


def test_every_error_has_a_kind_of_its_own() -> None:
    """Two classes with one kind would be one class after the wire."""
    kinds = [cls.kind for cls in CLASSES]
    assert sorted(kinds) == sorted(set(kinds))


@pytest.mark.parametrize("cls", CLASSES, ids=lambda cls: cls.__name__)
def test_an_error_survives_the_wire(cls: type[errors.ModeldError]) -> None:
    """Class, message, code and param of every error are the same on the other side."""
    error: errors.ModeldError
    if issubclass(cls, errors.ConfigError):
        error = cls("no such key", file=Path("models.yaml"), line=3, column=7)
    else:
        error = cls("what happened", code="some_code", param="messages[0]")
    rebuilt = _over_the_wire(error)
    assert type(rebuilt) is cls
    assert (str(rebuilt), rebuilt.code, rebuilt.param) == (str(error), error.code, error.param)


@pytest.mark.parametrize("permanent", [True, False])
def test_a_load_failure_stays_as_permanent_as_it_was(permanent: bool) -> None:
    """Whether trying again is pointless is not lost on the way."""
    rebuilt = _over_the_wire(errors.LoadFailed("no such file", permanent=permanent))
    assert isinstance(rebuilt, errors.LoadFailed)
    assert rebuilt.permanent is permanent


def test_a_foreign_exception_becomes_an_internal_error_that_names_it() -> None:
    """An exception that is not ours arrives as a plain ModeldError with its class and words."""
    rebuilt = _over_the_wire(ZeroDivisionError("division by zero"))
    assert type(rebuilt) is errors.ModeldError
    assert str(rebuilt) == "ZeroDivisionError: division by zero"
    assert rebuilt.code == "internal_error"


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_an_unknown_kind_is_an_engine_error(kind: str) -> None:
    """A newer worker's error class keeps its words and counts as the engine's fault."""
    if kind not in {cls.kind for cls in CLASSES}:
        rebuilt = m.from_failure(m.Failure(kind, "words", "code", "param"))
        assert type(rebuilt) is errors.EngineError
        assert (str(rebuilt), rebuilt.code, rebuilt.param) == ("words", "code", "param")


def test_fields_a_newer_peer_adds_are_ignored() -> None:
    """Messages are additive: an element more at the end of an array does not break an older peer."""
    payload = msgspec.msgpack.encode(["progress", "loading", 0.5, "a field of tomorrow"])
    decoded = msgspec.msgpack.Decoder(m.ToDaemon).decode(payload)
    assert decoded == m.Progress("loading", 0.5)


def test_fields_an_older_peer_leaves_out_have_their_defaults() -> None:
    """Messages are additive: an array that ends before a defaulted field is still a message."""
    decoded = msgspec.msgpack.Decoder(m.ToDaemon).decode(msgspec.msgpack.encode(["progress", "loading"]))
    assert decoded == m.Progress("loading", None)


def test_a_class_without_a_kind_of_its_own_is_its_parent_on_the_wire() -> None:
    """Also when it was there before the table was made, as in a program that imports a loader first."""
    program = (
        "from modeld.errors import BadRequest\n"
        "class Own(BadRequest):\n"
        "    def __init__(self, given):\n"
        "        super().__init__(f'{given}')\n"
        "from modeld.protocol.messages import from_failure, to_failure\n"
        "assert type(from_failure(to_failure(Own(3)))) is BadRequest\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
