"""Which models there are after a change, what a plan says, and what is recorded."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from modeld.admin.schemas import Change, Replacement
from modeld.errors import ConfigError, LoadFailed, ModeldError, UsageError
from modeld.supervisor.states import State
from tests.component.control.conftest import Room, Rooms, document, fake, names, told
from tests.fakes.worker_link import WAIT_S
from tests.fakes.workers import Workers

LONGER = {"tokens": 3}
BROKEN = LoadFailed("the weights are torn", permanent=True)


async def test_add_adds_and_replaces_only_what_differs(rooms: Rooms) -> None:
    """New models come up, those that differ get new workers, the others keep theirs; nothing goes."""
    async with rooms(fake("a"), fake("b"), fake("c")) as room:
        before = room.pids()
        result = await room.do("add", fake("b", LONGER), fake("c"), fake("d"))
        assert names(result.plan) == {"adds": ["d"], "replaces": ["b"], "unchanged": ["a", "c"]}
        assert result.plan.replaces == (Replacement("b", ("fake_config.tokens",)),)
        words = told(result.outcomes)
        assert words["b"] == (True, "replaced: the new one took over when it was ready")
        assert words["d"][0]
        assert words["d"][1].startswith("ready: loaded in")
        assert list(words) == ["b", "d"]
        after = room.pids()
        assert {name: after[name] == before.get(name) for name in after} == {
            "a": True,
            "b": False,
            "c": True,
            "d": False,
        }
        assert await room.origins() == {"a": "file", "b": "added", "c": "file", "d": "added"}
        assert room.counted == [("add", "ok")]


async def test_remove_takes_out_what_is_named(rooms: Rooms) -> None:
    """The workers of the models named go, the others stay; the file's come back, and the plan says so."""
    async with rooms(fake("a"), fake("b"), gateways=[{"name": "G", "models": [fake("x")]}]) as room:
        before = room.pids()
        result = await room.do("remove", names=("b", "g/x", "b"))
        assert told(result.outcomes) == {"b": (True, "removed"), "g/x": (True, "removed")}
        assert names(result.plan) == {"removes": ["b", "g/x"], "unchanged": ["a"]}
        assert result.plan.notes == (
            f"b, g/x: if {room.file} still names them, they come back at the next start or reload",
        )
        assert room.pids() == {"a": before["a"]}
        assert room.workers.names() == ["a"]


async def test_reconcile_makes_the_models_exactly_those_of_the_document(rooms: Rooms) -> None:
    """What the document does not name goes, in other gateways too; what is the same stays the file's."""
    gateways = [{"name": "G", "models": [fake("x"), fake("y")]}]
    async with rooms(fake("a"), fake("b"), gateways=gateways) as room:
        before = room.pids()
        wanted = document(
            fake("a"), fake("c"), gateways=[{"name": "g", "models": [fake("x", priority=3), fake("z")]}]
        )
        result = await room.do("reconcile", document=wanted)
        assert names(result.plan) == {
            "adds": ["c", "g/z"],
            "removes": ["b", "g/y"],
            "updates": ["g/x"],
            "unchanged": ["a"],
        }
        after = room.pids()
        assert set(after) == {"a", "c", "g/x", "g/z"}
        assert (after["a"], after["g/x"]) == (before["a"], before["g/x"])
        assert await room.origins() == {"a": "file", "c": "added", "g/x": "added", "g/z": "added"}
        assert [note for note in result.plan.notes if note.startswith("g/x: what ")]
        result = await room.do("reconcile", document=document())
        assert (names(result.plan), room.pids()) == ({"removes": ["a", "c", "g/x", "g/z"]}, {})


