"""`modeld ctl jobs` against a real admin socket and a real queue."""

from __future__ import annotations

import asyncio
import io
import json
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modeld.admin.app import build_admin_app
from modeld.admin.jobs import report
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import DaemonInfo
from modeld.cli import ctl_jobs
from modeld.cli.main import modeld
from modeld.cli.table import Screen
from modeld.errors import EngineError
from modeld.protocol.tasks import Task
from modeld.supervisor.states import State
from tests.component.admin.fake_supervisor import FakeControl, FakeSupervisor, model
from tests.component.jobs.served import WAIT_S, Api, JobPool, echo, number_of, serving
from tests.fakes.pool import Answer, said


@dataclass
class Steered:
    """Jobs with an admin socket."""

    api: Api
    state_dir: Path
    supervisor: FakeSupervisor

    def command(self, *args: str) -> list[str]:
        return ["ctl", "--state-dir", str(self.state_dir), "jobs", *args]

    async def ctl(self, *args: str) -> Result:
        """Run a command in this process, away from the loop."""
        return await asyncio.to_thread(CliRunner().invoke, modeld, self.command(*args))


@asynccontextmanager
async def steered(folder: Path, pool: JobPool) -> AsyncIterator[Steered]:
    """Serve both; `folder` has a short path."""
    async with serving(folder, pool) as api:
        supervisor = FakeSupervisor(model("tiny"))
        info = DaemonInfo("0.1.0", 42, 61.0, "http://127.0.0.1:8000")
        app = build_admin_app(supervisor, FakeControl(supervisor), lambda: info, api.room.queue)
        async with serve_admin(app, folder / "admin.sock"):
            yield Steered(api, folder, supervisor)


def half_failing(name: str, task: Task) -> list[Answer]:
    """Fail every second chat of a batch."""
    return [EngineError(f"no to {number_of(task)}")] if number_of(task) % 2 else echo(name, task)


async def test_the_list_has_a_row_for_each_job_newest_first(short_dir: Path) -> None:
    """With its kind, model, and how many of its items are done."""
    async with steered(short_dir, JobPool(answer=half_failing)) as it:
        assert (await it.ctl("list")).stdout == "no jobs\n"
        first = await it.api.batch(4)
        await it.api.over(first)
        it.api.pool.answer = lambda name, task: []
        second = await it.api.chat()
        await it.api.pool.until(lambda: len(it.api.pool.begun) == 5)
        lines = (await it.ctl("list")).stdout.splitlines()
        assert lines[0].split() == ["JOB", "STATUS", "KIND", "MODEL", "ITEMS", "FAILED", "AGE"]
        assert lines[1].split()[0] == second
        assert lines[2].split()[:6] == [first, "done", "batch_chat", "tiny", "2/4", "2"]
        unfinished = json.loads((await it.ctl("list", "--unfinished", "--json")).stdout)
        assert [job["id"] for job in unfinished["jobs"]] == [second]
        assert len((await it.ctl("list", "--limit", "1")).stdout.splitlines()) == 2


async def test_one_job_is_shown_with_how_its_items_failed(short_dir: Path) -> None:
    """By place and reason."""
    async with steered(short_dir, JobPool(answer=half_failing)) as it:
        id = await it.api.batch(4)
        await it.api.over(id)
        result = await it.ctl("show", id)
        assert result.stdout.startswith(f"{id} is done, 2 of 4 items done, 2 failed\n")
        assert "  item 1: no to 1\n  item 3: no to 3\n" in result.stdout
        told = json.loads((await it.ctl("show", id, "--json")).stdout)
        assert told["failures"][0] == {"place": 1, "code": "engine_error", "message": "no to 1"}


async def test_a_job_that_waits_says_what_its_model_does(short_dir: Path) -> None:
    """A model that is not ready is the reason; one that serves has others to serve first."""
    async with steered(short_dir, JobPool(answer=lambda name, task: [])) as it:
        id = await it.api.batch(20)
        await it.api.pool.until(lambda: len(it.api.pool.begun) > 0)
        it.supervisor.add(model("tiny", State.STOPPED, message="unloaded; `modeld ctl load tiny` loads it"))
        said_last = (await it.ctl("show", id)).stdout.splitlines()[-1]
        assert said_last == "  waits: its model is stopped: unloaded; `modeld ctl load tiny` loads it"
        it.supervisor.add(model("tiny", State.READY))
        assert "waits" not in (await it.ctl("show", id)).stdout


