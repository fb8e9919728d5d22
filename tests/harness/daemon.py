"""A real daemon as a child process, for tests that look at modeld from outside.

Everything the daemon starts inherits a mark in its environment, so that "nothing is left" can be checked for
the whole family, also for processes that have changed parents.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import psutil

MARK = "MODELD_TEST_MARK"
START_S = 120.0
"""Seconds until a daemon listens; far more than it needs, since machines get busy."""
GONE_S = 30.0
"""Seconds after a daemon's death in which its whole family must be gone; on a free machine it takes a few
milliseconds."""


def family(mark: str) -> list[psutil.Process]:
    """Return the living processes that carry the mark (zombies hold nothing and do not count)."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found


async def family_gone(mark: str, within: float = GONE_S) -> list[psutil.Process]:
    """Wait until the family is gone; return who is still there after `within` seconds."""
    loop = asyncio.get_running_loop()
    end = loop.time() + within
    while (left := family(mark)) and loop.time() < end:
        await asyncio.sleep(0.02)
    return left


@dataclass(frozen=True)
class Said:
    """What a command of modeld left behind."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Its standard output, decoded."""
        return json.loads(self.out)


class Daemon:
    """A started `modeld serve`; `url` is its base address, e.g. http://127.0.0.1:40123."""

    def __init__(self, process: asyncio.subprocess.Process, folder: Path, mark: str) -> None:
        self.process = process
        self.folder = folder
        self.state_dir = folder / "state"
        self.mark = mark
        self.url = ""
        self.lines: list[str] = []
        self._news = asyncio.Event()
        self._reading = asyncio.ensure_future(self._read())

    @property
    def pid(self) -> int:
        """The daemon's process id."""
        return self.process.pid

    async def line(self, words: str) -> str:
        """Wait for an output line with these words; raises with all output when none comes."""
        seen = 0
        try:
            async with asyncio.timeout(START_S):
                while True:
                    while seen < len(self.lines):
                        if words in self.lines[seen]:
                            return self.lines[seen]
                        seen += 1
                    if self._reading.done():
                        break
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            pass
        raise AssertionError(f"no line with {words!r}:\n" + "\n".join(self.lines))

    async def admin(self, method: str, path: str, body: Any = None) -> Any:
        """Call the admin socket and return the decoded answer (the last line of a stream)."""
        connector = aiohttp.UnixConnector(str(self.state_dir / "admin.sock"))
        async with (
            aiohttp.ClientSession("http://admin", connector=connector) as session,
            session.request(method, path, json=body) as response,
        ):
            return json.loads((await response.text()).strip().splitlines()[-1])

    async def ctl(self, *args: str, within: float = 120.0) -> Said:
        """Run `modeld ctl` as the owner does, and return what it said."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "modeld",
            "ctl",
            *args,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env={**os.environ, "MODELD_STATE_DIR": str(self.state_dir), MARK: self.mark, "COLUMNS": "1000"},
        )
        try:
            async with asyncio.timeout(within):
                out, err = await process.communicate()
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        assert process.returncode is not None
        return Said(process.returncode, out.decode(), err.decode())

    @property
    def file(self) -> Path:
        """Its configuration file."""
        return self.folder / "modeld.yaml"

    def write(self, config: Mapping[str, Any], file: Path | None = None) -> Path:
        """Write a configuration, its own or another file's, in one step as editors do; return the file."""
        document = {"listen": {"host": "127.0.0.1", "port": 0}, "state_dir": str(self.state_dir), **config}
        return write_atomically(file or self.file, json.dumps(document))  # JSON is YAML

    async def metrics(self) -> dict[str, float]:
        """Scrape the metrics: values by name and labels, as they are written."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            lines = [line for line in (await response.text()).splitlines() if not line.startswith("#")]
        return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}

    async def events(self) -> list[dict[str, Any]]:
        """Return the kept events, oldest first."""
        connector = aiohttp.UnixConnector(str(self.state_dir / "admin.sock"))
        async with (
            aiohttp.ClientSession("http://admin", connector=connector) as session,
            session.get("/events") as response,
        ):
            return [json.loads(line) for line in (await response.text()).splitlines()]

    async def pid_of(self, name: str) -> int | None:
        """Return the pid of a model's worker, None when there is none."""
        pid: int | None = (await self.model(name))["pid"]
        return pid

    async def until_status(
        self, name: str, test: Callable[[dict[str, Any]], bool], within: float = 120.0
    ) -> dict[str, Any]:
        """Wait until a model's status passes a test, and return it."""
        status: dict[str, Any] = {}
        try:
            async with asyncio.timeout(within):
                while not test(status := await self.model(name)):
                    await asyncio.sleep(0.01)
        except TimeoutError:
            raise AssertionError(f"{name} did not come to it: {status}\n" + "\n".join(self.lines)) from None
        return status

    async def model(self, name: str) -> dict[str, Any]:
        """Return one model's status; that of a model which is not there has no name and no state."""
        models = (await self.admin("GET", "/status"))["models"]
        absent = {"name": None, "state": None, "pid": None, "in_flight": 0, "queued": 0}
        return next((model for model in models if model["name"] == name), absent)

    async def until(self, name: str, *states: str, within: float = 120.0) -> dict[str, Any]:
        """Wait until a model is in one of `states`, and return its status."""
        async with asyncio.timeout(within):
            while (status := await self.model(name))["state"] not in states:
                await asyncio.sleep(0.02)
        return status

    async def until_idle(self, name: str, within: float = 120.0) -> None:
        """Wait until no request is in flight on a model."""
        async with asyncio.timeout(within):
            while (await self.model(name))["in_flight"]:
                await asyncio.sleep(0.01)

    async def until_line_in(self, name: str, words: str, within: float = 120.0) -> None:
        """Wait until a model's log holds these words."""
        async with asyncio.timeout(within):
            while words not in await self.log(name):
                await asyncio.sleep(0.02)

    async def log(self, name: str) -> str:
        """Return the kept log of a model as one text."""
        connector = aiohttp.UnixConnector(str(self.state_dir / "admin.sock"))
        async with (
            aiohttp.ClientSession("http://admin", connector=connector) as session,
            session.get(f"/models/{name}/logs") as response,
        ):
            return await response.text()

    def signal(self, number: signal.Signals) -> None:
        """Send the daemon a signal."""
        self.process.send_signal(number)

    async def ended(self, within: float = 120.0) -> int:
        """Wait for the daemon's end and return its exit code."""
        async with asyncio.timeout(within):
            code = await self.process.wait()
            await self._reading
        return code

    async def stop(self) -> int:
        """Stop it as a service manager does, and return the exit code."""
        self.signal(signal.SIGTERM)
        return await self.ended()

    def children(self, words: str) -> list[psutil.Process]:
        """Return the family members whose command line holds these words."""
        found = []
        for process in family(self.mark):
            try:
                if words in " ".join(process.cmdline()):
                    found.append(process)
            except psutil.Error:
                continue
        return found

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())
            self._news.set()
        self._news.set()