async def test_reload_reads_the_file_again_and_leaves_what_was_added(rooms: Rooms) -> None:
    """The file's models become what the file says now; those that were added stay, unless it names them."""
    async with rooms(fake("a"), fake("b")) as room:
        await room.do("add", fake("mine"), fake("later"))
        room.write(fake("a", LONGER), fake("later", priority=2))
        result = await room.do("reload")
        assert names(result.plan) == {
            "removes": ["b"],
            "replaces": ["a"],
            "updates": ["later"],
            "unchanged": ["mine"],
        }
        assert result.plan.notes == (
            "later was added to the running daemon; the file has a model of this name",
        )
        assert await room.origins() == {"a": "file", "later": "file", "mine": "added"}
        result = await room.do("reload")
        assert (names(result.plan), result.outcomes) == ({"unchanged": ["a", "later", "mine"]}, ())


async def test_reload_tells_which_settings_wait_for_the_next_start(rooms: Rooms) -> None:
    """Settings outside the models are told with a note, each time, and are not used before the next start."""
    async with rooms(fake("a"), max_queue=7) as room:
        room.write(fake("a"), fake("b"), max_queue=9, drain_timeout=1, listen="127.0.0.1:9")
        for _ in range(2):
            result = await room.do("reload")
            assert result.plan.notes == (
                f"listen: the daemon runs with another than {room.file} has; the file's counts at the next "
                "start, unless the command line decides",
                "max_queue, drain_timeout: changed, and take effect at the next start",
            )
        assert {spec.max_queue for spec in room.pool.specs().values()} == {7}
        room.write(fake("a"), max_queue=8)
        assert (await room.do("reload")).plan.notes == (
            "max_queue: changed, and takes effect at the next start",
        )


async def test_a_documents_own_settings_are_not_taken_over_and_it_says_so(rooms: Rooms) -> None:
    """The daemon's keep_alive and queue hold for added models; keys that differ are named in a note."""
    async with rooms(fake("a"), keep_alive="1h", max_queue=5) as room:
        added = document(fake("b"), keep_alive="9m", max_queue=5, listen=":::", log={"level": "debug"})
        with pytest.raises(ConfigError, match="listen: expected host:port"):
            await room.do("add", document=added)
        added["listen"] = "127.0.0.1:7"
        result = await room.do("add", document=added)
        assert result.plan.notes == (
            "keep_alive, log: settings outside the models are not taken over; the daemon's own hold",
        )
        assert (room.spec("b").keep_alive_s, room.spec("b").max_queue) == (3600, 5)


async def test_what_engines_says_holds_from_a_reload_on(rooms: Rooms) -> None:
    """A reload gives models that were added the file's engine too, as the next start would."""
    gguf = {"name": "g", "model": "./g.gguf", "usecase": "generate", "loader": "llama_server", "ram": 1}
    gguf |= {"load": "on_demand"}
    async with rooms(fake("a")) as room:
        await room.do("add", gguf)
        room.write(fake("a"), engines={"llama_server": {"binary": "/opt/one"}})
        result = await room.do("reload")
        assert result.plan.replaces == (Replacement("g", ("engines.llama_server.binary",)),)
        assert result.plan.notes == ()
        assert room.spec("g").options["binary"] == "/opt/one"
        result = await room.do("add", gguf, {**gguf, "name": "h"})
        assert names(result.plan) == {"adds": ["h"], "unchanged": ["a", "g"]}
        assert room.spec("h").options["binary"] == "/opt/one"


def _refused(room: Room) -> list[tuple[Change, type[ModeldError], str]]:
    change = room.change
    return [
        (change("remove", names=("a", "zz")), UsageError, "no model is named 'zz'; there are: a, b"),
        (change("remove", names=()), UsageError, "no model is given; there are: a, b"),
        (change("add"), UsageError, "nothing to add: the change has no document"),
        (change("add", document={}), UsageError, "nothing to add: the file names no models"),
        (change("add", fake("c", aliases=["bee"])), ConfigError, "'bee' would stand for two models, 'b'"),
        (change("add", fake("bee")), ConfigError, "the name 'bee' would stand for two models, 'b'"),
        (change("add", fake("c"), fake("c")), ConfigError, "the name 'c' is taken by the model 'c'"),
        (change("add", fake("c", pin="x")), ConfigError, "models\\[0\\].pin"),
        (change("add", document={"models": 3}), ConfigError, "models: expected"),
        (change("reconcile", document={"model": []}), ConfigError, "model: unknown"),
        (change("add", fake("c"), base="here"), UsageError, "base: expected the absolute path of a folder"),
    ]


