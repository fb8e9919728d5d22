from __future__ import annotations

import asyncio
from array import array
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import StoreFailed
from modeld.jobs.limits import JobLimits
from modeld.jobs.mass.routes import SHIM
from modeld.jobs.queue import Queue
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import EmbedTask, Task, TokenizeTask, Tokens, Usage, Vector
from modeld.store.job_records import JobDraft
from modeld.store.jobs import Jobs
from tests.component.jobs.served import PREFIX, USER, WAIT_S, JobPool, echo, serving, texts
from tests.fakes.clock import FakeClock
from tests.fakes.pool import Answer, FakePool, model, said

EMBEDDER = model("vectors", usecase="embed", facts=Facts(loader="fake", device="cpu", dimensions=2))


def everything(name: str, task: Task) -> list[Answer]:
    """Answer each kind of task."""
    match task:
        case EmbedTask(inputs=(text,)):
            return [[Vector(0, array("f", [len(text), 0.5]).tobytes())], [Usage(1, 0)], None]
        case TokenizeTask():
            return [[Tokens((1, 2, 3))], [Usage(1, 0)], None]
        case _:
            return echo(name, task)


def pool_of_all() -> JobPool:
    """Return a pool with a model of each use."""
    pool = JobPool(answer=everything)
    pool.models["vectors"] = EMBEDDER
    return pool


async def test_each_kind_is_submitted_at_once_and_fetched_later(tmp_path: Path) -> None:
    """The five methods, with results of the shapes that MASS's clients read."""
    async with serving(tmp_path, pool_of_all()) as api:
        chat = await api.over(await api.chat())
        assert chat["result"] == {
            "id": chat["job_id"],
            "model": "tiny",
            "message": {"role": "assistant", "content": "hi"},
            "finish_reason": "stop",
            "reasoning_content": "",
            "usage": {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6},
            "tokens_per_second": 0.0,
        }
        batch = await api.over(await api.batch(3))
        assert texts(batch) == ["0", "1", "2"]
        assert batch["result"]["id"] == batch["job_id"]
        one = await api.over(await api.submit("Embed", model="vectors", input="four"))
        assert one["result"] == {"id": one["job_id"], "model": "vectors", "embedding": [4.0, 0.5]}
        many = await api.over(await api.submit("BatchEmbed", model="vectors", inputs=["a", "bb"]))
        assert many["result"]["embeddings"] == [
            {"index": 0, "embedding": [1.0, 0.5]},
            {"index": 1, "embedding": [2.0, 0.5]},
        ]
        tokens = await api.over(await api.submit("Tokenize", text="x"))
        assert tokens["result"] == {"tokens": [1, 2, 3]}


async def test_a_pending_job_says_so_and_waiting_for_it_is_bounded(tmp_path: Path) -> None:
    """Asked for plainly it is 200 and unfinished; a wait that ends first is 202."""
    pool = JobPool(answer=lambda model, task: [], free=0)
    async with serving(tmp_path, pool, limits=JobLimits(wait_s=0.05)) as api:
        id = await api.chat()
        response, told = await api.ask("GET", f"Jobs/{id}")
        assert (response.status, told) == (200, {"job_id": id, "status": "pending"})
        response, told = await api.ask("GET", f"Jobs/{id}?wait=1")
        assert (response.status, told) == (202, {"job_id": id, "status": "pending"})
        async with pool.changed:
            pool.free = 1
            pool.changed.notify_all()
        await pool.until(lambda: bool(pool.begun))
        async with asyncio.timeout(WAIT_S):
            while await api.status(id) != "processing":
                await asyncio.sleep(0.002)
        pool.begun[0].feed(*said())
        assert (await api.over(id))["status"] == "done"


async def test_a_reader_who_leaves_cancels_nothing(tmp_path: Path) -> None:
    """The job is done all the same."""
    pool = JobPool(answer=lambda model, task: [])
    async with serving(tmp_path, pool) as api:
        id = await api.chat()
        await pool.until(lambda: bool(pool.begun))
        reading = asyncio.ensure_future(api.ask("GET", f"Jobs/{id}?wait=1"))
        async with asyncio.timeout(WAIT_S):
            while not api.room.queue._watches.get(id):
                await asyncio.sleep(0.002)
        reading.cancel()
        await asyncio.wait({reading})
        async with asyncio.timeout(WAIT_S):
            while api.room.queue._watches:
                await asyncio.sleep(0.002)
        pool.begun[0].feed(*said())
        assert (await api.over(id))["status"] == "done"


