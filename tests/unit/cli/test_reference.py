"""What a model's files say of the options that a command line leaves out."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from modeld.cli.reference import told_by_files
from modeld.errors import UsageError


def text(value: str) -> bytes:
    """Return a string as GGUF writes it."""
    return struct.pack("<Q", len(value)) + value.encode()


def gguf(file: Path, architecture: str, *keys: tuple[str, int]) -> Path:
    """Write a small GGUF file: its architecture, whole numbers, and one tensor of 32 zeros."""
    written = [text("general.architecture") + struct.pack("<I", 8) + text(architecture)]
    written += [text(key) + struct.pack("<II", 4, value) for key, value in keys]
    tensor = text("token_embd.weight") + struct.pack("<IQIQ", 1, 32, 0, 0)
    head = struct.pack("<4sIQQ", b"GGUF", 3, 1, len(written)) + b"".join(written) + tensor
    file.write_bytes(head + bytes(-len(head) % 32) + bytes(128))
    return file


def told(
    ref: object, base: Path, loader: str | None = None, usecase: str | None = None
) -> tuple[object, ...]:
    """Return what is told of a reference."""
    return told_by_files(str(ref), base, loader=loader, usecase=usecase)


def test_a_file_tells_its_engine_and_its_use(tmp_path: Path) -> None:
    """A model of vectors is not set to write; a folder with one model in it is that model."""
    gguf(tmp_path / "writes.gguf", "llama")
    assert told("writes.gguf", tmp_path) == ("writes.gguf", "llama_server", "generate")
    (tmp_path / "one").mkdir()
    gguf(tmp_path / "one" / "vectors.gguf", "bert", ("bert.pooling_type", 1))
    assert told("one/vectors.gguf", tmp_path) == ("one/vectors.gguf", "llama_server", "embed")
    assert told("one", tmp_path) == ("one", "llama_server", "embed")
    assert told("demo:minilm", tmp_path) == ("demo:minilm", "llama_server", "embed")


def test_what_is_given_stays(tmp_path: Path) -> None:
    """A given loader is not argued with, and the file's use case goes with the file's own loader only."""
    gguf(tmp_path / "v.gguf", "bert", ("bert.pooling_type", 1))
    assert told("v.gguf", tmp_path, usecase="generate") == ("v.gguf", "llama_server", "generate")
    assert told("v.gguf", tmp_path, "llama_server") == ("v.gguf", "llama_server", "embed")
    assert told("v.gguf", tmp_path, "vllm") == ("v.gguf", "vllm", None)
    assert told("none.gguf", tmp_path, "llama_server") == ("none.gguf", "llama_server", None)
    assert told("tiny.en", tmp_path, "whispercpp") == ("tiny.en", "whispercpp", None)


def test_a_piece_stands_for_the_whole_model(tmp_path: Path) -> None:
    """An engine is given the first piece of a split model, whichever was named."""
    for number in (1, 2):
        gguf(tmp_path / f"m-0000{number}-of-00002.gguf", "llama")
    first = str(tmp_path / "m-00001-of-00002.gguf")
    assert told("m-00002-of-00002.gguf", tmp_path)[0] == first
    assert told(first, tmp_path)[0] == first


def test_what_is_not_on_this_disk_is_left_to_be_guessed(tmp_path: Path) -> None:
    """A hub's repository and a package are not asked."""
    for ref in ("org/repo", "org/repo:Q4_K_M", "pypi:name==1/name/m.gguf"):
        assert told(ref, tmp_path) == (ref, None, None)


def test_a_repository_of_gguf_files_is_known_by_its_name(tmp_path: Path) -> None:
    """`org/NAME-GGUF` is for llama.cpp, whatever its case; another one tells nothing before it is here."""
    for repo in ("Qwen/Qwen3-8B-GGUF", "one/tiny-gguf"):
        assert told_by_files(repo, tmp_path, loader=None, usecase=None) == (repo, "llama_server", None)
    assert told_by_files("Qwen/Qwen3-8B", tmp_path, loader=None, usecase=None)[1] is None


def test_what_cannot_become_a_model_is_refused_at_once(tmp_path: Path) -> None:
    """Nonsense, no file, a damaged one, a folder of several, a projector: each with what is wrong."""
    gguf(tmp_path / "a.gguf", "llama")
    gguf(tmp_path / "mmproj-a.gguf", "clip")
    (tmp_path / "cut.gguf").write_bytes((tmp_path / "a.gguf").read_bytes()[:60])
    (tmp_path / "alone").mkdir()
    gguf(tmp_path / "alone" / "mmproj.gguf", "clip")
    for ref, words in (
        ("", "the reference is empty"),
        ("http://host/m.gguf", "addresses are not read here"),
        ("none.gguf", r"there is no .*/none.gguf"),
        ("cut.gguf", r"cut.gguf is cut short"),
        (".", "holds 2 models; name one"),
        ("mmproj-a.gguf", r"is the projector of .*/a.gguf"),
        ("alone/mmproj.gguf", "is no model by itself"),
    ):
        with pytest.raises(UsageError, match=words):
            told(ref, tmp_path)