@pytest.mark.parametrize("number", range(11))
async def test_what_cannot_be_is_refused_and_changes_nothing(rooms: Rooms, number: int) -> None:
    """Neither the pool nor the store knows of a change that was refused, and the daemon goes on."""
    async with rooms(fake("a"), fake("b", aliases=["bee"])) as room:
        change, kind, words = _refused(room)[number]
        before = await room.facts()
        for ask in (room.control.plan, room.control.apply):
            with pytest.raises(kind, match=words):
                await ask(change)
            assert await room.facts() == before
        assert room.counted == [(change.kind, "refused")]
        await room.do("add", fake("after"))
        assert room.pool.status("after").state is State.READY


async def test_fakes_are_refused_where_they_are_not_allowed(rooms: Rooms) -> None:
    """The stand-ins of tests are refused where neither the daemon nor the document allows them."""
    async with rooms(allow_fake=False) as room:
        with pytest.raises(ConfigError, match="the loader fake is a stand-in for tests"):
            await room.control.apply(room.change("add", fake("a")))
        assert await room.stored() == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: [", "modeld.yaml:1"),
        ("models: [{name: a, loader: fake}]", "stand-in for tests"),
        (
            "allow_fake: true\nmodels: [{name: n, loader: fake, aliases: [mine]}]",
            "'mine'.*added to the running",
        ),
        (None, "there is no such file"),
    ],
)
async def test_a_file_that_is_wrong_changes_nothing(
    rooms: Rooms, text: str | None, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A reload of a broken file is refused with the place; one by signal logs it, once, and goes on."""
    async with rooms(fake("a")) as room:
        await room.do("add", fake("mine"))
        assert room.file is not None
        room.file.unlink()
        if text is not None:
            room.file.write_text(text)
        before = await room.facts()
        with pytest.raises(ConfigError, match=words):
            await room.control.apply(Change("reload"))
        room.control.reload("SIGHUP")
        with pytest.raises(ConfigError, match=words):  # its turn comes after the signal's
            await room.control.apply(Change("reload"))
        assert await room.facts() == before
        errors = [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]
        assert len(errors) == 1
        assert errors[0].startswith("SIGHUP: the models stay as they are: ")


async def test_what_a_change_has_begun_holds_up_no_other(rooms: Rooms) -> None:
    """While an added model is on its way for ever, others come, and it goes; whoever added it is told."""
    workers = Workers(quick=True)
    workers.gates["slow"] = asyncio.Event()
    async with rooms(fake("a"), workers=workers) as room:
        adding = asyncio.create_task(room.control.apply(room.change("add", fake("slow"))))
        async with asyncio.timeout(WAIT_S):
            while "slow" not in room.pids():
                await asyncio.sleep(0)
        await room.state(State.LOADING, "slow")
        assert told((await room.do("add", fake("b"))).outcomes)["b"][0]
        assert told((await room.do("remove", names=("slow",))).outcomes) == {"slow": (True, "removed")}
        async with asyncio.timeout(WAIT_S):
            (outcome,) = (await adding).outcomes
        assert (outcome.name, outcome.ok) == ("slow", False)
        assert "it was removed from the configuration" in outcome.message
        assert sorted(room.pids()) == ["a", "b"]
        assert sorted(room.counted) == [("add", "ok"), ("add", "partial"), ("remove", "ok")]


async def test_there_is_nothing_to_reload_without_a_file(rooms: Rooms) -> None:
    """A daemon without a file of its own says so, and its plans speak of no file."""
    async with rooms(fake("a"), own_file=False) as room:
        with pytest.raises(UsageError, match="there is nothing to reload"):
            await room.control.plan(Change("reload"))
        assert (await room.do("remove", names=("a",))).plan.notes == ()


async def test_reconcile_without_a_file_wakes_what_is_down(rooms: Rooms) -> None:
    """A model that failed and one its owner unloaded come up again; idle ones and those on demand stay."""
    models = [fake(name) for name in ("fine", "unloaded", "failed", "still")]
    models += [fake("idle", keep_alive=0), fake("asked", load="on_demand")]
    models += [fake("zero", autoscaling_config={"min_replicas": 0, "max_replicas": 2})]
    workers = Workers(quick=True)
    workers.failures = {"failed": [BROKEN], "still": [BROKEN, BROKEN]}
    async with rooms(*models, workers=workers) as room:
        await room.pool.unload("unloaded")
        await room.state(State.STOPPED, "idle")
        assert [room.pool.status(name).state for name in ("failed", "still")] == [State.FAILED] * 2
        before = room.pids()
        result = await room.do("reconcile")
        assert names(result.plan) == {"unchanged": sorted(before)}
        assert result.plan.notes == tuple(
            f"{name} is not up, and is started again" for name in ("failed", "still", "unloaded")
        )
        words = told(result.outcomes)
        assert {name: ok for name, (ok, _) in words.items()} == {
            "failed": True,
            "still": False,
            "unloaded": True,
        }
        assert words["still"][1] == "failed: the weights are torn"
        assert room.pids()["fine"] == before["fine"]
        assert sorted(room.workers.names()) == ["failed", "fine", "unloaded"]
        assert room.counted == [("reconcile", "partial")]


async def test_one_failed_model_does_not_hold_up_the_others(rooms: Rooms) -> None:
    """A model that fails is there, FAILED, and recorded; those added with it are up."""
    workers = Workers(quick=True)
    workers.failures["bad"] = [BROKEN]
    async with rooms(fake("a"), workers=workers) as room:
        result = await room.do("add", fake("bad"), fake("good"))
        assert told(result.outcomes)["bad"] == (False, "failed: the weights are torn")
        assert told(result.outcomes)["good"][0]
        assert set(await room.origins()) == {"a", "bad", "good"}
        assert room.counted == [("add", "partial")]


async def test_relative_paths_are_those_of_the_folder_they_were_written_in(
    rooms: Rooms, tmp_path: Path
) -> None:
    """Two documents of two folders that name ./m.gguf name two files, also after a restart."""
    gguf = {"name": "g", "model": "./m.gguf", "usecase": "generate", "loader": "llama_server", "ram": 1}
    gguf |= {"load": "on_demand"}
    other = tmp_path / "other"
    async with rooms() as room:
        await room.do("add", gguf)
        assert room.spec("g").reference == str(tmp_path / "m.gguf")
        result = await room.do("add", gguf, base=str(other))
        assert result.plan.replaces == (Replacement("g", ("model",)),)
    async with rooms() as room:
        assert room.spec("g").reference == str(other / "m.gguf")
        assert (await room.do("add", gguf, base=str(other))).plan.unchanged == ("g",)


async def test_a_store_that_fails_does_not_stop_the_change(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The models run all the same, and the log says that the next start will not know."""
    async with rooms(fake("a")) as room:

        async def save(models: Any) -> None:
            raise ModeldError("the disk is full", code="store_failed")

        monkeypatch.setattr(room.store, "save", save)
        await room.control.apply(room.change("add", fake("b")))
        assert room.pool.status("b").state is State.READY
        assert "the next start will not know of the change: the disk is full" in caplog.text


async def test_a_defect_in_a_change_ends_neither_the_daemon_nor_the_room(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """An error that nobody raised on purpose reaches the caller and the log; the next change works."""
    async with rooms(fake("a")) as room:
        with monkeypatch.context() as patch:
            patch.setattr(room.pool, "update", lambda spec: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                await room.control.apply(room.change("add", fake("a", priority=1)))
            room.write(fake("a", priority=2))
            room.control.reload("SIGHUP")
            async with asyncio.timeout(WAIT_S):
                while "SIGHUP: a defect of modeld" not in caplog.text:
                    await asyncio.sleep(0)
        assert "add: a defect of modeld" in caplog.text
        await room.control.apply(room.change("add", fake("b")))
        assert room.pool.status("b").state is State.READY
