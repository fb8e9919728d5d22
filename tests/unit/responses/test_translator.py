"""The order and pairing rules of response streams, on random sequences of an engine's events."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseStreamEvent
from pydantic import TypeAdapter

from modeld.protocol.tasks import Event, Finish, Reasoning, Text, TokenLogprob, ToolCallDelta, Usage
from modeld.responses import events as e
from modeld.responses.items import FunctionCall, OutputMessage, ReasoningItem, Response
from modeld.responses.translator import Translator

SDK: TypeAdapter[object] = TypeAdapter(ResponseStreamEvent)

_WORDS = st.text(max_size=4)
_PIECE = (
    st.builds(Text, _WORDS)
    | st.builds(lambda text: Text(text, 0, (TokenLogprob(text, -0.5),)), _WORDS)
    | st.builds(Reasoning, _WORDS)
)


@st.composite
def turns(draw: st.DrawFn) -> list[list[Event]]:
    """Give one to three turns of an engine: thoughts, text and calls in any order, each with its end."""
    out = []
    for _ in range(draw(st.integers(1, 3))):
        events: list[Event] = draw(st.lists(_PIECE, max_size=8))
        for call in range(draw(st.integers(0, 2))):
            arguments = draw(st.lists(_WORDS, max_size=3))
            events.append(ToolCallDelta(call, "", f"call_{call}", "f"))
            events += [ToolCallDelta(call, piece) for piece in arguments]
        events.append(Finish("tool_calls"))
        events.append(Usage(draw(st.integers(0, 9)), draw(st.integers(0, 9))))
        out.append(events)
    out[-1][-2] = Finish(draw(st.sampled_from(["stop", "length", "tool_calls", "content_filter"])))
    return out


def names() -> Callable[[str], str]:
    """Give ids that are counted."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def translated(
    engine: list[list[Event]], cut: int | None, sizes: list[int]
) -> tuple[list[e.StreamEvent], Response]:
    """Run turns through a translator, in batches of these sizes; fail after `cut` events, else complete."""
    translator = Translator(Response(id="resp_1", created_at=1, model="m"), names())
    out = translator.begin()
    fed = 0
    for number, events in enumerate(engine):
        if number:
            out += translator.turn()
        at = 0
        for size in itertools.cycle(sizes):
            if at >= len(events):
                break
            batch = events[at : at + size]
            if cut is not None and fed + len(batch) > cut:
                return out + translator.fail("server_error", "the engine died", 2), translator.response
            out += translator.feed(batch)
            at, fed = at + size, fed + len(batch)
    return [*out, *translator.settle(), translator.finish(2)], translator.response


_RUNS = (turns(), st.none() | st.integers(0, 12), st.lists(st.integers(1, 5), min_size=1, max_size=4))


