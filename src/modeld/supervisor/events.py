"""The event feed: what happened to which model, for `ctl events`, the log and the terminal.

Publishing never waits: a subscriber that does not keep up loses the oldest events, and is told how many.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import msgspec

from modeld.clock import Clock

KEPT = 500
"""Events kept for a subscriber who comes later, and the most one slow subscriber may lag behind."""


class FeedEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the feed. `time` is UTC seconds; `kind` is state, progress, call or lost.

    kind "state": `state`, `cause` and `message` as in Status. kind "progress": `message` is the stage,
    `progress` 0..1 or absent; of what is fetched `done` and `total` are bytes, absent when unknown. kind
    "lost": `message` says how many events this subscriber missed.
    """

    time: float
    kind: str
    model: str
    state: str | None = None
    cause: str | None = None
    message: str = ""
    progress: float | None = None
    done: int | None = None
    total: int | None = None


class _Subscription:
    def __init__(self, backlog: list[FeedEvent]) -> None:
        self.waiting = deque(backlog, maxlen=KEPT)
        self.lost = 0
        self.wake = asyncio.Event()

    async def follow(self, clock: Clock) -> AsyncIterator[FeedEvent]:
        while True:
            if self.lost:
                lost, self.lost = self.lost, 0
                yield FeedEvent(
                    clock.time(), "lost", "", message=f"{lost} events were lost: reading too slowly"
                )
            elif self.waiting:
                yield self.waiting.popleft()
            else:
                self.wake.clear()
                await self.wake.wait()


class EventFeed:
    """Fan-out of events to any number of subscribers."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._recent: deque[FeedEvent] = deque(maxlen=KEPT)
        self._subscriptions: set[_Subscription] = set()

    def publish(
        self,
        kind: str,
        model: str,
        *,
        state: str | None = None,
        cause: str | None = None,
        message: str = "",
        progress: float | None = None,
        done: int | None = None,
        total: int | None = None,
    ) -> None:
        """Add an event; returns at once."""
        event = FeedEvent(self._clock.time(), kind, model, state, cause, message, progress, done, total)
        self._recent.append(event)
        for subscription in self._subscriptions:
            if len(subscription.waiting) == KEPT:
                subscription.lost += 1
            subscription.waiting.append(event)
            subscription.wake.set()

    def recent(self) -> Iterator[FeedEvent]:
        """Iterate over the kept events, oldest first."""
        return iter(tuple(self._recent))

    @contextmanager
    def subscribe(self, *, replay: bool = False) -> Iterator[AsyncIterator[FeedEvent]]:
        """Give an endless iterator over events from now on, or from the oldest kept one with `replay`."""
        subscription = _Subscription(list(self._recent) if replay else [])
        self._subscriptions.add(subscription)
        try:
            yield subscription.follow(self._clock)
        finally:
            self._subscriptions.discard(subscription)