def write_atomically(file: Path, text: str) -> Path:
    """Put a text into a file so that no reader sees a part of it."""
    new = file.with_name(f".{file.name}.new")
    new.write_text(text)
    new.replace(file)
    return file


async def launch(
    folder: Path,
    args: Sequence[str],
    env: Mapping[str, str] | None = None,
) -> Daemon:
    """Start `modeld serve` with these arguments; nothing is waited for."""
    mark = secrets.token_hex(8)
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "modeld",
        "serve",
        *args,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **(env or {}), MARK: mark, "PYTHONUNBUFFERED": "1"},
        limit=1 << 20,
    )
    return Daemon(process, folder, mark)


@asynccontextmanager
async def running(
    folder: Path,
    config: Mapping[str, Any],
    *,
    args: Sequence[str] = (),
    env: Mapping[str, str] | None = None,
    family_must_go: bool = True,
) -> AsyncIterator[Daemon]:
    """Run a daemon with this configuration on a free port; at the end, stop it and see that nothing is
    left.
    """
    file = folder / "modeld.yaml"
    document = {"listen": {"host": "127.0.0.1", "port": 0}, "state_dir": str(folder / "state"), **config}
    file.write_text(json.dumps(document))  # JSON is YAML
    daemon = await launch(folder, ["--config", str(file), *args], env)
    async with _to_its_end(daemon, family_must_go=family_must_go):
        yield daemon


@asynccontextmanager
async def resumed(folder: Path) -> AsyncIterator[Daemon]:
    """Run a daemon without a configuration file, in the state directory of an earlier one."""
    args = ["--state-dir", str(folder / "state"), "--host", "127.0.0.1", "--port", "0"]
    async with _to_its_end(await launch(folder, args), family_must_go=True) as daemon:
        yield daemon


@asynccontextmanager
async def demonstrating(folder: Path, env: Mapping[str, str]) -> AsyncIterator[Daemon]:
    """Run `modeld serve --demo`."""
    args = ["--demo", "--state-dir", str(folder / "state"), "--host", "127.0.0.1", "--port", "0"]
    async with _to_its_end(await launch(folder, args, env), family_must_go=True) as daemon:
        yield daemon


@asynccontextmanager
async def _to_its_end(daemon: Daemon, *, family_must_go: bool) -> AsyncIterator[Daemon]:
    try:
        line = await daemon.line("modeld listens on ")
        daemon.url = line.removeprefix("modeld listens on ").removesuffix("/v1")
        yield daemon
        if daemon.process.returncode is None:
            code = await daemon.stop()
            assert code == 0, "\n".join(daemon.lines)
    finally:
        if daemon.process.returncode is None:
            daemon.process.kill()
            await daemon.process.wait()
        left = await family_gone(daemon.mark, GONE_S)
        for process in left:
            process.kill()
        await asyncio.wait({daemon._reading}, timeout=60)
        if family_must_go:
            assert not left, f"left behind: {left}\n" + "\n".join(daemon.lines)
