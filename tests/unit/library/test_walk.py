from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.library import walk as room
from modeld.library.walk import File, Folder, Found, found_in, walk

NAMES = st.one_of(
    st.sampled_from(
        [
            *("m.gguf", "M.GGUF", "mmproj-m.gguf", "config.json", "model.safetensors", "pytorch_model.bin"),
            *("ggml-base.bin", "tokens.txt", "model.onnx", "voice.onnx.json", "model_index.json", "x.pt"),
            *("unet/model.safetensors", "adapter_config.json", "chat_template.jinja"),
        ]
    ),
    st.builds("{}-{:05}-of-{:05}.gguf".format, st.sampled_from("ab"), st.integers(0, 4), st.integers(0, 3)),
    st.builds(
        "{}-{:05}-of-{:05}.safetensors".format, st.sampled_from("ab"), st.integers(1, 3), st.integers(1, 3)
    ),
)


@given(st.sets(NAMES, max_size=12))
def test_every_file_of_weights_belongs_to_one_model(names: set[str]) -> None:
    """No GGUF file is lost or listed twice; pieces go together in order, and what they lack is named."""
    folder = Folder("/m", {name: File(10, 7) for name in names})
    found = list(found_in(folder))
    ggufs = [name for each in found if each.what == "gguf" for name in each.files]
    assert sorted(ggufs) == sorted(name for name in names if name.lower().endswith(".gguf"))
    assert len({each.path for each in found}) == len(found)
    assert all(each.what != "problem" for each in found)
    for each in found:
        assert list(each.files) == sorted(each.files)
        assert not set(each.missing) & names
        if each.what == "gguf" and len(each.files) + len(each.missing) > 1:
            count = int(each.files[0].rpartition("-of-")[2].partition(".")[0])
            assert len(each.files) + len(each.missing) == count
        if each.what != "folder":
            assert each.size == 10 * len(each.files)
            assert {name for name, _, _ in each.signature} == set(each.files)
    assert sum(each.what == "folder" for each in found) <= 1
    if "config.json" in names and "model.safetensors" in names:
        assert not any(each.what == "safetensors" for each in found)


def found(names: dict[str, File]) -> list[Found]:
    """Return what is in a folder."""
    return list(found_in(Folder("/m", names)))


def test_a_file_that_is_none_is_a_problem_of_its_model() -> None:
    """Why a file cannot be taken is told with the model it belongs to."""
    whole = found({"a.gguf": File(0, 0, "is not a regular file")})
    assert [each.problem for each in whole] == ["is not a regular file"]
    files = {"b-00001-of-00002.gguf": File(1, 1), "b-00002-of-00002.gguf": File(0, 0, "is a link to nothing")}
    assert [each.problem for each in found(files)] == ["b-00002-of-00002.gguf is a link to nothing"]
    folder = {"config.json": File(1, 1), "model.safetensors": File(0, 0, "is a link to nothing")}
    assert [each.problem for each in found(folder)] == ["model.safetensors is a link to nothing"]


def test_a_name_that_announces_many_pieces_is_cheap() -> None:
    """Only so many of the missing are named."""
    (one,) = found({"x-00001-of-99999.gguf": File(1, 1)})
    assert len(one.missing) == room.MOST_NAMED


def test_looking_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree without end is left at a limit, and the last folder says so."""
    monkeypatch.setattr(room, "MOST_FILES", 5)
    for number in range(20):
        (tmp_path / str(number)).mkdir()
        (tmp_path / str(number) / "m.gguf").touch()
    folders = walk(str(tmp_path))
    assert sum(len(folder.files) for folder in folders) == 6
    problems = [folder.problem for folder in folders if folder.problem]
    assert problems == ["is where looking ended, after 6 files in 7 folders; name a part"]
