"""Runs in the background: they outlive their callers, end once, and are there as they ended."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import AsyncIterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientError

from modeld.errors import Overloaded, StoreFailed
from modeld.protocol.tasks import Finish, Text, Usage
from modeld.responses import background as module
from modeld.responses.background import ORPHANED
from modeld.supervisor.admission import Priority
from tests.component.responses.served_http import (
    ANOTHER,
    KEYS,
    Api,
    WallClock,
    error_of,
    hanging,
    said,
    serving,
    turns,
)
from tests.fakes.pool import FakePool
from tests.harness.responses import check_response, check_stream

REST: list[Any] = [[Text(" end.")], [Finish("stop")], [Usage(5, 2)], None]
"""What brings a hanging answer to its end."""


def slow() -> FakePool:
    """Return a pool whose answers begin, and end when the test says so."""
    return FakePool(answer=lambda model, task: hanging("The"))


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Serve a model whose answers begin, and end when the test says so."""
    async with serving(tmp_path, slow()) as api:
        yield api


async def begun(api: Api, at: int = 0) -> None:
    """Wait until a call has said its first words and waits."""
    while len(api.pool.streams) <= at:
        api.pool.opened.clear()
        await api.pool.opened.wait()
    await api.pool.streams[at].waiting.wait()


async def test_a_run_is_queued_then_in_progress_then_over(api: Api) -> None:
    """It is returned queued and empty, shown as it grows, and at last as it ended, in all its parts."""
    queued = await api.create(background=True)
    check_response(queued)
    assert (queued["status"], queued["output"], queued["background"]) == ("queued", [], True)
    assert queued["store"] is False  # nobody asked for more than a while
    await begun(api)
    assert (await api.get(queued["id"]))["status"] == "in_progress"
    assert api.pool.calls[0].priority is Priority.BACKGROUND
    api.pool.streams[0].feed(*REST)
    body = await api.over(queued["id"])
    check_response(body)
    assert (body["status"], body["output"][0]["content"][0]["text"]) == ("completed", "The end.")
    assert await api.rows("run") == 0


async def test_a_run_goes_on_when_its_caller_leaves(api: Api) -> None:
    """Dropped at response.created, a streamed run ends all the same, and its stream can be read whole."""
    body = {"model": "tiny", "input": "hi", "background": True, "stream": True}
    [created] = await api.events("POST", "responses", body, enough=lambda event: True)
    id = created["response"]["id"]
    await begun(api)
    api.pool.streams[0].feed(*REST)
    await api.over(id)
    events = await api.replay(id)
    assert events[0] == created
    final = check_stream(events)
    assert final["status"] == "completed"
    assert await api.get(id) == final


async def test_a_foreground_caller_who_leaves_ends_its_response(api: Api) -> None:
    """Dropped at response.created: the model is told to stop, nothing is stored."""
    body = {"model": "tiny", "input": "hi", "stream": True}
    [created] = await api.events("POST", "responses", body, enough=lambda event: True)
    await api.pool.opened.wait()
    await api.pool.streams[0].closed.wait()
    assert api.pool.streams[0].cancelled
    await api.missing("GET", f"responses/{created['response']['id']}")
    assert await api.rows("response") == await api.rows("item") == 0


async def test_readers_of_a_stream_come_late_leave_and_come_back(api: Api) -> None:
    """Whoever reads from N gets the events over N with the original numbers, live and after the end."""
    whole = asyncio.ensure_future(api.stream(background=True))
    await begun(api)
    status, page = 200, None
    [id] = list(api.background._records)
    first = await api.events("GET", f"responses/{id}?stream=true", enough=lambda event: "delta" in event)
    late = asyncio.ensure_future(api.replay(id, first[-1]["sequence_number"]))
    api.pool.streams[0].feed(*REST)
    events = await whole
    assert check_stream(events)["status"] == "completed"
    assert [*first, *await late] == events
    last = events[-1]["sequence_number"]
    for after in range(-1, last + 3):
        rest = await api.replay(id, None if after < 0 else after)
        assert rest == [event for event in events if event["sequence_number"] > after]
    status, page = await api.ask("GET", f"responses/{id}?stream=false")
    assert (status, page) == (200, events[-1]["response"])


