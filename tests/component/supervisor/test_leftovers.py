from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modeld.hardware import host
from modeld.supervisor import leftovers
from modeld.supervisor.process import sweep

ENGINE = (
    "import subprocess, sys\n"
    "code = 'import time; print(flush=True); time.sleep(1000)'\n"
    "inner = subprocess.Popen([sys.executable, '-c', code], stdout=subprocess.PIPE)\n"
    "inner.stdout.readline()\n"
    "print(inner.pid, flush=True)\n"
    "sys.stdin.read()\n"
)
"""A worker with an engine below it, in one group; it prints the engine's pid."""


@pytest.fixture
def group() -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Give a living process group: its leader, and the pid of the leader's child."""
    with subprocess.Popen(
        [sys.executable, "-c", ENGINE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as leader:
        assert leader.stdout is not None
        yield leader, int(leader.stdout.readline())
        if host.group_members(leader.pid):
            os.killpg(leader.pid, signal.SIGKILL)


def _record(folder: Path, pid: int, started: float | None) -> None:
    folder.mkdir(exist_ok=True)
    (folder / str(pid)).write_text(repr(started))


async def test_a_recorded_group_is_ended_whole(
    tmp_path: Path, group: tuple[subprocess.Popen[str], int]
) -> None:
    """A worker an earlier life left behind is killed with its engine, and its record is removed."""
    leader, engine = group
    _record(tmp_path / "workers", leader.pid, host.started_at(leader.pid))
    assert await leftovers.reap(tmp_path / "workers") == [leader.pid]
    assert leader.wait(5) == -signal.SIGKILL
    assert not psutil.pid_exists(engine) or psutil.Process(engine).status() == psutil.STATUS_ZOMBIE
    assert list((tmp_path / "workers").iterdir()) == []


async def test_a_reused_pid_is_left_alone(tmp_path: Path, group: tuple[subprocess.Popen[str], int]) -> None:
    """A process with the recorded pid and another start time is a stranger; only the record goes."""
    leader, engine = group
    started = host.started_at(leader.pid)
    assert started is not None
    _record(tmp_path / "workers", leader.pid, started - 2.0)
    assert await leftovers.reap(tmp_path / "workers") == []
    assert leader.poll() is None
    assert sorted(host.group_members(leader.pid)) == sorted([leader.pid, engine])
    assert list((tmp_path / "workers").iterdir()) == []


async def test_what_a_dead_worker_left_is_ended(
    tmp_path: Path, group: tuple[subprocess.Popen[str], int]
) -> None:
    """When the worker itself has gone, the engine in its group is still found and ended."""
    leader, engine = group
    _record(tmp_path / "workers", leader.pid, host.started_at(leader.pid))
    leader.kill()
    leader.wait()
    assert host.group_members(leader.pid) == [engine]
    assert await leftovers.reap(tmp_path / "workers") == [leader.pid]
    assert host.group_members(leader.pid) == []


@pytest.mark.parametrize("name", ["0", "1", "-5", "nonsense"])
async def test_records_that_make_no_sense_are_removed(tmp_path: Path, name: str) -> None:
    """A record that names no worker ends nothing, least of all our own group or everybody's."""
    (tmp_path / name).write_text("12.5")
    assert await leftovers.reap(tmp_path) == []
    assert list(tmp_path.iterdir()) == []


async def test_a_damaged_record_ends_nothing(
    tmp_path: Path, group: tuple[subprocess.Popen[str], int]
) -> None:
    """Without a start time nobody can say whose the pid is: it is left alone."""
    leader, _ = group
    (tmp_path / str(leader.pid)).write_bytes(b"\xff half a rec")
    assert await leftovers.reap(tmp_path) == []
    assert leader.poll() is None


async def test_nothing_left_is_nothing_to_do(tmp_path: Path) -> None:
    """A folder that is not there, or a record of a process long gone, is no error."""
    assert await leftovers.reap(tmp_path / "missing") == []
    gone = await asyncio.create_subprocess_exec(sys.executable, "-c", "")
    await gone.wait()
    _record(tmp_path / "workers", gone.pid, 1.0)
    assert await leftovers.reap(tmp_path / "workers") == []


async def test_sweeping_a_group_that_is_gone_is_nothing(group: tuple[subprocess.Popen[str], int]) -> None:
    """Sweep ends a group and says that nobody is left; a second time there is nothing to do."""
    leader, _ = group
    assert await sweep(leader.pid) == []
    leader.wait()
    assert await sweep(leader.pid) == []
