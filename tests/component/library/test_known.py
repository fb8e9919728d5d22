"""What is known of configured models from their files: on the cards, and for MASS."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from modeld.control.files import ModelFiles
from modeld.gateway.families.models import card
from modeld.library.entry import Entry
from modeld.library.known import KnownFiles
from modeld.library.listing import Listing
from modeld.library.resolve import Resolver
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State
from tests.fakes.pool import model
from tests.unit.library.gguf_bytes import chat_model


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Give the paths of the files that are looked into."""
    seen: list[str] = []
    real = Listing.look

    async def look(self: Listing, path: Path) -> Entry:
        seen.append(str(path))
        return await real(self, path)

    monkeypatch.setattr(Listing, "look", look)
    return seen


def known_files(cache: Path) -> KnownFiles:
    """Return what a daemon would have, with nothing kept on the disk."""
    return KnownFiles(Resolver(cache, cache.parent), Listing(None))


async def test_a_real_model_s_card_has_its_file_s_facts_before_it_is_loaded(
    demo_gguf: Path, cache: Path
) -> None:
    """Parameters, quantisation, size, context and capabilities; metadata with `detail` alone, no path."""
    reference = str(demo_gguf)
    specs = {"tiny": ModelSpec("tiny", "generate", "llama_server", reference)}
    files = ModelFiles(lambda: specs, known_files(cache))
    status = model("tiny", state=State.STOPPED)
    entry = (await files.of((status,)))["tiny"]
    ours = card(status, "tiny", 0, entry)["modeld"]
    assert ours["parameters"] == 134_515_008
    assert (ours["quantization"], ours["size"]) == ("Q4_1", demo_gguf.stat().st_size)
    assert ours["context_length"] == 8192
    assert {"chat", "completion"} <= set(ours["capabilities"])
    assert "metadata" not in ours
    detailed = card(status, "tiny", 0, entry, detail=True)["modeld"]["metadata"]
    assert (detailed["format"], detailed["architecture"], detailed["layers"]) == ("gguf", "llama", 30)
    assert detailed["about"]["keys"]["llama.context_length"] == 8192
    assert str(demo_gguf.parent) not in str(detailed)
    loaded = card(model("tiny"), "tiny", 0, entry)["modeld"]
    assert loaded["capabilities"] == ["chat", "completion"]
    told = await files.properties(status)
    assert told["architecture"] == "llama"
    assert (told["quant"], told["context"], told["layers"]) == ("Q4_1", "8192", "30")
    assert told["chat_template_present"] == "true"


async def test_a_file_is_read_once_and_again_when_it_changes(
    tmp_path: Path, cache: Path, read: list[str]
) -> None:
    """However many ask, and whichever subset of the models."""
    first, second = tmp_path / "a.gguf", tmp_path / "b.gguf"
    for path in (first, second):
        path.write_bytes(chat_model())
    known, both = known_files(cache), [str(first), str(second)]
    await asyncio.gather(*(known.of(both) for _ in range(5)), known.of(both[:1]))
    assert sorted(read) == both
    os.utime(first, ns=(1, 1))
    assert set(await known.of(both)) == set(both)
    assert read[2:] == both[:1]


async def test_what_is_not_here_is_left_out_and_fetched_by_nobody(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """References to a hub, to packages, to a missing file and nonsense; no program is started."""

    async def never(*_: object, **__: object) -> None:
        raise AssertionError("a program was started")

    monkeypatch.setattr(asyncio, "create_subprocess_exec", never)
    absent = [
        "org/repo",
        "org/repo:*Q4*",
        "pypi:some-model==1.0/m/x.gguf",
        str(tmp_path / "no.gguf"),
        "a://b",
    ]
    assert await known_files(cache).of(absent) == {}
    fake = model("fake")
    files = ModelFiles(lambda: {"fake": ModelSpec("fake", "generate", "fake", None)}, known_files(cache))
    assert await files.of((fake, model("gone"))) == {}
    assert await files.properties(fake) == {}


async def test_a_broken_file_says_so_and_is_read_again_once_it_is_whole(tmp_path: Path, cache: Path) -> None:
    """Its card keeps what the pool knows, and `detail` has the reason."""
    path = tmp_path / "a.gguf"
    path.write_bytes(chat_model()[:100])
    known = known_files(cache)
    broken = (await known.of([str(path)]))[str(path)]
    ours = card(model("a", state=State.FAILED), "a", 0, broken, detail=True)["modeld"]
    assert ours["parameters"] is None
    assert "a.gguf" in ours["metadata"]["error"]
    assert str(tmp_path) not in ours["metadata"]["error"]
    path.write_bytes(chat_model())
    assert not (await known.of([str(path)]))[str(path)].error
