"""The scripted model at work."""

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
    CountTask,
    Finish,
    GenerateTask,
    Reasoning,
    Task,
    Text,
    Usage,
    unsupported,
)
from modeld.worker.loader import Emit, LoadedModel, Report
from modeld.worker.loaders.fake.script import Script, Step, Token, prompt_tokens, tokens_of, turn_of, words

LOOK_S = 0.02
"""Seconds between two looks at whether a file is there."""


class FakeModel:
    """Answers every call with the script's tokens."""

    def __init__(self, script: Script) -> None:
        self._script = script
        self._pieces = words(script.reply) if script.reply is not None else None
        # Written to, so that it is resident: untouched pages cost nothing and would show nowhere.
        self._memory = b"\x01" * script.memory
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.facts = Facts(
            loader="fake",
            device="none",
            slots=script.slots,
            bytes_used=script.memory,
            context_length=script.context_length,
            capabilities=("chat", "completion"),
            detail={"engine": "scripted"},
        )

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Emit the script's tokens for each choice, then Finish and Usage; or count a prompt."""
        if isinstance(task, CountTask):
            return await emit(Usage(prompt_tokens(task.chat), 0))
        if not isinstance(task, ChatTask | CompletionTask):
            raise unsupported("fake", task)
        if isinstance(task, CompletionTask) and task.suffix is not None:
            raise BadRequest(
                "the script writes on at a text's end only; leave suffix out",
                code="unsupported_parameter",
                param="suffix",
            )
        if isinstance(task, ChatTask) and (given := prompt_tokens(task)) > self._script.context_length:
            raise BadRequest(
                f"the request has {given} tokens, the model's context holds {self._script.context_length}; "
                "shorten it, or raise context_length",
                code="context_length_exceeded",
                param="messages",
            )
        if not self._script.ignore_cancel:
            return await self._answer(task, emit)
        answering = asyncio.ensure_future(self._answer(task, emit))
        while not answering.done():
            with contextlib.suppress(asyncio.CancelledError):
                await asyncio.wait({answering})
        answering.result()

    async def _answer(self, task: GenerateTask, emit: Emit) -> None:
        if self._script.first_delay:
            await asyncio.sleep(self._script.first_delay)
        if isinstance(task, ChatTask) and self._script.turns:
            turn = turn_of(self._script, task)
            said = [await self._play(turn, task, index, emit) for index in range(task.n)]
        else:
            said = [(await self._reply(task, index, emit), 0) for index in range(task.n)]
        written, thoughts = (sum(counts) for counts in zip(*said, strict=True))
        await emit(Usage(_prompt_tokens(task), written, reasoning_tokens=thoughts))

    async def _reply(self, task: GenerateTask, index: int, emit: Emit) -> int:
        """Give one choice of the plain answer; return its tokens."""
        pieces = self._pieces
        total = len(pieces) if pieces is not None else self._script.tokens
        limit = task.sampling.max_tokens
        cut = limit is not None and limit < total
        if limit is not None and cut:
            total = limit
        for count in range(total):
            # Made one by one: a list of millions would be the memory that tests measure.
            await self._token(
                Text(pieces[count] if pieces is not None else f"tok{count} ", index), count, emit
            )
        await self._misbehave(total)
        await emit(Finish("length" if cut else "stop", index))
        return total

    async def _play(self, turn: tuple[Step, ...], task: ChatTask, index: int, emit: Emit) -> tuple[int, int]:
        """Give one choice of a turn; return its tokens, and how many of them were thoughts."""
        count, thoughts, calls = 0, 0, 0
        reason: Any = None
        limit = task.sampling.max_tokens
        for step in turn:
            for token in tokens_of(step, calls, index):
                if limit is not None and count >= limit:
                    reason = "length"
                    break
                await self._token(token, count, emit)
                count += 1
                thoughts += isinstance(token, Reasoning)
            calls += step.call is not None
            reason = reason or step.finish
            if reason is not None:
                break
            await self._act(step)
        await self._misbehave(count)
        await emit(Finish(reason or ("tool_calls" if calls else "stop"), index))
        return count, thoughts

    async def _token(self, token: Token, count: int, emit: Emit) -> None:
        await self._misbehave(count)
        await emit(token)
        if self._script.token_delay:
            await asyncio.sleep(self._script.token_delay)

    async def _act(self, step: Step) -> None:
        """Do what a step does beside speaking."""
        if step.delay:
            await asyncio.sleep(step.delay)
        if step.fail is not None:
            raise EngineError(step.fail)
        if step.crash:
            await _crash()
        if step.hang:
            await asyncio.Event().wait()

    async def _misbehave(self, count: int) -> None:
        script = self._script
        if script.fail_after == count:
            raise EngineError(f"scripted failure after {count} tokens")
        if script.crash_after == count:
            await _crash()
        if script.hang_after == count:
            await asyncio.Event().wait()

    async def close(self) -> None:
        """Nothing to unload; with `ignore_term` the process refuses to go."""
        if self._script.ignore_term:
            print("scripted: ignoring the request to stop", flush=True)
            await asyncio.Event().wait()


async def _crash() -> None:
    # What came before must be on the wire: a crash in the middle, not instead, of an answer.
    await asyncio.sleep(0.05)
    print("scripted crash: going down", flush=True)
    os.kill(os.getpid(), signal.SIGKILL)


def _prompt_tokens(task: GenerateTask) -> int:
    match task:
        case ChatTask():
            return prompt_tokens(task)
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
    while script.load_until is not None and not os.path.exists(script.load_until):
        await asyncio.sleep(LOOK_S)
        report("waiting for a file", None)
    if script.load_hang:
        await asyncio.Event().wait()
    if script.load_crash:
        print("scripted crash while loading", flush=True)
        os._exit(3)
    if script.load_error is not None:
        raise LoadFailed(script.load_error, permanent=script.load_error_permanent)
    return FakeModel(script)