async def test_a_submission_whose_client_leaves_before_it_is_stored_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also when the store is at it in that moment: nobody knows the job's name."""
    entered, go = asyncio.Event(), asyncio.Event()
    add = Jobs.add

    async def slow(self: Jobs, drafts: Any) -> Any:
        entered.set()
        added = await add(self, drafts)
        await go.wait()
        return added

    submit, left = Queue.submit, asyncio.Queue[JobDraft]()

    async def watched(self: Queue, draft: JobDraft) -> Any:
        try:
            return await submit(self, draft)
        except asyncio.CancelledError:
            left.put_nowait(draft)
            raise

    monkeypatch.setattr(Jobs, "add", slow)
    monkeypatch.setattr(Queue, "submit", watched)
    pool = JobPool()
    async with serving(tmp_path, pool) as api:
        during = asyncio.ensure_future(api.chat())
        await entered.wait()
        before = asyncio.ensure_future(api.chat())
        async with asyncio.timeout(WAIT_S):
            while not api.room.queue._submissions:
                await asyncio.sleep(0.002)
            for one in (during, before):
                one.cancel()
            for _ in (during, before):  # the server sees both leave
                await left.get()
        await asyncio.wait({during, before})
        go.set()
        assert await api.rows("job") in (0, 1)
        kept = await api.chat()
        assert (await api.over(kept))["status"] == "done"
        assert await api.rows("job") == 1
        assert await api.rows("job_item") == 1
        assert api.room.queue.unfinished == 0


@pytest.mark.parametrize("running", [True, False])
async def test_a_job_is_cancelled_whether_it_waits_or_runs(tmp_path: Path, running: bool) -> None:
    """204; it is an error then, its call is cut off, and a second time is 404."""
    pool = JobPool(answer=lambda model, task: [], free=1 if running else 0)
    async with serving(tmp_path, pool) as api:
        id = await api.batch(2)
        await pool.until(lambda: pool.open_calls == (2 if running else 1))
        response, body = await api.ask("DELETE", f"Jobs/{id}")
        assert (response.status, body) == (204, None)
        assert await api.over(id) == {"job_id": id, "status": "error", "error": "the job was cancelled"}
        await pool.until(lambda: pool.open_calls == 0)
        assert all(stream.cancelled for stream in pool.streams)
        response, body = await api.ask("DELETE", f"Jobs/{id}")
        assert response.status == 404
        assert "cannot be cancelled" in body["error"]
        async with pool.changed:
            pool.free = 1
        pool.answer = echo
        assert (await api.over(await api.chat()))["status"] == "done"  # the lane goes on


async def test_jobs_are_their_callers_own(tmp_path: Path) -> None:
    """Another key finds neither to read nor to cancel."""
    async with serving(tmp_path, keys=("one", "two")) as api:
        id = await api.chat()
        await api.over(id)
        for method in ("GET", "DELETE"):
            response, body = await api.ask(method, f"Jobs/{id}", key="two")
            assert response.status == 404
            assert set(body) == {"error"}
            assert isinstance(body["error"], str)
        response, _ = await api.ask("GET", f"Jobs/{id}", key="three")
        assert response.status == 401


async def test_the_same_key_with_the_same_body_is_the_same_job(tmp_path: Path) -> None:
    """However often it is sent, also at the same moment, also in a later life."""
    body = {"model": "tiny", "messages": [USER]}
    async with serving(tmp_path) as api:
        answers = await asyncio.gather(
            *(api.ask("POST", "Chat", body, Idempotency_Key="k1") for _ in range(20))
        )
        ids = {answer["job_id"] for _, answer in answers}
        assert len(ids) == 1
        await api.over(*ids)
        assert await api.rows("job") == 1
    async with serving(tmp_path) as api:
        _, again = await api.ask("POST", "Chat", body, Idempotency_Key="k1")
        assert {again["job_id"]} == ids


