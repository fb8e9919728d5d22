"""The daemon's end of a worker link, as a test holds it: what the worker said, and a way to wait for it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, TypeVar

from modeld.protocol import messages as m
from modeld.protocol.channel import Caller, OpenCall
from modeld.protocol.tasks import ChatTask, Event, Message, Sampling, Text

WAIT_S = 60.0
"""Seconds after which a wait is a failed test; far more than anything here takes."""

T = TypeVar("T")


def chat(text: str = "hi", *, max_tokens: int | None = None, n: int = 1) -> ChatTask:
    """Return a chat of one user message."""
    return ChatTask(
        messages=(Message(role="user", content=text),), sampling=Sampling(max_tokens=max_tokens), n=n
    )


def text_of(events: list[Event], index: int = 0) -> str:
    """Return the text of one choice."""
    return "".join(event.text for event in events if isinstance(event, Text) and event.index == index)


async def rest(call: OpenCall) -> list[Event]:
    """Read a call to its end."""
    got: list[Event] = []
    async with asyncio.timeout(WAIT_S):
        while (events := await call.take(None)) is not None:
            got += events
    return got


class WorkerLink:
    """A `Caller` that keeps every message of the worker that belongs to no call, and answers of all calls."""

    def __init__(self) -> None:
        self.control: list[m.ToDaemon] = []
        self.answers: list[m.ToDaemon] = []
        self._news = asyncio.Event()
        self.caller = Caller(self._on_control)
        dispatch = self.caller._dispatch

        def spy(message: m.ToDaemon, size: int) -> None:
            if isinstance(message, m.Ended | m.Failed):
                self.answers.append(message)
            dispatch(message, size)
            self._news.set()

        self.caller._on_message = spy

    def _on_control(self, message: m.ToDaemon) -> None:
        self.control.append(message)

    async def until(self, test: Callable[[], T]) -> T:
        """Wait until `test` gives something true, and return it; it is asked after each message."""
        async with asyncio.timeout(WAIT_S):
            while not (found := test()):
                self._news.clear()
                await self._news.wait()
        return found

    async def said(self, kind: type[T]) -> T:
        """Wait for the first control message of a kind."""
        await self.until(lambda: any(isinstance(message, kind) for message in self.control))
        return next(message for message in self.control if isinstance(message, kind))

    async def closed(self) -> Any:
        """Wait for the link's end and return why."""
        async with asyncio.timeout(WAIT_S):
            await asyncio.wait({self.caller.closed})
        return self.caller.closed.result()

    def load(self, loader: str = "fake", **options: Any) -> None:
        """Ask for a load."""
        self.caller.send(m.Load(m.LoadSpec("m", loader, "generate", "/nowhere", "/nowhere", options=options)))

    async def loaded(self, loader: str = "fake", **options: Any) -> m.Facts:
        """Ask for a load and wait until the model is ready."""
        self.load(loader, **options)
        return (await self.said(m.Ready)).facts
