"""`python -m tests.bench.store`: what a long chain of responses costs in the store. It prints figures.

Turns of a question and an answer of 300 letters each, stored one after the other; then what the last turn's
history takes to read with all before it in the same chain, and with a fork at every turn. `busy` is the same
while the event loop has other work all the time. Nothing here passes or fails.
"""

from __future__ import annotations

import asyncio
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import uvloop

from modeld.clock import SystemClock
from modeld.store.chains import Item
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Done, Draft, Origin, Responses

ROUNDS = 30
LETTERS = 300


def item(id: str) -> Item:
    """Return an item as a chat leaves them."""
    part = {"type": "output_text", "text": "a letter " * (LETTERS // 9), "annotations": [], "logprobs": []}
    return {"type": "message", "id": id, "role": "assistant", "status": "completed", "content": [part]}


def turn(id: str, origin: Origin, before: tuple[Item, ...] = ()) -> Done:
    """Return a turn of one question and one answer."""
    given, answer = (item(f"in_{id}"),), (item(f"out_{id}"),)
    return Done(id, "local", "completed", b"x" * 1500, 1.0, None, given, answer, before, origin)


async def timed(action: Callable[[], Awaitable[Any]], rounds: int = ROUNDS) -> tuple[float, float]:
    """Return the best and the median of what an action takes, in milliseconds."""
    spent = []
    for _ in range(rounds):
        began = time.perf_counter()
        await action()
        spent.append((time.perf_counter() - began) * 1000)
    return min(spent), statistics.median(spent)


async def busy() -> None:
    """Give the event loop work without end, half a millisecond at a time."""
    while True:
        until = time.perf_counter() + 0.0005
        while time.perf_counter() < until:
            pass
        await asyncio.sleep(0)


async def store_part(folder: Path, say: Callable[[str, str, str], None], turns: int = 1000) -> None:
    """Print the figures of a chain of so many turns, in a store inside `folder`."""
    async with Database.open(folder / "modeld.db", SystemClock()) as db:
        responses, conversations = Responses(db, "bench"), Conversations(db)
        sizes = []
        began = time.perf_counter()
        for number in range(turns):
            previous = f"r{number - 1}" if number else None
            await responses.finish(turn(f"r{number}", Origin(previous=previous)))
            if number + 1 in (turns // 2, turns):
                ((size,),) = await db.fetch(
                    "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"
                )
                sizes.append(int(size))
        each = (time.perf_counter() - began) / turns * 1000
        say(f"store: a turn stored, mean of {turns}", f"{each:.2f} ms", "")
        say(
            f"store: file after {turns // 2} and {turns} turns",
            f"{sizes[1] / 1024:.0f} KiB",
            f"{sizes[0] / 1024:.0f} KiB before; ratio {sizes[1] / sizes[0]:.3f}, "
            f"{sizes[1] / turns:.0f} bytes a turn",
        )
        last = f"r{turns - 1}"
        spent = time.process_time()
        best, median = await timed(lambda: responses.history("local", last))
        spent = (time.process_time() - spent) / ROUNDS * 1000
        say(
            f"store: history of turn {turns} read",
            f"{median:.2f} ms",
            f"best {best:.2f} ms, {spent:.2f} ms of processor",
        )
        best, median = await timed(lambda: responses.get("local", last))
        say("store: a response fetched", f"{median:.2f} ms", f"best {best:.2f} ms")
        async with asyncio.TaskGroup() as group:
            work = group.create_task(busy())
            best, median = await timed(lambda: responses.history("local", last))
            work.cancel()
        say(f"store: history of turn {turns}, busy", f"{median:.2f} ms", f"best {best:.2f} ms")
        numbers = iter(range(ROUNDS))
        async with asyncio.TaskGroup() as group:
            work = group.create_task(busy())
            best, median = await timed(lambda: responses.finish(turn(f"busy{next(numbers)}", Origin())))
            work.cancel()
        say("store: a turn stored, busy", f"{median:.2f} ms", f"best {best:.2f} ms")

        # Every turn answered twice, and gone on from the second answer: a fork each time.
        for number in range(turns):
            previous = f"f{number - 1}" if number else None
            await responses.finish(turn(f"other{number}", Origin(previous=previous)))
            await responses.finish(turn(f"f{number}", Origin(previous=previous)))
        best, median = await timed(lambda: responses.history("local", f"f{turns - 1}"))
        say(f"store: history through {turns - 1} forks", f"{median:.2f} ms", f"best {best:.2f} ms")

        began = time.perf_counter()
        for number in range(200):
            given = (item(f"in_b{number}"),)
            await responses.begin(
                Draft(f"b{number}", "local", b"x" * 1500, 1.0, None, given, (), Origin(), streamed=True)
            )
        say("store: 200 runs begun", f"{(time.perf_counter() - began) * 1000:.0f} ms", "")
        events = [(number, b"x" * 250) for number in range(20)]
        numbers = iter(range(200))
        best, median = await timed(lambda: responses.log(f"b{next(numbers)}", events))
        say("store: 20 events logged", f"{median:.2f} ms", f"best {best:.2f} ms")
        ids = [f"b{number}" for number in range(200)]
        best, median = await timed(lambda: responses.beat(ids, 2.0))
        say("store: heartbeat of 200 runs", f"{median:.2f} ms", f"best {best:.2f} ms")

        began = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            for number in range(200):
                group.create_task(responses.finish(turn(f"b{number}", Origin())))
        say("store: 200 runs ended at once", f"{(time.perf_counter() - began) * 1000:.0f} ms", "")

        await conversations.create("local", "c", {}, [item(f"c{number}") for number in range(2 * turns)], 1.0)
        said = await conversations.items("local", "c") or ()
        best, median = await timed(lambda: conversations.items("local", "c"))
        say(f"store: conversation of {2 * turns} items read", f"{median:.2f} ms", f"best {best:.2f} ms")
        began = time.perf_counter()
        await responses.finish(turn("talked", Origin(conversation="c"), said))
        say("store: a turn stored in that conversation", f"{(time.perf_counter() - began) * 1000:.2f} ms", "")

        began = time.perf_counter()
        for number in range(turns):
            await responses.delete("local", f"r{number}")
        each = (time.perf_counter() - began) / turns * 1000
        say(f"store: a response deleted, mean of {turns}", f"{each:.2f} ms", "")


def _print(name: str, value: str, note: str) -> None:
    print(f"{name:<44} {value:>16}  {note}", flush=True)


async def main() -> None:
    """Run the part in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        await store_part(Path(folder), _print)


if __name__ == "__main__":
    uvloop.run(main())
