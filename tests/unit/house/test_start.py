"""What starting costs: libraries that are imported before they are needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

HEAVY = {"rich", "mcp", "huggingface_hub", "numpy", "torch", "openai", "structlog", "yaml", "gguf", "ruamel"}


def _imported(statement: str) -> set[str]:
    code = f"import sys; {statement}; print(*(n.partition('.')[0] for n in sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    return set(result.stdout.split())


def test_command_line_waits_for_nothing() -> None:
    """`modeld version` and `--help` import click and the standard library, without asyncio."""
    found = _imported("import modeld.cli.main")
    assert "click" in found
    assert not found & (HEAVY | {"aiohttp", "asyncio", "msgspec", "pydantic", "prometheus_client", "psutil"})


def test_ctl_does_not_load_the_daemon() -> None:
    """`modeld ctl` reads structs and speaks HTTP with the standard library alone."""
    found = _imported("import modeld.cli.ctl")
    assert "msgspec" in found
    assert not found & (HEAVY | {"aiohttp", "pydantic", "prometheus_client", "psutil", "uvloop"})


@pytest.mark.parametrize("module", ["modeld.daemon", "modeld.cli.serve", "modeld.worker.serve"])
def test_daemon_and_worker_start_light(module: str) -> None:
    """Neither the daemon nor a worker imports at its start what only some of its work needs."""
    assert not _imported(f"import {module}") & HEAVY
