"""The files around the package: units, launchd job, licence, commands that the README promises."""

from __future__ import annotations

import configparser
import plistlib
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
UNITS = ["modeld.service", "modeld-user.service"]
TEST_COMMAND = "python3 -m venv .venv && .venv/bin/pip install -q nox && .venv/bin/nox"


def _unit(name: str) -> configparser.SectionProxy:
    parser = configparser.ConfigParser(strict=True, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(ROOT / "systemd" / name)
    return parser["Service"]


@pytest.mark.parametrize("name", UNITS)
def test_unit(name: str) -> None:
    """The manager waits for READY, lets the daemon drain, and does not repeat a bad configuration."""
    service = _unit(name)
    assert service["Type"] == "notify"
    assert " serve --config " in service["ExecStart"]
    assert service["Restart"] == "on-failure"
    assert service["RestartPreventExitStatus"] == "2"
    assert service["KillMode"] == "mixed"
    assert service["OOMPolicy"] == "continue"
    assert int(service["TimeoutStopSec"]) >= 60


def test_system_unit_keeps_gpus_visible() -> None:
    """State and cache persist, and no line of the hardening hides devices or forbids compiled kernels."""
    service = _unit("modeld.service")
    assert (service["StateDirectory"], service["CacheDirectory"]) == ("modeld", "modeld")
    hiding = {"PrivateDevices", "ProtectClock", "DevicePolicy", "DeviceAllow", "MemoryDenyWriteExecute"}
    assert not hiding & set(service)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd on this machine")
@pytest.mark.parametrize("name", UNITS)
def test_systemd_accepts_the_unit(name: str, tmp_path: Path) -> None:
    """Systemd itself finds nothing wrong, warnings included."""
    lines = (ROOT / "systemd" / name).read_text().splitlines()
    # The program is not installed here, and systemd checks that it is there.
    unit = [f"ExecStart={sys.executable}" if line.startswith("ExecStart=") else line for line in lines]
    (tmp_path / name).write_text("\n".join(unit))
    scope = ["--user"] if "user" in name else []
    result = subprocess.run(
        ["systemd-analyze", *scope, "verify", name],
        cwd=tmp_path,
        env={"PATH": "/usr/bin:/bin", "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout + result.stderr) == (0, "")


def test_launchd_job() -> None:
    """Launchd can read the job: it starts at log-in, comes back after a crash, and has time to drain."""
    job = plistlib.loads((ROOT / "etc" / "local.modeld.plist").read_bytes())
    assert job["Label"] == "local.modeld"
    shell, option, command = job["ProgramArguments"]
    assert (shell, option) == ("/bin/sh", "-c")
    assert command.startswith("exec ")  # else signals would reach the shell only
    assert " serve --config " in command
    assert job["RunAtLoad"] is True
    assert job["KeepAlive"] == {"SuccessfulExit": False}
    assert job["ExitTimeOut"] >= 60
    assert job["Umask"] == 0o77
    assert subprocess.run([shell, "-n", option, command], check=False).returncode == 0


def test_licence() -> None:
    """The licence is what the metadata says, in full."""
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["project"]["license"] == "Apache-2.0"
    assert "Version 2.0, January 2004" in text
    assert "END OF TERMS AND CONDITIONS" in text


def test_ci_runs_what_the_readme_promises() -> None:
    """The command in the README is the one that CI runs."""
    assert TEST_COMMAND in (ROOT / "README.md").read_text()
    assert TEST_COMMAND in (ROOT / ".ci" / "run").read_text()


def test_every_dependency_has_an_upper_bound() -> None:
    """A new major version of a library never arrives by itself."""
    project = PROJECT["project"]
    extras = [entry for extra in project["optional-dependencies"].values() for entry in extra]
    wanted = [*project["dependencies"], *extras, *PROJECT["dependency-groups"]["dev"]]
    assert [entry for entry in wanted if "<" not in entry and not entry.startswith("modeld[")] == []
