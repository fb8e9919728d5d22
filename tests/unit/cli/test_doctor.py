from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modeld import __version__
from modeld.cli import doctor as room
from modeld.cli.doctor import Mark, Wanted, engines, memories, writable
from modeld.cli.main import modeld
from modeld.hardware.machine import HOST, Condition, Device, Kind, Machine
from modeld.protocol.capabilities import Capability

GIB = 2**30
RAM = Device(HOST, Kind.HOST, "RAM", 32 * GIB, 20 * GIB)
THERE = {"llama_server": Capability(True, "xllamacpp 2026.10"), "fake": Capability(True, "built in")}
MISSING = {
    "llama_server": Capability(False, "no llama-server on PATH", "pip install 'modeld[gguf]'"),
    "fake": Capability(True, "built in"),
}


class Place:
    """A machine as the test says it is."""

    def __init__(self, state_dir: Path) -> None:
        self.state_dir = state_dir
        self.engines: Mapping[str, Capability] = THERE
        self.machine = Machine((RAM,), "the NVIDIA driver is not installed.")

    def doctor(self, *args: str) -> Result:
        return CliRunner().invoke(modeld, ["doctor", "--state-dir", str(self.state_dir), *args])


@pytest.fixture
def place(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    """Give a machine with one engine and no GPU."""
    place = Place(short_dir / "state")
    monkeypatch.setattr(room, "_find_engines", lambda state_dir: place.engines)
    monkeypatch.setattr(room, "_look", lambda: place.machine)
    return place


def test_nothing_wrong(place: Place) -> None:
    """A machine that can serve exits with 0; what is merely absent is a note that says what to do."""
    result = place.doctor()
    program, *rest, daemon = result.stdout.splitlines()
    assert program.startswith(f"ok     modeld {__version__} on Python 3.")
    assert rest == [
        "ok     engine llama_server: xllamacpp 2026.10",
        "ok     RAM: 20.0 GiB free of 32.0 GiB",
        "note   no GPU: the NVIDIA driver is not installed; models run on the CPU",
        f"ok     state directory {place.state_dir}: will be made",
    ]
    assert daemon.startswith("note   modeld is not running (no answer on")
    assert daemon.endswith("; start it with `modeld serve`")
    assert result.exit_code == 0
    assert not place.state_dir.exists()


def test_no_engine_at_all(place: Place) -> None:
    """Without any engine nothing can be served: exit code 1, and the line that would help."""
    place.engines = MISSING
    result = place.doctor()
    assert result.exit_code == 1
    why = "no llama-server on PATH; to get it: pip install 'modeld[gguf]'"
    assert f"note   engine llama_server is missing: {why}\n" in result.stdout
    assert "wrong  no engine is there" in result.stdout
    assert result.stdout.endswith("wrong  1 thing to put right\n")


def test_file_whose_engine_is_missing(place: Place, tmp_path: Path) -> None:
    """With FILE the engines that its models need are needed; the models are named."""
    place.engines = MISSING
    file = tmp_path / "m.yaml"
    file.write_text(
        "models:\n"
        "  - {name: qwen, model: qwen.gguf, loader: llama_server, usecase: generate}\n"
        "  - {name: big, model: org/big, loader: vllm, usecase: generate, num_gpus: 1}\n"
    )
    result = place.doctor(str(file))
    assert result.exit_code == 1
    assert f"ok     {file}: 2 models" in result.stdout
    assert "to get it: pip install 'modeld[gguf]'; needed by qwen" in result.stdout
    assert "wrong  engine vllm: this version of modeld has no such loader; needed by big" in result.stdout
    assert "wrong  no GPU: the NVIDIA driver is not installed; needed by big" in result.stdout
    assert "wrong  3 things to put right" in result.stdout


def test_file_that_is_wrong(place: Place, tmp_path: Path) -> None:
    """Each mistake of FILE is a line with its place; the rest is looked at all the same."""
    file = tmp_path / "m.yaml"
    file.write_text("models:\n  - {name: a, loader: fake, usecase: dance}\nfrob: 1\n")
    result = place.doctor(str(file))
    assert result.exit_code == 1
    assert f"wrong  {file}:2:" in result.stdout
    assert f"wrong  {file}:3:" in result.stdout
    assert "ok     RAM" in result.stdout


def test_program_of_the_file(place: Place, tmp_path: Path) -> None:
    """A llama-server that FILE names itself is looked for, in place of the loader's own search."""
    place.engines = MISSING
    program = tmp_path / "bin" / "llama-server"
    file = tmp_path / "m.yaml"
    file.write_text(
        "engines: {llama_server: {binary: bin/llama-server}}\n"
        "models:\n  - {name: qwen, model: qwen.gguf, loader: llama_server, usecase: generate}\n"
    )
    result = place.doctor(str(file))
    assert result.exit_code == 1
    assert f"wrong  engine {program}, which the file names, is not there or not executable" in result.stdout
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    result = place.doctor(str(file))
    assert result.exit_code == 0
    assert f"ok     engine {program}, which the file names, is there" in result.stdout


def test_interpreters_of_the_file(place: Place, tmp_path: Path) -> None:
    """An interpreter that FILE names, for a loader or for one model, is asked itself; what it lacks is wrong,
    with the models, whatever else there is.
    """
    file = tmp_path / "m.yaml"
    file.write_text(
        f"engines: {{llama_server: {{python: {sys.executable}}}}}\n"
        "models:\n"
        "  - {name: qwen, model: qwen.gguf, loader: llama_server, usecase: generate}\n"
        "  - {name: own, model: x.gguf, loader: llama_server, usecase: generate, python: ./none/python}\n"
    )
    result = place.doctor(str(file))
    assert result.exit_code == 1
    assert f"ok     engine llama_server of {sys.executable}, which the file names: " in result.stdout
    none = tmp_path / "none" / "python"
    assert (
        f"wrong  engine llama_server of {none}, which the file names: the interpreter {none} cannot be "
        "started: No such file or directory; needed by own" in result.stdout
    )
    assert "wrong  1 thing to put right" in result.stdout


def test_an_environment_that_modeld_has_made_is_named(place: Place) -> None:
    """An engine that is not in the daemon's own environment is shown with its interpreter."""
    place.engines = {**THERE, "vllm": Capability(True, "vllm 1", python="/state/engines/vllm/1/bin/python")}
    line = "ok     engine vllm: vllm 1, in the environment of /state/engines/vllm/1/bin/python\n"
    assert line in place.doctor().stdout


def test_engines_words_are_escaped() -> None:
    """What an engine says about itself cannot steer the terminal."""
    found = {"vllm": Capability(False, "bad\x1b[2J\nthing.", "pip\x07")}
    first, *_ = engines(found, Wanted({"vllm": ("m\x1b",)}))
    assert first.mark is Mark.WRONG
    assert first.text.isprintable()
    assert "bad\\x1b[2J thing; to get it: pip\\x07; needed by m\\x1b" in first.text


@pytest.mark.parametrize(
    ("condition", "wanted", "marks"),
    [
        (Condition.OK, Wanted(gpus=("m",)), [Mark.OK]),
        (Condition.LOST, None, [Mark.WRONG]),
        (Condition.DENIED, Wanted(), [Mark.WRONG]),
        (Condition.PARTITIONED, None, [Mark.NOTE]),
        (Condition.PARTITIONED, Wanted(gpus=("m",)), [Mark.NOTE, Mark.WRONG]),
    ],
)
def test_conditions(condition: Condition, wanted: Wanted | None, marks: list[Mark]) -> None:
    """A GPU that is there and cannot be used is wrong, MIG only if a model needs the GPU."""
    gpu = Device("GPU-1", Kind.GPU, "H200", 140 * GIB, 1, 0, None, condition, "words")
    assert [finding.mark for finding in memories(Machine((gpu,)), wanted)] == marks


def test_unified_memory_is_a_gpu() -> None:
    """On unified memory nothing is missing."""
    device = Device(HOST, Kind.UNIFIED, "Apple M4", 64 * GIB, 32 * GIB)
    assert [finding.mark for finding in memories(Machine((device,)), Wanted(gpus=("m",)))] == [Mark.OK]


def test_state_directory_that_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file in the way and a folder of somebody else's are told with what to do; nothing is made."""
    (tmp_path / "file").write_text("")
    assert writable(tmp_path).mark is Mark.OK
    assert "is a file; move it away" in writable(tmp_path / "file" / "state").text
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    finding = writable(tmp_path / "deep" / "state")
    assert finding.mark is Mark.WRONG
    assert f"user {os.geteuid()} may not write in {tmp_path} (mode 0700" in finding.text
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


def test_path_too_long(place: Place) -> None:
    """A state directory that no socket fits under is wrong, with the figures."""
    place.state_dir = place.state_dir / ("x" * 120)
    result = place.doctor()
    assert result.exit_code == 1
    assert "the limit is 100" in result.stdout


@pytest.mark.parametrize(
    ("reply", "line", "code"),
    [
        (
            b'{"version":"%b","pid":7,"uptime":1,"address":"http://h:1"}',
            "ok     a daemon runs on http://h:1",
            0,
        ),
        (
            b'{"version":"0.0.0","pid":7,"uptime":1,"address":"http://h:1"}',
            "it is modeld 0.0.0: restart it",
            0,
        ),
        (b"{}", "is not this version of modeld", 1),
    ],
)
async def test_running_daemon(place: Place, reply: bytes, line: str, code: int) -> None:
    """A daemon that runs is named; one that cannot be spoken to is wrong."""
    body = reply % __version__.encode() if b"%b" in reply else reply

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))
        await writer.drain()
        writer.close()

    place.state_dir.mkdir()
    async with await asyncio.start_unix_server(answer, place.state_dir / "admin.sock"):
        result = await asyncio.to_thread(place.doctor)
    assert line in result.stdout
    assert result.exit_code == code
