from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import LoadFailed
from modeld.library.ggml import describe

BASE = (51865, 1500, 512, 8, 6, 448, 512, 8, 6, 80, 1)


def write(folder: Path, *numbers: int) -> Path:
    """Write a model's beginning."""
    path = folder / "ggml.bin"
    path.write_bytes(b"lmgg" + struct.pack(f"<{len(numbers)}i", *numbers) + bytes(100))
    return path


@pytest.mark.parametrize(
    ("numbers", "name", "kind", "able"),
    [
        (BASE, "whisper base", "F16", 2),
        ((51864, *BASE[1:]), "whisper base.en", "F16", 1),
        ((51865, 1500, 384, 6, 4, 448, 384, 6, 4, 80, 2008), "whisper tiny", "Q5_0", 2),
        ((51866, 1500, 1280, 20, 32, 448, 1280, 20, 32, 128, 1), "whisper large-v3", "F16", 2),
        ((51866, 1500, 1280, 20, 32, 448, 1280, 20, 4, 128, 99), "whisper large-v3-turbo", "type 99", 2),
        ((51865, 1500, 640, 10, 9, 448, 640, 10, 9, 80, 1), "whisper", "F16", 2),
    ],
)
def test_whisper_models(tmp_path: Path, numbers: tuple[int, ...], name: str, kind: str, able: int) -> None:
    """Which model it is, how it is quantised, and whether it translates."""
    metadata, about = describe(write(tmp_path, *numbers))
    assert (metadata.name, metadata.quantization, metadata.size) == (name, kind, 148)
    assert about.capabilities == ("transcription", "translation")[:able]
    assert about.languages == (("en",) if able == 1 else ())


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "is not a model of whisper: it begins with b''"),
        (b"tjgg" + bytes(99), "begins with b'tjgg'"),
        (b"lmgg" + bytes(3), "is cut short: it has 7 bytes"),
        (b"lmgg" + b"\xff" * 99, "is damaged: its sizes are"),
        (b"lmgg" + bytes(99), "is damaged: its sizes are"),
    ],
)
def test_other_files(tmp_path: Path, content: bytes, words: str) -> None:
    """What is no model of whisper is told for good."""
    path = tmp_path / "x.bin"
    path.write_bytes(content)
    with pytest.raises(LoadFailed) as caught:
        describe(path)
    assert words in str(caught.value)
    assert caught.value.permanent


@given(st.binary(max_size=60))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever follows the magic number, there is a model or a sentence."""
    path = tmp_path_factory.getbasetemp() / "any.bin"
    path.write_bytes(b"lmgg" + content)
    refusal = None
    try:
        assert describe(path)[0].size == len(content) + 4
    except LoadFailed as error:
        refusal = error
    assert refusal is None or refusal.permanent
