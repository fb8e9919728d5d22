"""`nox -s bench`: what modeld costs, as ratios and differences against the raw engine in the same run.

The engine part serves the demo model twice, by llama.cpp alone and by modeld, and alternates
requests between them. The gateway part uses the scripted loader, so that modeld itself is all there is to
measure. The swap part asks for the model that is not loaded. translator, store, library and jobs
are programs of their own. Nothing here passes or fails: it prints figures.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import socket
import statistics
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from tests.bench.client import Target, Timing, count_tokens, hammer, request, stream
from tests.harness.daemon import Daemon, running
from tests.harness.models import demo_model, fake, llama


def say(name: str, value: str, note: str = "") -> None:
    """Print one figure."""
    print(f"{name:<44} {value:>16}  {note}", flush=True)


def _port(daemon: Daemon) -> int:
    return int(daemon.url.rpartition(":")[2])


def _chat(model: str, **more: Any) -> bytes:
    body = {
        "model": model,
        "messages": [{"role": "user", "content": "Tell me a story about the sea."}],
        **more,
    }
    return request(body)


# --- the engine, raw and behind modeld --------------------------------------------------------------------


@contextlib.asynccontextmanager
async def raw_engine(model: Path, options: dict[str, Any]) -> AsyncIterator[Target]:
    """Run llama.cpp's server alone, with the same options."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    settings = json.dumps({"model": str(model), "socket": "", **options})
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.bench.raw_engine",
        settings,
        str(port),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(60), aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError):
                    async with session.get(f"http://127.0.0.1:{port}/health") as response:
                        if response.status == 200:
                            break
                await asyncio.sleep(0.05)
        yield Target(port)
    finally:
        process.terminate()
        await process.wait()


async def _alternate(
    raw: Target, ours: Target, wire: bytes, rounds: int, value: Callable[[Timing], float]
) -> tuple[list[float], list[float]]:
    """Send the same request to both in turn, and return what each took, in pairs."""
    for target in (raw, ours, raw, ours):
        await stream(target, wire)
    taken: dict[Target, list[float]] = {raw: [], ours: []}
    for turn in range(rounds):
        # Who goes first changes, so that what one leaves behind falls on both alike.
        for target in (raw, ours) if turn % 2 else (ours, raw):
            taken[target].append(value(await stream(target, wire)))
    return taken[raw], taken[ours]


def _compare(what: str, raw: list[float], ours: list[float]) -> None:
    """Print both medians, and the median of what modeld added in each round."""
    one, other = statistics.median(raw) * 1000, statistics.median(ours) * 1000
    added = statistics.median(b - a for a, b in zip(raw, ours, strict=True)) * 1000
    say(f"{what} raw / modeld (median)", f"{one:.2f} / {other:.2f} ms", f"ratio {other / one:.3f}")
    say(f"{what} added (median of {len(raw)} pairs)", f"{added:.3f} ms")


