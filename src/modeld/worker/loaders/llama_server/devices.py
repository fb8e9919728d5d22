"""Where the engine computes. llama.cpp does not tell over HTTP: its program lists its devices when asked to,
and xllamacpp's tells them while it starts.
"""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys

from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.llama_server.engine import Engine

LIST_S = 10.0
"""Seconds `llama-server --list-devices` may take: it wakes every driver."""

_LISTED = re.compile(r"^\s+(\S+): (.+?)(?: \(\d+ MiB.*)?$")


async def device_of(spec: LoadSpec, engine: Engine, program: str) -> str:
    """Return where the model runs, in words: "cpu", or the accelerators it was given.

    `program` is the engine's own, asked if it has not told.
    """
    if spec.options.get("n_gpu_layers") == 0 or (not spec.gpus and sys.platform != "darwin"):
        return "cpu"  # the worker sees no GPU, or the engine is told to leave it alone
    found = engine.accelerators
    if found is None:
        found = await asyncio.to_thread(_listed, program)
    return words(found)


def words(accelerators: list[str] | None) -> str:
    """Return the device for people; None is for an engine that does not tell."""
    if accelerators is None:
        return "chosen by the engine"
    return ", ".join(accelerators) or "cpu"


def _listed(binary: str) -> list[str] | None:
    try:
        done = subprocess.run(
            [binary, "--list-devices"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LIST_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parsed(done.stdout.decode("utf-8", "replace")) if done.returncode == 0 else None


def parsed(output: str) -> list[str] | None:
    """Return the accelerators in what `--list-devices` prints, None when it is something else."""
    _, heading, rest = output.partition("Available devices:")
    if not heading:
        return None
    found = [_LISTED.match(line) for line in rest.splitlines() if line.strip()]
    return [f"{one[1]} ({one[2]})" for one in found if one is not None]
