"""How models are replaced and updated, and what happens when something else happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from modeld.admin.schemas import Change
from modeld.control import watch as watching
from modeld.errors import LoadFailed, ModelUnavailable
from modeld.supervisor.states import State
from tests.component.control.conftest import Room, Rooms, fake, names, told
from tests.component.supervisor.conftest import answer, ask, first, read
from tests.fakes.machine import GIB
from tests.fakes.worker_link import WAIT_S, text_of
from tests.fakes.workers import Workers

LONGER = {"tokens": 3}
BROKEN = LoadFailed("the weights are torn", permanent=True)


async def _asked(room: Room, name: str = "a") -> Any:
    """Begin a request that a worker has."""
    stream = ask(room.pool, name)
    stream.__enter__()
    reading, calls = asyncio.ensure_future(first(stream)), room.workers.of(name).calls
    before = len(calls)
    await _until(lambda: len(calls) > before)
    calls[-1].say("so")
    assert text_of(await reading) == "so"
    return stream


async def test_a_request_in_flight_ends_where_it_began(rooms: Rooms) -> None:
    """The new worker takes over while the old one ends its request; then the old one goes."""
    async with rooms(fake("a"), workers=Workers()) as room:
        stream = await _asked(room)
        old = room.workers.of("a")
        changing = asyncio.ensure_future(room.do("add", fake("a", LONGER)))
        await _until(lambda: room.pool.status("a").pid != old.pid)
        assert len(room.workers.running) == 2
        assert not changing.done()
        old.calls[-1].end(" long")
        assert text_of(await read(stream)) == " long"
        stream.__exit__(None, None, None)
        assert told((await changing).outcomes) == {
            "a": (True, "replaced: the new one took over when it was ready")
        }
        assert room.workers.running == [room.workers.of("a")]


async def test_the_old_one_serves_on_when_the_new_one_fails(rooms: Rooms) -> None:
    """A replacement that does not come up changes nothing but what is said: not the pool, not the record."""
    async with rooms(fake("a", aliases=["x"]), fake("b")) as room:
        before, pids = room.pool.specs(), room.pids()
        room.workers.failures["a"] = [BROKEN]
        result = await room.do("add", fake("a", LONGER, priority=5), fake("c", aliases=["x2"]))
        assert told(result.outcomes)["a"] == (
            False,
            "the new 'a' did not come up, and the old one serves on: the weights are torn",
        )
        specs = room.pool.specs()
        assert specs.pop("c").aliases == ("x2",)
        assert (specs, room.pids()["a"]) == (before, pids["a"])
        assert await room.origins() == {"a": "file", "b": "file", "c": "added"}
        await answer(ask(room.pool, "a"))
        # It is tried again by the next change that asks for it.
        result = await room.do("add", fake("a", LONGER))
        assert result.plan.replaces[0].keys == ("aliases", "fake_config.tokens")
        assert told(result.outcomes)["a"][0]


async def test_the_old_one_serves_on_without_an_alias_that_another_model_has_now(rooms: Rooms) -> None:
    """What a change gives to another model stays there, so that no later change is refused for it."""
    async with rooms(fake("a", aliases=["x", "y"])) as room:
        room.workers.failures["a"] = [BROKEN]
        await room.do("add", fake("a", LONGER, aliases=["y"]), fake("b", aliases=["x"]))
        assert room.spec("a").aliases == ("y",)
        assert [room.pool.find("", name).name for name in ("x", "y")] == ["b", "a"]  # type: ignore[union-attr]
        await room.do("add", fake("c"))


async def test_where_both_do_not_fit_the_old_one_goes_first(rooms: Rooms) -> None:
    """Without room for two the replacement stops the old worker first, and says why, with the numbers."""
    async with rooms(fake("a", ram="6GiB"), capacity=10 * GIB) as room:
        old = room.workers.of("a")
        result = await room.do("add", fake("a", LONGER, ram="6GiB"))
        (ok, words) = told(result.outcomes)["a"]
        assert ok
        assert words.startswith("replaced: both do not fit side by side (it needs 6.0 GiB, 4.0 GiB free")
        assert words.endswith(", so the old one stopped first")
        assert not old.alive
        assert room.pool.status("a").state is State.READY


async def test_a_failure_after_the_old_one_went_is_recorded_as_the_new_model(rooms: Rooms) -> None:
    """Where the old one had to go first there is nothing to go back to: the new one is there, FAILED."""
    async with rooms(fake("a")) as room:
        room.workers.failures["a"] = [BROKEN]
        result = await room.do("add", fake("a", LONGER), strategy="stop_start")
        assert told(result.outcomes)["a"] == (
            False,
            "stopped the old one first, as asked; the new one failed: the weights are torn",
        )
        assert room.spec("a").options["tokens"] == 3
        assert await room.origins() == {"a": "added"}
        result = await room.do("add", fake("a", {"tokens": 4}))
        assert told(result.outcomes) == {"a": (True, "replaced: it is up with its new settings")}


async def test_stop_start_as_the_configuration_says(rooms: Rooms) -> None:
    """The file's strategy holds where the change names none; the change's own comes before it."""
    async with rooms(fake("a"), replace_strategy="stop_start") as room:
        most = []
        room.workers.watch = lambda: most.append(len(room.workers.running))
        result = await room.do("add", fake("a", LONGER))
        assert told(result.outcomes)["a"] == (True, "replaced: stopped the old one first, as asked")
        assert max(most) == 1
        await room.do("add", fake("a"), strategy="blue_green")
        assert max(most) == 2


async def test_a_model_that_is_not_loaded_is_replaced_without_loading_it(rooms: Rooms) -> None:
    """A model on demand that nobody uses takes new settings at its next load, and says so."""
    async with rooms(fake("a", load="on_demand")) as room:
        result = await room.do("add", fake("a", LONGER, load="on_demand"))
        assert told(result.outcomes) == {"a": (True, "replaced: the new settings are used at the next load")}
        assert room.workers.spawned == []
        await answer(ask(room.pool, "a"))
        assert room.workers.of("a").spec.options["tokens"] == 3  # type: ignore[union-attr]


async def test_memory_goes_from_those_removed_to_those_replaced_to_those_added(rooms: Rooms) -> None:
    """In one change what is removed makes room for a replacement side by side, and added models come last."""
    async with rooms(fake("a", ram="3GiB"), fake("gone", ram="6GiB"), capacity=10 * GIB) as room:
        wanted = [fake("a", LONGER, ram="3GiB"), fake("new", ram="6GiB")]
        result = await room.do("reconcile", *wanted)
        words = told(result.outcomes)
        assert words["a"] == (True, "replaced: the new one took over when it was ready")
        assert words["new"][1].startswith("ready: ")
        assert list(words) == ["gone", "a", "new"]
        assert room.workers.names() == ["a", "new"]


def _has_replicas(count: int) -> Callable[[Room], Any]:
    async def check(room: Room) -> None:
        await room.until(lambda status: sum(each.state is State.READY for each in status.replicas) == count)
        await room.until(lambda status: len(status.replicas) == count)

    return check


async def _runs_two_at_once(room: Room) -> None:
    (one, other), third = [await _asked(room) for _ in range(2)], ask(room.pool, "a")
    with third:
        assert room.pool.status("a").queued == 1
        room.workers.of("a").calls[0].end()
        await read(one)
        one.__exit__(None, None, None)
        room.workers.of("a").calls[1].end()
        await read(other)
        other.__exit__(None, None, None)


async def _is_unloaded_when_idle(room: Room) -> None:
    assert (await room.state(State.STOPPED)).cause == "idle"


async def _is_called_by(room: Room, there: str, gone: str) -> None:
    assert room.pool.find("", there) is not None
    assert room.pool.find("", gone) is None


async def _stays(room: Room) -> None:
    await room.pool.settled()
    assert room.pool.status("a").state is State.READY


UPDATES: list[tuple[dict[str, Any], dict[str, Any], str, Callable[[Room], Any]]] = [
    ({}, {"keep_alive": 0}, "keep_alive", _is_unloaded_when_idle),
    ({"keep_alive": "1h"}, {"pin": True, "keep_alive": "never"}, "pin", _stays),
    ({"aliases": ["x"]}, {"aliases": ["y"]}, "aliases", lambda room: _is_called_by(room, "y", "x")),
    ({}, {"priority": 9}, "priority", _stays),
    ({}, {"max_ongoing_requests": 2}, "max_ongoing_requests", _runs_two_at_once),
    ({}, {"num_replicas": 3}, "num_replicas", _has_replicas(3)),
    ({"num_replicas": 3}, {"num_replicas": 1}, "num_replicas", _has_replicas(1)),
    ({}, {"load": "on_demand"}, "load", _stays),
    ({"num_replicas": 2}, {"load": "on_demand", "num_replicas": 1}, "load", _has_replicas(1)),
    ({"ram": "1GiB"}, {"ram": "2GiB"}, "ram", _stays),
    (
        {},
        {"autoscaling_config": {"min_replicas": 2, "max_replicas": 3}},
        "autoscaling_config",
        _has_replicas(2),
    ),
]


@pytest.mark.parametrize(("before", "after", "key", "check"), UPDATES, ids=[str(each[1]) for each in UPDATES])
async def test_settings_in_place_keep_the_worker_and_take_effect(
    rooms: Rooms, before: dict[str, Any], after: dict[str, Any], key: str, check: Callable[[Room], Any]
) -> None:
    """What needs no new worker is used at once: the first worker stays, and no outcome is waited for."""
    async with rooms(fake("a", **before), workers=Workers(slots=4)) as room:
        pid = room.pool.status("a").replicas[0].pid
        result = await room.do("add", fake("a", **after))
        assert (names(result.plan), result.outcomes) == ({"updates": ["a"]}, ())
        assert key in result.plan.updates[0].keys
        assert pid in [worker.pid for worker in room.workers.running]
        await check(room)


async def test_a_model_goes_from_eager_to_on_demand_and_back(rooms: Rooms) -> None:
    """On demand it stays up until something unloads it; made eager again it comes up by itself."""
    async with rooms(fake("a", num_replicas=2)) as room:
        await room.do("add", fake("a", load="on_demand", num_replicas=2))
        assert room.pool.status("a").state is State.READY
        await room.pool.unload("a")
        await room.do("add", fake("a"))
        await room.state(State.READY)
        assert len(room.workers.running) == 1
        await room.do("add", fake("a", load="on_demand"))
        await answer(ask(room.pool, "a"))
        assert len(room.workers.spawned) == 3


async def test_a_change_goes_on_when_its_caller_leaves(rooms: Rooms) -> None:
    """Who asked for a change and went away does not stop it; nor does he see an error that nobody reads."""
    workers = Workers(quick=True)
    async with rooms(fake("a"), workers=workers) as room:
        workers.gates["b"] = asyncio.Event()
        asked = asyncio.ensure_future(room.control.apply(room.change("add", fake("b"))))
        await _until(lambda: "b" in workers.spawned)
        refused = asyncio.ensure_future(room.control.apply(Change("remove", names=("zz",))))
        await asyncio.sleep(0)
        for task in (asked, refused):
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
        workers.gates["b"].set()
        await room.state(State.READY, "b")
        await room.do("remove", names=("b",))
        await _until(lambda: len(room.counted) == 3)  # none waits for another's end
        assert sorted(room.counted) == [("add", "ok"), ("remove", "ok"), ("remove", "refused")]


async def test_two_changes_at_once_run_one_after_the_other(rooms: Rooms) -> None:
    """The second is worked out when the first is through: what that one added is not added twice."""
    workers = Workers(quick=True)
    async with rooms(workers=workers) as room:
        workers.gates["b"] = asyncio.Event()
        one = asyncio.ensure_future(room.control.apply(room.change("add", fake("b"))))
        other = asyncio.ensure_future(room.control.apply(room.change("add", fake("b", LONGER))))
        third = asyncio.ensure_future(room.control.apply(room.change("remove", names=("b",))))
        await _until(lambda: "b" in workers.spawned)
        assert not one.done()
        workers.gates["b"].set()
        async with asyncio.timeout(WAIT_S):
            results = await asyncio.gather(one, other, third)
        assert [names(result.plan) for result in results] == [
            {"adds": ["b"]},
            {"replaces": ["b"]},
            {"removes": ["b"]},
        ]
        assert workers.spawned == ["b", "b"]
        await room.check()


async def test_a_model_is_removed_while_the_owner_waits_for_it(rooms: Rooms) -> None:
    """Removing does not wait for the load, and who waits for the model is told what became of it."""
    workers = Workers(quick=True)
    async with rooms(fake("a", load="on_demand"), workers=workers) as room:
        workers.gates["a"] = asyncio.Event()
        loading = asyncio.ensure_future(room.pool.load("a"))
        await _until(lambda: bool(workers.spawned))
        assert told((await room.do("remove", names=("a",))).outcomes) == {"a": (True, "removed")}
        with pytest.raises(ModelUnavailable, match="'a' did not come up: it was removed from the config"):
            await loading
        assert workers.running == []


@pytest.mark.parametrize("strategy", ["blue_green", "stop_start"])
@pytest.mark.parametrize("kind", ["replace", "add", "wake"])
async def test_the_daemon_stops_in_the_middle_of_a_change(rooms: Rooms, kind: str, strategy: Any) -> None:
    """A change that waits for a load that does not end holds up neither the stop nor the exit."""
    workers = Workers(quick=True)
    async with rooms(fake("a"), fake("c"), workers=workers) as room:
        if kind == "wake":
            await room.pool.unload("c")
        gate = workers.gates.setdefault({"replace": "a", "add": "b", "wake": "c"}[kind], asyncio.Event())
        loads = len(workers.spawned)
        change = {
            "replace": room.change("add", fake("a", LONGER), strategy=strategy),
            "add": room.change("add", fake("b"), strategy=strategy),
            "wake": room.change("reconcile", strategy=strategy),
        }[kind]
        asyncio.ensure_future(room.control.apply(change)).cancel()
        later = asyncio.ensure_future(room.control.apply(room.change("add", fake("d"))))
        room.control.reload("SIGHUP")
        await _until(lambda: len(workers.spawned) > loads)
        assert not gate.is_set()
        if strategy == "stop_start":  # as a second signal, or an error of the daemon, ends it
            room.pool.abandon()
    assert later.cancelled() or later.done()


async def test_a_watched_file_is_read_again(
    rooms: Rooms, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A change of the file is carried out by itself; a broken file changes nothing and is told once."""
    monkeypatch.setattr(watching, "WATCH_S", 0.0)
    async with rooms(fake("a"), watch=True) as room:
        assert room.file is not None
        before = await room.facts()
        room.file.write_text("models: [")
        await _until(lambda: "the models stay as they are" in caplog.text)
        assert await room.facts() == before
        room.file.unlink()
        await _until(lambda: True)
        room.write(fake("b"), watch=True)
        await _until(lambda: room.counted[-1:] == [("reload", "ok")])
        assert room.workers.names() == ["b"]
        assert room.counted == [("reload", "refused"), ("reload", "ok")]


async def test_a_file_is_not_watched_unasked(rooms: Rooms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `watch: true` nobody looks at the file."""
    monkeypatch.setattr(watching, "watch", None)
    async with rooms(fake("a")) as room:
        room.write(fake("b"))
        assert (await room.do("add", fake("c"))).plan.unchanged == ("a",)


async def _until(test: Callable[[], bool]) -> None:
    """Let the rest go on until something holds."""
    async with asyncio.timeout(WAIT_S):
        while not test():
            await asyncio.sleep(0)
