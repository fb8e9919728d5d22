"""A scripted model for faults, load and speed. It proves nothing about any engine.

Its options are the configuration's `fake_config`; the configuration refuses it unless `allow_fake: true`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from typing import Any

import msgspec

from modeld.errors import BadRequest, EngineError, LoadFailed
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    Finish,
    GenerateTask,
    Task,
    Text,
    Usage,
    unsupported,
)
from modeld.worker.loader import Emit, LoadedModel, Report


class Script(msgspec.Struct, frozen=True):
    """What the fake does; delays in seconds, counts in tokens."""

    reply: str | None = None
    tokens: int = 16
    first_delay: float = 0.0
    token_delay: float = 0.0
    load_seconds: float = 0.0
    load_steps: int = 1
    load_error: str | None = None
    load_error_permanent: bool = True
    load_crash: bool = False
    load_hang: bool = False
    memory: int = 0
    slots: int = 64
    fail_after: int | None = None
    crash_after: int | None = None
    hang_after: int | None = None
    ignore_term: bool = False
    ignore_cancel: bool = False
    junk_stdout: bool = False


class FakeModel:
    """Answers every call with the script's tokens."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._pieces = _split(script.reply) if script.reply is not None else None
        # Written to, so that it is resident: untouched pages cost nothing and would show nowhere.
        self._memory = b"\x01" * script.memory
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.facts = Facts(
            loader="fake",
            device="none",
            slots=script.slots,
            bytes_used=script.memory,
            context_length=4096,
            capabilities=("chat", "completion"),
            detail={"engine": "scripted"},
        )

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Emit the script's tokens for each choice, then Finish and Usage."""
        if not isinstance(task, ChatTask | CompletionTask):
            raise unsupported("fake", task)
        if isinstance(task, CompletionTask) and task.suffix is not None:
            raise BadRequest(
                "the script writes on at a text's end only; leave suffix out",
                code="unsupported_parameter",
                param="suffix",
            )
        if not self._script.ignore_cancel:
            await self._answer(task, emit)
            return
        answering = asyncio.ensure_future(self._answer(task, emit))
        while not answering.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({answering})
        answering.result()

    async def _answer(self, task: GenerateTask, emit: Emit) -> None:
        script = self._script
        if script.first_delay:
            await asyncio.sleep(script.first_delay)
        pieces = self._pieces
        total = len(pieces) if pieces is not None else script.tokens
        limit = task.sampling.max_tokens
        cut = limit is not None and limit < total
        if limit is not None and cut:
            total = limit
        for index in range(task.n):
            for count in range(total):
                await self._misbehave(count)
                # Made one by one: a list of millions would be the memory that tests measure.
                await emit(Text(pieces[count] if pieces is not None else f"tok{count} ", index))
                if script.token_delay:
                    await asyncio.sleep(script.token_delay)
            await self._misbehave(total)
            await emit(Finish("length" if cut else "stop", index))
        await emit(Usage(_prompt_tokens(task), total * task.n))

    async def _misbehave(self, count: int) -> None:
        script = self._script
        if script.fail_after == count:
            raise EngineError(f"scripted failure after {count} tokens")
        if script.crash_after == count:
            # What came before must be on the wire: a crash in the middle, not instead, of an answer.
            await asyncio.sleep(0.05)
            print("scripted crash: going down", flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if script.hang_after == count:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to unload; with `ignore_term` the process refuses to go."""
        if self._script.ignore_term:
            print("scripted: ignoring the request to stop", flush=True)
            await asyncio.Event().wait()


def _split(text: str) -> list[str]:
    words = text.split(" ")
    return [word + " " for word in words[:-1]] + words[-1:]


def _prompt_tokens(task: GenerateTask) -> int:
    match task:
        case ChatTask():
            return sum(len(str(message.content or "").split()) for message in task.messages)
        case CompletionTask():
            return len(task.prompt.split()) if isinstance(task.prompt, str) else len(task.prompt)


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load by the script in `spec.options`. Raises LoadFailed when the script says so."""
    options: dict[str, Any] = {key: value for key, value in spec.options.items() if value is not None}
    script = msgspec.convert(options, Script)
    if script.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if script.junk_stdout:
        os.write(1, b"\xff\xfe\x00 not text \x01\n" + b"x" * 100_000 + b"\n")
    for step in range(1, script.load_steps + 1):
        await asyncio.sleep(script.load_seconds / script.load_steps)
        report("pretending to load", step / script.load_steps)
    if script.load_hang:
        await asyncio.Event().wait()
    if script.load_crash:
        print("scripted crash while loading", flush=True)
        os._exit(3)
    if script.load_error is not None:
        raise LoadFailed(script.load_error, permanent=script.load_error_permanent)
    return FakeModel(script)
