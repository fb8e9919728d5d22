"""Running the programs that fetch, pull and build, for whoever waits for them."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from modeld.errors import LoadFailed

STOP_GRACE = 5.0
"""Seconds a program gets to clean up after SIGTERM, before SIGKILL."""


async def run(
    module: str, options: Mapping[str, str], doing: str, hear: Callable[[dict[str, Any]], None]
) -> None:
    """Run `python -m module`; `hear` gets each line of its progress. Cancelling stops it and its children.

    `doing` says in errors what it was at. Raises LoadFailed with what it says of its failure.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        module,
        *(f"--{name}={value}" for name, value in options.items()),
        f"--parent={os.getpid()}",
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        start_new_session=True,
    )
    assert process.stdout is not None
    outcome: dict[str, Any] = {}
    last_words = ""
    try:
        async for line in process.stdout:
            try:
                message = json.loads(line)
            except ValueError:
                last_words = line.decode("utf-8", "replace").strip() or last_words
                continue
            if "stage" in message:
                hear(message)
            else:
                outcome = message
        await process.wait()
    finally:
        await _stopped(process)
    if "error" in outcome:
        raise LoadFailed(str(outcome["error"]), permanent=bool(outcome.get("permanent")))
    if "done" not in outcome:
        code = process.returncode or 0
        how = f"killed by signal {-code}" if code < 0 else f"exit code {code}"
        raise LoadFailed(f"{doing} ended early ({how}){': ' if last_words else ''}{last_words}")


async def _stopped(process: asyncio.subprocess.Process) -> None:
    """Stop the program's process group if it still runs, and reap it."""
    if process.returncode is not None:
        return
    try:
        _signal_group(process.pid, signal.SIGTERM)
        async with asyncio.timeout(STOP_GRACE):
            await process.wait()
    except TimeoutError:
        pass
    finally:
        if process.returncode is None:
            _signal_group(process.pid, signal.SIGKILL)
    await process.wait()


def _signal_group(group: int, number: signal.Signals) -> None:
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return
