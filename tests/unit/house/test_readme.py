"""The README's generated part is what the schema says today."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

README = Path(__file__).parents[3] / "README.md"


def test_the_configuration_reference_is_not_stale() -> None:
    """`python -m modeld.config.reference --check` agrees with the README."""
    command = [sys.executable, "-m", "modeld.config.reference", "--check", str(README)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


def test_the_two_commands_are_those_that_are_tested() -> None:
    """The README's test command is the one the checks run, to the letter."""
    command = "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox"
    assert f"\n{command}\n" in README.read_text()
    assert f"'{command}'" in (README.parent / ".ci" / "run").read_text()
