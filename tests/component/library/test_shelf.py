"""Models brought into the cache's folder and taken out of it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from modeld.errors import LoadFailed, UsageError
from modeld.library import removal, shelf
from modeld.library.entry import Entry
from modeld.library.listing import Listing
from modeld.library.lock import locked
from modeld.library.pull import record
from modeld.library.pull.record import Pulled, PulledFile
from tests.component.library.test_listing import put, safetensors
from tests.unit.library.gguf_bytes import chat_model, header


async def brought(cache: Path, path: Path, way: shelf.Way = "copy") -> shelf.Brought:
    """Bring the model at a path."""
    return shelf.bring(cache, await Listing(None).look(path), way)


def left(cache: Path) -> list[str]:
    """Return every file below the models' folder, hidden ones too."""
    root = shelf.shelf(cache)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir())


@pytest.mark.parametrize("way", ["copy", "link"])
async def test_a_model_is_whole_under_its_own_name_with_its_projector(
    tmp_path: Path, cache: Path, way: shelf.Way
) -> None:
    """What comes out of the listing afterwards is the same model; a second time changes nothing."""
    path = put(tmp_path / "in/m-Q4.gguf")
    put(tmp_path / "in/mmproj-m.gguf", header({"general.architecture": "clip", "general.type": "mmproj"}))
    heard: list[int] = []
    entry = await Listing(None).look(path)
    assert entry.mmproj
    first = shelf.bring(cache, entry, way, heard.append)
    assert first.path == cache / "models/m-Q4/m-Q4.gguf"
    assert first.done == ("copied" if way == "copy" else "linked")
    assert first.path.samefile(path) == (way == "link")
    assert sum(heard) == (first.size if way == "copy" else 0)
    assert left(cache) == ["m-Q4/m-Q4.gguf", "m-Q4/mmproj-m.gguf"]
    again = await Listing(None).look(first.path)
    assert (again.metadata, len(again.mmproj), again.error) == (entry.metadata, 1, "")
    assert (await brought(cache, path, way)).done == "there"


async def test_pieces_and_folders_come_whole(tmp_path: Path, cache: Path) -> None:
    """All shards of one model, and a folder with what lies below it, hidden files aside."""
    for number in (1, 2):
        put(tmp_path / f"in/big-0000{number}-of-00002.safetensors")
    safetensors(tmp_path / "in/big-00001-of-00002.safetensors", "a")
    safetensors(tmp_path / "in/big-00002-of-00002.safetensors", "b")
    found = await brought(cache, tmp_path / "in/big-00001-of-00002.safetensors")
    assert (found.path.parent.name, found.path.name) == ("big", "big-00001-of-00002.safetensors")
    folder = tmp_path / "qwen"
    safetensors(folder / "model.safetensors", "a")
    put(folder / "config.json", b'{"architectures": ["LlamaForCausalLM"], "model_type": "llama"}')
    put(folder / ".git/HEAD", b"x")
    assert (await brought(cache, folder)).path == cache / "models/qwen"
    assert left(cache) == [
        "big/big-00001-of-00002.safetensors",
        "big/big-00002-of-00002.safetensors",
        "qwen/config.json",
        "qwen/model.safetensors",
    ]


async def test_another_model_of_that_name_and_a_broken_one_are_refused(tmp_path: Path, cache: Path) -> None:
    """With the reason; what was there stays as it was."""
    await brought(cache, put(tmp_path / "a/m.gguf"))
    other = put(tmp_path / "b/m.gguf", chat_model() + bytes(100))
    with pytest.raises(UsageError, match=r"another model 'm' in .*modeld ctl rm m"):
        await brought(cache, other)
    with pytest.raises(UsageError, match="not imported"):
        await brought(cache, put(tmp_path / "c/broken.gguf", chat_model()[:60]))
    assert left(cache) == ["m/m.gguf"]
    assert (cache / "models/m/m.gguf").read_bytes() == chat_model()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
async def test_a_copy_that_fails_leaves_nothing(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    """And the words say what happened, for a full disk what to do."""
    path = put(tmp_path / "in/m.gguf")

    def fail(handle: int) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "fsync", fail)
    words = (
        "is full, the model takes .*--link" if code == errno.ENOSPC else "cannot be used: Input/output error"
    )
    with pytest.raises(LoadFailed, match=words):
        await brought(cache, path)
    assert left(cache) == []
    assert os.listdir(cache / "models") == []


