"""Somebody who talks to a model all the time, and notices whatever goes missing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from tests.harness.sse import chat

TOKENS = 40
"""Tokens of one answer of a scripted model that is talked to."""

SCRIPT = {"tokens": TOKENS, "token_delay": 0.005}
"""What such a model does."""


def whole(tokens: int = TOKENS) -> str:
    """Return the whole answer of a scripted model that makes up so many tokens."""
    return "".join(f"tok{count} " for count in range(tokens))


@asynccontextmanager
async def talking(url: str, model: str, callers: int = 2) -> AsyncIterator[None]:
    """Stream from a model, one answer after the other, from before the context's body to after it.

    At every moment of the body there is a stream in flight, and each caller has one more after the body; each
    must be whole. The model follows `SCRIPT`.
    """
    enough = asyncio.Event()
    first = asyncio.Event()

    async def caller(session: aiohttp.ClientSession) -> None:
        last = False
        while not last:
            last = enough.is_set()
            answer = await chat(session, url, model)
            assert answer.error is None, answer.error
            assert answer.done
            assert answer.text == whole()
            first.set()

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(callers):
            group.create_task(caller(session))
        await first.wait()
        try:
            yield
        finally:
            enough.set()
