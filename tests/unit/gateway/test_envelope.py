from __future__ import annotations

import json
import math
from collections.abc import Iterator

import pytest

from modeld import errors
from modeld.gateway.envelope import TABLE, envelope, row_of, to_response
from modeld.ids import RequestId

ID = RequestId("req_1")


def _all_errors(root: type[errors.ModeldError] = errors.ModeldError) -> Iterator[type[errors.ModeldError]]:
    yield root
    for sub in root.__subclasses__():
        yield from _all_errors(sub)


@pytest.mark.parametrize("cls", list(_all_errors()), ids=lambda cls: cls.__name__)
def test_every_error_has_an_envelope(cls: type[errors.ModeldError]) -> None:
    """All four keys, JSON, and a status of 4xx or 5xx for each class of the tree."""
    response = to_response(cls("what happened"), ID)
    assert response.content_type == "application/json"
    assert isinstance(response.body, bytes)
    error = json.loads(response.body)["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert response.status == row_of(cls("")).status
    assert error["type"] == ("server_error" if response.status >= 500 else error["type"])


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.BadRequest(""), 400),
        (errors.Unauthorized(""), 401),
        (errors.Forbidden(""), 403),
        (errors.NotFound(""), 404),
        (errors.MethodNotAllowed(""), 405),
        (errors.TooLarge(""), 413),
        (errors.UnsupportedMedia(""), 415),
        (errors.Overloaded(""), 429),
        (errors.EngineError(""), 502),
        (errors.WorkerDied(""), 502),
        (errors.FrameTooLarge(""), 502),
        (errors.ModelFailed(""), 503),
        (errors.ModelUnavailable(""), 503),
        (errors.LoadFailed(""), 503),
        (errors.DeadlineExceeded(""), 504),
        (errors.ModeldError(""), 500),
        (errors.StartupError(""), 500),
        (ValueError(""), 500),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_the_table(error: Exception, status: int) -> None:
    """Each class is answered with its status; what is not in the table is a bug."""
    assert row_of(error).status == status


def test_a_full_queue_says_when_to_come_back() -> None:
    """Seconds, rounded up, and milliseconds, for each kind of client."""
    headers = to_response(errors.Overloaded("full", retry_after=1.25), ID).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == ("2", "1250")
    assert "x-should-retry" not in headers


@pytest.mark.parametrize(
    ("known", "seconds", "milliseconds"),
    [
        (None, "2", "2000"),
        (0.25, "1", "250"),
        (0.0, "1", "1"),
        (-3.0, "1", "1"),
        (7.2, "8", "7200"),
        (1e9, "3600", "3600000"),
        (math.inf, "2", "2000"),
        (math.nan, "2", "2000"),
    ],
)
def test_an_unavailable_model_says_when_to_come_back(
    known: float | None, seconds: str, milliseconds: str
) -> None:
    """Whole seconds, at least 1; what nobody knows is the class's usual time, and no value breaks it."""
    headers = to_response(errors.ModelUnavailable("no memory", retry_after=known), ID).headers
    assert (headers["retry-after"], headers["retry-after-ms"]) == (seconds, milliseconds)


@pytest.mark.parametrize(
    "error",
    [errors.ModelFailed("bad file"), errors.LoadFailed("bad", permanent=True), errors.DeadlineExceeded("")],
)
def test_hopeless_errors_stop_clients_from_retrying(error: errors.ModeldError) -> None:
    """SDKs retry 5xx by themselves; where that is pointless they are told so."""
    headers = to_response(error, ID).headers
    assert headers["x-should-retry"] == "false"
    assert "retry-after" not in headers


def test_a_bug_gives_away_the_request_id_only() -> None:
    """Neither an unknown exception nor a worker's internal error shows its text to the client."""
    for bug in (ValueError("secret"), errors.ModeldError("secret")):
        text = envelope(bug, ID).decode()
        assert "secret" not in text
        assert "req_1" in text
        assert json.loads(text)["error"]["code"] == "internal_error"


def test_param_and_code_are_kept_and_odd_text_survives() -> None:
    """What the error says is what the client reads, even when it quotes text that is not valid."""
    error = json.loads(envelope(errors.BadRequest("no \ud800", code="c", param="a.b"), ID))["error"]
    assert error == {"message": "no ?", "type": "invalid_request_error", "param": "a.b", "code": "c"}


def test_an_unauthorized_answer_names_the_scheme() -> None:
    """A 401 carries www-authenticate, as HTTP wants it."""
    assert to_response(errors.Unauthorized(""), ID).headers["www-authenticate"] == "Bearer"


def test_the_table_has_no_base_class() -> None:
    """The bases stay out of the table, or a bug would be told to clients as something else."""
    assert errors.ModeldError not in TABLE