async def test_from_another_disk_a_link_points_and_taking_it_out_leaves_the_original(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is copied, and removing frees nothing but the name."""
    path = put(tmp_path / "in/m.gguf")

    def link(source: Path, target: Path) -> None:
        raise OSError(errno.EXDEV, "another disk")

    monkeypatch.setattr(os, "link", link)
    found = await brought(cache, path, "link")
    assert (found.done, found.path.is_symlink()) == ("pointed", True)
    entry = await Listing(None).look(found.path)
    assert not entry.error
    removal.remove(cache, entry)
    assert path.read_bytes() == chat_model()
    assert os.listdir(cache / "models") == []


async def test_taking_out_removes_the_model_alone_and_empty_folders(tmp_path: Path, cache: Path) -> None:
    """Another file in the folder stays, the room itself too; the bytes are counted."""
    one = put(cache / "built/m/m.gguf")
    two = put(cache / "models/x/x.gguf")
    put(cache / "models/x/notes.txt", b"mine")
    for path in (one, two):
        assert removal.remove(cache, await Listing(None).look(path)) == len(chat_model())
    assert os.listdir(cache / "built") == []
    assert left(cache) == ["x/notes.txt"]


async def test_the_last_model_of_a_repository_takes_with_it_what_was_begun(
    tmp_path: Path, cache: Path
) -> None:
    """Its records and parts go when nothing of it is left, and their bytes are counted; not before."""
    paths = [put(cache / f"hub/org/m/abc1234/{name}.gguf/{name}.gguf") for name in ("m", "o")]
    for path in paths:
        file = PulledFile(path.name, len(chat_model()), "0" * 64)
        record.keep(
            cache, Pulled("org/m", path.stem, "abc1234", "gguf", (file,), None, path.parent), tmp_path
        )
    part = put(cache / "hub/org/m/.incoming/etag", b"half")
    assert removal.remove(cache, await Listing(None).look(paths[0])) == len(chat_model())
    assert part.exists()
    assert removal.remove(cache, await Listing(None).look(paths[1])) == len(chat_model()) + len(b"half")
    assert os.listdir(cache / "hub") == []


def test_what_is_only_begun_can_be_removed(cache: Path) -> None:
    """By the repository's name; of one that is not there nothing is said to be."""
    put(cache / "hub/org/m/.incoming/etag", b"half")
    assert removal.remove_begun(cache, "org/other") is None
    assert removal.remove_begun(cache, "../models") is None
    assert removal.remove_begun(cache, "org/m") == 4
    assert os.listdir(cache / "hub") == []


async def test_nothing_is_removed_from_under_a_pull(cache: Path) -> None:
    """While one holds the repository, its models and parts stay; afterwards they go."""
    path = put(cache / "hub/org/m/abc1234/m.gguf/m.gguf")
    entry = await Listing(None).look(path)
    with locked(record.home(cache, "org/m")):
        with pytest.raises(UsageError, match="org/m is being pulled at this moment"):
            removal.remove(cache, entry)
        with pytest.raises(UsageError, match="org/m is being pulled at this moment"):
            removal.remove_begun(cache, "org/m")
    assert path.exists()
    removal.remove(cache, entry)
    assert os.listdir(cache / "hub") == []


@pytest.mark.parametrize("name", ["", " ", ".", "..", "../..", "models/.."])
def test_no_name_reaches_beyond(cache: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """What names no model but a folder on the way is refused, wherever one stands."""
    cache.mkdir(exist_ok=True)
    monkeypatch.chdir(cache)
    entry = Entry(str(cache / "built/m/m.gguf"), "gguf", name="m", files=("m.gguf",))
    with pytest.raises(UsageError, match="is no model's name"):
        removal.find(cache, name, (entry,))


async def test_a_copy_takes_the_place_of_a_link(tmp_path: Path, cache: Path) -> None:
    """What was linked before is a file of its own when a copy is asked for."""
    path = put(tmp_path / "in/m.gguf")
    assert (await brought(cache, path, "link")).path.samefile(path)
    again = await brought(cache, path, "copy")
    assert (again.done, again.path.samefile(path)) == ("copied", False)
    assert (await brought(cache, path, "copy")).done == "there"
    assert os.listdir(cache / "models") == ["m"]


async def test_nothing_outside_the_cache_is_removed(tmp_path: Path, cache: Path) -> None:
    """Neither by a path nor through a folder in the cache that is a link."""
    outside = put(tmp_path / "elsewhere/m.gguf")
    shelf.shelf(cache).mkdir(parents=True)
    (cache / "models/way-out").symlink_to(outside.parent)
    inside = await Listing(None).look(cache / "models/way-out/m.gguf")
    for entry in (await Listing(None).look(outside), inside):
        with pytest.raises(UsageError, match="is not in modeld's cache"):
            removal.remove(cache, entry)
    assert outside.exists()
