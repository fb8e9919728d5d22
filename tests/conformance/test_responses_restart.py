"""What outlives the daemon, by the Python SDK, strict: it is stopped, started again on its state, and asked.

The models are scripted.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.conformance.python_sdk import AsyncSdk
from tests.conformance.responses_daemon import CREATE, RETRIEVE, SCRIPTS, SUM, said
from tests.harness.daemon import Daemon, running
from tests.harness.mcp_server import mcp_server
from tests.harness.models import fake
from tests.harness.responses import check_stream, replay

NAMES = ("thinker", "remote")
ASK: dict[str, Any] = {"model": "thinker", "input": "What is the weather?"}


async def ready(daemon: Daemon) -> None:
    """Wait for all models."""
    for name in NAMES:
        await daemon.until(name, "ready")


async def test_everything_that_is_kept() -> None:
    """Responses, what they were given, chains, conversations, streams, sealed thoughts and calls that wait
    for approval are there after a restart.
    """
    config = {"models": [fake(name, **SCRIPTS[name]) for name in NAMES], "allow_fake": True}
    with tempfile.TemporaryDirectory(prefix="md") as path:
        folder = Path(path)
        async with mcp_server() as server:
            tools = [{"type": "mcp", "server_label": "sums", "server_url": server.url}]
            async with running(folder, config) as daemon, AsyncSdk(daemon.url) as sdk:
                await ready(daemon)
                conversation = await sdk.call("conversations.create", metadata={"a": "b"})
                first = await sdk.call(CREATE, **ASK, conversation=conversation.id)
                streamed = await sdk.items(CREATE, **ASK, background=True, stream=True)
                body = {**ASK, "store": False, "include": ["reasoning.encrypted_content"]}
                thought, message = (await sdk.call(CREATE, **body)).output
                asked = await sdk.call(CREATE, model="remote", input="Add one and two.", tools=tools)
            async with running(folder, config) as daemon, AsyncSdk(daemon.url) as sdk:
                assert await sdk.call(RETRIEVE, response_id=first.id) == first
                [given] = await sdk.items("responses.input_items.list", response_id=first.id)
                assert given.content[0].text == ASK["input"]
                id = streamed[-1].response.id
                again = await replay(daemon.url, id)
                assert again.events == [event.to_dict() for event in streamed]
                check_stream(again.events)
                await ready(daemon)
                second = await sdk.call(CREATE, **ASK, previous_response_id=first.id)
                third = await sdk.call(CREATE, **ASK, conversation=conversation.id)
                assert second.usage.input_tokens == third.usage.input_tokens > first.usage.input_tokens
                found = await sdk.call("conversations.retrieve", conversation_id=conversation.id)
                assert found == conversation
                sealed = {
                    "type": "reasoning",
                    "summary": [],
                    "encrypted_content": thought.encrypted_content,
                }
                rest = [message.to_dict(), {"role": "user", "content": "So?"}]
                with_it = await sdk.call(CREATE, **{**body, "input": [sealed, *rest]})
                without = await sdk.call(CREATE, **{**body, "input": rest})
                assert with_it.usage.input_tokens > without.usage.input_tokens
                answer = {
                    "type": "mcp_approval_response",
                    "approval_request_id": asked.output[-1].id,
                    "approve": True,
                }
                onward = {"model": "remote", "input": [answer], "tools": tools}
                done = await sdk.call(CREATE, **onward, previous_response_id=asked.id)
                assert said([item.to_dict() for item in done.output]) == [("mcp_call", "3"), ("message", SUM)]
                with pytest.raises(openai.BadRequestError, match="answered already"):
                    await sdk.call(CREATE, **onward, previous_response_id=asked.id)
