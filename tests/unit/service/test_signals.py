from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Iterator

import pytest

from modeld.service.signals import StopSignals, stop_signals

LIMIT_S = 60


@pytest.fixture(autouse=True)
def _handlers_put_back() -> Iterator[None]:
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    after = {number: signal.getsignal(number) for number in numbers}
    for number, handler in before.items():
        signal.signal(number, handler)
    assert after == before


async def _kill(number: signal.Signals, event: asyncio.Event) -> None:
    os.kill(os.getpid(), number)
    async with asyncio.timeout(LIMIT_S):
        await event.wait()


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
async def test_first_stops_second_forces(first: signal.Signals, second: signal.Signals) -> None:
    """One signal asks for a stop and names itself; any second one asks for a stop at once."""
    with stop_signals() as signals:
        assert not signals.stop.is_set()
        await _kill(first, signals.stop)
        assert signals.cause == first.name
        assert not signals.force.is_set()
        await _kill(second, signals.force)
        assert signals.cause == first.name


async def test_hangup_calls_the_hook() -> None:
    """With a hook SIGHUP calls it, each time, and stops nothing."""
    called = asyncio.Event()
    with stop_signals(on_hangup=called.set) as signals:
        await _kill(signal.SIGHUP, called)
        called.clear()
        await _kill(signal.SIGHUP, called)
        assert not signals.stop.is_set()


async def test_hangup_without_a_hook_is_a_stop() -> None:
    """A terminal that goes away stops the daemon in order."""
    with stop_signals() as signals:
        await _kill(signal.SIGHUP, signals.stop)
        assert signals.cause == "SIGHUP"


async def test_nohup_is_respected() -> None:
    """A process started to ignore SIGHUP goes on ignoring it."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with stop_signals() as signals:
            os.kill(os.getpid(), signal.SIGHUP)
            await _kill(signal.SIGTERM, signals.stop)
            assert signals.cause == "SIGTERM"
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_stop_may_come_from_inside() -> None:
    """`request` is the same as a signal, for a daemon that stops itself."""
    signals = StopSignals()
    signals.request("idle")
    assert (signals.stop.is_set(), signals.force.is_set(), signals.cause) == (True, False, "idle")
    signals.request("again")
    assert (signals.force.is_set(), signals.cause) == (True, "idle")
