from __future__ import annotations

import io
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import UsageError
from modeld.library.built import gguf_file, whisper
from modeld.library.built.catalogue import CATALOGUE, Built, Made
from modeld.library.built.kokoro import pronounced
from modeld.library.refs import BuiltRef, parse

ONE = Built("one", "", "", (), (Made("m.bin", 3, "0" * 64),))
TWO = replace(ONE, files=(Made("a.onnx", 1, "1" * 64), Made("b.txt", 2, "2" * 64)))


def test_everything_is_pinned() -> None:
    """Packages have one version, files taken and files built a SHA-256, and a licence is named."""
    for name, built in CATALOGUE.items():
        assert built.name == name
        assert built.licence
        hashes = [file.sha256 for file in built.files]
        for part in built.parts:
            assert re.fullmatch(r"[a-z0-9-]+==[\d.]+", part.requirement)
            assert part.members
            hashes += part.members.values()
        assert all(re.fullmatch(r"[0-9a-f]{64}", each) for each in hashes)


@pytest.mark.parametrize("name", sorted(CATALOGUE))
def test_a_reference_names_a_model_that_is_built(name: str, tmp_path: Path) -> None:
    """`demo:NAME` is read, and written as it was read."""
    assert parse(f"demo:{name}", tmp_path) == BuiltRef(name)
    assert str(BuiltRef(name)) == f"demo:{name}"


@pytest.mark.parametrize("name", ["", "smollm2", "Kokoro", "kokoro/x", "../x"])
def test_an_unknown_name_lists_the_known(name: str) -> None:
    """A demo model that is none is told so, with those that are."""
    with pytest.raises(UsageError, match=r"no demo model of that name; there are demo:kokoro, demo:minilm, "):
        parse(f"demo:{name}", None)


def test_a_model_is_intact_when_every_file_has_its_length(tmp_path: Path) -> None:
    """Missing, short and long files count as damage; so does a folder that is none."""
    assert not TWO.intact(tmp_path / "nowhere")
    (tmp_path / "a.onnx").write_bytes(b"x")
    assert not TWO.intact(tmp_path)
    (tmp_path / "b.txt").write_bytes(b"xy")
    assert TWO.intact(tmp_path)
    for damaged in (b"", b"x", b"xyz"):
        (tmp_path / "b.txt").write_bytes(damaged)
        assert not TWO.intact(tmp_path)


def test_another_result_lies_elsewhere(tmp_path: Path) -> None:
    """A changed result has a folder of its own, so that an old one is never taken for it."""
    changed = replace(TWO, files=(TWO.files[0], Made("b.txt", 2, "3" * 64)))
    assert TWO.folder(tmp_path) != changed.folder(tmp_path)
    assert TWO.folder(tmp_path).parent == changed.folder(tmp_path).parent == tmp_path / "built" / "one"


def test_an_engine_gets_the_file_or_the_folder(tmp_path: Path) -> None:
    """A model of one file is that file, one of several is their folder."""
    assert ONE.path(tmp_path) == tmp_path / "m.bin"
    assert TWO.path(tmp_path) == tmp_path


names = st.text(st.characters(categories=["Ll", "Nd"]), min_size=1, max_size=8)
values = st.one_of(
    st.integers(0, 2**32 - 1),
    st.booleans(),
    st.floats(width=32, allow_nan=False),
    st.text(max_size=20),
    st.lists(st.text(max_size=5), min_size=1, max_size=5),
    st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=5),
)


@given(st.dictionaries(names.map("x.{}".format), values, max_size=5), st.lists(st.integers(1, 9), max_size=4))
def test_what_is_written_is_what_the_gguf_package_reads(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, gguf_file.Value], sizes: list[int]
) -> None:
    """Fields and tensors come back with their values, shapes and types."""
    rows: dict[str, Any] = {
        f"t{at}": np.arange(size * 3, dtype=np.float16 if at % 2 else np.float32).reshape(size, 3)
        for at, size in enumerate(sizes)
    }
    file = tmp_path_factory.mktemp("gguf") / "m.gguf"
    with file.open("wb") as out:
        gguf_file.write(out, {"general.architecture": "x", **fields}, rows)
    reader = gguf.GGUFReader(file)
    for name, value in fields.items():
        assert reader.fields[name].contents() == value
    assert [tensor.name for tensor in reader.tensors] == list(rows)
    for tensor in reader.tensors:
        assert np.array_equal(tensor.data, rows[tensor.name])
        assert tensor.data.dtype == rows[tensor.name].dtype


def test_the_same_input_gives_the_same_bytes() -> None:
    """Nothing of the day or the machine goes into a GGUF file."""
    first, second = io.BytesIO(), io.BytesIO()
    for out in (first, second):
        gguf_file.write(out, {"general.architecture": "x"}, {"t": np.ones((2, 2), np.float16)})
    assert first.getvalue() == second.getvalue()
    assert len(first.getvalue()) % gguf_file.ALIGNMENT == 0


def test_a_lexicon_keeps_what_the_alphabet_can_write() -> None:
    """Phrases and unknown sounds are left out; a name does not displace the word; variants take the first."""
    entries: dict[str, str | dict[str, str]] = {
        "polish": "ab",
        "Polish": "b",
        "May": "a",
        "of course": "a",
        "odd": "z",
        "read": {"DEFAULT": "ba", "VBD": "a"},
        "none": {"VBD": "a"},
    }
    assert pronounced(entries, {"a": 1, "b": 2}) == {"polish": "ab", "may": "a", "read": "ba"}


def test_the_mel_filters_are_whispers() -> None:
    """80 triangles over 201 frequencies, each of area one on its own scale, in rising order."""
    filters = whisper.mel_filters()
    assert filters.shape == (whisper.MELS, whisper.FFT // 2 + 1)
    assert (filters >= 0).all()
    peaks = filters.argmax(1)
    assert (np.diff(peaks) >= 0).all()
    assert filters.max() == pytest.approx(0.0259, abs=1e-3)
