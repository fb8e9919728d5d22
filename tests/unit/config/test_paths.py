from __future__ import annotations

import os
import tempfile
from pathlib import Path

import pytest

from modeld.config.paths import LONGEST_SOCKET, admin_socket, cache_dir, runtime_dir, state_dir
from modeld.errors import UsageError


def test_the_state_directory_is_the_first_that_is_set() -> None:
    """Configuration, MODELD_STATE_DIR, STATE_DIRECTORY, XDG_STATE_HOME, HOME: in this order."""
    env = {
        "MODELD_STATE_DIR": "/m",
        "STATE_DIRECTORY": "/var/lib/modeld:/var/lib/other",
        "XDG_STATE_HOME": "/xdg",
        "HOME": "/home/u",
    }
    expected = ["/c", "/m", "/var/lib/modeld", "/xdg/modeld", "/home/u/.local/state/modeld"]
    found = [state_dir(Path("/c"), env)]
    for name in list(env):
        found.append(state_dir(None, env))
        del env[name]
    assert [str(path) for path in found] == expected


def test_the_cache_directory_likewise() -> None:
    """The cache follows its own variables."""
    assert cache_dir(None, {"CACHE_DIRECTORY": "/v", "HOME": "/h"}) == Path("/v")
    assert cache_dir(None, {"XDG_CACHE_HOME": "/x", "HOME": "/h"}) == Path("/x/modeld")
    assert cache_dir(None, {"XDG_CACHE_HOME": "relative", "HOME": "/h"}) == Path("/h/.cache/modeld")
    assert cache_dir(Path("~/c"), {"HOME": "/h"}) == Path("/h/c")


@pytest.mark.parametrize("env", [{}, {"HOME": ""}, {"HOME": "relative"}])
def test_without_a_home_the_fix_is_named(env: dict[str, str]) -> None:
    """A service without HOME is told which settings to use."""
    with pytest.raises(UsageError, match="set state_dir in the configuration, or MODELD_STATE_DIR"):
        state_dir(None, env)
    with pytest.raises(UsageError, match="needs HOME"):
        state_dir(Path("~/x"), env)


def test_results_are_absolute(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A relative path is taken from the current directory."""
    monkeypatch.chdir(tmp_path)
    assert state_dir(None, {"MODELD_STATE_DIR": "s/../t"}) == tmp_path / "t"


def test_the_admin_socket_fits_or_is_refused() -> None:
    """A socket path over the limit is refused with both figures; one at the limit is not."""
    longest = Path("/" + "x" * (LONGEST_SOCKET - len("//admin.sock")))
    assert len(os.fsencode(admin_socket(longest))) == LONGEST_SOCKET
    with pytest.raises(UsageError, match=rf"has {LONGEST_SOCKET + 1} bytes, the limit is {LONGEST_SOCKET}"):
        admin_socket(Path(f"{longest}x"))


@pytest.mark.parametrize("length", [10, 56, 57, 58, 60, 200, 900])
def test_worker_sockets_always_fit(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the state directory's path is, a socket in a worker's directory is within the limit."""
    monkeypatch.setattr(tempfile, "tempdir", "/tmp")
    state = Path("/" + "x" * (length - 1))
    found = runtime_dir(state)
    assert len(os.fsencode(found / ("y" * 24) / "engine.sock")) <= LONGEST_SOCKET
    assert (found == state / "run") == (length <= 59)
    assert runtime_dir(state) == found


def test_two_daemons_do_not_share_a_runtime_directory() -> None:
    """Different long state directories get different directories, marked with the user's id."""
    first, second = runtime_dir(Path("/" + "x" * 200)), runtime_dir(Path("/" + "y" * 200))
    assert first != second
    assert first.name.startswith(f"modeld-{os.getuid()}-")
