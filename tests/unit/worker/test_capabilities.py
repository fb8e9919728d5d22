from __future__ import annotations

import importlib.metadata
import json
import os
import stat
import subprocess
import sys
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import msgspec
import pytest

from modeld.config.model import LoaderName
from modeld.protocol.capabilities import Capability
from modeld.worker import capabilities, elsewhere, registry
from modeld.worker.capabilities import ENGINES, capability, install_line, installed, report
from modeld.worker.loaders.llama_server import presence

ROOT = Path(__file__).parents[3]
LLAMA = ENGINES["llama_server"]


@pytest.fixture
def packages(monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """The Python modules there are, and the version of each one's distribution; none at first."""
    there: dict[str, str] = {}
    distributions = {
        distribution: engine.modules[0]
        for engine in ENGINES.values()
        for distribution in engine.distributions[:1]
    }

    def version(distribution: str) -> str:
        try:
            return there[distributions[distribution]]
        except KeyError:
            raise importlib.metadata.PackageNotFoundError(distribution) from None

    monkeypatch.setattr(capabilities, "_is_there", there.__contains__)
    monkeypatch.setattr(importlib.metadata, "version", version)
    return there


@pytest.fixture
def path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder on PATH, empty at first."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


def _program(folder: Path, script: str, name: str = "llama-server") -> Path:
    file = folder / name
    file.write_text(f"#!/bin/sh\n{script}\n")
    file.chmod(0o755)
    return file


# --- the program --------------------------------------------------------------------------------------------


def _run(*arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "modeld.worker", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **env})


def test_one_line_for_every_loader_of_the_configuration(tmp_path: Path) -> None:
    """The program prints one JSON line with every loader a models file may name; the fake is there."""
    done = _run("--capabilities", PATH=str(tmp_path))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1
    found = msgspec.json.decode(done.stdout, type=dict[str, Capability])
    assert set(found) == set(get_args(LoaderName))
    assert found["fake"].available
    assert all(entry.detail for entry in found.values())


def test_the_configured_binary_is_the_one_that_is_looked_at(tmp_path: Path) -> None:
    """`--binary` names llama-server in the place of what is on PATH."""
    binary = _program(tmp_path, "echo 'version: 9999 (abc)'", "my-server")
    found = json.loads(_run("--capabilities", "--binary", str(binary)).stdout)["llama_server"]
    assert found == {"available": True, "detail": f"{binary}, version: 9999 (abc)", "fix": "", "python": ""}


@pytest.mark.parametrize("arguments", [[], ["--fd", "3"], ["--parent", "1"]])
def test_without_the_flag_both_ends_of_the_link_are_needed(arguments: list[str]) -> None:
    """A worker started by hand is told what is missing, with the exit code of a usage error."""
    done = _run(*arguments)
    assert done.returncode == 2
    assert "--fd and --parent are both needed" in done.stderr


def test_no_engine_and_no_event_loop_is_imported(tmp_path: Path) -> None:
    """The answer costs little: neither the engine that is found nor what a worker serves with is imported."""
    code = (
        "import sys; from modeld.worker.capabilities import line; line({})\n"
        "heavy = {'asyncio', 'uvloop', 'torch', 'numpy', 'xllamacpp', 'vllm', 'diffusers', 'ctypes'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


# --- Python packages ----------------------------------------------------------------------------------------


def test_a_package_that_is_there_is_named_with_its_version(packages: dict[str, str]) -> None:
    """What was found is the engine and its version; nothing needs fixing."""
    packages["vllm"] = "0.30.1"
    assert installed(ENGINES["vllm"]) == Capability(True, "vllm 0.30.1")


def test_a_package_without_metadata_is_there_all_the_same(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]
) -> None:
    """A module that was put in place by hand counts, with no version."""
    monkeypatch.setattr(capabilities, "_is_there", lambda name: True)
    assert installed(ENGINES["whispercpp"]) == Capability(True, "pywhispercpp (of unknown version)")