async def test_the_same_key_with_another_body_is_a_conflict(tmp_path: Path) -> None:
    """Also with the same body at another method; SDKs are told not to try again. Other callers' keys are
    their own.
    """
    body = {"model": "tiny", "messages": [USER]}
    async with serving(tmp_path, keys=("one", "two")) as api:
        await api.ask("POST", "Chat", body, Idempotency_Key="k1")
        for method, other in (("Chat", {**body, "sampling": {}}), ("BatchChat", {**body, "items": [body]})):
            response, answer = await api.ask("POST", method, other, Idempotency_Key="k1")
            assert response.status == 409
            assert response.headers["x-should-retry"] == "false"
            assert "'k1'" in answer["error"]
        response, _ = await api.ask("POST", "Chat", body, key="two", Idempotency_Key="k1")
        assert response.status == 200
        assert await api.rows("job") == 2
        response, _ = await api.ask("POST", "Chat", body, Idempotency_Key="x" * 256)
        assert response.status == 400


async def test_a_key_is_free_again_when_its_job_is_forgotten(tmp_path: Path) -> None:
    """It holds for as long as the job's result does."""
    clock = FakeClock()
    body = {"model": "tiny", "messages": [USER]}
    async with serving(tmp_path, clock=clock, limits=JobLimits(keep_s=60.0)) as api:
        _, first = await api.ask("POST", "Chat", body, Idempotency_Key="k1")
        await api.over(first["job_id"])
        clock.advance(61.0)
        response, _ = await api.ask("GET", f"Jobs/{first['job_id']}")
        assert response.status == 404
        _, second = await api.ask("POST", "Chat", {**body, "sampling": {}}, Idempotency_Key="k1")
        assert second["job_id"] != first["job_id"]
        await api.over(second["job_id"])


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "Chat", b"{", 400, "not valid JSON"),
        ("POST", "Chat", {"model": "tiny"}, 400, "messages"),
        ("POST", "Chat", {"model": "other", "messages": [USER]}, 400, "does not exist"),
        ("POST", "Embed", {"model": "tiny", "input": "x"}, 400, "it writes text"),
        ("POST", "Chat", {"model": "vectors", "messages": [USER]}, 400, "it makes vectors"),
        ("GET", "Jobs/job_unknown", None, 404, "not found or expired"),
        ("GET", "Jobs/job_unknown?wait=1", None, 404, "not found or expired"),
        ("GET", "Jobs/job_unknown?wait=yes", None, 400, "wait is 0 or 1"),
        ("DELETE", "Jobs/job_unknown", None, 404, "cannot be cancelled"),
        ("GET", "Models/Detail?id=other", None, 404, "does not exist"),
    ],
)
async def test_refusals_are_told_as_mass_tells_them(
    tmp_path: Path, method: str, path: str, body: Any, status: int, words: str
) -> None:
    """`{"error": text}`, with a true status."""
    async with serving(tmp_path, pool_of_all()) as api:
        response, answer = await api.ask(method, path, body)
        assert response.status == status, answer
        assert set(answer) == {"error"}
        assert words in answer["error"]
        assert await api.rows("job") == 0


async def test_a_body_that_is_not_called_json_is_refused(tmp_path: Path) -> None:
    """Any web page could send one."""
    async with serving(tmp_path) as api, api.http.post(f"{api.url}{PREFIX}/Chat", data=b"{}") as response:
        assert response.status == 415
        assert set(await response.json()) == {"error"}


async def test_no_more_jobs_than_may_be_unfinished(tmp_path: Path) -> None:
    """429 with a time to wait; also in a later life."""
    pool = JobPool(free=0)
    limits = JobLimits(most=1)
    async with serving(tmp_path, pool, limits=limits) as api:
        id = await api.chat()
        for _ in range(2):
            response, answer = await api.ask("POST", "Chat", {"model": "tiny", "messages": [USER]})
            assert response.status == 429
            assert "jobs.unfinished" in answer["error"]
            assert int(response.headers["retry-after"]) > 0
    async with serving(tmp_path, JobPool(), limits=limits) as api:
        await api.over(id)
        await api.over(await api.chat())


async def test_a_store_that_fails_is_told_and_nothing_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """503, worth another try; the next submission is taken."""

    async def fail(self: Jobs, drafts: Any) -> Any:
        raise StoreFailed("the disk is full; make room")

    async with serving(tmp_path) as api:
        with monkeypatch.context() as patch:
            patch.setattr(Jobs, "add", fail)
            response, answer = await api.ask("POST", "Chat", {"model": "tiny", "messages": [USER]})
            assert (response.status, answer) == (503, {"error": "the disk is full; make room"})
        assert (await api.over(await api.chat()))["status"] == "done"


