"""Daemons for tests of the Responses API, and how the SDK's clients do what only this API has.

Scripted models do what a tiny one cannot be relied on to do: think, call just these tools, take just so long.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple

from openai.types.responses import ParsedResponse

from tests.conformance.python_sdk import Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import fake

CREATE = "responses.create"
RETRIEVE = "responses.retrieve"

PARIS = {"city": "Paris", "celsius": True}
ANSWER = "It is sunny in Paris."
THOUGHT = "They ask for the weather."
SUM = "The sum is three."

_CALL = {"call": {"name": "get_weather", "arguments": PARIS}}
_ADD = {"call": {"name": "add", "arguments": {"a": 1, "b": 2}}}

SCRIPTS: dict[str, dict[str, Any]] = {
    "chatty": {"turns": [[{"text": "Hello, here I am."}]]},
    "thinker": {"turns": [[{"reasoning": THOUGHT}, {"text": ANSWER}]]},
    "caller": {"turns": [[{"reasoning": THOUGHT}, _CALL, _CALL], [{"text": ANSWER}]]},
    "remote": {"turns": [[_ADD], [{"text": SUM}]]},
    "mixed": {"turns": [[_ADD, _CALL], [{"text": SUM}]]},
    "again": {"turns": [[_ADD, {"text": SUM}]]},
    "failer": {"turns": [[{"call": {"name": "fail"}}], [{"text": SUM}]]},
    "hanger": {"turns": [[{"call": {"name": "hang", "arguments": {"mark": "here"}}}]]},
    "passer": {"turns": [[{"call": {"name": "transfer_to_forecaster"}}]]},
    "slow": {"tokens": 300, "token_delay": 0.05},
    "failing": {"turns": [[{"text": "So far, so good."}, {"fail": "the wheels came off"}]]},
}
"""By the model's name. Calls go to tools that a request offers, and a turn is over when it has called."""

WEATHER: dict[str, Any] = {
    "type": "function",
    "name": "get_weather",
    "description": "Tell the weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Rome"]}, "celsius": {"type": "boolean"}},
        "required": ["city", "celsius"],
        "additionalProperties": False,
    },
    "strict": True,
}
FORCED = {"type": "function", "name": "get_weather"}


@asynccontextmanager
async def scripted(
    *names: str, more: tuple[dict[str, Any], ...] = (), **config: Any
) -> AsyncIterator[Daemon]:
    """Run a daemon with these scripts, and with more models."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        models = [*more, *(fake(name, **SCRIPTS[name]) for name in names)]
        async with running(Path(folder), {"models": models, "allow_fake": True, **config}) as daemon:
            for model in models:
                await daemon.until(model["name"], "ready")
            yield daemon


class Helped(NamedTuple):
    """What the SDK's stream helper gave: its events, and the response it put together."""

    events: list[Any]
    final: ParsedResponse[Any]


async def helped(sdk: Sdk, **body: Any) -> Helped:
    """Stream a response through the SDK's own helper, which checks their order as it goes."""
    if isinstance(sdk, SyncSdk):
        client = sdk.client

        def read() -> Helped:
            with client.responses.stream(**body) as stream:
                return Helped(list(stream), stream.get_final_response())

        return await asyncio.to_thread(read)
    async with sdk.client.responses.stream(**body) as stream:
        events = [event async for event in stream]
        return Helped(events, await stream.get_final_response())


async def until(sdk: Sdk, method: str, enough: Callable[[Any], bool], **body: Any) -> list[Any]:
    """Read a stream up to an event that is enough, and leave it there."""
    call = attrgetter(method)(sdk.client)
    events = []
    if isinstance(sdk, SyncSdk):

        def read() -> None:
            with call(stream=True, **body) as stream:
                for event in stream:
                    events.append(event)
                    if enough(event):
                        return

        await asyncio.to_thread(read)
        return events
    async with await call(stream=True, **body) as stream:
        async for event in stream:
            events.append(event)
            if enough(event):
                break
    return events


async def settled(sdk: Sdk, id: str) -> Any:
    """Poll a response until it is over, as the guides for background mode do."""
    async with asyncio.timeout(60):
        while (found := await sdk.call(RETRIEVE, response_id=id)).status in ("queued", "in_progress"):
            await asyncio.sleep(0.02)
    return found


def said(output: list[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """Return what a response's items say: their type, and their text, arguments or result."""
    found = []
    for item in output:
        match item["type"]:
            case "message":
                text = "".join(part["text"] for part in item["content"])
            case "reasoning":
                text = "".join(part["text"] for part in item["summary"] or item.get("content") or [])
            case "mcp_list_tools":
                text = " ".join(sorted(tool["name"] for tool in item["tools"]))
            case "mcp_call":
                text = str(item["output"])
            case _:
                text = item["arguments"]
        found.append((item["type"], text))
    return found
