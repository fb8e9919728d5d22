from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from modeld.errors import LoadFailed
from modeld.hardware.footprint import Where
from modeld.library import inspect as room
from modeld.library import reading
from modeld.library.estimate import WORKER, estimate_file
from modeld.library.inspect import inspect
from modeld.library.metadata import Metadata
from tests.component.library import tiny_models


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    """Start without what an earlier test read."""
    room._known.clear()
    yield
    room._known.clear()


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """Give a tiny model's file."""
    return tiny_models.grouped(tmp_path / "tiny.gguf")


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.subprocess.Process]:
    """Give the reading processes that get started."""
    processes = []
    real = asyncio.create_subprocess_exec

    async def start(*args: str, **options: object) -> asyncio.subprocess.Process:
        processes.append(await real(*args, **options))  # type: ignore[arg-type]
        return processes[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", start)
    return processes


async def test_a_model(model: Path) -> None:
    """All figures of a small model of known shape."""
    found = await inspect(model)
    assert (found.format, found.architecture, found.name, found.quantization) == (
        *("gguf", "llama", "tiny llama"),
        "F16",
    )
    assert (found.size, found.context_length, found.vocabulary) == (model.stat().st_size, 4096, 256)
    assert (found.embedding_length, found.feed_forward_length, found.n_head) == (256, 1024, 4)
    assert (len(found.layers), found.layers[0].keys, found.layers[0].values) == (3, 128, 128)
    matrices = 2 * 256 * 256 + 2 * 128 * 256 + 3 * 1024 * 256
    assert found.layers[0].weights == matrices * 2 + 2 * 256 * 4
    assert (found.input_weights, found.output_weights, found.tied) == (256 * 256 * 2, 256 * 4, True)
    assert found.parameters == 3 * (matrices + 512) + 256 * 256 + 256
    assert not found.has_chat_template


async def test_the_demo_model(demo_gguf: Path) -> None:
    """A real model with a real vocabulary."""
    found = await inspect(demo_gguf)
    assert (found.architecture, found.quantization, found.vocabulary) == ("llama", "Q4_1", 49152)
    assert found.parameters == 134_515_008
    assert found.has_chat_template


async def test_a_file_is_read_once(model: Path, started: list[asyncio.subprocess.Process]) -> None:
    """A second look costs nothing, until the file changes."""
    assert await inspect(model) is await inspect(model)
    assert len(started) == 1
    os.utime(model, ns=(1, 1))
    await inspect(model)
    assert len(started) == 2


async def test_many_at_once(tmp_path: Path, model: Path, started: list[asyncio.subprocess.Process]) -> None:
    """Many models are read a few at a time, and each is answered."""
    paths = [Path(shutil.copy(model, tmp_path / f"{number}.gguf")) for number in range(6)]
    found = await asyncio.gather(*(inspect(path) for path in paths))
    assert len({each.parameters for each in found}) == 1
    assert len(started) == 6


async def test_the_pieces_of_a_model_are_summed(tmp_path: Path) -> None:
    """A model in several files is one model, whichever of its files is named, or their folder."""
    whole = await inspect(tiny_models.grouped(tmp_path / "whole.gguf"))
    folder = tmp_path / "pieces"
    folder.mkdir()
    pieces = tiny_models.split(folder / "m")
    for path in (*pieces, folder):
        found = await inspect(path)
        assert found.size == sum(piece.stat().st_size for piece in pieces)
        assert (found.parameters, found.layers) == (whole.parameters, whole.layers)


async def test_a_missing_piece_is_named(tmp_path: Path) -> None:
    """The error names the file to fetch."""
    first, second = tiny_models.split(tmp_path / "m")
    second.unlink()
    with pytest.raises(
        LoadFailed, match=rf"one of 2 pieces, and 1 of them are missing: {second.name}; fetch"
    ):
        await inspect(first)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a GGUF file: it begins with b''"),
        (b"<!DOCTYPE html>", "is not a GGUF file: it begins with b'<!DO'"),
        (b"GGUF\x03\x00\x00\x00", "is cut short or damaged: its header goes on beyond the end, 8 bytes"),
        (b"GGUF\x03\x00\x00\x00" + b"\xff" * 100, "keys, but only 84 bytes follow"),
    ],
)
async def test_what_is_no_model_is_told(tmp_path: Path, content: bytes, words: str) -> None:
    """A file that no engine will load is refused for good, in one sentence."""
    path = tmp_path / "m.gguf"
    path.write_bytes(content)
    with pytest.raises(LoadFailed) as caught:
        await inspect(path)
    assert words in str(caught.value)
    assert caught.value.permanent
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("part", [0.001, 0.01, 0.3, 0.999])
async def test_a_model_cut_short_is_told(model: Path, part: float) -> None:
    """Wherever it ends early, in the header or in the tensors."""
    content = model.read_bytes()
    model.write_bytes(content[: int(len(content) * part)])
    with pytest.raises(LoadFailed, match="cut short") as caught:
        await inspect(model)
    assert caught.value.permanent


