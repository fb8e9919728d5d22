"""Helpers of these tests: run a parser over an answer and sum up what came out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modeld.protocol.tasks import FunctionTool, Text, ToolCallDelta
from modeld.worker.tools import CallParser

WEATHER = FunctionTool(
    name="get_weather",
    description="Get the current weather in a city",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
        "required": ["city"],
    },
)
TIME = FunctionTool(name="get.time", parameters=None)
TOOLS = {tool.name: tool.parameters for tool in (WEATHER, TIME)}

Summary = list[str | tuple[str, str]]
"""Texts, neighbours joined, and calls as (name, arguments), in the order they came."""


def summary(events: Sequence[Text | ToolCallDelta]) -> Summary:
    """Join deltas, and check what every stream of them must keep: numbers, ids, no interleaving."""
    found: Summary = []
    ids: list[str] = []
    for event in events:
        if isinstance(event, Text):
            assert event.text, "an empty text is no event"
            if found and isinstance(found[-1], str):
                found[-1] += event.text
            else:
                found.append(event.text)
        elif event.name is not None:
            assert event.call == len(ids), "calls are numbered 0, 1, … in order"
            assert event.id is not None
            assert event.id.startswith("call_")
            assert len(event.id) == len("call_") + 24
            ids.append(event.id)
            found.append((event.name, event.arguments))
        else:
            assert event.call == len(ids) - 1, "calls do not interleave"
            assert event.id is None
            last = found[-1]
            assert isinstance(last, tuple)
            found[-1] = (last[0], last[1] + event.arguments)
    assert len(set(ids)) == len(ids)
    return found


def parse(parser: CallParser, pieces: Iterable[str]) -> Summary:
    """Feed all pieces, finish, and sum up."""
    events: list[Text | ToolCallDelta] = []
    for piece in pieces:
        events += parser.feed(piece)
    events += parser.finish()
    found = summary(events)
    assert parser.called == any(isinstance(item, tuple) for item in found)
    return found
