"""What every test gets: a clean environment, short paths for sockets, a watch on processes left behind."""

from __future__ import annotations

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import psutil
import pytest

from tests.harness.models import demo_model

# The suites that test modules derive theirs from.
pytest.register_assert_rewrite("tests.harness.loader_contract")

# A shell that starts the tests in the background has them ignore Ctrl-C, and nohup has them ignore a hangup;
# whatever they start would inherit that.
for number, handler in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(number) is signal.SIG_IGN:
        signal.signal(number, handler)

# Two shared cores: a slow example says nothing about the code. The same examples each time: a run is red for
# what was changed, not for what was drawn. `HYPOTHESIS_PROFILE=search` draws others, and more of them.
SLOW = [hypothesis.HealthCheck.too_slow]
hypothesis.settings.register_profile("modeld", deadline=None, derandomize=True, suppress_health_check=SLOW)
hypothesis.settings.register_profile("search", deadline=None, max_examples=500, suppress_health_check=SLOW)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "modeld"))

LEFTOVER_S = 30.0
"""How long children of the test run may take to end after the last test."""

FOREIGN = (
    "CACHE_DIRECTORY",
    "CUDA_VISIBLE_DEVICES",
    "FORCE_COLOR",
    "MODELD_API_KEYS",
    "MODELD_CACHE_DIR",
    "MODELD_CAPABILITIES",
    "MODELD_LISTEN",
    "MODELD_NVML_RECORDING",
    "MODELD_STATE_DIR",
    "NO_COLOR",
    "NOTIFY_SOCKET",
    "STATE_DIRECTORY",
    "WATCHDOG_PID",
    "WATCHDOG_USEC",
)
"""Variables that would let the developer's own machine into a test."""


@pytest.fixture(autouse=True)
def _own_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in FOREIGN:
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def short_dir() -> Iterator[Path]:
    """Give a directory whose path is short enough for Unix sockets; pytest's own tmp_path often is not."""
    path = Path(tempfile.mkdtemp(prefix="md"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Give the real demo model's file, fetched once for all runs."""
    return demo_model()


_LEFT = pytest.StashKey[list[str]]()


def pytest_configure(config: pytest.Config) -> None:
    """Begin with nothing left behind."""
    config.stash[_LEFT] = []


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    """Take over from a process that ran tests what its tests have left behind."""
    node.config.stash[_LEFT] += getattr(node, "workeroutput", {}).get("left", [])


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Fail the run when a process that a test started is still there."""
    if session.config.pluginmanager.has_plugin("dsession"):
        left = session.config.stash[_LEFT]  # the tests ran in processes of their own
    else:
        left = _left_behind()
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["left"] = left
    elif left:
        print("".join(f"\nleft behind: {line}" for line in left))
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def _left_behind() -> list[str]:
    children = psutil.Process().children(recursive=True)
    _, alive = psutil.wait_procs(children, timeout=LEFTOVER_S)
    left = []
    for child in alive:
        with_args = " ".join(child.cmdline()) if child.is_running() else child.name()
        left.append(f"pid {child.pid}: {with_args}")
        child.kill()
    return left