@pytest.mark.parametrize("after", ["-1", "x", "1.5", "", "%2B1", "9" * 19, "%C2%B2"])
async def test_a_cursor_that_is_no_number(api: Api, after: str) -> None:
    """starting_after must be the number of an event: else 400 that names it."""
    id = (await api.create(background=True))["id"]
    status, answer = await api.ask("GET", f"responses/{id}?stream=true&starting_after={after}")
    error = error_of(answer)
    assert (status, error["code"], error["param"]) == (400, "invalid_value", "starting_after")


async def test_only_streamed_runs_have_a_stream(tmp_path: Path) -> None:
    """A stream of what was made without one is refused, as is a cursor without a stream; unknown is 404."""
    async with serving(tmp_path) as api:
        for background in (None, True):
            id = (await api.create(background=background))["id"]
            status, answer = await api.ask("GET", f"responses/{id}?stream=true")
            assert (status, error_of(answer)["param"]) == (400, "stream")
            status, answer = await api.ask("GET", f"responses/{id}?starting_after=1")
            assert (status, error_of(answer)["param"]) == (400, "starting_after")
            status, answer = await api.ask("GET", f"responses/{id}?stream=maybe")
            assert (status, error_of(answer)["param"]) == (400, "stream")
        assert (await api.missing("GET", "responses/resp_x?stream=true"))["code"] == "response_not_found"


async def test_a_stream_whose_time_is_over_is_refused(tmp_path: Path) -> None:
    """After responses.replay the events are gone: 400 that says so, never an empty stream; the response
    stays.
    """
    clock = WallClock()
    async with serving(tmp_path, clock=clock, replay_s=100.0) as api:
        [*_, last] = await api.stream(background=True, store=True)
        id = last["response"]["id"]
        await api.over(id)
        clock.offset = 99.0
        assert (await api.replay(id))[-1] == last
        clock.offset = 101.0
        for _ in range(2):
            status, answer = await api.ask("GET", f"responses/{id}?stream=true")
            assert (status, error_of(answer)["param"]) == (400, "stream")
            await api.context.responses.sweep(clock.time())
        assert await api.rows("log") == 0
        assert await api.get(id) == last["response"]


# --- cancel and delete --------------------------------------------------------------------------------------


async def test_cancelling_ends_a_run_once(api: Api) -> None:
    """Two cancels at once, and one later, all give the same cancelled response; the model has stopped."""
    events = asyncio.ensure_future(api.stream(background=True, store=True))
    await begun(api)
    [id] = list(api.background._records)
    both = await asyncio.gather(*(api.ask("POST", f"responses/{id}/cancel") for _ in range(2)))
    both.append(await api.ask("POST", f"responses/{id}/cancel"))
    assert [status for status, _ in both] == [200] * 3
    bodies = [body for _, body in both]
    assert bodies[0] == bodies[1] == bodies[2] == await api.get(id)
    check_response(bodies[0])
    assert (bodies[0]["status"], bodies[0]["completed_at"]) == ("cancelled", None)
    assert bodies[0]["output"][0]["content"][0]["text"] == "The"
    assert api.pool.streams[0].cancelled
    assert check_stream(await events) == bodies[0]


async def test_cancel_of_what_is_over_or_was_never_in_the_background(tmp_path: Path) -> None:
    """A finished run is returned unchanged, 200; a foreground one is 400, an unknown one 404."""
    async with serving(tmp_path) as api:
        id = (await api.create(background=True))["id"]
        body = await api.over(id)
        assert await api.ask("POST", f"responses/{id}/cancel") == (200, body)
        status, answer = await api.ask("POST", f"responses/{(await api.create())['id']}/cancel")
        error = error_of(answer)
        assert (status, error["type"]) == (400, "invalid_request_error")
        assert "background" in error["message"]
        assert "synchronous" in error["message"]
        await api.missing("POST", "responses/resp_nobody/cancel")


async def test_delete_while_running(api: Api) -> None:
    """The model stops, its follower's stream ends, and there is nothing left of the run in the database."""
    following = asyncio.ensure_future(api.stream("marmalade", background=True))
    await begun(api)
    [id] = list(api.background._records)
    assert await api.ask("DELETE", f"responses/{id}") == (
        200,
        {"id": id, "object": "response", "deleted": True},
    )
    assert api.pool.streams[0].cancelled
    assert all(event["type"] != "response.completed" for event in await following)
    await api.missing("GET", f"responses/{id}")
    await api.missing("GET", f"responses/{id}/input_items")
    await api.missing("POST", f"responses/{id}/cancel")
    await api.missing("DELETE", f"responses/{id}")
    await api.context.responses.sweep(0)
    for table in ("response", "item", "log", "run"):
        assert await api.rows(table) == 0


