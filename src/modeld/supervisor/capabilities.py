"""Which loaders can work on this machine, as the worker program finds it out; no engine is imported.

An engine is looked for under the interpreter that the configuration names; without one in the daemon's own
environment, and then in the one that `modeld engines install` has made. So a model needs no word of
configuration to use either, and an engine that is installed while the daemon runs is found at the next look.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias, get_args

import msgspec

from modeld.clock import Clock
from modeld.config.model import LoaderName
from modeld.errors import UsageError
from modeld.protocol.capabilities import Capability
from modeld.supervisor.process import UNFIT, program, variables

VARIABLE = "MODELD_CAPABILITIES"
"""Environment variable: "vllm=yes,diffusers=no" is believed in the place of what is found."""

RECHECK_S = 30.0
"""Seconds after which a loader that was missing is looked for again: somebody may have installed it."""

RUN_S = 20.0
"""Seconds the check may take; a broken llama-server alone is given five."""

OUTPUT_LIMIT = 1 << 20
"""Bytes of output after which the check is broken; a true answer is about 1 KiB."""

_DRAIN_S = 1.0

FAKE = "fake"
LOADERS: tuple[str, ...] = get_args(LoaderName)

_DECODER = msgspec.json.Decoder(dict[str, Capability])


_Where: TypeAlias = tuple[str | None, str | None]
"""The llama-server and the interpreter of one model, as far as they are its own."""


class _Broken(Exception):
    """The check itself failed, in words for people."""


class _Answer(msgspec.Struct):
    """What a run told and when; `broken` when it told nothing."""

    found: dict[str, Capability]
    at: float
    run: int
    broken: bool


class Capabilities:
    """Asks the worker program, one run at a time, and remembers.

    `override` is believed without a run (see `override_from`). `command` is the program, for tests.
    `managed` gives the interpreter of the environment that modeld has made for a loader, None without one;
    it is asked at each question.
    """

    def __init__(
        self,
        *,
        clock: Clock,
        override: Mapping[str, bool] | None = None,
        command: Sequence[str] | None = None,
        managed: Callable[[str], str | None] = lambda loader: None,
    ) -> None:
        self._clock = clock
        self._override = {
            name: Capability(there, f"declared {'available' if there else 'missing'} by {VARIABLE}")
            for name, there in (override or {}).items()
        }
        self._command = tuple(command or (sys.executable, "-m", "modeld.worker", "--capabilities"))
        self._managed = managed
        self._lock = asyncio.Lock()
        self._answers: dict[_Where, _Answer] = {}
        self._runs = 0
        self._forgotten = 0

    async def all(
        self,
        *,
        fresh: bool = False,
        binary: str | None = None,
        pythons: Mapping[str, str] | None = None,
    ) -> dict[str, Capability]:
        """Return what is there for every loader the configuration knows.

        `fresh` looks again, whatever is remembered. `binary` is the llama-server that is configured, and
        `pythons` the interpreters, by loader. Without an answer every loader counts as available, since the
        load itself will tell.
        """
        after = self._runs if fresh else None
        found = {FAKE: Capability(True, "needs no engine"), **self._override}
        for loader in LOADERS:
            if loader not in found:
                named = (pythons or {}).get(loader)
                found[loader] = await self._found(loader, binary, named, after)
        return found

    async def find(self, loader: str, *, binary: str | None = None, python: str | None = None) -> Capability:
        """Return what is there for a loader, and under which interpreter.

        `binary` and `python` are the model's own llama-server and interpreter. A missing engine is looked for
        again at most every RECHECK_S seconds.
        """
        declared = self._override.get(loader)
        if declared is None and loader == FAKE:
            declared = Capability(True, "needs no engine")
        if declared is not None:
            return msgspec.structs.replace(declared, python=python or "")
        return await self._found(loader, binary, python, None)

    async def _found(
        self, loader: str, binary: str | None, python: str | None, after: int | None
    ) -> Capability:
        """Ask the interpreter that is named, or the daemon's own and then the managed one."""
        found = await self._ask(loader, (binary, python), after)
        if python is not None or found.available:
            return found
        managed = self._managed(loader)
        if managed is None:
            return found
        there = await self._ask(loader, (binary, managed), after)
        if there.available:
            return there
        return msgspec.structs.replace(there, fix=f"modeld engines install {loader}")

    async def _ask(self, loader: str, where: _Where, after: int | None) -> Capability:
        found = None
        known = self._known(where)
        if after is None and known is not None and not known.broken:
            # What is there is not asked for again because another loader is missing.
            found = known.found.get(loader)
        if found is None or not found.available:
            answer = await self._answer(where, after)
            absent = Capability(False, f"this version of modeld has no loader {loader}")
            found = answer.found.get(loader, absent)
        return msgspec.structs.replace(found, python=where[1] or "")

    def forget(self) -> None:
        """Forget what was found, so that the next question looks."""
        self._forgotten = self._runs  # the answer of a run that is under way is forgotten as well

    def _known(self, where: _Where) -> _Answer | None:
        known = self._answers.get(where)
        return known if known is not None and known.run > self._forgotten else None

    async def _answer(self, where: _Where, after: int | None) -> _Answer:
        """Return the remembered answer if it will do, else run. `after`: only a run begun after that many."""
        async with self._lock:  # whoever waited here finds the answer of the run it waited for
            known = self._known(where)
            if known is not None:
                if after is not None:
                    if known.run > after:
                        return known
                elif self._clock.monotonic() - known.at < RECHECK_S or not _wanting(known):
                    return known
            self._runs += 1
            run, broken = self._runs, False
            try:
                found = await self._run(where)
            except _Broken as error:
                broken = True
                detail = f"could not be checked: {error}; a load will tell"
                found = {name: Capability(True, detail) for name in LOADERS}
            if known is not None and not known.broken and after is None:
                found.update({name: old for name, old in known.found.items() if old.available})
            answer = _Answer(found, self._clock.monotonic(), run, broken)
            self._answers[where] = answer
            return answer

    async def _run(self, where: _Where) -> dict[str, Capability]:
        """Run the program once. Raises _Broken. When this ends in any way, no process of it is left."""
        binary, python = where
        program_here = self._command if python is None else (*program(python), "--capabilities")
        command = [*program_here, *(("--binary", binary) if binary else ())]
        try:
            process = await _start(command, variables(python))
        except OSError as error:
            if python is not None:
                words = f"the interpreter {python} cannot be started: {error.strerror}"
                return {name: Capability(False, words) for name in LOADERS}
            raise _Broken(f"{command[0]} cannot be started: {error.strerror}") from error
        try:
            async with asyncio.timeout(RUN_S):
                assert process.stdout is not None
                assert process.stderr is not None
                async with asyncio.TaskGroup() as group:
                    said = group.create_task(_read(process.stdout))
                    complained = group.create_task(_read(process.stderr))
                code = await process.wait()
        except TimeoutError:
            raise _Broken(f"the check did not end within {RUN_S:g} s") from None
        finally:
            await _end(process)
        if len(said.result()) > OUTPUT_LIMIT:
            raise _Broken(f"the check printed more than {OUTPUT_LIMIT} bytes")
        if code != 0:
            last = complained.result().decode("utf-8", "replace").strip().rpartition("\n")[2][:300]
            if python is not None and code == UNFIT:
                return {name: Capability(False, last) for name in LOADERS}
            raise _Broken(f"the check ended with code {code}" + (f": {last}" if last else ""))
        try:
            return _DECODER.decode(said.result())
        except msgspec.MsgspecError as error:
            raise _Broken(f"the check printed something else than its answer ({error})") from None


