"""Random responses, read by a client that accepts nothing but the order and pairing rules of the protocol."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from modeld.protocol.tasks import (
    Event,
    Finish,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from modeld.responses import events as e
from modeld.responses.items import Response
from modeld.responses.translator import INTERRUPTED, Translator
from tests.fixtures.openai_schema.check import check_text

Body = dict[str, Any]

ENDS = ("response.completed", "response.incomplete", "response.failed")

_OF_PARTS = {
    "text": "output_item.added content_part.added (output_text.delta )*output_text.done content_part.done ",
    "thought": "output_item.added content_part.added (reasoning_text.delta )*reasoning_text.done "
    "content_part.done ",
    "summary": "output_item.added reasoning_summary_part.added (reasoning_summary_text.delta )*"
    "reasoning_summary_text.done reasoning_summary_part.done ",
}
LIVES = {
    "message": f"{_OF_PARTS['text']}output_item.done ",
    "reasoning": f"({_OF_PARTS['thought']}|{_OF_PARTS['summary']})output_item.done ",
    "function_call": "output_item.added (function_call_arguments.delta )*function_call_arguments.done "
    "output_item.done ",
    "mcp_list_tools": r"output_item.added mcp_list_tools.in_progress mcp_list_tools.(completed|failed) "
    "output_item.done ",
    "mcp_call": "output_item.added mcp_call.in_progress mcp_call_arguments.delta mcp_call_arguments.done "
    "mcp_call.(completed|failed) output_item.done ",
    "mcp_approval_request": "output_item.added output_item.done ",
}
"""By type of item, the events of its life in their order, each with a blank behind it."""


class Reader:
    """A client: takes the events of one response, and fails at the first that breaks a rule."""

    def __init__(self, *, queued: bool = False) -> None:
        self.number = 0
        self.begun = ""
        self.end: Body | None = None
        self.done: list[Body] = []
        self._item: Body | None = None
        self._life = ""
        self._said = ""
        self._logprobs: list[Body] = []
        self._outcome = ""
        self._error = False
        self._first = "queued" if queued else "in_progress"

    def read(self, body: Body) -> None:
        """Take the next event."""
        assert self.end is None, body
        assert body["sequence_number"] == self.number
        self.number += 1
        kind = body["type"].removeprefix("response.")
        if kind in ("created", "queued", "in_progress"):
            self.begun += kind + " "
            assert (
                "created queued in_progress ".startswith(self.begun) or self.begun == "created in_progress "
            )
            assert body["response"]["output"] == []
            assert body["response"]["status"] == ("in_progress" if kind == "in_progress" else self._first)
            return
        assert self.begun
        if body["type"] in ENDS:
            self._ended(body)
        elif kind == "error":
            assert not self._error
            assert self._item is None  # nothing comes between it and the end
            assert body["error"] == {"type": body["error"]["type"]} | {
                key: body[key] for key in ("code", "message", "param")
            }
            self._error = True
        else:
            assert not self._error
            self._of_item(kind, body)

    def _of_item(self, kind: str, body: Body) -> None:
        assert body["output_index"] == len(self.done)
        self._life += kind + " "
        if kind == "output_item.added":
            assert self._item is None
            self._item, self._said, self._logprobs = body["item"], "", []
            assert self._item.get("status", "in_progress") == "in_progress"
            assert not self._item.get("content")
            assert self._item["type"] == "mcp_approval_request" or not self._item.get("arguments")
            return
        assert self._item is not None
        if kind == "output_item.done":
            self._close(body["item"])
            return
        assert body["item_id"] == self._item["id"]
        assert body.get("content_index", 0) == body.get("summary_index", 0) == 0
        if kind.endswith(".delta"):
            self._said += body["delta"]
            self._logprobs += body.get("logprobs", [])
        elif kind.startswith("mcp") and kind.endswith((".completed", ".failed")):
            self._outcome = kind.rpartition(".")[2]
        elif "text" in body or "arguments" in body:
            assert body.get("text", body.get("arguments")) == self._said
        elif kind.endswith("part.done"):
            assert body["part"]["text"] == self._said

    def _close(self, item: Body) -> None:
        added, self._item = self._item, None
        assert added is not None
        assert (item["id"], item["type"]) == (added["id"], added["type"])
        assert re.fullmatch(LIVES[item["type"]], self._life), self._life
        self._life = ""
        parts = item.get("content") or item.get("summary")
        if parts:
            assert [part["text"] for part in parts] == [self._said]
        elif item["type"] in ("function_call", "mcp_call"):
            assert item["arguments"] == self._said
        if item["type"] in ("mcp_call", "mcp_list_tools"):
            well = item.get("error") is None and item.get("status", "completed") == "completed"
            assert self._outcome == ("completed" if well else "failed")
        elif item["type"] == "message":
            assert item["content"][0]["logprobs"] == self._logprobs
        self.done.append(item)

    def _ended(self, body: Body) -> None:
        response = body["response"]
        assert self._item is None
        assert response["output"] == self.done
        assert response["service_tier"] == "default"
        word, status = body["type"].removeprefix("response."), response["status"]
        assert status == word or (word, status) == ("incomplete", "cancelled")
        assert (response["completed_at"] is not None) == (status == "completed")
        assert (response["error"] is not None) == (status == "failed")
        assert (response["incomplete_details"] is not None) == (status == "incomplete")
        assert word == "failed" or not self._error
        if status == "completed":
            ends = [item.get("status", "completed") for item in self.done]
            assert set(ends) <= {"completed", "failed"}
        self.end = body


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


_WORDS = st.text(max_size=4) | st.sampled_from(["\u2028", "\u2029\x85", '"\\\n'])
_LOGPROBS = st.lists(
    st.builds(
        lambda text, top: TokenLogprob(text, -0.5, None, tuple(TopLogprob(word, -9.0) for word in top)),
        _WORDS,
        st.lists(_WORDS, max_size=2),
    ),
    max_size=2,
).map(tuple)
_SAID = st.builds(Text, _WORDS, st.just(0), _LOGPROBS) | st.builds(Reasoning, _WORDS)
_TOOLS = st.lists(
    st.fixed_dictionaries(
        {
            "name": _WORDS,
            "description": st.none() | _WORDS,
            "input_schema": st.just({"type": "object"}),
            "annotations": st.just({"read_only": False}),
        }
    ),
    max_size=2,
)
_ERRORS = st.sampled_from(
    [
        {"type": "http_error", "code": 503, "message": "unavailable"},
        {"type": "mcp_protocol_error", "code": -32001, "message": "timed out"},
        {"type": "mcp_tool_execution_error", "content": [{"type": "text", "text": "no"}]},
    ]
)
_SELDOM = st.sampled_from([False] * 7 + [True])
"""Runs are to go on for a while."""
_REASONS = st.sampled_from(["stop", "tool_calls", "length", "content_filter"])


class Responses(RuleBasedStateMachine):
    """An engine, servers and callers at whim; what came of it is kept beside the translator and compared.

    `wanted` holds what each item must say in the end, as (type, content, status).
    """

    def __init__(self) -> None:
        super().__init__()
        self.reader = Reader()
        self.wanted: list[tuple[str, str, str]] = []
        self.held: list[tuple[str, str]] = []
        self.calls: list[str] = []
        self.tokens = 0
        self.call = -1
        self.speaking = False  # the last of `wanted` may go on
        self.holding = False  # the last of `held` may go on
        self.in_turn = False
        self.fresh = True
        self.cut = False
        self.serving = ""
        self.ended = False

    @initialize(queued=st.booleans(), summarised=st.booleans(), sealed=st.booleans())
    def begin(self, queued: bool, summarised: bool, sealed: bool) -> None:
        """Set out."""
        self.sealed = sealed
        self.translator = Translator(
            Response(id="resp_1", created_at=1, model="m", service_tier="auto"),
            names(),
            summarised=summarised,
            seal=(lambda thought: f"sealed {thought}") if sealed else None,
            remote={"remote"},
        )
        self.reader = Reader(queued=queued)
        self.send(self.translator.begin(queued=queued))
        self.send(self.translator.progress())
        assert self.translator.progress() == []

    def send(self, events: list[e.StreamEvent]) -> None:
        """Have the client read events; each is one frame, named by its type, and valid to everybody."""
        for event in events:
            frame = e.frame(event).decode()
            name, data, *rest = frame.splitlines()  # at all that anybody takes for the end of a line
            assert (rest, frame[-2:]) == ([""], "\n\n")
            assert data.encode() == b"data: " + e.payload(event)
            body = check_once(e.payload(event))
            assert name == f"event: {body['type']}"
            self.reader.read(body)

    # what is to be

    def going(self) -> bool:
        """Whether the run is between turns, or in one."""
        return not self.ended and not self.serving and not self.cut

    def add(self, kind: str, content: str) -> None:
        """Expect one more item, or more of the last one."""
        self.holding = False
        if self.speaking and self.wanted[-1][0] == kind and kind != "function_call":
            self.wanted[-1] = (kind, self.wanted[-1][1] + content, "completed")
        else:
            self.wanted.append((kind, content, "completed"))
        self.speaking = True

    def stop(self, status: str) -> None:
        """Expect that nothing goes on; what was open has this status."""
        if self.speaking:
            kind, content, _ = self.wanted[-1]
            self.wanted[-1] = (kind, content, status)
        self.speaking = self.holding = False

    # the engine

    @precondition(going)
    @rule(said=st.lists(_SAID, max_size=6))
    def speak(self, said: list[Text | Reasoning]) -> None:
        """The model thinks and says."""
        self.start_turn(bool(said))
        for piece in said:
            if piece.text or (isinstance(piece, Text) and piece.logprobs):
                self.add("message" if isinstance(piece, Text) else "reasoning", piece.text)
        self.send(self.translator.feed(said))

    @precondition(going)
    @rule(remote=st.booleans(), pieces=st.lists(_WORDS, max_size=3), named=st.booleans())
    def wish(self, remote: bool, pieces: list[str], named: bool) -> None:
        """The model calls a function, or a tool of a server."""
        self.start_turn(True)
        self.call += 1
        name = "remote" if remote else "own"
        if remote:
            self.speaking = False
            self.held.append((name, "".join(pieces)))
            self.holding = True
        else:
            self.add("function_call", "".join(pieces))
            self.calls.append("".join(pieces))
        deltas: list[Event] = [ToolCallDelta(self.call, "", f"call_{self.call}" if named else None, name)]
        self.send(self.translator.feed([*deltas, *(ToolCallDelta(self.call, piece) for piece in pieces)]))

    def start_turn(self, really: bool) -> None:
        """Expect that the calls of an earlier turn are gone."""
        if really and self.fresh:
            self.fresh, self.calls, self.call = False, [], -1
        self.in_turn = self.in_turn or really

    @precondition(lambda self: self.going() and self.in_turn)
    @rule(reason=_REASONS, read=st.integers(0, 9), made=st.integers(0, 9), turn=st.booleans())
    def end_turn(self, reason: Any, read: int, made: int, turn: bool) -> None:
        """The model has done; whatever reason it gives, the run may settle, or settle and go on."""
        self.cut = reason in ("length", "content_filter")
        self.tokens += read + made
        self.send(self.translator.feed([Finish(reason), Usage(read, made)]))
        assert self.translator.reason == reason
        self.stop("incomplete" if self.cut else "completed")
        if self.cut:
            self.held = []
        if turn and not self.cut:
            self.send(self.translator.turn())
            assert self.translator.reason is None
            self.fresh = True
        else:
            self.send(self.translator.settle())
        self.in_turn = False
        assert [call.arguments for call in self.translator.calls] == self.calls

    @precondition(lambda self: not self.ended and not self.serving and not self.in_turn)
    @rule()
    def take(self) -> None:
        """What the model wished of servers is told once."""
        held = self.translator.take_held()
        assert [(call.name, call.arguments) for call in held] == self.held
        assert all(call.call_id for call in held)
        self.held = []
        assert self.translator.take_held() == []

    # servers

    @precondition(lambda self: self.going() and not self.in_turn)
    @rule()
    def list_begins(self) -> None:
        """A server is asked for its tools."""
        self.send(self.translator.list_begin("server"))
        self.serving = "list"

    @precondition(lambda self: self.serving == "list")
    @rule(tools=_TOOLS, error=st.none() | _WORDS)
    def list_ends(self, tools: list[Body], error: str | None) -> None:
        """The server has told, or failed to."""
        self.send(self.translator.list_end([] if error is not None else tools, error))
        self.wanted.append(("mcp_list_tools", error or "", "completed"))
        self.serving = ""

    @precondition(lambda self: self.going() and not self.in_turn)
    @rule(arguments=_WORDS, request=st.none() | st.just("mcpr_1"))
    def run_begins(self, arguments: str, request: str | None) -> None:
        """A tool is run."""
        self.send(self.translator.call_begin("server", "tool", arguments, request))
        self.serving = "call"

    @precondition(lambda self: self.serving == "call")
    @rule(output=_WORDS, error=st.none() | _ERRORS)
    def run_ends(self, output: str, error: Body | None) -> None:
        """It has answered, or failed."""
        output_or_none = output if error is None else None
        self.send(self.translator.call_end(output_or_none, error))
        status = "completed" if error is None else "failed"
        self.wanted.append(("mcp_call", str(output_or_none), status))
        self.serving = ""

    @precondition(lambda self: self.going() and not self.in_turn)
    @rule(arguments=_WORDS)
    def asks(self, arguments: str) -> None:
        """The caller is asked to approve."""
        self.send(self.translator.approval("server", "tool", arguments))
        self.wanted.append(("mcp_approval_request", arguments, "completed"))

    # ends

    @precondition(lambda self: not self.ended and not self.serving and not self.in_turn)
    @rule(
        kept=st.sampled_from(["kept", "not kept", "not kept, and told so", "cancelled meanwhile"]),
        really=_SELDOM,
    )
    def finish(self, kept: str, really: bool) -> None:
        """The run is at its end; its last event is replaced if it could not be stored."""
        if not really:
            return
        last = self.translator.finish(7)
        assert self.translator.over
        match kept:
            case "kept":
                assert (last.response.status == "incomplete") == (self.translator.reason in _CUT)
                self.send([last])
            case "cancelled meanwhile":
                self.send(self.translator.cancel(8))
            case _:
                if "told" in kept:
                    self.send(self.translator.error("store_full", "no room", None, "server_error"))
                self.send(self.translator.fail("store_full", "no room", 8))
        self.over()

    @precondition(lambda self: not self.ended)
    @rule(how=st.sampled_from(["fail", "cancel", "error"]), really=_SELDOM)
    def break_off(self, how: str, really: bool) -> None:
        """The engine dies, or somebody cancels, at any point."""
        if not really:
            return
        self.stop("incomplete")
        if self.serving == "list":
            self.wanted.append(("mcp_list_tools", INTERRUPTED, "completed"))
        elif self.serving == "call":
            self.wanted.append(("mcp_call", "None", "incomplete"))
        if how == "cancel":
            self.send(self.translator.cancel(8))
        else:
            if how == "error":
                self.send(self.translator.error("engine_died", "dead", None, "server_error"))
            self.send(self.translator.fail("engine_died", "dead", 8))
            error = self.translator.response.error
            assert error is not None
            assert error.code == "server_error"  # the list of codes is closed
        assert self.translator.take_held() == []
        self.over()

    def over(self) -> None:
        """Compare what the client has with what was meant."""
        self.ended, self.serving = True, ""
        assert self.translator.over
        assert self.reader.end is not None
        found = [(item["type"], _content(item), item.get("status", "completed")) for item in self.reader.done]
        assert found == self.wanted
        usage = self.reader.end["response"]["usage"]
        assert (usage["total_tokens"] if usage else 0) == self.tokens
        for item in self.reader.done:
            if item["type"] == "reasoning":
                assert item.get("encrypted_content") == (f"sealed {_content(item)}" if self.sealed else None)

    @precondition(lambda self: self.ended)
    @rule()
    def rest(self) -> None:
        """After the end there is nothing to do."""
        assert self.reader.end is not None

    @invariant()
    def nothing_is_hidden(self) -> None:
        """The response holds what the client was told is done."""
        if hasattr(self, "translator"):
            assert [item.id for item in self.translator.response.output] == [
                i["id"] for i in self.reader.done
            ]


_CUT = ("length", "content_filter")


def _content(item: Body) -> str:
    """Return what of an item the engine or a server has said."""
    match item["type"]:
        case "message":
            return str(item["content"][0]["text"])
        case "reasoning":
            return str((item["content"] or item["summary"])[0]["text"])
        case "mcp_call":
            return str(item["output"])
        case "mcp_list_tools":
            return str(item.get("error", ""))
        case _:
            return str(item["arguments"])


_FREE = {"text", "delta", "arguments", "id", "item_id", "token", "output", "encrypted_content", "name"}
_CHECKED: set[str] = set()


def check_once(json_text: bytes) -> Body:
    """Return an event's body; validate it unless one of the same shape was valid: that takes milliseconds."""
    body: Body = json.loads(json_text)
    shape = json.dumps(_shape(body))
    if shape not in _CHECKED:
        check_text(json_text)
        _CHECKED.add(shape)
    return body


def _shape(value: Any, key: str = "") -> Any:
    """Return a value without what no schema looks at: free text, numbers, and repetition in lists."""
    if isinstance(value, dict):
        return {name: _shape(inner, name) for name, inner in value.items()}
    if isinstance(value, list):
        return list({json.dumps(_shape(inner)): _shape(inner) for inner in value}.values())
    if isinstance(value, str) and key not in _FREE:
        return value
    return type(value).__name__


TestResponses = Responses.TestCase
TestResponses.settings = hypothesis.settings(max_examples=60, stateful_step_count=40, deadline=None)
