from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil
import pytest
from gguf import GGUFReader, GGUFValueType
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.library import gguf, reading
from modeld.library.about import Answer
from modeld.library.header import _Reader
from modeld.library.header import read as read_header
from modeld.library.reading import read_models
from modeld.library.window import Refused
from modeld.library.word_lists import Workspace
from tests.component.library import tiny_models
from tests.unit.library.gguf_bytes import As, chat_model, header, tensor, whole

RUN = "import re, sys\nfrom modeld.library import gguf\n"
PEAK = "print(re.search(r'VmHWM:\\s+(\\d+) kB', open('/proc/self/status').read())[1])\n"
"""Prints the most memory that this process has had, in KiB; what getrusage tells begins with the parent's."""

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


def put(folder: Path, name: str, content: bytes) -> Path:
    """Write a file."""
    path = folder / name
    path.write_bytes(content)
    return path


async def test_many_in_one_go(tmp_path: Path) -> None:
    """Each model gets its own answer, in order, right and wrong ones among each other."""
    jobs = []
    for number in range(50):
        content = chat_model(**{"general.name": f"m{number}"}) if number % 3 else b"junk"
        jobs.append([put(tmp_path, f"{number}.gguf", content)])
    answers = await read_models(jobs)
    for number, answer in enumerate(answers):
        if number % 3:
            assert answer.metadata is not None
            assert answer.metadata.name == f"m{number}"
        else:
            assert f"{number}.gguf is not a GGUF file: it begins with b'junk'" in answer.error
    assert await read_models([]) == []


async def test_a_reader_that_dies_costs_one_answer(tmp_path: Path) -> None:
    """The model that a reader died over is told so; those behind it are read by another."""
    jobs = [[put(tmp_path, f"{number}.gguf", chat_model())] for number in range(4)]
    os.unlink(jobs[0][0])
    os.mkfifo(jobs[0][0])  # whose reader waits for ever
    task = asyncio.create_task(read_models(jobs))
    async with asyncio.timeout(120):
        while not (found := readers()):
            await asyncio.sleep(0.01)
        found[0].kill()
        answers = await task
    assert answers[0] == Answer(unknown="the reader ended early (signal 9)")
    assert [bool(answer.metadata) for answer in answers] == [False, True, True, True]


def readers() -> list[psutil.Process]:
    """Return the readers that run."""
    found = []
    for child in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if "modeld.library.gguf" in child.cmdline():
                found.append(child)
    return found