async def test_delete_of_the_parent_while_the_child_runs(api: Api) -> None:
    """The child keeps the history it was asked with, and ends as if nothing had happened."""
    api.pool.answer = turns(said("Marmalade."), hanging("The"))
    parent = await api.create("first")
    child = await api.create("second", background=True, store=True, previous_response_id=parent["id"])
    await begun(api, 1)
    assert (await api.ask("DELETE", f"responses/{parent['id']}"))[0] == 200
    api.pool.streams[1].feed(*REST)
    body = await api.over(child["id"])
    assert (body["status"], body["previous_response_id"]) == ("completed", parent["id"])
    api.pool.answer = turns(said())
    await api.create("third", previous_response_id=child["id"])
    assert [message.content for message in api.task().messages] == [
        "first",
        "Marmalade.",
        "second",
        "The end.",
        "third",
    ]
    error = (await api.ask("POST", "responses", {"model": "tiny", "previous_response_id": parent["id"]}))[1]
    assert error_of(error)["code"] == "previous_response_not_found"


async def test_a_run_cannot_be_continued_before_it_is_over(api: Api) -> None:
    """400 that says in which state it is; afterwards it can be."""
    id = (await api.create(background=True))["id"]
    await begun(api)
    error = await api.refused(previous_response_id=id)
    assert (error["code"], error["param"]) == ("previous_response_in_progress", "previous_response_id")
    api.pool.streams[0].feed(*REST)
    await api.over(id)
    api.pool.answer = None
    await api.create(previous_response_id=id)
    assert [message.content for message in api.task().messages] == ["hi", "The end.", "hi"]


# --- limits and clocks --------------------------------------------------------------------------------------


async def test_there_is_a_limit_of_unfinished_runs(tmp_path: Path) -> None:
    """One more than responses.background is 429 with a time to come back, and leaves nothing."""
    async with serving(tmp_path, slow(), most_background=2) as api:
        for _ in range(2):
            await api.create(background=True)
        response, answer = await api.answer(
            "POST", "responses", {"model": "tiny", "input": "hi", "background": True}
        )
        assert (response.status, error_of(answer)["code"]) == (429, "too_many_background_responses")
        assert "retry-after" in response.headers
        assert await api.rows("response") == 2


async def test_a_full_queue_is_waited_for(tmp_path: Path) -> None:
    """A run whose model's queue is full stays queued and asks again; nobody sees a failure."""
    asked: list[int] = []

    def answer(model: str, task: Any) -> Any:
        asked.append(1)
        return Overloaded("full", retry_after=0.01) if len(asked) < 3 else said()

    async with serving(tmp_path, FakePool(answer=answer)) as api:
        id = (await api.create(background=True))["id"]
        assert (await api.over(id))["status"] == "completed"
    assert len(asked) == 3


async def test_what_nobody_asked_to_store_is_there_for_ten_minutes_after_its_end(tmp_path: Path) -> None:
    """Without store, a run that took half an hour can still be fetched nine minutes after its end, and not
    after eleven; with store it stays.
    """
    clock = WallClock()
    async with serving(tmp_path, slow(), clock=clock) as api:
        fleeting, kept = [(await api.create(background=True, store=store))["id"] for store in (None, True)]
        await begun(api, 1)
        clock.offset = 1800.0
        for stream in api.pool.streams:
            stream.feed(*REST)
        await api.over(fleeting)
        await api.over(kept)
        clock.offset = 1800.0 + 540
        await api.context.responses.sweep(clock.time())
        await api.get(fleeting)
        clock.offset = 1800.0 + 660
        await api.missing("GET", f"responses/{fleeting}")
        await api.context.responses.sweep(clock.time())
        await api.get(kept)
        assert await api.rows("response") == 1


