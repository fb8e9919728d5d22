"""Both event loops: modeld runs on uvloop, an engine's own interpreter may have asyncio's only."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
import pytest_asyncio
import uvloop

from modeld.protocol import messages as m
from modeld.protocol.channel import Caller, Link


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run each test of this folder on both loops."""
    return {"asyncio": asyncio.new_event_loop, "uvloop": uvloop.new_event_loop}


class Ends:
    """A caller and the worker's end of its link, with the messages that reached each."""

    def __init__(self) -> None:
        self.control: list[m.ToDaemon] = []
        self.received: list[m.ToWorker] = []
        self._news = asyncio.Event()
        self.caller = Caller(self._on_control)
        self.worker: Link[m.ToWorker] = Link(m.ToWorker, self._on_message)

    def _on_control(self, message: m.ToDaemon) -> None:
        self.control.append(message)
        self._news.set()

    def _on_message(self, message: m.ToWorker, size: int) -> None:
        self.received.append(message)
        self._news.set()

    async def until(self, test: Callable[[], Any]) -> None:
        """Wait until `test` holds; it is asked after each message."""
        async with asyncio.timeout(60):
            while not test():
                self._news.clear()
                await self._news.wait()

    async def seen_by_worker(self, count: int) -> list[m.ToWorker]:
        """Wait until the worker has got `count` messages, and return all."""
        await self.until(lambda: len(self.received) >= count)
        return self.received


@pytest_asyncio.fixture
async def ends() -> AsyncIterator[Ends]:
    """Give two connected ends over a real socket pair, and close them."""
    both = Ends()
    ours, theirs = socket.socketpair()
    await both.caller.attach(ours)
    await both.worker.attach(theirs)
    yield both
    both.caller.close()
    both.worker.close()
    async with asyncio.timeout(60):
        await asyncio.wait({both.caller.closed, both.worker.closed})


@pytest_asyncio.fixture
async def raw() -> AsyncIterator[tuple[Ends, socket.socket]]:
    """Give a caller whose peer is a bare socket."""
    both = Ends()
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    await both.caller.attach(ours)
    with theirs:
        yield both, theirs
    both.caller.close()
    async with asyncio.timeout(60):
        await asyncio.wait({both.caller.closed})