async def test_a_job_is_cancelled_and_one_that_is_over_is_not(short_dir: Path) -> None:
    """The second time says why it cannot be."""
    async with steered(short_dir, JobPool(answer=lambda name, task: [])) as it:
        id = await it.api.chat()
        result = await it.ctl("cancel", id)
        assert (result.exit_code, result.stdout) == (0, f"{id} is cancelled, 0 of 1 item done\n")
        await it.api.pool.until(lambda: it.api.pool.open_calls == 0)
        result = await it.ctl("cancel", id)
        assert result.exit_code == 1
        assert "it is over (cancelled)" in result.stderr


@pytest.mark.parametrize("command", ["show", "cancel", "wait"])
async def test_an_unknown_job_is_told_in_one_line(short_dir: Path, command: str) -> None:
    """With what there is to look at."""
    async with steered(short_dir, JobPool()) as it:
        result = await it.ctl(command, "job_x")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.splitlines()[-1].startswith("Error: there is no job 'job_x'")


async def test_waiting_shows_how_a_job_gets_on(short_dir: Path) -> None:
    """Plain lines where there is no terminal, no more than the steps there are, and the end on stdout."""
    pool = JobPool(answer=lambda name, task: [], free=1)
    async with steered(short_dir, pool) as it:
        id = await it.api.batch(3)
        waiting = asyncio.ensure_future(it.ctl("wait", id))
        async with asyncio.timeout(WAIT_S):
            while not it.api.room.queue._watches.get(id):
                await asyncio.sleep(0.01)
        for at in range(3):
            await pool.until(lambda at=at: len(pool.begun) == at + 1)  # type: ignore[misc]
            pool.begun[at].feed(*said())
        result = await waiting
        assert (result.exit_code, result.stdout) == (0, f"{id} is done, 3 of 3 items done\n")
        lines = result.stderr.splitlines()
        assert 1 <= len(lines) <= 5
        assert lines[-1] == f"{id} is done, 3 of 3 items done"


async def test_waiting_for_what_fails_ends_with_1(short_dir: Path) -> None:
    """The reason is the last line."""
    async with steered(short_dir, JobPool(answer=lambda name, task: EngineError("no"))) as it:
        result = await it.ctl("wait", await it.api.chat())
        assert result.exit_code == 1
        assert result.stderr.splitlines()[-1] == "Error: no"


async def test_whoever_stops_waiting_stops_nothing(short_dir: Path) -> None:
    """Interrupted, the command says so, and the job is done."""
    pool = JobPool(answer=lambda name, task: [])
    async with steered(short_dir, pool) as it:
        id = await it.api.chat()
        pipe = asyncio.subprocess.PIPE
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "modeld", *it.command("wait", id), stdout=pipe, stderr=pipe
        )
        async with asyncio.timeout(WAIT_S):
            while not it.api.room.queue._watches.get(id):
                await asyncio.sleep(0.01)
            assert process.stderr is not None
            await process.stderr.readline()
            process.send_signal(signal.SIGINT)
            _, said_last = await process.communicate()
        assert process.returncode != 0
        assert f"modeld goes on with it; `modeld ctl jobs show {id}` shows how" in said_last.decode()
        await pool.until(lambda: bool(pool.begun))
        pool.begun[0].feed(*said())
        assert (await it.api.over(id))["status"] == "done"


class Terminal(io.StringIO):
    """What is drawn on it."""

    def isatty(self) -> bool:
        """It is one."""
        return True


async def test_a_terminal_gets_a_bar_that_goes_at_the_end(
    short_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With how many items have ended, and no line for each step."""
    monkeypatch.setenv("TERM", "xterm")
    async with steered(short_dir, JobPool(answer=half_failing)) as it:
        id = await it.api.batch(4)
        await it.api.over(id)
        terminal = Terminal()
        monkeypatch.setattr(sys, "stderr", terminal)
        job = await it.api.room.queue.get(None, id)
        assert job is not None
        with ctl_jobs._progress(Screen.of(sys.stderr)) as progress:
            progress(report(job))
        drawn = terminal.getvalue()
    assert "4/4" in drawn
    assert "done" in drawn
    assert "\x1b[2K" in drawn.rpartition("4/4")[2], "the bar is left there"
    assert f"{id} is done" not in drawn
