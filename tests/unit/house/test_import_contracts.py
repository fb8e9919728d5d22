"""The import contracts in pyproject.toml, each shown to bite."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[3]
PACKAGE = ROOT / "src" / "modeld"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
CONTRACTS: list[dict[str, Any]] = PROJECT["tool"]["importlinter"]["contracts"]

FORBIDDEN = {
    "layers": ("supervisor/states.py", "import modeld.gateway"),
    "worker": ("worker/registry.py", "import modeld.config"),
    "apart": ("supervisor/states.py", "def f(): import modeld.worker.registry"),
    "engines": ("gateway/__init__.py", "def f(): import numpy"),
    "hardware": ("supervisor/states.py", "import psutil"),
    "rich": ("daemon.py", "import rich.progress"),
}
"""Contract → a file and a line in it that breaks this contract."""

EXEMPT = {
    "worker": {"worker", "telemetry", "protocol", "errors", "ids"},
    "apart": {"worker"},
    "engines": {"worker"},
    "hardware": {"hardware"},
    "rich": {"cli"},
}
"""Contract → the rooms it lets through."""


def _lint(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    program = Path(sys.executable).with_name("lint-imports")
    environ = os.environ | {"PYTHONPATH": str(root / "src"), "COLUMNS": "200", "NO_COLOR": "1"}
    return subprocess.run(
        [program, "--no-cache", *options], cwd=root, env=environ, capture_output=True, text=True, check=False
    )


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a copy of the package with the project's contracts."""
    root = tmp_path_factory.mktemp("house")
    shutil.copytree(PACKAGE, root / "src" / "modeld", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", root)
    return root


def test_the_copy_keeps_them(copy: Path) -> None:
    """Without a forbidden import every contract is kept, so that a failure below comes from the import."""
    result = _lint(copy)
    assert f"Contracts: {len(CONTRACTS)} kept, 0 broken." in result.stdout, result.stdout + result.stderr
    assert result.returncode == 0


@pytest.mark.parametrize("contract", CONTRACTS, ids=lambda contract: contract["id"])
def test_contract_bites(copy: Path, contract: dict[str, Any]) -> None:
    """One forbidden import breaks the contract, by name."""
    file, line = FORBIDDEN[contract["id"]]
    path = copy / "src" / "modeld" / file
    before = path.read_text()
    path.write_text(f"{before}\n{line}\n")
    try:
        result = _lint(copy, "--contract", contract["id"])
    finally:
        path.write_text(before)
    assert result.returncode == 1, result.stdout + result.stderr
    assert f"{contract['name']} BROKEN" in result.stdout


def test_no_room_is_forgotten() -> None:
    """A contract about "all rooms but" names every room on disk: a new one does not slip through."""
    names = {path.stem for path in PACKAGE.iterdir() if path.suffix == ".py" or path.is_dir()}
    rooms = {name for name in names if not name.startswith("_")}
    for contract in CONTRACTS:
        if contract["id"] == "layers":
            continue  # "exhaustive" says the same
        listed = contract["forbidden_modules" if contract["id"] == "worker" else "source_modules"]
        assert {name.removeprefix("modeld.") for name in listed} == rooms - EXEMPT[contract["id"]]
