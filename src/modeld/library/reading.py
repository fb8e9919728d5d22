"""Has GGUF models read by processes of their own: what a file does to its reader harms nobody else."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from modeld.library.about import Answer
from modeld.library.walk import NOT_TEXT, as_text

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

READ_S = 60.0
"""Seconds that reading one model's header may take; a disk that is slower gives its size only."""

MOST_READERS = 4
"""Readers that share the work, where there are as many cores: each has up to 100 MB while it runs."""

_BATCH = 16
"""Models that a reader is given at once, so that it never waits for the next."""

_LONGEST_ANSWER = 8 * 1024**2

Job: TypeAlias = "Sequence[Path]"
"""The files of one model, in their order."""


async def read_models(jobs: Sequence[Job]) -> list[Answer]:
    """Return an answer for each model, in their order; several readers share the work of many.

    Cancelling ends the readers. Nothing else is raised: what went wrong is in the answer.
    """
    answers: list[Answer | None] = [None] * len(jobs)
    for number, job in enumerate(jobs):
        if any(as_text(str(path)) != str(path) for path in job):
            answers[number] = Answer(trouble=f"{as_text(str(job[0]))} {NOT_TEXT}")
    waiting = deque(number for number, answer in enumerate(answers) if answer is None)

    async def work() -> None:
        while waiting:
            await _reader(jobs, waiting, answers)

    async with asyncio.TaskGroup() as group:
        for _ in range(min(MOST_READERS, os.cpu_count() or 1, -(-len(waiting) // _BATCH))):
            group.create_task(work())
    return [answer or Answer(trouble="it was not read") for answer in answers]


async def _reader(jobs: Sequence[Job], waiting: deque[int], answers: list[Answer | None]) -> None:
    """Run one reader until nothing waits, or until a model has cost its life or its time."""
    async with _started() as process:
        assert process.stdin is not None
        assert process.stdout is not None
        while waiting:
            batch = list(_taken(waiting))
            lines = [msgspec.json.encode([str(path) for path in jobs[number]]) + b"\n" for number in batch]
            process.stdin.write(b"".join(lines))
            for done, number in enumerate(batch):
                answers[number], alive = await _answer(process)
                if not alive:
                    waiting.extendleft(reversed(batch[done + 1 :]))
                    return


def _taken(waiting: deque[int]) -> Iterator[int]:
    for _ in range(_BATCH):
        if not waiting:
            return
        yield waiting.popleft()


async def _answer(process: asyncio.subprocess.Process) -> tuple[Answer, bool]:
    """Return the next answer, and whether the reader can be asked again."""
    assert process.stdout is not None
    try:
        async with asyncio.timeout(READ_S):
            line = await process.stdout.readline()
            if line.endswith(b"\n"):
                return msgspec.json.decode(line, type=Answer), True
            words = await process.stderr.read() if process.stderr is not None else b""
            code = await process.wait()
    except TimeoutError:
        return Answer(unknown=f"reading it took over {READ_S:g} s"), False
    except (ValueError, msgspec.MsgspecError):
        return Answer(unknown="the reader's answer makes no sense"), False
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    last = words.decode("utf-8", "replace").strip().rpartition("\n")[2]
    return Answer(unknown=last or f"the reader ended early ({how})"), False


@asynccontextmanager
async def _started() -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a reader; it is killed at the end, since it holds nothing that needs a clean one."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-m", "modeld.library.gguf", f"--parent={os.getpid()}"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
        limit=_LONGEST_ANSWER,
    )
    try:
        yield process
    finally:
        if process.stdin is not None:
            process.stdin.close()
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
