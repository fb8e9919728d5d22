"""Waiting for something until somebody changes his mind."""

from __future__ import annotations

import asyncio

import pytest

from modeld.supervisor.intent import ChangedMind, Intent


async def test_what_is_not_wanted_any_more_cleans_up_even_if_it_had_not_begun() -> None:
    """With the mind changed before the first step, what is awaited begins and is cancelled, not dropped."""
    intent, held = Intent(1.0), {"claim"}

    async def holding() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            held.discard("claim")

    with pytest.raises(ChangedMind):
        await intent.unless_changed(holding())
    assert held == set()


async def test_what_is_there_at_once_is_returned_whatever_is_wanted() -> None:
    """A result is never lost: who asked has to give it back."""

    async def lease() -> str:
        return "lease"

    assert await Intent(1.0).unless_changed(lease()) == "lease"


async def test_a_change_of_mind_ends_the_wait() -> None:
    """While it waits, a nudge with the mind changed cancels it; one with the mind unchanged does not."""
    intent = Intent(1.0)
    intent.wanted = True
    over = asyncio.Event()
    waiting = asyncio.ensure_future(intent.unless_changed(over.wait()))
    await asyncio.sleep(0)
    intent.nudge()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not waiting.done()
    intent.wanted = False
    intent.nudge()
    with pytest.raises(ChangedMind):
        await waiting
