"""`GET /v1/models/{id}/pull`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import pytest
from aiohttp import ClientResponse

from modeld.errors import LoadFailed
from modeld.gateway.families.models import FILES
from modeld.gateway.families.models_pull import WATCH
from modeld.library.entry import Entry
from modeld.library.pull.client import Progress
from modeld.library.pull.watch import Pulls, Watch
from modeld.supervisor.states import State, Status
from tests.component.gateway.served import Serve, Served
from tests.fakes.pool import FakePool, model

LIMIT_S = 60.0


class Room:
    """Pulls of models by their names, and files of those in `here`."""

    def __init__(self) -> None:
        self.pulls = Pulls()
        self.here: dict[str, Entry] = {}

    @contextmanager
    def watch(self, status: Status) -> Iterator[Watch | None]:
        with self.pulls.watch(status.name) as watch:
            yield watch

    async def files(self, statuses: Sequence[Status]) -> dict[str, Entry]:
        return {status.name: self.here[status.name] for status in statuses if status.name in self.here}

    async def serve(self, serve: Serve, *models: Status, **settings: Any) -> Served:
        """Serve models, all of them on their way."""
        pool = FakePool.of(*(models or (model("big", state=State.STARTING),)))
        return await serve(pool, {WATCH: self.watch, FILES: self.files}, **settings)


async def payload(response: ClientResponse) -> dict[str, Any] | str | None:
    """Return the next event's data; a comment's text; None at the end."""
    async with asyncio.timeout(LIMIT_S):
        line = (await response.content.readline()).decode()
        await response.content.readline()
    if not line:
        return None
    data = line.removeprefix("data: ").strip()
    if not data.startswith("{"):
        return data
    found: dict[str, Any] = json.loads(data)
    return found


@pytest.mark.parametrize("path", ["/v1/models/big/pull", "/v1/models/b/pull"])
async def test_a_pull_is_streamed_to_its_end(serve: Serve, path: str) -> None:
    """The newest state at once, then news, then "done" and [DONE]; by any of the model's names."""
    room = Room()
    gateway = await room.serve(serve, model("big", state=State.STARTING, aliases=("b",)))
    with room.pulls.doing("big") as tell:
        tell(Progress("downloading", 10, 40, "m.gguf"))
        response = await gateway.http.get(gateway.url + path)
        assert (response.status, response.content_type) == (200, "text/event-stream")
        assert await payload(response) == {
            "object": "model.pull",
            "model": path.split("/")[3],
            "stage": "downloading",
            "completed": 10,
            "total": 40,
            "progress": 0.25,
            "file": "m.gguf",
            "message": None,
        }
        tell(Progress("retrying", 20, 40, "m.gguf", "the hub answered 500"))
        event = await payload(response)
        assert isinstance(event, dict)
        assert (event["stage"], event["message"]) == ("retrying", "the hub answered 500")
    event = await payload(response)
    assert isinstance(event, dict)
    assert (event["stage"], event["completed"], event["progress"]) == ("done", 40, 1.0)
    assert [await payload(response), await payload(response)] == ["[DONE]", None]


async def test_how_a_pull_fails_is_its_last_event(serve: Serve) -> None:
    """With the sentence for people; one that is given up has "stopped"."""
    room = Room()
    gateway = await room.serve(serve)
    for error, stage in ((LoadFailed("the disk is full"), "failed"), (asyncio.CancelledError(), "stopped")):
        with suppress(LoadFailed, asyncio.CancelledError), room.pulls.doing("big") as tell:
            tell(Progress("downloading", 10, 40))
            response = await gateway.http.get(gateway.url + "/v1/models/big/pull")
            await payload(response)
            raise error
        event = await payload(response)
        assert isinstance(event, dict)
        assert (event["stage"], event["completed"]) == (stage, 10)
        assert event["message"] == ("the disk is full" if stage == "failed" else None)
        assert await payload(response) == "[DONE]"


async def test_a_quiet_pull_is_kept_alive_and_a_reader_who_leaves_stops_nothing(serve: Serve) -> None:
    """Comments come while there is no news; the pull goes on for the next reader."""
    room = Room()
    gateway = await room.serve(serve, keepalive_interval=0.01)
    with room.pulls.doing("big") as tell:
        response = await gateway.http.get(gateway.url + "/v1/models/big/pull")
        await payload(response)
        assert await payload(response) == ": keep-alive"
        response.close()
        tell(Progress("downloading", 10, 40))
        second = await gateway.http.get(gateway.url + "/v1/models/big/pull")
        event = await payload(second)
        assert isinstance(event, dict)
        assert event["completed"] == 10
        second.close()


async def test_a_model_whose_files_are_here_is_done(serve: Serve) -> None:
    """One event, with its size."""
    room = Room()
    room.here["big"] = Entry("/m.gguf", "gguf", size=90)
    gateway = await room.serve(serve)
    response = await gateway.http.get(gateway.url + "/v1/models/big/pull")
    event = await payload(response)
    assert isinstance(event, dict)
    assert (event["stage"], event["completed"], event["total"]) == ("done", 90, 90)
    assert [await payload(response), await payload(response)] == ["[DONE]", None]


async def test_what_is_not_pulled_is_not_found(serve: Serve) -> None:
    """A model that is down, with its state; one that there is not; and HEAD, which has no stream."""
    gateway = await Room().serve(serve, model("big", state=State.STOPPED, message="not loaded"))
    response, body = await gateway.ask("GET", "/v1/models/big/pull")
    assert (response.status, body["error"]["code"]) == (404, "not_being_pulled")
    assert "it is stopped (not loaded)" in body["error"]["message"]
    response, body = await gateway.ask("GET", "/v1/models/nope/pull")
    assert (response.status, body["error"]["code"]) == (404, "model_not_found")
    assert (await gateway.ask("HEAD", "/v1/models/big/pull"))[0].status == 404


async def test_a_model_may_be_called_so(serve: Serve) -> None:
    """The card of "big/pull" is what its path says; that of "big" stays."""
    gateway = await Room().serve(serve, model("big"), model("big/pull"))
    for name in ("big", "big/pull"):
        _, body = await gateway.ask("GET", f"/v1/models/{name}")
        assert (body["object"], body["id"]) == ("model", name)