def _wanting(answer: _Answer) -> bool:
    return answer.broken or not all(found.available for found in answer.found.values())


async def _start(command: Sequence[str], env: Mapping[str, str]) -> asyncio.subprocess.Process:
    starting = asyncio.ensure_future(
        asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
            env=env,
        )
    )
    try:
        return await asyncio.shield(starting)
    except asyncio.CancelledError:
        # A start that is cancelled half-way leaves a child that nobody waits for.
        with contextlib.suppress(OSError):
            await _end(await starting)
        raise


async def _end(process: asyncio.subprocess.Process) -> None:
    """Kill the whole group, a llama-server that was asked for its version included, and reap the program."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    # The pipes close when their rest is read. A process that left the group may hold them open.
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(_DRAIN_S):
            await process.communicate()


async def _read(stream: asyncio.StreamReader) -> bytes:
    """Read to the end, keeping little more than OUTPUT_LIMIT bytes."""
    kept = bytearray()
    while data := await stream.read(1 << 16):
        if len(kept) <= OUTPUT_LIMIT:
            kept += data
    return bytes(kept)


def override_from(env: Mapping[str, str]) -> Mapping[str, bool] | None:
    """Read MODELD_CAPABILITIES; None when it is not set. Raises UsageError naming the part that is wrong."""
    text = env.get(VARIABLE, "").strip()
    if not text:
        return None
    override: dict[str, bool] = {}
    for part in text.split(","):
        name, _, word = (piece.strip() for piece in part.partition("="))
        if word not in ("yes", "no"):
            raise UsageError(f"{VARIABLE}: {part.strip()!r} is not of the form LOADER=yes or LOADER=no")
        if name not in LOADERS:
            raise UsageError(f"{VARIABLE}: there is no loader {name!r}; there are: {', '.join(LOADERS)}")
        override[name] = word == "yes"
    return override