async def test_a_model_that_takes_too_long_costs_one_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file on a disk that does not answer is given up; the next is read."""
    jobs = [[put(tmp_path, f"{number}.gguf", chat_model())] for number in range(3)]
    os.unlink(jobs[0][0])
    os.mkfifo(jobs[0][0])
    real = reading._answer

    async def answer(process: asyncio.subprocess.Process) -> tuple[Answer, bool]:
        monkeypatch.setattr(reading, "READ_S", 0.05)
        try:
            return await real(process)
        finally:
            monkeypatch.undo()  # the others have all the time

    monkeypatch.setattr(reading, "_answer", answer)
    answers = await read_models(jobs)
    assert answers[0].unknown == "reading it took over 0.05 s"
    assert answers[1].metadata == answers[2].metadata
    assert answers[1].metadata is not None


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
async def test_what_may_not_be_read_is_trouble(tmp_path: Path) -> None:
    """A file without permission is not called damaged."""
    path = put(tmp_path, "m.gguf", chat_model())
    path.chmod(0)
    (answer,) = await read_models([[path]])
    assert answer == Answer(trouble=f"{path} cannot be read: Permission denied")


async def test_what_went_away_is_trouble(tmp_path: Path) -> None:
    """A file that is gone by now, or a folder, is told."""
    gone, folder = await read_models([[tmp_path / "gone.gguf"], [tmp_path]])
    assert gone.trouble == f"{tmp_path / 'gone.gguf'} cannot be read: No such file or directory"
    assert folder.trouble == f"{tmp_path} cannot be read: Is a directory"


ODD = [
    {"general.architecture": "llama", "llama.rope.freq_base": As("f", float("-inf"))},
    {"general.architecture": ["llama", "bert"]},
    {"general.architecture": 7, "general.name": ["a"], "general.file_type": "x"},
    {"general.architecture": "llama", "llama.block_count": 2**32 - 1, "llama.context_length": As("i", -5)},
    {"general.architecture": "llama", "llama.attention.head_count": As("f", float("nan"))},
    {"general.architecture": "llama", "llama.embedding_length": As("f", float("inf")), "split.count": True},
    {"general.architecture": "llama", "llama.attention.head_count": As("Q", [0, 2**64 - 1])},
    {"general.architecture": "clip", "clip.has_vision_encoder": "no", "clip.vision.image_size": ["x"]},
    {"general.architecture": "llama", "llama.pooling_type": As("q", -3), "general.languages": "en"},
    {"tokenizer.chat_template": 5, "tokenizer.chat_template.x": True, "general.tags": As("I", [1])},
]


@pytest.mark.parametrize("keys", ODD)
async def test_keys_of_odd_types_and_sizes(tmp_path: Path, keys: dict[str, object]) -> None:
    """A value of another type or size than expected is only not known; the reader lives."""
    path = put(tmp_path, "m.gguf", whole(keys, {"blk.99999999.x": ((2, 2), 0), "a": ((3,), 1)}))
    (answer,) = await read_models([[path]])
    assert answer.metadata is not None
    assert answer.metadata.parameters == 7


async def test_sizes_beyond_all_sense(tmp_path: Path) -> None:
    """Products of sizes that no number of 64 bits holds are told as damage, not a crash."""
    keys = {
        "general.architecture": "llama",
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": As("Q", 2**62),
        "llama.attention.key_length": As("Q", 2**62),
    }
    path = put(tmp_path, "m.gguf", whole(keys, {"blk.0.attn_k.weight": ((2,), 0)}))
    huge = put(tmp_path, "h.gguf", header({}, [tensor("t", (2**62,), 199)]) + bytes(64))
    sizes, shape = await read_models([[path], [huge]])
    assert sizes.error == f"{path} is cut short or damaged: its sizes are beyond all sense"
    assert "its tensor 't' is of (4611686018427387904,) numbers" in shape.error


@pytest.mark.parametrize("make", [tiny_models.grouped, tiny_models.windowed, tiny_models.hybrid])
def test_the_reference_reader_finds_the_same(tmp_path: Path, make: Callable[[Path], Path]) -> None:
    """Keys, tensors, their sizes and places are those that the gguf package's own reader finds."""
    _compare(make(tmp_path / "m.gguf"))


def test_a_real_vocabulary_is_leapt_over_as_it_is_walked_through(demo_gguf: Path) -> None:
    """What comes behind a real model's lists is the same both ways, and what that model is known to have."""
    size = demo_gguf.stat().st_size
    found = []
    with demo_gguf.open("rb", buffering=0) as stream:
        for leaps in (True, False):
            reader = _Reader(stream, size, Workspace(), leaps=leaps)
            found.append(reader.read())
            assert reader.leapt is leaps
    assert found[0] == found[1]
    lengths = {name.rpartition(".")[2]: length for name, length in found[0].lengths.items()}
    assert lengths == {"languages": 1, "tokens": 49152, "token_type": 49152, "merges": 48900}
    assert (len(found[0].tensors), found[0].keys["llama.block_count"]) == (272, 30)