@pytest.mark.parametrize("jump", [-86400.0, 86400.0 * 365])
async def test_a_jump_of_the_wall_clock_ends_no_run_and_hides_none(tmp_path: Path, jump: float) -> None:
    """While the clock is a year ahead or a day behind, a run begun before goes on, ends, and can be read."""
    clock = WallClock()
    async with serving(tmp_path, slow(), clock=clock, keep_s=30 * 86400.0) as api:
        id = (await api.create(background=True, store=True))["id"]
        await begun(api)
        clock.offset = jump
        await api.context.responses.sweep(clock.time())
        assert (await api.get(id))["status"] == "in_progress"
        assert await api.context.responses.abandoned() == []
        api.pool.streams[0].feed(*REST)
        body = await api.over(id)
        assert body["status"] == "completed"
        assert body["completed_at"] >= body["created_at"]
        await api.context.responses.sweep(clock.time())
        assert await api.get(id) == body
        clock.offset = 0.0
        assert await api.get(id) == body


async def test_a_stored_response_expires(tmp_path: Path) -> None:
    """After responses.keep it is 404 everywhere, before the sweep as after it, and cannot be continued."""
    clock = WallClock()
    async with serving(tmp_path, clock=clock, keep_s=100.0) as api:
        id = (await api.create("marmalade"))["id"]
        clock.offset = 101.0
        for _ in range(2):
            await api.missing("GET", f"responses/{id}")
            await api.missing("GET", f"responses/{id}/input_items")
            await api.missing("DELETE", f"responses/{id}")
            await api.missing("POST", f"responses/{id}/cancel")
            status, answer = await api.ask("POST", "responses", {"model": "tiny", "previous_response_id": id})
            assert (status, error_of(answer)["code"]) == (400, "previous_response_not_found")
            await api.context.responses.sweep(clock.time())
        assert await api.rows("item") == 0


# --- lives of the daemon ------------------------------------------------------------------------------------


async def test_runs_of_a_stopped_daemon_have_failed(tmp_path: Path) -> None:
    """A daemon that stops ends its runs as failed, with a last event in their logs, before it is gone."""
    async with serving(tmp_path, slow()) as api:
        plain = (await api.create(background=True, store=True))["id"]
        body = {"model": "tiny", "input": "hi", "background": True, "stream": True, "store": True}
        events = await api.events("POST", "responses", body, enough=lambda event: "delta" in event)
        streamed = events[0]["response"]["id"]
        await begun(api, 1)
    async with serving(tmp_path) as api:
        assert await api.rows("run") == 0
        failed = {}
        for id in (plain, streamed):
            failed = await api.get(id)
            check_response(failed)
            assert failed["status"] == "failed"
            assert failed["error"] == {"code": "server_error", "message": ORPHANED}
            assert failed["output"][0]["content"][0]["text"] == "The"
        again = await api.replay(streamed)
        assert again[: len(events)] == events
        assert check_stream(again) == failed