@given(*_RUNS)
def test_numbers_and_ends(engine: list[list[Event]], cut: int | None, sizes: list[int]) -> None:
    """Numbers have no gaps from 0, created and in_progress come first, exactly one last event is the last."""
    events, response = translated(engine, cut, sizes)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [type(event) for event in events[:2]] == [e.Created, e.InProgress]
    assert [isinstance(event, e.TERMINAL) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    assert isinstance(last, e.TERMINAL)
    assert last.response == response
    assert response.status == str(last.__struct_config__.tag).removeprefix("response.")


@given(*_RUNS)
def test_items_open_and_close_in_order(engine: list[list[Event]], cut: int | None, sizes: list[int]) -> None:
    """Items do not interleave; what is said of one lies between its added and its done; deltas joined are the
    done text, which is what the response holds in the end.
    """
    events, response = translated(engine, cut, sizes)
    open_id: str | None = None
    said: list[str] = []
    done: list[Any] = []
    for event in events[2:-1]:
        match event:
            case e.ItemAdded(item=item):
                assert open_id is None
                assert event.output_index == len(done)
                assert item.status == "in_progress"
                open_id, said = item.id, []
            case e.ItemDone(item=item):
                assert (item.id, event.output_index) == (open_id, len(done))
                assert item.status in ("completed", "incomplete")
                done.append(item)
                open_id = None
            case e.TextDelta(delta=delta) | e.ReasoningDelta(delta=delta) | e.ArgumentsDelta(delta=delta):
                assert (event.item_id, event.output_index) == (open_id, len(done))
                said.append(delta)
            case e.TextDone(text=text) | e.ReasoningDone(text=text) | e.ArgumentsDone(arguments=text):
                assert (event.item_id, text) == (open_id, "".join(said))
            case e.PartAdded() | e.PartDone():
                assert event.item_id == open_id
    assert open_id is None
    assert done == response.output
    assert all(item.status == "completed" for item in done[:-1])


@given(*_RUNS)
def test_nothing_is_lost_or_made_up(engine: list[list[Event]], cut: int | None, sizes: list[int]) -> None:
    """Text, thoughts, arguments and tokens of the response are those of the engine, in its order."""
    events, response = translated(engine, None, sizes)
    flat = list(itertools.chain.from_iterable(engine))
    text = "".join(
        part.text for item in response.output if isinstance(item, OutputMessage) for part in item.content
    )
    assert text == "".join(event.text for event in flat if isinstance(event, Text))
    thought = "".join(
        part.text for item in response.output if isinstance(item, ReasoningItem) for part in item.content
    )
    assert thought == "".join(event.text for event in flat if isinstance(event, Reasoning))
    calls = [item for item in response.output if isinstance(item, FunctionCall)]
    assert len(calls) == sum(isinstance(event, ToolCallDelta) and event.id is not None for event in flat)
    assert "".join(call.arguments for call in calls) == "".join(
        event.arguments for event in flat if isinstance(event, ToolCallDelta)
    )
    assert response.usage is not None
    assert response.usage.total_tokens == sum(
        event.prompt_tokens + event.completion_tokens for event in flat if isinstance(event, Usage)
    )
    assert len(events) >= 3


@given(*_RUNS)
def test_the_sdk_takes_every_event(engine: list[list[Event]], cut: int | None, sizes: list[int]) -> None:
    """Each event is one frame, named by its type, whose data the SDK's strict types accept."""
    for event in translated(engine, cut, sizes)[0]:
        name, data, *rest = e.frame(event).decode().split("\n")
        assert rest == ["", ""]
        body = json.loads(data.removeprefix("data: "))
        assert name == f"event: {body['type']}"
        parsed = SDK.validate_python(body)
        assert type(parsed).__name__ != "dict"


@pytest.mark.parametrize("reason", ["length", "content_filter"])
def test_what_is_cut_short_is_incomplete(reason: str) -> None:
    """The response says why, and the item that was open is incomplete."""
    engine: list[list[Event]] = [[Text("half a sen"), Finish(reason), Usage(1, 2)]]  # type: ignore[arg-type]
    _, response = translated(engine, None, [1])
    assert response.status == "incomplete"
    assert response.incomplete_details is not None
    assert response.incomplete_details.reason == {"length": "max_output_tokens"}.get(reason, reason)
    assert [item.status for item in response.output] == ["incomplete"]
    assert response.completed_at is None


def test_all_keys_are_always_there() -> None:
    """The object has each of the 31 keys of the Open Responses schema, whatever their value."""
    keys = [
        "id",
        "object",
        "created_at",
        "completed_at",
        "status",
        "incomplete_details",
        "model",
        "previous_response_id",
        "instructions",
        "output",
        "error",
        "tools",
        "tool_choice",
        "truncation",
        "parallel_tool_calls",
        "text",
        "top_p",
        "presence_penalty",
        "frequency_penalty",
        "top_logprobs",
        "temperature",
        "reasoning",
        "usage",
        "max_output_tokens",
        "max_tool_calls",
        "store",
        "background",
        "service_tier",
        "metadata",
        "safety_identifier",
        "prompt_cache_key",
    ]
    body = msgspec.to_builtins(Response(id="resp_1", created_at=1, model="m"))
    assert len(keys) == 31
    assert set(keys) <= body.keys()