def _compare(path: Path) -> None:
    reference = GGUFReader(path)
    ours, size = gguf._header(path, None)
    tensors = gguf._tensors(ours, size)
    assert [(each.name, list(each.shape), each.type, each.size) for each in tensors] == [
        (each.name, each.shape.tolist(), each.tensor_type.name, int(each.n_bytes))
        for each in reference.tensors
    ]
    assert [each.end - each.size for each in tensors] == [int(each.data_offset) for each in reference.tensors]
    fields = {name: field for name, field in reference.fields.items() if not name.startswith("GGUF.")}
    assert fields.keys() == ours.keys.keys() | ours.lengths.keys()
    for name, value in ours.keys.items():
        assert fields[name].contents() == value
    for name, length in ours.lengths.items():
        field = fields[name]
        is_list = field.types[0] is GGUFValueType.ARRAY
        assert (len(field.data) if is_list else len(field.contents())) == length


def test_a_real_header_cut_short_anywhere(tmp_path: Path) -> None:
    """A model's header is refused in words wherever it ends, and its tensors wherever they end."""
    content = tiny_models.grouped(tmp_path / "m.gguf", embedding=32, inner=32, layers=1).read_bytes()
    ours, _ = gguf._header(tmp_path / "m.gguf", None)
    for length in range(0, ours.data, 5):  # a unit test takes every single one
        with contextlib.suppress(Refused):
            read_header(io.BytesIO(content[:length]), length)
            assert length > content.index(b"output_norm.weight"), "only the padding may be missing"
    for length in range(ours.data, len(content), 97):
        said = gguf.answer([put(tmp_path, "cut.gguf", content[:length])])
        assert "is cut short: its tensors take" in said.error


@settings(max_examples=150)
@given(st.data())
def test_a_real_header_damaged_anywhere(data: st.DataObject) -> None:
    """Whatever bytes are changed, there is an answer that can be written down and read."""
    content = bytearray(chat_model(**{"llama.attention.key_length": 4, "llama.rope.freq_base": As("f", 1.0)}))
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + 1] = data.draw(st.binary(max_size=9))
    with tempfile.NamedTemporaryFile() as file:
        file.write(content)
        file.flush()
        said = gguf.answer([Path(file.name)])
    assert (said.metadata is None) == bool(said.error or said.unknown)
    again = msgspec.json.decode(msgspec.json.encode(said), type=Answer)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(again), type=Answer) == again


@linux
def test_one_model_by_hand(tmp_path: Path) -> None:
    """The program prints a line for the model whose files it is given, and needs neither numpy nor more than
    a little memory.
    """
    path = put(tmp_path, "m.gguf", chat_model())
    code = (
        f"{RUN}sys.argv = ['x', '--file', {str(path)!r}]\nassert gguf.main() == 0\n"
        "print([name for name in ('numpy', 'gguf', 'asyncio') if name in sys.modules])\n"
        f"{PEAK}"
    )
    ended = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    line, modules, peak = ended.stdout.splitlines()
    assert json.loads(line)["metadata"]["name"] == "tiny"
    assert modules == "[]"
    assert int(peak) < 32 * 1024


@linux
async def test_a_hostile_file_takes_little_memory(tmp_path: Path) -> None:
    """A sparse file of 64 GiB that announces very many words is gone through within set bounds."""
    path = put(tmp_path, "m.gguf", header({"a": b"\x09\0\0\0\x08\0\0\0" + (2**18).to_bytes(8, "little")}))
    os.truncate(path, 64 * 1024**3)
    code = f"{RUN}sys.argv = ['x', '--file', {str(path)!r}]\nassert gguf.main() == 0\n{PEAK}"
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", "-c", code), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await process.communicate()
    line, peak = output.splitlines()
    # All of them empty, and nothing behind them.
    assert "kind" not in json.loads(line)["about"]
    assert int(peak) < 64 * 1024


async def test_cancelling_ends_all_readers(tmp_path: Path) -> None:
    """Whoever stops waiting for many models stops every reader."""
    jobs = []
    for number in range(40):
        os.mkfifo(tmp_path / f"{number}.gguf")
        jobs.append([tmp_path / f"{number}.gguf"])
    task = asyncio.create_task(read_models(jobs))
    async with asyncio.timeout(120):
        while len(found := readers()) < min(2, os.cpu_count() or 1):
            await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not any(reader.is_running() for reader in found)
