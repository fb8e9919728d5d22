"""LoRAs in prompts: names of files in one folder, and of nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError
from modeld.worker.loaders.stable_diffusion_cpp.loras import extract


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a folder with two LoRAs, something broken, and something else."""
    path = tmp_path_factory.mktemp("loras")
    for name in ("a.safetensors", "b c.gguf"):
        (path / name).write_bytes(b"GGUF\x03\0\0\0" + bytes(16))
    (path / "broken.gguf").write_bytes(b"GGUF")
    (path / "notes.txt").write_text("x")
    return path


def test_tags_become_files_and_leave_the_prompt(folder: Path) -> None:
    """In their order; a strength is 1 when none is named, and two of one file add up."""
    text, found = extract("a <lora:b c:0.5>cat<lora:a> x<lora:b c:-0.25>", str(folder))
    assert text == "a cat x"
    assert found == ((str(folder / "b c.gguf"), 0.25), (str(folder / "a.safetensors"), 1.0))
    assert extract("a cat", None) == ("a cat", ())


@pytest.mark.parametrize(
    ("tag", "words"),
    [
        ("<lora:z:1>", "there are a, b c, broken"),
        ("<lora:../a:1>", "no LoRA"),
        ("<lora:/etc/passwd:1>", "no LoRA"),
        ("<lora:notes:1>", "no LoRA"),
        ("<lora::1>", "no LoRA"),
        ("<lora:a:much>", "no strength"),
        ("<lora:a:nan>", "no strength"),
        ("<lora:a:11>", "no strength"),
    ],
)
def test_a_tag_that_cannot_be_honoured_is_refused(folder: Path, tag: str, words: str) -> None:
    """It is never dropped in silence, nor taken for words."""
    with pytest.raises(BadRequest, match=words) as caught:
        extract(f"a cat {tag}", str(folder))
    assert caught.value.param == "prompt"
    with pytest.raises(BadRequest, match="lora_model_dir"):
        extract(f"a cat {tag}", None)


def test_a_broken_file_does_not_reach_the_engine(folder: Path) -> None:
    """It is its owner's fault, and costs this call only."""
    with pytest.raises(EngineError, match="broken"):
        extract("<lora:broken:1>", str(folder))


@given(st.text("<>:/.ab lor", max_size=40))
def test_only_files_of_the_folder_are_ever_named(folder: Path, text: str) -> None:
    """Whatever a prompt is made of."""
    try:
        rest, found = extract(text, str(folder))
    except (BadRequest, EngineError):
        return
    assert {Path(file).parent for file, _ in found} <= {folder}
    assert len(rest) <= len(text)
