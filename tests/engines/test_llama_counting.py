"""What llama.cpp counts for a chat is what it reads, also with a template that knows tools and thinking."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import pytest_asyncio

from modeld.errors import BadRequest
from modeld.protocol.tasks import ChatTask, CountTask, Message, Usage
from tests.harness.loaded import Loaded, loaded
from tests.harness.loader_contract import ASK, BRIEF, CHATS
from tests.harness.models import TEMPLATE, demo_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def aware() -> AsyncIterator[Loaded]:
    """Give the demo model with a template that renders tools and opens thoughts."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        options = {"n_ctx": 1024, "threads": 1, "chat_template": str(TEMPLATE)}
        async with loaded(Path(folder), demo_model(), "llama_server", "generate", **options) as it:
            yield it


async def counted(it: Loaded, chat: ChatTask) -> int:
    """Return what is counted, and assert that a chat then reports the same."""
    [count] = await it.ask(CountTask(chat=chat))
    usage = (await it.ask(chat))[-1]
    assert isinstance(count, Usage)
    assert isinstance(usage, Usage)
    assert count.prompt_tokens == usage.prompt_tokens
    return count.prompt_tokens


@pytest.mark.parametrize("chat", CHATS, ids=range(len(CHATS)))
async def test_a_template_that_renders_tools(aware: Loaded, chat: ChatTask) -> None:
    """Tools, calls, results and forms as the template and the engine's own parsers render them."""
    assert await counted(aware, chat) > 10


@pytest.mark.parametrize(
    "fields",
    [
        {"template_kwargs": {"enable_thinking": False}},
        {"engine_options": {"chat_template_kwargs": {"enable_thinking": False}}},
        {"engine_options": {"add_generation_prompt": False}},
        {"engine_options": {"cache_prompt": False}},
    ],
)
async def test_options_that_change_the_prompt(aware: Loaded, fields: dict[str, Any]) -> None:
    """What a caller hands to the template or to the engine is part of what is counted."""
    plain = CHATS[0]
    changed = await counted(aware, msgspec.structs.replace(plain, **fields))
    assert (changed != await counted(aware, plain)) == ("cache_prompt" not in str(fields))


async def test_an_answer_that_is_to_be_continued(aware: Loaded) -> None:
    """An assistant's message at the end is no turn of its own to the engine, and is counted as that."""
    begun = Message(role="assistant", content="It is because of")
    await counted(aware, msgspec.structs.replace(CHATS[0], messages=(BRIEF, ASK, begun)))


async def test_what_a_chat_refuses_is_not_counted(aware: Loaded) -> None:
    """A picture for a model that sees none is refused as the chat refuses it."""
    from modeld.protocol.tasks import ImagePart

    seen = Message(role="user", content=(ImagePart(url="data:image/png;base64,xx"),))
    with pytest.raises(BadRequest, match="no projector"):
        await aware.ask(CountTask(chat=ChatTask(messages=(seen,))))