async def test_runs_of_a_killed_daemon_have_failed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a daemon left that could write nothing more is failed for whoever reads it, at the next start."""
    async with serving(tmp_path, slow()) as api:
        plain = (await api.create(background=True))["id"]
        streamed = (await api.events(
            "POST",
            "responses",
            {"model": "tiny", "input": "hi", "background": True, "stream": True},
            enough=lambda event: "delta" in event,
        ))[0]["response"]["id"]  # fmt: skip

        async def nothing(done: Any) -> bool:
            raise StoreFailed("killed")

        monkeypatch.setattr(api.context.responses, "finish", nothing)
    async with serving(tmp_path) as api:
        failed = {}
        for id in (plain, streamed):
            failed = await api.get(id)
            check_response(failed)
            assert (failed["status"], failed["error"]["message"]) == ("failed", ORPHANED)
            assert await api.ask("POST", f"responses/{id}/cancel") == (200, failed)
        again = await api.replay(streamed)
        assert [event["sequence_number"] for event in again] == list(range(len(again)))
        assert again[-1] == {
            "type": "response.failed",
            "sequence_number": len(again) - 1,
            "response": failed,
        }
        assert await api.rows("run") == 0


async def test_an_orphan_that_waits_for_its_report_expires_after_it(tmp_path: Path) -> None:
    """A run that nobody stored for long, found an hour after its daemon was killed, is failed and not 404."""
    clock = WallClock()
    async with serving(tmp_path, slow(), clock=clock) as api:
        id = (await api.create(background=True))["id"]
        await begun(api)
        (tmp_path / "later").mkdir()
        with closing(sqlite3.connect(tmp_path / "modeld.sqlite3")) as other:
            other.execute("VACUUM INTO ?", (str(tmp_path / "later" / "modeld.sqlite3"),))
        clock.offset = 3600.0
        async with serving(tmp_path / "later", clock=clock) as later:
            assert (await later.get(id))["status"] == "failed"
            assert await later.rows("run") == 0


# --- the store in trouble -----------------------------------------------------------------------------------


class Trouble:
    """Makes writes of the store fail for as long as a test wants."""

    def __init__(self, api: Api, monkeypatch: pytest.MonkeyPatch, *names: str) -> None:
        self.on = True
        self.refused = asyncio.Event()
        for name in names:
            monkeypatch.setattr(api.context.responses, name, self._wrapped(name, api))

    def _wrapped(self, name: str, api: Api) -> Any:
        real = getattr(api.context.responses, name)

        async def call(*args: Any) -> Any:
            if self.on:
                self.refused.set()
                raise StoreFailed("the disk is full")
            return await real(*args)

        return call


async def test_a_run_waits_for_the_store_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk at the end: still in progress for everybody until it is stored, then completed."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    async with serving(tmp_path) as api:
        trouble = Trouble(api, monkeypatch, "finish")
        id = (await api.create(background=True, store=True))["id"]
        await trouble.refused.wait()
        shown = await api.get(id)
        check_response(shown)
        assert (shown["status"], shown["completed_at"]) == ("in_progress", None)
        trouble.on = False
        assert (await api.over(id))["status"] == "completed"


async def test_a_run_that_cannot_be_stored_has_failed_and_that_is_stored_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After its patience a run has failed; once the store works again readers find that, and no other end."""
    monkeypatch.setattr(module, "RETRY_S", 0.01)
    monkeypatch.setattr(module, "PATIENCE_S", 0.05)
    async with serving(tmp_path) as api:
        trouble = Trouble(api, monkeypatch, "finish")
        id = (await api.create(background=True, store=True))["id"]
        record = api.background._records[id]
        await record.over.wait()
        status, answer = await api.ask("GET", f"responses/{id}")
        assert status == 503
        error_of(answer)
        trouble.on = False
        failed = await api.get(id)
        assert (failed["status"], failed["error"]["message"]) == ("failed", module.UNSTORED)
        assert await api.rows("run") == 0


async def test_a_run_that_cannot_begin_is_refused_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503 when the first row cannot be written; when only the log cannot, the run goes on and logs later."""
    async with serving(tmp_path) as api:
        trouble = Trouble(api, monkeypatch, "begin")
        status, answer = await api.ask(
            "POST", "responses", {"model": "tiny", "input": "hi", "background": True}
        )
        assert (status, error_of(answer)["type"]) == (503, "server_error")
        assert not api.pool.calls
        assert api.background.unfinished == 0
        trouble.on = False
        api.pool.answer = slow().answer
        log = Trouble(api, monkeypatch, "log")
        reading = asyncio.ensure_future(api.stream(background=True))
        await log.refused.wait()
        log.on = False
        await begun(api)
        api.pool.streams[0].feed(*REST)
        check_stream(await reading)


async def test_a_response_that_cannot_be_stored_is_not_sent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the foreground: 503 as a whole, response.failed in place of response.completed on a stream."""
    async with serving(tmp_path) as api:
        Trouble(api, monkeypatch, "finish")
        status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi"})
        assert (status, error_of(answer)["type"]) == (503, "server_error")
        final = check_stream(await api.stream())
        assert (final["status"], final["error"]["code"]) == ("failed", "server_error")
        assert (await api.create(store=False))["status"] == "completed"


async def test_a_really_full_file_refuses_and_recovers(tmp_path: Path) -> None:
    """SQLite's own limit of pages: 503 with the reason, no half of a response, and all well afterwards."""
    async with serving(tmp_path) as api:
        before = await api.create("small")
        await api.database.execute("PRAGMA max_page_count = 1")  # it becomes what the file has
        big = "much " * 100_000
        status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": big})
        assert status == 503
        assert "disk is full" in error_of(answer)["message"]
        failed = check_stream(await api.stream(big))
        assert failed["status"] == "failed"
        await api.missing("GET", f"responses/{failed['id']}")
        assert await api.get(before["id"]) == before
        await api.database.execute("PRAGMA max_page_count = 1000000")
        after = await api.create(big, previous_response_id=before["id"])
        assert await api.get(after["id"]) == after


# --- whose it is --------------------------------------------------------------------------------------------


