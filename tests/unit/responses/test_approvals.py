"""Answers to approval requests: each has its request, is the first, and is about what was asked."""

from __future__ import annotations

from typing import Any

import pytest

from modeld.errors import BadRequest
from modeld.responses.approvals import Answer, answers, check_verdicts
from modeld.store.approvals import digest

REQUEST = {
    "type": "mcp_approval_request",
    "id": "mcpr_1",
    "server_label": "files",
    "name": "read",
    "arguments": '{"path": "a"}',
}
USER = {"type": "message", "id": "msg_1", "role": "user", "content": []}


def answer(approve: bool = True, id: str = "mcpr_1") -> dict[str, Any]:
    """Return an answer as it is kept."""
    return {"type": "mcp_approval_response", "id": "x", "approval_request_id": id, "approve": approve}


def test_an_answer_is_about_the_stored_call() -> None:
    """Label, name and arguments are those of the request, wherever that stands."""
    wanted = (Answer("mcpr_1", "files", "read", '{"path": "a"}', True),)
    assert answers([USER, REQUEST], [answer()], {"files"}) == wanted
    assert answers([], [USER, REQUEST, answer()], {"files"}) == wanted
    assert wanted[0].call == ("mcpr_1", digest("files", "read", '{"path": "a"}'))


def test_a_denial_needs_no_server() -> None:
    """Nothing is called, so the tool need not be sent again."""
    [found] = answers([REQUEST], [answer(False)], ())
    assert not found.approve
    with pytest.raises(BadRequest, match="send that tool again"):
        answers([REQUEST], [answer()], {"others"})


@pytest.mark.parametrize(
    ("before", "given", "words"),
    [
        ([], [answer()], "weren't passed as input: mcpr_1"),
        ([REQUEST], [answer(id="mcpr_2")], "weren't passed as input: mcpr_2"),
        ([REQUEST], [answer(), answer()], "answered already"),
        ([REQUEST, answer()], [answer()], "answered already"),
        ([REQUEST, answer(False)], [answer()], "answered already"),
        (
            [REQUEST, {"type": "mcp_call", "id": "mcp_1", "approval_request_id": "mcpr_1"}],
            [answer()],
            "answered already",
        ),
    ],
    ids=["none", "another", "twice", "again", "denied", "called"],
)
def test_what_is_refused(before: list[Any], given: list[Any], words: str) -> None:
    """An answer without its request, and a second one: 400 that names the item."""
    with pytest.raises(BadRequest, match=words) as error:
        answers(before, given, {"files"})
    assert error.value.param == f"input[{len(given) - 1}].approval_request_id"


def test_calls_without_an_approval_hide_no_request() -> None:
    """A call that needed no approval names none: it answers no request."""
    call = {"type": "mcp_call", "id": "mcp_1", "approval_request_id": None}
    assert len(answers([REQUEST, call], [answer()], {"files"})) == 1


@pytest.mark.parametrize("verdict", ["answered", "unknown", "changed"])
def test_verdicts_but_one_are_refusals(verdict: Any) -> None:
    """Only what was claimed may run; one that was not is enough."""
    check_verdicts({"mcpr_1": "claimed", "mcpr_2": "claimed"})
    with pytest.raises(BadRequest, match="mcpr_2"):
        check_verdicts({"mcpr_1": "claimed", "mcpr_2": verdict})


def test_a_digest_keeps_its_parts_apart() -> None:
    """Moving a letter from one part to the next makes another call of it."""
    assert digest("ab", "c", "d") != digest("a", "bc", "d") != digest("a", "b", "cd")
    assert digest("a", "b", "c") == digest("a", "b", "c")
