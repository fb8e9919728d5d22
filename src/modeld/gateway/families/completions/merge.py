"""Several calls as one stream: choice numbers run on from prompt to prompt, usage is added up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from typing import TypeAlias

import msgspec

from modeld.gateway.ports import Stream
from modeld.protocol.tasks import Event, Finish, Reasoning, Text, ToolCallDelta, Usage

WAIT = 60.0
"""Seconds of one wait of a pump; it only has to be finite."""

_Item: TypeAlias = list[Event] | Exception | None


class _Merged:
    def __init__(self, count: int) -> None:
        # Small: a slow reader must hold the engines back, not fill this.
        self.queue: asyncio.Queue[_Item] = asyncio.Queue(maxsize=count)
        self._open = count
        self._usages: list[Usage] = []

    async def take(self, timeout: float) -> list[Event] | None:
        """Give what came from any of the calls; their usage comes as one, after all else."""
        try:
            async with asyncio.timeout(timeout):
                while self._open:
                    item = await self.queue.get()
                    if isinstance(item, Exception):
                        raise item
                    if item is None:
                        self._open -= 1
                        continue
                    self._usages += [event for event in item if isinstance(event, Usage)]
                    events: list[Event] = [event for event in item if not isinstance(event, Usage)]
                    if events:
                        return events
        except TimeoutError:
            return []
        if not self._usages:
            return None
        total = Usage(
            prompt_tokens=sum(usage.prompt_tokens for usage in self._usages),
            completion_tokens=sum(usage.completion_tokens for usage in self._usages),
            cached_tokens=sum(usage.cached_tokens for usage in self._usages),
            reasoning_tokens=sum(usage.reasoning_tokens for usage in self._usages),
        )
        self._usages.clear()
        return [total]


@asynccontextmanager
async def merged(openings: Sequence[AbstractAsyncContextManager[Stream]], n: int) -> AsyncIterator[Stream]:
    """Open all calls and give their events as one stream; choice i of call k becomes k * n + i.

    The first call that fails fails the whole, and leaving cancels all that are not over.
    """
    failure: Exception | None = None
    async with AsyncExitStack() as stack:
        streams = [await stack.enter_async_context(opening) for opening in openings]
        fan_in = _Merged(len(streams))
        async with asyncio.TaskGroup() as group:
            pumps = [group.create_task(_pump(stream, at * n, fan_in)) for at, stream in enumerate(streams)]
            try:
                yield fan_in
            except Exception as error:  # raised outside of the group, which would wrap it
                failure = error
            finally:
                for pump in pumps:
                    pump.cancel()
        if failure is not None:
            raise failure


async def _pump(stream: Stream, offset: int, fan_in: _Merged) -> None:
    try:
        while (events := await stream.take(WAIT)) is not None:
            if events:
                await fan_in.queue.put([_shifted(event, offset) for event in events])
    except Exception as error:
        await fan_in.queue.put(error)
    else:
        await fan_in.queue.put(None)


def _shifted(event: Event, offset: int) -> Event:
    if not offset or not isinstance(event, Text | Reasoning | ToolCallDelta | Finish):
        return event
    return msgspec.structs.replace(event, index=event.index + offset)