def test_each_missing_module_is_named(packages: dict[str, str]) -> None:
    """An engine that needs two packages lacks exactly those that are not there."""
    assert "diffusers and torch is not installed" in installed(ENGINES["diffusers"]).detail
    packages["diffusers"] = "1.0"
    found = installed(ENGINES["diffusers"])
    assert not found.available
    assert "package torch is not" in found.detail
    assert found.fix == "modeld engines install diffusers"


@pytest.mark.parametrize("error", [ImportError, ValueError])
def test_a_broken_module_is_not_there(monkeypatch: pytest.MonkeyPatch, error: type[Exception]) -> None:
    """A package that cannot even be looked up is missing, and no traceback."""

    def fail(name: str) -> None:
        raise error(name)

    monkeypatch.setattr(importlib.util, "find_spec", fail)
    assert not installed(ENGINES["vllm"]).available


def test_the_command_that_brings_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the daemon's own environment it is modeld's, for every engine; under an interpreter of the engine's
    own it is that one's pip, since modeld would install into another environment.
    """
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    for name, engine in ENGINES.items():
        assert install_line(engine) == f"modeld engines install {name}"
        assert engine.extra in extras
    monkeypatch.setattr(elsewhere, "active", True)
    for engine in ENGINES.values():
        assert install_line(engine) == f"{sys.executable} -m pip install {engine.packages}"


# --- loaders ------------------------------------------------------------------------------------------------


def test_a_loader_that_does_not_exist_yet(monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]) -> None:
    """A loader the configuration knows and this version lacks is missing, installed engine or not."""
    monkeypatch.delitem(registry.LOADERS, "sherpa_onnx", raising=False)
    assert capability("sherpa_onnx", {}) == Capability(
        False, "this version of modeld has no loader sherpa_onnx yet"
    )
    packages["sherpa_onnx"] = "2.0"
    found = capability("sherpa_onnx", {})
    assert not found.available
    assert found.detail.endswith("; sherpa_onnx 2.0 is installed")


def _loader(monkeypatch: pytest.MonkeyPatch, module: object) -> None:
    monkeypatch.setitem(registry.LOADERS, "vllm", "somewhere")
    monkeypatch.setattr(registry, "find", lambda name: module)


def test_a_loader_without_a_check_of_its_own_goes_by_the_table(
    monkeypatch: pytest.MonkeyPatch, packages: dict[str, str]
) -> None:
    """The table answers for a loader module that says nothing about its engine."""
    _loader(monkeypatch, SimpleNamespace())
    assert capability("vllm", {}).fix == "modeld engines install vllm"
    packages["vllm"] = "1"
    assert capability("vllm", {}) == Capability(True, "vllm 1")


def test_a_loader_knows_better_than_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader's own function decides, and is given the options."""

    def own(options: Mapping[str, Any]) -> Capability:
        return Capability(False, f"asked with {options['x']}", "do y")

    _loader(monkeypatch, SimpleNamespace(capability=own))
    assert capability("vllm", {"x": 1}) == Capability(False, "asked with 1", "do y")


def test_a_check_that_breaks_stops_no_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """A loader whose own check raises counts as there: the load itself will tell."""

    def own(options: Mapping[str, Any]) -> Capability:
        raise RuntimeError("bug")

    _loader(monkeypatch, SimpleNamespace(capability=own))
    found = capability("vllm", {})
    assert found.available
    assert "could not be checked" in found.detail


# --- llama-server -------------------------------------------------------------------------------------------


def test_llama_server_on_path(path: Path) -> None:
    """A program on PATH that tells its version is there; the version may come on standard error."""
    binary = _program(path, "echo 'ggml: found 1 device' >&2; echo 'version: 7777 (1a2b)' >&2")
    assert presence.look({}) == Capability(True, f"{binary}, version: 7777 (1a2b)")


def test_a_program_that_tells_nothing_is_there(path: Path) -> None:
    """A program that ends well is runnable, whatever it prints."""
    binary = _program(path, "exit 0")
    assert presence.look({}) == Capability(True, str(binary))


def test_a_program_that_cannot_find_its_libraries(path: Path) -> None:
    """A broken installation is told apart from none: its last words are shown, with another way out."""
    binary = _program(path, "echo 'error while loading shared libraries: libcuda.so.1' >&2; exit 127")
    found = presence.look({})
    assert not found.available
    assert found.detail == (
        f"{binary} --version exits with code 127: error while loading shared libraries: libcuda.so.1"
    )
    assert found.fix


