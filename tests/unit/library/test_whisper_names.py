from __future__ import annotations

from pathlib import Path

import pytest

from modeld.library.whisper import named


@pytest.mark.parametrize(
    "name", ["tiny", "tiny.en", "base.en", "small-q8_0", "medium.en-q5_0", "large-v3", "large-v3-turbo-q5_0"]
)
def test_a_usual_name_is_a_file_in_the_folder(tmp_path: Path, name: str) -> None:
    """whisper.cpp's own names are its own file names, whether or not the file is there."""
    assert named(name, str(tmp_path)) == tmp_path / f"ggml-{name}.bin"
    assert named(f"ggml-{name}.bin", str(tmp_path)) == tmp_path / f"ggml-{name}.bin"


def test_without_a_folder_it_is_where_the_engine_keeps_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """No models_dir: the files that pywhispercpp has downloaded are found."""
    monkeypatch.setenv("HOME", "/home/somebody")
    assert named("base.en", None) == Path("/home/somebody/.local/share/pywhispercpp/models/ggml-base.en.bin")


def test_a_file_of_a_repository_is_found_when_it_is_there(tmp_path: Path) -> None:
    """A hub's reference means the copy in the folder, if there is one."""
    reference = "ggerganov/whisper.cpp:ggml-tiny.bin"
    assert named(reference, str(tmp_path)) is None
    (tmp_path / "ggml-tiny.bin").touch()
    assert named(reference, str(tmp_path)) == tmp_path / "ggml-tiny.bin"


@pytest.mark.parametrize(
    "reference", ["/m/x.bin", "./base.en", "org/repo", "pypi:a==1/b.bin", "gemma", "base.en/"]
)
def test_other_references_are_left_alone(tmp_path: Path, reference: str) -> None:
    """Paths, repositories and packages mean what they mean elsewhere."""
    assert named(reference, str(tmp_path)) is None