async def test_the_models_are_listed_with_what_is_known(tmp_path: Path) -> None:
    """By name, with facts where a model is loaded; those of other gateways are not there."""
    pool = pool_of_all()
    pool.models["lab/x"] = model("x", gateway="lab")
    async with serving(tmp_path, pool) as api:
        _, cards = await api.ask("GET", "Models")
        assert [card["id"] for card in cards] == ["tiny", "vectors"]
        _, details = await api.ask("GET", "Models/Detail")
        assert [detail["id"] for detail in details] == ["tiny", "vectors"]
        _, one = await api.ask("GET", "Models/Detail?id=tiny")
        assert one == details[0]
        assert one["context_length"] == 2048
        assert one["capabilities"] == ["chat", "completion"]


ROUTES = [
    *(("POST", method) for method in ("Chat", "BatchChat", "Embed", "BatchEmbed", "Tokenize")),
    ("GET", "Jobs/x"),
    ("DELETE", "Jobs/x"),
    ("GET", "Models"),
    ("GET", "Models/Detail"),
]
SHIMS = [
    ("POST", "chat/completions"),
    ("POST", "embeddings"),
    ("GET", "models"),
    ("GET", "models/tiny"),
]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        *((method, f"{PREFIX}/{path}") for method, path in ROUTES),
        *((method, f"{SHIM}/{path}") for method, path in SHIMS),
    ],
)
async def test_every_route_is_behind_the_edge(tmp_path: Path, method: str, path: str) -> None:
    """No key, a wrong key, a foreign name of this machine, a foreign web page that would change something:
    each is refused, as MASS tells errors at its own paths and as OpenAI does at the shim.
    """
    async with serving(tmp_path, keys=("one",)) as api:
        good = {"authorization": "Bearer one"}
        tries: list[tuple[dict[str, str], int]] = [
            ({}, 401),
            ({"authorization": "Bearer two"}, 401),
            ({**good, "host": "evil.example"}, 403),
        ]
        if method != "GET":
            tries.append(({**good, "origin": "https://evil.example"}, 403))
        for headers, status in tries:
            async with api.http.request(method, api.url + path, json={}, headers=headers) as response:
                assert response.status == status
                error = (await response.json())["error"]
                assert isinstance(error, str if path.startswith(PREFIX) else dict)


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "Chat", 405), ("PUT", "Jobs/x", 405), ("GET", "Nothing", 404), ("POST", "Models", 405)],
)
async def test_what_is_not_there_is_told_as_mass_tells_it(
    tmp_path: Path, method: str, path: str, status: int
) -> None:
    """Also by the router."""
    async with serving(tmp_path) as api:
        response, answer = await api.ask(method, path)
        assert response.status == status
        assert isinstance(answer["error"], str)


async def test_a_defect_gives_nothing_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """500 with the request's id, which the log explains."""

    async def fail(self: Jobs, identity: str | None, id: str) -> Any:
        raise RuntimeError("secret")

    async with serving(tmp_path) as api:
        monkeypatch.setattr(Jobs, "get", fail)
        response, answer = await api.ask("GET", "Jobs/x")
        assert response.status == 500
        assert response.headers["x-request-id"] in answer["error"]
        assert "secret" not in answer["error"]


async def test_openais_routes_answer_at_masss_prefix(tmp_path: Path) -> None:
    """The same handlers, for the default gateway's models."""

    class Interactive(JobPool):
        """Takes calls that people wait for."""

        open = FakePool.open  # type: ignore[assignment]

    pool = Interactive(answer=everything)
    pool.models["vectors"] = EMBEDDER
    async with serving(tmp_path, pool) as api:
        body = {"model": "tiny", "messages": [USER]}
        async with api.http.post(f"{api.url}{SHIM}/chat/completions", json=body) as response:
            assert response.status == 200
            assert (await response.json())["choices"][0]["message"]["content"] == "hi"
        async with api.http.post(
            f"{api.url}{SHIM}/chat/completions", json={**body, "stream": True}
        ) as response:
            assert (await response.read()).endswith(b"data: [DONE]\n\n")
        async with api.http.post(
            f"{api.url}{SHIM}/embeddings", json={"model": "vectors", "input": "x"}
        ) as response:
            assert (await response.json())["data"][0]["embedding"] == [1.0, 0.5]
        async with api.http.get(f"{api.url}{SHIM}/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["tiny", "vectors"]
        async with api.http.get(f"{api.url}{SHIM}/models/tiny") as response:
            assert (await response.json())["id"] == "tiny"
