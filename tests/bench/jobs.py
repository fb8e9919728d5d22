"""What jobs cost: `python -m tests.bench.jobs`. It prints figures; nothing passes or fails.

Submissions go to the scripted loader, 10,000 of them. What a full queue of batches adds to the time to the
first token of a chat is measured on the demo model, whose slots are at work on a batch.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from tests.bench.client import Target, request
from tests.harness.daemon import Daemon, running
from tests.harness.jobs import PREFIX
from tests.harness.models import demo_model, fake, llama

MIB = 1024**2


def say(name: str, value: str, note: str = "") -> None:
    """Print one figure."""
    print(f"{name:<44} {value:>16}  {note}", flush=True)


async def post(target: Target, wire: bytes, count: int) -> None:
    """Send a request so often, one after the other on one connection."""
    reader, writer = await target.connect()
    for _ in range(count):
        writer.write(wire)
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        at = head.index(b"Content-Length: ") + 16
        await reader.readexactly(int(head[at : head.index(b"\r\n", at)]))
    writer.close()


async def submissions(count: int, clients: int) -> None:
    """Submit so many chats to a model that does not get on with them."""
    model = fake("m", slots=1, tokens=1_000_000, token_delay=1.0)
    body = {"model": "m", "messages": [{"role": "user", "content": "Tell me a story about the sea."}]}
    wire = request(body, f"{PREFIX}/Chat")
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": [model], "allow_fake": True}) as daemon:
            await daemon.until("m", "ready")
            process = psutil.Process(daemon.process.pid)
            target = Target(int(daemon.url.rpartition(":")[2]))
            before, cpu, begun = process.memory_info().rss, process.cpu_times(), time.perf_counter()
            await asyncio.gather(*(post(target, wire, count // clients) for _ in range(clients)))
            spent = time.perf_counter() - begun
            after, used = process.memory_info().rss, process.cpu_times()
            busy = used.user + used.system - cpu.user - cpu.system
            load = psutil.getloadavg()[0]
            say(
                f"{count} submissions, {clients} clients", f"{spent:.2f} s", f"load of the machine {load:.1f}"
            )
            say("  of the daemon's processor time", f"{busy:.2f} s")
            say("  memory, before and after", f"{before / MIB:.1f}, {after / MIB:.1f} MiB")


async def first_token(daemon: Daemon, session: aiohttp.ClientSession, text: str) -> tuple[float, list[float]]:
    """Return the milliseconds to a chat's first token, and those between the others."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": text}],
        "stream": True,
        "max_tokens": 12,
        "temperature": 0,
    }
    begun = last = time.perf_counter()
    first, gaps = 0.0, list[float]()
    async with session.post(f"{daemon.url}/v1/chat/completions", json=body) as response:
        assert response.status == 200, await response.text()
        async for line in response.content:
            if not line.startswith(b"data: {"):
                continue
            choices = json.loads(line[6:])["choices"]
            if not choices or not choices[0]["delta"].get("content"):
                continue
            now = time.perf_counter()
            if first:
                gaps.append((now - last) * 1000)
            else:
                first = (now - begun) * 1000
            last = now
    return first, gaps


async def latency(rounds: int, slots: int) -> None:
    """Chat beside an idle queue, and beside one that is full of batches."""
    model = llama("m", demo_model(), parallel=slots, n_ctx=1024)
    item = {
        "messages": [{"role": "user", "content": "Write a long story about a lighthouse."}],
        "sampling": {"max_tokens": 400, "temperature": 0.8},
    }
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": [model]}) as daemon, aiohttp.ClientSession() as session:
            await daemon.until("m", "ready")
            await first_token(daemon, session, "Warm up.")
            idle = [await first_token(daemon, session, f"{at}: what is the sea?") for at in range(rounds)]
            batch: dict[str, Any] = {"model": "m", "items": [item] * 500}
            async with session.post(f"{daemon.url}{PREFIX}/BatchChat", json=batch) as response:
                assert response.status == 200, await response.text()
            full = []
            for at in range(rounds):
                while (await daemon.model("m"))["in_flight"] < max(slots - 1, 1):  # one is kept for people
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.5)  # the batch is at its tokens, not at its prompts
                full.append(await first_token(daemon, session, f"{at}: what is the wind?"))
            metrics = await (await session.get(f"{daemon.url}/metrics")).text()
    yielded = next(line for line in metrics.splitlines() if line.startswith("modeld_job_items_yielded_total"))
    alone, beside = (statistics.median(first for first, _ in runs) for runs in (idle, full))
    step = statistics.median(gap for _, gaps in full for gap in gaps)
    say(f"first token, idle queue, {slots} slots", f"{alone:.1f} ms")
    say("first token, the slots at work on a batch", f"{beside:.1f} ms", f"{beside / alone:.2f} x")
    say("  one step of the engine then", f"{step:.1f} ms", f"it grew by {(beside - alone) / step:.2f} steps")
    say("  times an item gave way", yielded.split()[1])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--submissions", type=int, default=10_000)
    parser.add_argument("--clients", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--slots", type=int, default=2)
    args = parser.parse_args()
    uvloop.run(submissions(args.submissions, args.clients))
    uvloop.run(latency(args.rounds, args.slots))


if __name__ == "__main__":
    main()