async def engine_part(folder: Path, rounds: int) -> None:
    """Alternate raw and modeld: TTFT, inter-token latency, throughput at 8 streams, cancel."""
    model = demo_model()
    options = {"n_ctx": 1024, "parallel": 8, "threads": 1}
    async with (
        raw_engine(model, options) as raw,
        running(folder, {"models": [llama("m", model, **options)]}) as daemon,
    ):
        await daemon.until("m", "ready")
        ours = Target(port=_port(daemon))
        # The first token needs no more than one; the gaps between tokens need many.
        short = _chat("m", stream=True, max_tokens=1, temperature=0)
        first = await _alternate(raw, ours, short, rounds, lambda timing: timing.first)
        _compare("TTFT", *first)
        long = _chat("m", stream=True, max_tokens=64, temperature=0)
        gaps = await _alternate(raw, ours, long, max(rounds // 10, 5), lambda timing: timing.gap)
        _compare("inter-token latency", *gaps)

        rates: dict[Target, list[float]] = {raw: [], ours: []}
        wire = _chat("m", stream=True, max_tokens=64, temperature=0)
        for turn in range(4):
            for target in (raw, ours) if turn % 2 else (ours, raw):
                began = time.perf_counter()
                timings = await asyncio.gather(*(stream(target, wire) for _ in range(8)))
                rates[target].append(sum(t.chunks for t in timings) / (time.perf_counter() - began))
        rate = {target: statistics.median(values) for target, values in rates.items()}
        ratio = rate[ours] / rate[raw]
        say("8 streams, tokens/s raw / modeld", f"{rate[raw]:.0f} / {rate[ours]:.0f}", f"ratio {ratio:.3f}")
        await cancel_part(daemon, ours)


async def cancel_part(daemon: Daemon, ours: Target) -> None:
    """Leave streams half-way; time until the engine itself says that no slot works."""
    [sock] = (daemon.state_dir / "run").glob("*/engine.sock")
    connector = aiohttp.UnixConnector(str(sock), force_close=True)
    freed: list[float] = []
    token: list[float] = []
    async with aiohttp.ClientSession("http://engine", connector=connector) as session:

        async def busy() -> bool:
            async with session.get("/slots") as response:
                return any(slot["is_processing"] for slot in await response.json())

        for _ in range(20):
            reader, writer = await ours.connect()
            writer.write(_chat("m", stream=True, max_tokens=500, temperature=0))
            seen, began, arrivals = 0, time.perf_counter(), []
            while seen < 8:
                seen += (await reader.read(1 << 16)).count(b"data: ")
                arrivals.append(time.perf_counter() - began)
            token.append((arrivals[-1] - arrivals[0]) / max(len(arrivals) - 1, 1))
            left = time.perf_counter()
            writer.transport.abort()
            while await busy():
                pass
            freed.append(time.perf_counter() - left)
    step = statistics.median(token) * 1000
    say(
        "client gone -> engine slot free (median)",
        f"{statistics.median(freed) * 1000:.1f} ms",
        f"one token takes {step:.1f} ms",
    )


# --- modeld alone -----------------------------------------------------------------------------------------


async def gateway_part(folder: Path) -> None:
    """Tokens and requests per second with the scripted loader; memory, CPU, start, cancel."""
    config = {
        "models": [
            fake("f", tokens=200),
            fake("short", tokens=8),
            fake("endless", tokens=10**6, token_delay=0.005),
        ],
        "allow_fake": True,
    }
    async with running(folder, config) as daemon:
        await daemon.until("f", "ready")
        await daemon.until("short", "ready")
        await daemon.until("endless", "ready")
        process = psutil.Process(daemon.pid)
        say("idle daemon, resident", f"{process.memory_info().rss / 1e6:.1f} MB")
        process.cpu_percent()
        await asyncio.sleep(5)
        say("idle daemon, CPU over 5 s", f"{process.cpu_percent():.2f} %")
        target = Target(port=_port(daemon))
        wire = _chat("f", stream=True)
        rates = []
        total = pieces = 0
        for turn in range(32):
            began = time.perf_counter()
            counts = await asyncio.gather(*(count_tokens(target, wire) for _ in range(20)))
            if turn >= 2:
                rates.append(20 * 200 / (time.perf_counter() - began))
            total += sum(count for count, _ in counts)
            pieces += sum(chunks for _, chunks in counts)
        assert total == 32 * 20 * 200, total
        say(
            "20 streams of 200 tokens, tokens/s",
            f"{statistics.median(rates):,.0f}",
            f"best {max(rates):,.0f}; {total / pieces:.2f} tokens a chunk",
        )
        plain = _chat("short")
        await asyncio.gather(*(hammer(target, plain, 0.5) for _ in range(16)))
        began = time.perf_counter()
        answered = sum(await asyncio.gather(*(hammer(target, plain, 4.0) for _ in range(16))))
        say("plain requests/s (8 tokens, 16 connections)", f"{answered / (time.perf_counter() - began):,.0f}")
        say("after the load, resident", f"{process.memory_info().rss / 1e6:.1f} MB")
        await worker_cancel_part(daemon, target)


async def worker_cancel_part(daemon: Daemon, target: Target) -> None:
    """Leave streams of the scripted model; time until modeld counts the slot as free."""
    freed: list[float] = []
    connector = aiohttp.UnixConnector(str(daemon.state_dir / "admin.sock"))
    async with aiohttp.ClientSession("http://admin", connector=connector) as session:
        for _ in range(30):
            reader, writer = await target.connect()
            writer.write(_chat("endless", stream=True))
            while b"tok" not in await reader.read(1 << 16):
                pass
            left = time.perf_counter()
            writer.transport.abort()
            while True:
                async with session.get("/status") as response:
                    models = (await response.json())["models"]
                if not any(model["in_flight"] for model in models):
                    break
            freed.append(time.perf_counter() - left)
    say(
        "client gone -> slot free, scripted model",
        f"{statistics.median(freed) * 1000:.1f} ms",
        "seen by polling",
    )


async def start_part(folder: Path) -> None:
    """From exec to the first answer of /health; beside it, what importing the libraries alone takes here."""
    libraries = "import aiohttp.web, msgspec, pydantic, psutil, click, prometheus_client, ruamel.yaml, uvloop"
    imports = []
    for _ in range(5):
        began = time.perf_counter()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", libraries)
        await process.wait()
        imports.append(time.perf_counter() - began)
    alone = statistics.median(imports)
    say(
        "importing the libraries alone (median of 5)",
        f"{alone:.2f} s",
        "tells how fast this machine is today",
    )
    times = []
    for turn in range(7):
        here = folder / str(turn)
        here.mkdir()
        began = time.perf_counter()
        async with running(here, {"models": [fake("f")], "allow_fake": True}) as daemon:
            async with aiohttp.ClientSession() as session, session.get(f"{daemon.url}/health") as response:
                assert response.status == 200
            times.append(time.perf_counter() - began)
    say(
        "start to answering /health (median of 7)",
        f"{statistics.median(times):.2f} s",
        f"best {min(times):.2f} s",
    )


# --- swapping -----------------------------------------------------------------------------------------------


async def swap_part(folder: Path) -> None:
    """Ask for the model that is not loaded, again and again, with room for one of two: idle, so it goes."""
    memory = 100 * 1024**2
    scripted = [fake(name, memory=memory) | {"load": "on_demand"} for name in ("one", "other")]
    await _swaps(folder / "fake", "scripted model", scripted, 170 * 1024**2, 20)
    model = demo_model()
    real = [llama(name, model, n_ctx=1024) | {"load": "on_demand"} for name in ("one", "other")]
    await _swaps(folder / "real", "llama.cpp, demo model", real, 300 * 1024**2, 12)


async def _swaps(folder: Path, what: str, models: list[dict[str, Any]], ram: int, rounds: int) -> None:
    """Print what a swap takes beyond the new engine's own load and its own first token.

    The load is what the daemon itself gives as "loaded in": from the worker's process to its Ready. From
    there to the first token it is the engine's first answer, slower than those that follow: a loaded engine's
    is printed beside it, and what modeld adds to any answer is the gateway part's business.
    """
    folder.mkdir()
    names = [str(model["name"]) for model in models]
    config = {"allow_fake": True, "memory": {"ram": ram}, "models": models}
    async with running(folder, config) as daemon:
        target = Target(port=_port(daemon))
        wires = {name: _chat(name, stream=True, max_tokens=1, cache_prompt=False) for name in names}
        for name in names:  # once each, so that sizes are known
            await stream(target, wires[name])
        loads, answers, warm, added = [], [], [], []
        for turn in range(rounds):
            name = names[turn % 2]
            before = await _load_seconds(daemon, name)
            began = time.time()
            total = (await stream(target, wires[name])).first
            status = await daemon.model(name)
            load = await _load_seconds(daemon, name) - before
            assert load > 0, f"{name} was loaded already"
            ready = status["since"] - began
            loads.append(load)
            answers.append(total - ready)
            added.append(ready - load)
            warm.append((await stream(target, wires[name])).first)
    load, extra, first, again = (statistics.median(values) * 1000 for values in (loads, added, answers, warm))
    say(
        f"swap: {what} (median of {rounds})",
        f"{extra:.0f} ms",
        f"engine's own load {load:.0f} ms, modeld adds {extra:.0f} ms (worst {max(added) * 1000:.0f}); "
        f"first token {first:.0f} ms after that, {again:.0f} ms when loaded",
    )


async def _load_seconds(daemon: Daemon, name: str) -> float:
    """Return the seconds that all loads of a model have taken."""
    found = [
        value
        for sample, value in (await daemon.metrics()).items()
        if sample.startswith("modeld_model_load_seconds_sum{") and f'model="{name}"' in sample
    ]
    return sum(found)


APART = ("translator", "store", "library", "jobs")
"""Parts that are programs of their own: `python -m tests.bench.NAME`, some with options."""


async def apart(name: str) -> None:
    """Run a part that is a program."""
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", f"tests.bench.{name}")
    await process.wait()


async def main(parts: list[str], rounds: int) -> None:
    """Run the parts in a folder of their own."""
    steps: dict[str, Callable[[Path], Awaitable[None]]] = {
        "start": start_part,
        "gateway": gateway_part,
        "engine": lambda folder: engine_part(folder, rounds),
        "swap": swap_part,
    }
    for part in parts:
        if part in APART:
            await apart(part)
            continue
        with tempfile.TemporaryDirectory(prefix="md") as folder:
            await steps[part](Path(folder))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Measure modeld.")
    parser.add_argument(
        "parts",
        nargs="*",
        default=["start", "gateway", "engine", "swap", *APART],
        help="start, gateway, engine, swap, translator, store, library, jobs: what to measure",
    )
    parser.add_argument("--rounds", type=int, default=200, help="alternations of the engine part")
    arguments = parser.parse_args()
    uvloop.run(main(arguments.parts, arguments.rounds))
