"""What is the file's and what was added: over changes, reloads and restarts."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import msgspec

from modeld.clock import SystemClock
from modeld.config.load import from_document
from modeld.control import starting_models
from modeld.store.db import Database
from modeld.store.effective import EffectiveConfig, StoredModel
from tests.component.control.conftest import Rooms, document, fake, names


def stored(key: str, origin: str = "added", gateway: str = "", **fields: Any) -> StoredModel:
    """Return a stored model."""
    name = key.removeprefix(f"{gateway}/")
    return msgspec.convert(
        {"key": key, "gateway": gateway, "origin": origin, "document": fake(name, **fields), "base": "/b"},
        StoredModel,
    )


async def test_added_models_come_back_after_a_restart_and_the_files_are_the_files(rooms: Rooms) -> None:
    """The next start gives the file's models as they are written then, and those that were added."""
    async with rooms(fake("a"), fake("b"), fake("c")) as room:
        await room.do("add", fake("mine", aliases=["m"]), fake("b", priority=4))
        await room.do("remove", names=("c",))
        assert await room.origins() == {"a": "file", "b": "added", "mine": "added"}
    async with rooms(fake("a"), fake("b"), fake("c")) as room:
        assert await room.origins() == {"a": "file", "b": "file", "c": "file", "mine": "added"}
        assert (room.spec("b").priority, room.spec("mine").aliases) == (0, ("m",))
        await room.check()
        await room.do("remove", names=("mine",))
    async with rooms(fake("a")) as room:
        assert await room.origins() == {"a": "file"}


async def test_a_replaced_model_of_the_file_says_when_the_files_holds_again(rooms: Rooms) -> None:
    """A change that puts another model in the place of the file's names the file, and a reload undoes it."""
    async with rooms(fake("a"), fake("b")) as room:
        result = await room.do("add", fake("a", priority=1), fake("b"), fake("c"))
        assert result.plan.notes == (
            f"a: what {room.file} says of it holds again from the next start or reload on",
        )
        assert await room.origins() == {"a": "added", "b": "file", "c": "added"}
        result = await room.do("reload")
        assert names(result.plan) == {"updates": ["a"], "unchanged": ["b", "c"]}
        assert await room.origins() == {"a": "file", "b": "file", "c": "added"}


async def test_a_removed_copy_of_the_files_model_comes_back_too(rooms: Rooms) -> None:
    """Who removes what he had put in the place of the file's model is told that the file still names it."""
    async with rooms(fake("a")) as room:
        await room.do("add", fake("a", priority=1))
        result = await room.do("remove", names=("a",))
        assert result.plan.notes == (
            f"a: if {room.file} still names it, it comes back at the next start or reload",
        )
        assert names((await room.do("reload")).plan) == {"adds": ["a"]}


async def test_reconciling_with_the_own_file_keeps_its_models_the_files(rooms: Rooms) -> None:
    """A document that says what the file says leaves the models the file's own."""
    async with rooms(fake("a"), fake("b")) as room:
        await room.do("add", fake("c"))
        result = await room.do("reconcile", fake("b"), fake("a"))
        assert names(result.plan) == {"removes": ["c"], "unchanged": ["a", "b"]}
        assert await room.origins() == {"a": "file", "b": "file"}


def test_a_start_leaves_out_what_cannot_be_and_says_why() -> None:
    """A stored model whose name or alias the file has taken, or that cannot be read, is left out."""
    config = from_document(document(fake("a", aliases=["x"]), fake("b")), Path("/c"), allow_fake=True)
    entries = [
        stored("gone", origin="file"),
        stored("b"),
        stored("x"),
        stored("y", aliases=["fine", "a"]),
        stored("g/x", gateway="g"),
        stored("z", aliases=["fine"]),
        stored("z2", aliases=["fine"]),
        stored("odd", bogus=1),
    ]
    wanted, notes = starting_models(config, Path("/c"), entries)
    assert [(each.key, each.origin, each.base) for each in wanted] == [
        ("a", "file", "/c"),
        ("b", "file", "/c"),
        ("g/x", "added", "/b"),
        ("z", "added", "/b"),
        ("z2", "added", "/b"),
    ]
    left = "which was added to the running daemon, is left out: the name"
    assert notes == [
        "b: the configuration file has a model of this name now; it is used",
        f"x, {left} 'x' stands for the configuration file's model 'a' now",
        f"y, {left} 'a' stands for the configuration file's model 'a' now",
        "g/x, which was added to the running daemon, is back",
        "z, which was added to the running daemon, is back",
        "z2, which was added to the running daemon, is back",
        "odd, which was added to the running daemon, cannot be restored: models[0].bogus: unknown key",
    ]


async def test_a_stored_model_is_restored_as_it_was_wanted(rooms: Rooms, tmp_path: Path) -> None:
    """What the store gives back has the same fingerprint, options and paths, for any kind of model."""
    gguf = {
        "name": "g",
        "model": "org/repo:*q4*",
        "usecase": "generate",
        "loader": "llama_server",
        "load": "on_demand",
        "keep_alive": "90m",
        "vram": "6GiB",
        "llama_server_config": {"binary": "./llama-server", "chat_template": "./t.jinja", "n_ctx": 512},
    }
    auto = {"min_replicas": 0, "max_replicas": 4, "target_ongoing_requests": 3}
    async with rooms() as room:
        await room.do("add", gguf, fake("f", {"reply": "ä"}, autoscaling_config=auto))
        before = room.pool.specs()
        assert before["g"].options["binary"] == str(tmp_path / "llama-server")
    async with rooms() as room:
        assert room.pool.specs() == before


async def test_a_stored_fake_needs_no_leave_again(rooms: Rooms) -> None:
    """A document that allows its own fakes is taken, and they are back at a start that knows no fakes."""
    added = document(fake("mine"), allow_fake=True)
    async with rooms(allow_fake=False) as room:
        assert (await room.do("add", document=added)).plan.notes == ()
    async with rooms(allow_fake=False) as room:
        assert await room.origins() == {"mine": "added"}


async def test_a_start_that_cannot_restore_a_model_goes_on(rooms: Rooms, tmp_path: Path) -> None:
    """An unreadable entry in the store costs that model, not the start."""
    async with Database.open(tmp_path / "store.sqlite3", SystemClock()) as database:
        await EffectiveConfig(database).save([stored("odd", bogus=1), stored("mine")])
    async with rooms(fake("a")) as room:
        assert set(room.pids()) == {"a", "mine"}
        async with asyncio.timeout(60):
            await room.check()