async def test_a_newer_format_is_only_unknown(model: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A version that the reader does not know leaves the size, and a line in the log."""
    content = bytearray(model.read_bytes())
    content[4:8] = (9).to_bytes(4, "little")
    model.write_bytes(content)
    assert await inspect(model) == Metadata(format="gguf", size=len(content))
    (record,) = caplog.records
    assert "GGUF version 9" in vars(record)["reason"]


async def test_an_unknown_type_of_tensor_has_a_size(model: Path) -> None:
    """A quantisation newer than the reader is measured by where the next tensor begins."""
    before = await inspect(model)
    name = b"blk.0.ffn_up.weight"
    content = bytearray(model.read_bytes())
    at = content.index(name) + len(name) + 4 + 2 * 8  # the count of dimensions, and two of them
    assert content[at : at + 4] == (1).to_bytes(4, "little")  # f16
    content[at : at + 4] = (200).to_bytes(4, "little")
    model.write_bytes(content)
    os.utime(model, ns=(1, 1))
    assert (await inspect(model)).layers == before.layers


async def test_other_files_have_a_size(tmp_path: Path) -> None:
    """A format that is not read is known by its size; a GGUF file is known by its first bytes, too."""
    other = tmp_path / "ggml-base.bin"
    other.write_bytes(b"lmgg" + bytes(1000))
    assert await inspect(other) == Metadata(format="other", size=1004, name="ggml-base")
    odd = tiny_models.grouped(tmp_path / "blob")
    assert (await inspect(odd)).architecture == "llama"
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.onnx").write_bytes(bytes(77))
    (folder / "readme.md").write_bytes(bytes(10))
    assert await inspect(folder) == Metadata(format="other", size=77, name="folder")


async def test_what_is_not_there(tmp_path: Path) -> None:
    """A missing file is told for good."""
    with pytest.raises(LoadFailed, match=r"there is no file .*gone\.gguf") as caught:
        await inspect(tmp_path / "gone.gguf")
    assert caught.value.permanent


async def test_cancelling_ends_the_reader(model: Path, started: list[asyncio.subprocess.Process]) -> None:
    """Whoever stops waiting stops the reading; nothing runs on."""
    os.unlink(model)
    os.mkfifo(model)  # whose reader waits for ever
    async with asyncio.TaskGroup() as group:
        task = group.create_task(inspect(model))
        async with asyncio.timeout(120):
            while not started:
                await asyncio.sleep(0.01)
        task.cancel()
    assert started[0].returncode == -signal.SIGKILL
    assert not psutil.pid_exists(started[0].pid)


async def test_a_slow_disk_gives_the_size(
    model: Path, started: list[asyncio.subprocess.Process], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the limit of time the reader is ended, and the size is all there is."""
    monkeypatch.setattr(reading, "READ_S", 0.05)
    os.unlink(model)
    os.mkfifo(model)
    assert await inspect(model) == Metadata(format="gguf", size=0)
    assert started[0].returncode == -signal.SIGKILL


def test_the_reader_dies_with_its_parent(model: Path) -> None:
    """A daemon that is killed leaves no reader behind, and one that is gone already starts none."""
    late = subprocess.run(
        [sys.executable, "-P", "-m", "modeld.library.gguf", f"--file={model}", "--parent=1"],
        capture_output=True,
        check=False,
    )
    assert (late.returncode, late.stdout) == (1, b"")
    os.unlink(model)
    os.mkfifo(model)
    code = (
        "import asyncio, sys\nfrom pathlib import Path\nfrom modeld.library.inspect import inspect\n"
        "asyncio.run(inspect(Path(sys.argv[1])))"
    )
    with subprocess.Popen([sys.executable, "-c", code, str(model)]) as parent:
        children: list[psutil.Process] = []
        while not children:
            children = psutil.Process(parent.pid).children()
        # Its name is that of this program only once it runs, and it asks to be told before it reads.
        writer = os.open(model, os.O_WRONLY)
        parent.kill()
    os.close(writer)
    gone, alive = psutil.wait_procs(children, timeout=120)
    assert gone
    assert not alive


def test_the_daemon_does_not_import_the_reader() -> None:
    """What the daemon imports brings neither numpy nor the reader of GGUF files."""
    names = ("numpy", "gguf", "modeld.library.gguf", "safetensors", "yaml")
    code = f"import sys, modeld.library.estimate; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"


async def test_an_estimate_of_files(tmp_path: Path, model: Path) -> None:
    """A model's other files count: the projector of a language model, the parts of a picture's."""
    projector = tmp_path / "mmproj.bin"
    projector.write_bytes(bytes(500))
    alone = await estimate_file(model, "llama_server", {}, gpu=False)
    both = await estimate_file(model, "llama_server", {"mmproj": str(projector)}, gpu=False)
    assert both.total(Where.RAM) - alone.total(Where.RAM) == 500
    bare = await estimate_file(model, "stable_diffusion_cpp", {}, gpu=False)
    options = {"vae_path": str(projector), "t5xxl_path": "some/reference"}
    more = await estimate_file(model, "stable_diffusion_cpp", options, gpu=False)
    assert more.total(Where.RAM) - bare.total(Where.RAM) == pytest.approx(500 * 1.6, abs=1)
    none = await estimate_file(None, "fake", {"memory": 4096}, gpu=False)
    assert none.total(Where.RAM) == 4096 + WORKER