async def test_another_identity_finds_nothing(tmp_path: Path) -> None:
    """Each path to a response, live or over, is 404 for another key, and nothing happens to it."""
    async with serving(tmp_path, slow(), api_keys=KEYS) as api:
        live = (await api.create(background=True, stream=False))["id"]
        await begun(api)
        api.pool.answer = None
        over = (await api.create())["id"]
        for id in (live, over):
            for method, path in (
                ("GET", f"responses/{id}"),
                ("GET", f"responses/{id}?stream=true"),
                ("GET", f"responses/{id}/input_items"),
                ("POST", f"responses/{id}/cancel"),
                ("DELETE", f"responses/{id}"),
            ):
                error = await api.missing(method, path, key=ANOTHER)
                assert error["message"] == f"Response with id '{id}' not found."
            body = {"model": "tiny", "input": "hi", "previous_response_id": id}
            status, answer = await api.ask("POST", "responses", body, key=ANOTHER)
            assert (status, error_of(answer)["code"]) == (400, "previous_response_not_found")
        items = (await api.ask("GET", f"responses/{over}/input_items"))[1]["data"]
        reference = {"type": "item_reference", "id": items[0]["id"]}
        status, answer = await api.ask(
            "POST", "responses", {"model": "tiny", "input": [reference]}, key=ANOTHER
        )
        assert (status, error_of(answer)["param"]) == (400, "input[0].id")
        assert (await api.get(live))["status"] == "in_progress"
        api.pool.streams[0].feed(*REST)
        assert (await api.over(live))["status"] == "completed"


async def test_a_stream_that_cannot_be_read_on_breaks_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader of a run never takes trouble of the store for the end: there is no [DONE], and all the rest
    comes when asked again.
    """
    async with serving(tmp_path, slow()) as api:
        reading = asyncio.ensure_future(api.stream(background=True))
        await begun(api)
        real = api.context.responses.replay
        [id] = list(api.background._records)

        async def fails(*args: Any) -> Any:
            raise StoreFailed("the file is held")

        monkeypatch.setattr(api.context.responses, "replay", fails)
        api.pool.streams[0].feed(*REST)
        with pytest.raises(ClientError):
            await reading
        monkeypatch.setattr(api.context.responses, "replay", real)
        await api.over(id)
        assert check_stream(await api.replay(id))["status"] == "completed"


async def test_the_store_refuses_events_in_the_middle_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run goes on while its log cannot be written; what was missed is in the log later, in its place."""
    async with serving(tmp_path, slow()) as api:
        reading = asyncio.ensure_future(api.stream(background=True))
        await begun(api)
        trouble = Trouble(api, monkeypatch, "log")
        [stream] = api.pool.streams
        stream.waiting.clear()
        stream.feed([Text(" very")])
        await trouble.refused.wait()
        await stream.waiting.wait()
        trouble.on = False
        stream.feed(*REST)
        final = check_stream(await reading)
        assert final["output"][0]["content"][0]["text"] == "The very end."


async def test_a_bug_in_the_upkeep_ends_no_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whatever goes wrong between two heartbeats is logged, the next ones come, runs end as they would."""
    monkeypatch.setattr(module, "BEAT_S", 0.01)
    async with serving(tmp_path, slow()) as api:
        failed = asyncio.Event()
        beaten = asyncio.Event()

        async def beat(ids: Any, now: float) -> None:
            if not failed.is_set():
                failed.set()
                raise ValueError("a bug")
            beaten.set()

        monkeypatch.setattr(api.context.responses, "beat", beat)
        id = (await api.create(background=True))["id"]
        await failed.wait()
        await beaten.wait()
        await begun(api)
        api.pool.streams[0].feed(*REST)
        assert (await api.over(id))["status"] == "completed"
    assert "bug in the upkeep" in caplog.text


async def test_a_caller_who_leaves_before_the_answer_leaves_a_run_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gone while its run is being written down: the run is there, goes on, and ends."""
    async with serving(tmp_path) as api:
        real, begins, go = api.context.responses.begin, asyncio.Event(), asyncio.Event()

        async def begin(draft: Any) -> None:
            begins.set()
            await go.wait()
            await real(draft)

        monkeypatch.setattr(api.context.responses, "begin", begin)
        asking = asyncio.ensure_future(api.create(background=True, store=True))
        await begins.wait()
        [id] = list(api.background._records)
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
        go.set()
        assert (await api.over(id))["status"] == "completed"
