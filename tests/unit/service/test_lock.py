from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from modeld.errors import StartupError
from modeld.service.lock import LOCK_NAME, instance_lock

NOBODY = 65534
HOLD = """
import sys
from pathlib import Path
from modeld.service.lock import instance_lock
with instance_lock(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def _ordinary_user() -> Iterator[int]:
    """Give up root's rights for a while, if these are root's tests; yields the uid."""
    if os.geteuid() != 0:
        yield os.geteuid()
        return
    os.seteuid(NOBODY)
    try:
        yield NOBODY
    finally:
        os.seteuid(0)


@pytest.fixture
def open_dir(short_dir: Path) -> Path:
    """Give a directory that an ordinary user may look into."""
    short_dir.chmod(0o755)
    return short_dir


def test_directory_is_private_and_the_file_says_who(tmp_path: Path) -> None:
    """The state directory is made, parents too, for its owner only; the lock file holds the pid."""
    state = tmp_path / "a" / "b"
    with instance_lock(state) as path:
        assert stat.S_IMODE(state.stat().st_mode) == 0o700
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert path.read_text() == f"{os.getpid()}\n"


def test_second_instance_is_refused_by_pid(tmp_path: Path) -> None:
    """While another process holds the directory, the error names its pid and the way out."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdin is not None
        assert holder.stdout.readline() == b"held\n"
        with pytest.raises(StartupError, match=rf"pid {holder.pid}\).*--state-dir"), instance_lock(tmp_path):
            pytest.fail("two daemons on one state directory")
        holder.stdin.close()
    with instance_lock(tmp_path):
        assert (tmp_path / LOCK_NAME).exists()


def test_killed_holder_leaves_no_lock(tmp_path: Path) -> None:
    """The lock ends with its process, even by kill -9, and the pid left in the file means nothing."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as holder:
        assert holder.stdout is not None
        holder.stdout.readline()
        holder.kill()
    with instance_lock(tmp_path) as path:
        assert path.read_text() == f"{os.getpid()}\n"


def test_children_do_not_inherit_the_lock(tmp_path: Path) -> None:
    """A worker that outlives its daemon does not keep the next daemon out."""
    with instance_lock(tmp_path):
        child = subprocess.Popen(["sleep", "60"], close_fds=False)
    try:
        with instance_lock(tmp_path) as path:
            assert path.exists()
    finally:
        child.kill()
        child.wait()


def test_not_a_directory(tmp_path: Path) -> None:
    """A file in the place of the directory, or of a parent, is named."""
    (tmp_path / "file").write_text("")
    with pytest.raises(StartupError, match="file is not a directory"), instance_lock(tmp_path / "file"):
        pytest.fail("locked a file")
    with (
        pytest.raises(StartupError, match="a part of the path is not a directory"),
        instance_lock(tmp_path / "file" / "below"),
    ):
        pytest.fail("locked below a file")


@pytest.mark.parametrize("existing", [True, False])
def test_not_writable(open_dir: Path, existing: bool) -> None:
    """Without permission the error gives path, uid and the missing permission; nothing is left behind."""
    state = open_dir / "state"
    if existing:
        state.mkdir(mode=0o555)
    else:
        open_dir.chmod(0o555)
    with _ordinary_user() as uid, pytest.raises(StartupError) as refused, instance_lock(state):
        pytest.fail("wrote without permission")
    where = state if existing else open_dir
    assert str(state) in refused.value.message
    assert f"uid {uid} lacks write and search permission on {where}" in refused.value.message
    open_dir.chmod(0o755)
    assert not (state / LOCK_NAME).exists()


def test_lock_file_of_another_user(open_dir: Path) -> None:
    """A lock file that cannot be written is itself what the error names."""
    open_dir.chmod(0o777)
    lock = open_dir / LOCK_NAME
    lock.write_text("1\n")
    lock.chmod(0o444)
    with (
        _ordinary_user(),
        pytest.raises(StartupError, match=rf"lacks write permission on {lock}"),
        instance_lock(open_dir),
    ):
        pytest.fail("wrote without permission")


def test_read_only_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """EROFS is said in words."""

    def read_only(*_: object) -> int:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    monkeypatch.setattr(os, "open", read_only)
    with (
        pytest.raises(StartupError, match=rf"{tmp_path} is on a read-only file system"),
        instance_lock(tmp_path),
    ):
        pytest.fail("locked on a read-only file system")


def test_no_locks_on_this_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file system without locks (some network mounts) is refused, not trusted."""

    def no_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("fcntl.flock", no_locks)
    with (
        pytest.raises(StartupError, match="put the state directory on a local disk"),
        instance_lock(tmp_path),
    ):
        pytest.fail("went on without a lock")