def test_a_program_that_is_killed(path: Path) -> None:
    """A program that dies of a signal, as one built for another processor does, is not runnable."""
    _program(path, "kill -ILL $$")
    assert "dies of signal 4" in presence.look({}).detail


def test_a_program_of_another_machine(path: Path) -> None:
    """A file that the kernel cannot run is there and cannot be started."""
    binary = path / "llama-server"
    binary.write_bytes(b"\x7fELF" + bytes(100))
    binary.chmod(0o755)
    found = presence.look({})
    assert not found.available
    assert f"{binary} cannot be started" in found.detail


def test_a_program_that_hangs(monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
    """A program that does not answer in time is ended and said to hang."""
    monkeypatch.setattr(presence, "VERSION_S", 0.2)
    _program(path, "exec /bin/sleep 60")
    found = presence.look({})
    assert not found.available
    assert "did not end within 0.2 s" in found.detail


def test_a_program_that_may_not_be_run(path: Path, packages: dict[str, str]) -> None:
    """A file without the right to run it is found and named, with chmod as the fix."""
    binary = _program(path, "exit 0")
    binary.chmod(stat.S_IRUSR)
    assert presence.look({}) == Capability(
        False,
        f"{binary} is not executable, and the Python package xllamacpp is not installed",
        f"chmod +x {binary}",
    )


def test_the_package_when_there_is_no_program(path: Path, packages: dict[str, str]) -> None:
    """Without llama-server the xllamacpp package serves, even beside a file that may not be run."""
    packages["xllamacpp"] = "2026.10"
    assert presence.look({}) == Capability(True, "xllamacpp 2026.10")
    _program(path, "exit 0").chmod(stat.S_IRUSR)
    assert presence.look({}) == Capability(True, "xllamacpp 2026.10")


def test_the_program_comes_before_the_package(path: Path, packages: dict[str, str]) -> None:
    """As at a load: what is on PATH is what would be started, so when it is broken the package is no help."""
    packages["xllamacpp"] = "2026.10"
    _program(path, "exit 1")
    found = presence.look({})
    assert not found.available
    assert "take it off PATH" in found.fix


@pytest.mark.parametrize(
    ("manager", "words"),
    [
        (None, ""),
        ("brew", ", or: brew install llama.cpp"),
        ("apt", ", or where apt has it: sudo apt install llama.cpp"),
    ],
)
def test_the_ways_to_get_an_engine(
    path: Path, packages: dict[str, str], manager: str | None, words: str
) -> None:
    """With nothing there the fix is pip's line and that of the package manager this machine has."""
    if manager is not None:
        _program(path, "exit 0", manager)
    assert presence.look({}) == Capability(
        False,
        "there is no llama-server on PATH, and the Python package xllamacpp is not installed",
        "modeld engines install llama_server" + words,
    )


def test_a_configured_binary(path: Path, tmp_path: Path) -> None:
    """A configured program decides alone: missing, a folder, or not executable, it is said to be so."""
    _program(path, "echo 'version: 1'")
    missing = tmp_path / "missing"
    assert presence.look({"binary": str(missing)}).detail == f"the configured binary {missing} is not there"
    assert not presence.look({"binary": str(tmp_path)}).available
    other = _program(tmp_path, "echo 'version: 2'", "other")
    assert presence.look({"binary": str(other)}) == Capability(True, f"{other}, version: 2")
    other.chmod(stat.S_IRUSR)
    found = presence.look({"binary": str(other)})
    assert (found.available, found.fix) == (False, f"chmod +x {other}")
    assert presence.look({"binary": None}).available


def test_the_report_passes_the_options_on(path: Path, packages: dict[str, str]) -> None:
    """What the whole report says of llama-server is what a look with the same options says."""
    options = {"binary": str(_program(path, "echo 'version: 3'", "other"))}
    assert report(options)["llama_server"] == presence.look(options)
    assert not report({})["llama_server"].available
