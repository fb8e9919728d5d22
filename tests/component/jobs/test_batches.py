from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import openai
import pytest

from modeld.errors import EngineError, StoreFailed
from modeld.jobs import upkeep
from modeld.jobs.batches import keeper, leading
from modeld.jobs.batches.scan import BOM
from modeld.jobs.limits import JobLimits
from modeld.protocol.tasks import Task
from modeld.store.batches import Batches
from tests.component.jobs.batches_served import (
    CHAT,
    EMBED,
    RESPOND,
    chat,
    chats,
    client_of,
    everything,
    line,
    pool_of_all,
    serving,
)
from tests.component.jobs.served import WAIT_S, JobPool, counted, number_of
from tests.fakes.clock import FakeClock
from tests.fakes.pool import Answer, said


async def test_a_batch_of_chats_from_upload_to_output(tmp_path: Path) -> None:
    """Every line is answered once, in the input's order, as the endpoint answers; nothing else is left."""
    async with serving(tmp_path) as api:
        batch = await api.begin(chats(20), metadata={"who": "me"})
        assert batch.status == "validating"
        batch = await api.over(batch)
        assert batch.status == "completed", batch
        assert batch.errors is None
        assert batch.error_file_id is None
        assert batch.metadata == {"who": "me"}
        assert batch.model == "tiny"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 20, "completed": 20, "failed": 0}
        assert batch.usage is not None
        assert (batch.usage.input_tokens, batch.usage.output_tokens, batch.usage.total_tokens) == (
            100,
            20,
            120,
        )
        stamps = [batch.created_at, batch.in_progress_at, batch.finalizing_at, batch.completed_at]
        assert None not in stamps
        assert stamps == sorted(stamps, key=lambda at: at or 0)
        assert batch.expires_at == batch.created_at + 86_400
        lines = await api.lines(batch.output_file_id)
        assert [entry["custom_id"] for entry in lines] == [f"line-{at}" for at in range(20)]
        assert len({entry["id"] for entry in lines}) == 20
        for at, entry in enumerate(lines):
            assert entry["error"] is None
            assert entry["response"]["status_code"] == 200
            assert entry["response"]["request_id"].startswith("req_")
            body = entry["response"]["body"]
            assert body["object"] == "chat.completion"
            assert body["choices"][0]["message"]["content"] == str(at)
        assert batch.output_file_id is not None
        output = await api.client.files.retrieve(batch.output_file_id)
        assert output.purpose == "batch_output"
        assert await api.rows("job_item") == 0
        [job] = await api.room.queue.newest(
            9, unfinished=False
        )  # it stays among the owner's jobs for a while
        assert (job.id, job.status, job.done, job.expires is None) == (batch.id, "done", 20, False)
        assert {entry.name for entry in api.folder.iterdir()} == {batch.input_file_id, batch.output_file_id}


async def test_a_batch_of_embeddings(tmp_path: Path) -> None:
    """With as many vectors as a line has inputs, and in base64 where it is asked for."""
    async with serving(tmp_path) as api:
        data = BOM + line("a", {"model": "vectors", "input": ["x", "yyy"]}, EMBED)  # as some editors do
        data += line("b", {"model": "vectors", "input": "zz", "encoding_format": "base64"}, EMBED)
        batch = await api.over(await api.begin(data, EMBED))
        first, second = await api.lines(batch.output_file_id)
        assert [one["embedding"] for one in first["response"]["body"]["data"]] == [[1.0, 0.5], [3.0, 0.5]]
        assert isinstance(second["response"]["body"]["data"][0]["embedding"], str)
        assert batch.usage is not None
        assert batch.usage.total_tokens == 6


async def test_a_batch_of_responses(tmp_path: Path) -> None:
    """They are stored as any others, so that a later request can go on from one."""
    async with serving(tmp_path) as api:
        data = line("a", {"model": "tiny", "input": "one", "instructions": "be brief"}, RESPOND)
        data += line("b", {"model": "tiny", "input": "two", "store": False}, RESPOND)
        data += line("c", {"model": "tiny", "input": "three", "background": True}, RESPOND)
        batch = await api.over(await api.begin(data, RESPOND))
        assert batch.status == "completed", batch
        first, second = (entry["response"]["body"] for entry in await api.lines(batch.output_file_id))
        assert first["status"] == second["status"] == "completed"
        assert first["output"][0]["content"][0]["text"] == "one"
        [third] = await api.lines(batch.error_file_id)
        assert third["response"]["body"]["error"]["param"] == "background"
        assert await api.rows("response") == 1
        assert batch.usage is not None
        assert batch.usage.input_tokens == 10
        again = line("d", {"model": "tiny", "input": "more", "previous_response_id": first["id"]}, RESPOND)
        batch = await api.over(await api.begin(again, RESPOND))
        assert batch.request_counts is not None
        assert batch.request_counts.completed == 1
        assert len(api.pool.begun[-1].task.messages) == 3  # type: ignore[union-attr]


async def test_what_fails_of_a_batch_is_in_its_error_file(tmp_path: Path) -> None:
    """Each line with the status and the error that the endpoint gives, the others not touched by it."""

    def answer(name: str, task: Task) -> list[Answer]:
        return [EngineError("no")] if number_of(task) == 3 else everything(name, task)

    async with serving(tmp_path, JobPool(answer=answer)) as api:
        data = chat(0) + chat(1, messages=[]) + chat(2, modalities=["audio"]) + chat(3) + chat(4)
        batch = await api.over(await api.begin(data))
        assert batch.status == "completed"
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 5, "completed": 2, "failed": 3}
        assert [one["custom_id"] for one in await api.lines(batch.output_file_id)] == ["line-0", "line-4"]
        failed = await api.lines(batch.error_file_id)
        assert [one["custom_id"] for one in failed] == ["line-1", "line-2", "line-3"]
        assert [one["response"]["status_code"] for one in failed] == [400, 400, 502]
        errors = [one["response"]["body"]["error"] for one in failed]
        assert [error["param"] for error in errors] == ["messages", "modalities", None]
        assert errors[2] == {"message": "no", "type": "server_error", "param": None, "code": "engine_error"}
        for one, error in zip(failed, errors, strict=True):
            assert one["error"] == {"code": error["code"], "message": error["message"]}


async def test_a_batch_of_nothing_but_failures_is_completed(tmp_path: Path) -> None:
    """It has an error file and no output file."""
    async with serving(tmp_path) as api:
        batch = await api.over(await api.begin(chat(0, n=0) + chat(1, n=99)))
        assert (batch.status, batch.output_file_id) == ("completed", None)
        assert len(await api.lines(batch.error_file_id)) == 2


@pytest.mark.parametrize(
    ("data", "endpoint", "mistakes"),
    [
        (
            chat(0) + b"{\n" + chat(0),
            CHAT,
            [("invalid_json_line", 2, None), ("duplicate_custom_id", 3, "custom_id")],
        ),
        (
            chats(2),
            EMBED,
            [
                ("invalid_url", 1, "url"),
                ("invalid_url", 2, "url"),
                ("unsupported_task", 1, "body.model"),
            ],
        ),
        (line("a", {"model": "none"}), CHAT, [("model_not_found", 1, "body.model")]),
        (chat(0) + line("b", {"model": "vectors"}), CHAT, [("mismatched_model", 2, "body.model")]),
        (b"\n\n", CHAT, [("empty_file", None, None)]),
    ],
)
async def test_an_input_with_mistakes_fails_as_a_whole(
    tmp_path: Path, data: bytes, endpoint: str, mistakes: list[tuple[str, int | None, str | None]]
) -> None:
    """Each mistake with its line; nothing is asked of any model."""
    async with serving(tmp_path) as api:
        batch = await api.over(await api.begin(data, endpoint))
        assert batch.status == "failed"
        assert batch.failed_at is not None
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [(one.code, one.line, one.param) for one in batch.errors.data] == mistakes
        assert not api.pool.streams
        assert await api.rows("job") == 0


async def test_an_input_that_is_not_there_or_is_for_something_else(tmp_path: Path) -> None:
    """The batch says so, as at OpenAI."""
    async with serving(tmp_path) as api:
        other = await api.upload(chats(1), purpose="user_data")
        for id in ("file-none", other.id):
            batch = await api.client.batches.create(
                input_file_id=id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            batch = await api.over(batch)
            assert batch.status == "failed"
            assert batch.errors is not None
            assert batch.errors.data is not None
            assert (batch.errors.data[0].code, batch.errors.data[0].param) == (
                "invalid_request",
                "input_file_id",
            )


@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"endpoint": "/v1/other"}, "endpoint"),
        ({"completion_window": "1h"}, "completion_window"),
        ({"metadata": {"a": 1}}, "metadata[...]"),
        ({"output_expires_after": {"anchor": "created_at", "seconds": 1}}, "output_expires_after.seconds"),
        ({"output_expires_after": {"anchor": "x", "seconds": 3600}}, "output_expires_after.anchor"),
        ({"input_file_id": None}, "input_file_id"),
    ],
)
async def test_a_request_that_can_never_be_a_batch_is_refused(
    tmp_path: Path, change: dict[str, Any], param: str
) -> None:
    """At once, with the parameter."""
    async with serving(tmp_path) as api:
        body = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h", **change}
        async with api.http.post(f"{api.url}/v1/batches", json=body) as response:
            assert response.status == 400
            assert (await response.json())["error"]["param"].startswith(param.removesuffix("[...]"))
        assert await api.rows("batch") == 0


async def test_a_batch_outlives_its_input_file(tmp_path: Path) -> None:
    """Deleting the file takes nothing from a batch that works on it."""
    pool = pool_of_all()
    pool.free = 0
    async with serving(tmp_path, pool) as api:
        batch = await api.begin(chats(3))
        await api.client.files.delete(batch.input_file_id)
        await api.until(batch, "in_progress")
        async with pool.changed:
            pool.free = 2
            pool.changed.notify_all()
        batch = await api.over(batch)
        assert len(await api.lines(batch.output_file_id)) == 3
        assert {entry.name for entry in api.folder.iterdir()} == {batch.output_file_id}


def holding(first: int) -> Any:
    """Return answers for the first so many chats; the others stay without an end."""

    def answer(name: str, task: Task) -> list[Answer]:
        return everything(name, task) if number_of(task) < first else []

    return answer


async def test_a_batch_that_is_cancelled_keeps_what_is_done(tmp_path: Path) -> None:
    """What was at work is cut off; the lines without an answer say why they have none."""
    async with serving(tmp_path, JobPool(answer=holding(2))) as api:
        batch = await api.until(await api.begin(chats(5)), "in_progress")
        async with asyncio.timeout(WAIT_S):
            while (await api.client.batches.retrieve(batch.id)).request_counts.completed < 2:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)
        told = await api.client.batches.cancel(batch.id)
        assert told.status in ("cancelling", "cancelled")
        batch = await api.over(batch)
        assert batch.status == "cancelled"
        assert batch.cancelling_at is not None
        assert batch.cancelled_at is not None
        assert batch.request_counts is not None
        assert batch.request_counts.to_dict() == {"total": 5, "completed": 2, "failed": 0}
        assert [one["custom_id"] for one in await api.lines(batch.output_file_id)] == ["line-0", "line-1"]
        rest = await api.lines(batch.error_file_id)
        assert [one["custom_id"] for one in rest] == ["line-2", "line-3", "line-4"]
        assert {one["error"]["code"] for one in rest} == {"batch_cancelled"}
        await api.pool.until(lambda: not api.pool.open_calls)


async def test_a_batch_that_is_over_cannot_be_cancelled(tmp_path: Path) -> None:
    """409, which a client does not try again; 404 for one that is not there."""
    async with serving(tmp_path) as api:
        batch = await api.over(await api.begin(chats(1)))
        with pytest.raises(openai.ConflictError, match="status 'completed'"):
            await api.client.batches.cancel(batch.id)
        with pytest.raises(openai.NotFoundError, match="No batch found"):
            await api.client.batches.cancel("batch_x")


async def test_the_owner_may_cancel_a_batch_as_any_job(tmp_path: Path) -> None:
    """The batch learns of it."""
    async with serving(tmp_path, JobPool(answer=holding(0))) as api:
        batch = await api.until(await api.begin(chats(2)), "in_progress")
        assert await api.room.queue.cancel(None, batch.id)
        batch = await api.over(batch)
        assert batch.status == "cancelled"


async def test_a_batch_expires_with_its_window(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is done by then is in the output, the rest says that it was too late."""
    monkeypatch.setattr(upkeep, "BEAT_S", 0.01)
    clock = FakeClock()
    async with serving(tmp_path, JobPool(answer=holding(1)), clock=clock) as api:
        batch = await api.begin(chats(3), output_expires_after={"anchor": "created_at", "seconds": 3600})
        async with asyncio.timeout(WAIT_S):
            while (await api.client.batches.retrieve(batch.id)).request_counts.completed < 1:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)
        clock.advance(86_400)
        batch = await api.over(batch)
        assert batch.status == "expired"
        assert batch.expired_at == batch.expires_at
        assert len(await api.lines(batch.output_file_id)) == 1
        rest = await api.lines(batch.error_file_id)
        assert [(one["response"], one["error"]["code"]) for one in rest] == [(None, "batch_expired")] * 2
        assert batch.output_file_id is not None
        output = await api.client.files.retrieve(batch.output_file_id)
        assert output.expires_at == output.created_at + 3600


async def test_a_batch_goes_on_in_the_next_life(tmp_path: Path) -> None:
    """What was done is not done again; also where jobs are kept for no time at all."""
    limits = JobLimits(keep_s=0.0)
    async with serving(tmp_path, JobPool(answer=holding(4)), jobs=limits) as api:
        batch = await api.until(await api.begin(chats(10)), "in_progress")
        async with asyncio.timeout(WAIT_S):
            while (await api.client.batches.retrieve(batch.id)).request_counts.completed < 4:  # type: ignore[union-attr]
                await asyncio.sleep(0.002)
        (api.folder / "part_left").write_bytes(b"half a file")
    pool = pool_of_all()
    async with serving(tmp_path, pool, jobs=limits) as api:
        batch = await api.over(batch)
        assert batch.status == "completed"
        assert sorted(number_of(stream.task) for stream in pool.begun) == list(range(4, 10))
        lines = await api.lines(batch.output_file_id)
        assert [one["custom_id"] for one in lines] == [f"line-{at}" for at in range(10)]
        assert {entry.name for entry in api.folder.iterdir()} == {batch.input_file_id, batch.output_file_id}


@pytest.mark.parametrize("status", ["in_progress", "finalizing", "completed"])
async def test_a_step_that_could_not_be_stored_is_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """Submitting twice makes one job, writing twice leaves one output; whichever step it is."""
    monkeypatch.setattr(leading, "PAUSE_S", 0.01)
    put, failures = Batches.put, [0]

    async def full(self: Batches, batch: Any, files: Any = ()) -> None:
        if json.loads(batch.body)["batch"]["status"] == status and failures[0] < 2:
            failures[0] += 1
            raise StoreFailed("the disk is full")
        await put(self, batch, files)

    monkeypatch.setattr(Batches, "put", full)
    async with serving(tmp_path) as api:
        batch = await api.over(await api.begin(chats(3)))
        assert failures == [2]
        assert batch.status == "completed"
        assert len(api.pool.begun) == 3
        assert {entry.name for entry in api.folder.iterdir()} == {batch.input_file_id, batch.output_file_id}
        assert await api.rows("file") == 2


@pytest.mark.parametrize("status", ["validating", "in_progress", "finalizing", "completed", "cancelling"])
async def test_a_life_may_end_after_any_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: str
) -> None:
    """The next one takes up the batch where it is."""
    put, reached = Batches.put, asyncio.Event()
    begin = Batches.add

    async def until(self: Batches, batch: Any, files: Any = ()) -> None:
        await put(self, batch, files)
        if json.loads(batch.body)["batch"]["status"] == status:
            reached.set()
            await asyncio.Event().wait()

    async def begun(self: Batches, *args: Any) -> Any:
        added = await begin(self, *args)
        if status == "validating":
            reached.set()
        return added

    async def stuck(*_: Any) -> None:
        await asyncio.Event().wait()

    with monkeypatch.context() as patch:
        patch.setattr(Batches, "put", until)
        patch.setattr(Batches, "add", begun)
        if status == "validating":
            patch.setattr(leading.Leader, "_check", stuck)
        async with serving(tmp_path, JobPool(answer=holding(0 if status == "cancelling" else 9))) as api:
            batch = await api.begin(chats(3))
            if status == "cancelling":
                await api.until(batch, "in_progress")
                assert await api.room.queue.cancel(None, batch.id)
            async with asyncio.timeout(WAIT_S):
                await reached.wait()
    async with serving(tmp_path) as api:
        batch = await api.over(batch)
        assert batch.status == ("cancelled" if status == "cancelling" else "completed")
        assert batch.request_counts is not None
        assert batch.request_counts.total == 3
        assert len(await api.lines(batch.error_file_id or batch.output_file_id)) == 3
        async with asyncio.timeout(WAIT_S):
            while await api.rows("job WHERE held"):
                await asyncio.sleep(0.002)


async def test_batches_are_listed_page_by_page_and_are_their_callers(tmp_path: Path) -> None:
    """The newest first; nobody sees, cancels or reads another's."""
    async with serving(tmp_path, keys=("one", "two")) as api:
        made = [await api.over(await api.begin(chats(1))) for _ in range(5)]
        page = await api.client.batches.list(limit=2)
        assert page.has_more
        found = [batch.id async for batch in api.client.batches.list(limit=2)]
        assert found == [batch.id for batch in reversed(made)]
        async with client_of(api.url, "two") as other:
            assert [batch async for batch in other.batches.list()] == []
            with pytest.raises(openai.NotFoundError):
                await other.batches.retrieve(made[0].id)
            with pytest.raises(openai.NotFoundError):
                await other.batches.cancel(made[0].id)
            with pytest.raises(openai.NotFoundError):
                await other.files.content(made[0].output_file_id or "")
            with pytest.raises(openai.BadRequestError, match="there is no"):
                await other.batches.list(after=made[0].id)
            batch = await other.batches.create(
                input_file_id=made[0].input_file_id, endpoint="/v1/chat/completions", completion_window="24h"
            )
            async with asyncio.timeout(WAIT_S):
                while batch.status != "failed":
                    batch = await other.batches.retrieve(batch.id)


@pytest.mark.parametrize(
    ("data", "endpoint"), [(chats(1), CHAT), (line("a", {"model": "tiny", "input": "x"}, RESPOND), RESPOND)]
)
async def test_side_by_side_with_people_a_batch_gives_way(tmp_path: Path, data: bytes, endpoint: str) -> None:
    """Its calls are those of jobs: low priority, and they yield; then they begin anew."""
    async with serving(tmp_path, JobPool(answer=lambda name, task: [])) as api:
        batch = await api.begin(data, endpoint)
        await api.pool.until(lambda: bool(api.pool.begun))
        assert api.pool.begun[0].yields
        api.pool.begun[0].feed(*said("half an answer")[:1])
        api.pool.begun[0].give_way()
        await api.pool.until(lambda: len(api.pool.begun) == 2)
        api.pool.begun[1].feed(*said("late"))
        batch = await api.over(batch)
        [only] = await api.lines(batch.output_file_id)
        assert '"late"' in json.dumps(only["response"]["body"])
        assert "half" not in json.dumps(only)
        assert await api.rows("response") == (endpoint == RESPOND)


async def test_a_batch_waits_where_there_are_jobs_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not refused once it was taken; one more is."""
    monkeypatch.setattr(leading, "PAUSE_S", 0.01)
    async with serving(tmp_path, JobPool(answer=lambda name, task: []), jobs=JobLimits(most=1)) as api:
        body = {"model": "tiny", "messages": [{"role": "user", "content": "x"}]}
        async with api.http.post(f"{api.url}/mass.llama-cpp.v1/Chat", json=body) as response:
            assert response.status == 200
        batch = await api.begin(chats(1))
        await api.pool.until(lambda: len(api.pool.begun) == 1)
        assert (await api.client.batches.retrieve(batch.id)).status == "validating"
        with pytest.raises(openai.RateLimitError, match=r"jobs\.unfinished"):
            await api.begin(chats(1))
        api.pool.begun[0].feed(*said())
        await api.pool.until(lambda: len(api.pool.begun) == 2)
        api.pool.begun[1].feed(*said())
        assert (await api.over(batch)).status == "completed"


async def test_a_defect_ends_a_batch_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has failed without giving anything away, its job is gone, and the next batch is done."""

    async def broken(*_: Any) -> Any:
        raise RuntimeError("secret")

    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    async with serving(tmp_path) as api:
        with monkeypatch.context() as patch:
            patch.setattr(leading, "write", broken)
            batch = await api.over(await api.begin(chats(1)))
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert batch.errors.data[0].code == "internal_error"
        assert "secret" not in str(batch.errors.data[0].message)
        async with asyncio.timeout(WAIT_S):
            while await api.rows("job WHERE held"):
                await asyncio.sleep(0.002)
        assert (await api.over(await api.begin(chats(1)))).status == "completed"


async def test_metadata_that_openai_would_refuse_is_refused(tmp_path: Path) -> None:
    """Seventeen pairs are one too many."""
    async with serving(tmp_path) as api:
        file = await api.upload(chats(1))
        with pytest.raises(openai.BadRequestError, match="metadata"):
            await api.client.batches.create(
                input_file_id=file.id,
                endpoint="/v1/chat/completions",
                completion_window="24h",
                metadata={str(at): "x" for at in range(17)},
            )


async def test_a_batch_that_is_sent_again_by_its_name_is_one_batch(tmp_path: Path) -> None:
    """However often its client sends it, also at the same moment, in a later life, and when it is over: told
    as it is by then. Another one by the same name is a conflict; other callers' names are their own.
    """
    name = {"Idempotency-Key": "k1"}
    async with serving(tmp_path, keys=("one", "two")) as api:
        file = await api.upload(chats(2))
        body: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        made = await asyncio.gather(
            *(api.client.batches.create(**body, extra_headers=name) for _ in range(8))
        )
        assert len({batch.id for batch in made}) == 1
        done = await api.over(made[0])
        assert await api.client.batches.create(**body, extra_headers=name) == done
        assert done.status == "completed"
        assert {entry.name for entry in api.folder.iterdir()} == {file.id, done.output_file_id}
        with pytest.raises(openai.ConflictError, match="'k1' was used before") as caught:
            await api.client.batches.create(**body, metadata={"a": "b"}, extra_headers=name)
        assert caught.value.code == "idempotency_key_reused"
        assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
            await api.client.batches.create(**body, extra_headers={"Idempotency-Key": "x" * 256})
        async with client_of(api.url, "two") as other:
            assert (await other.batches.create(**body, extra_headers=name)).id != done.id
    async with serving(tmp_path, keys=("one", "two")) as api:
        assert await api.client.batches.create(**body, extra_headers=name) == done
        assert counted(api.pool) == {}


async def test_the_name_of_a_batch_that_is_forgotten_is_free_again(tmp_path: Path) -> None:
    """Although it has not been cleared away yet."""
    clock, name = FakeClock(), {"Idempotency-Key": "k1"}
    async with serving(tmp_path, clock=clock) as api:
        body: dict[str, Any] = {"input_file_id": "file-x", "endpoint": CHAT, "completion_window": "24h"}
        first = await api.over(await api.client.batches.create(**body, extra_headers=name))
        clock.advance(31 * 86_400)
        assert (await api.client.batches.create(**body, extra_headers=name)).id != first.id


async def test_a_batch_whose_client_leaves_while_it_is_stored_is_not_told_to_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try waits until the first is taken back, and begins its own: it is done once."""
    entered, add = asyncio.Event(), Batches.add

    async def stuck(self: Batches, *args: Any) -> Any:
        added = await add(self, *args)
        if entered.is_set():
            return added
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Batches, "add", stuck)
    name = {"Idempotency-Key": "k1"}
    async with serving(tmp_path) as api:
        file = await api.upload(chats(1))
        body: dict[str, Any] = {"input_file_id": file.id, "endpoint": CHAT, "completion_window": "24h"}
        first = asyncio.ensure_future(api.client.batches.create(**body, extra_headers=name))
        async with asyncio.timeout(WAIT_S):
            await entered.wait()
        second = asyncio.ensure_future(api.client.batches.create(**body, extra_headers=name))
        first.cancel()
        batch = await api.over(await second)
        assert batch.status == "completed"
        assert await api.rows("batch") == 1
        assert counted(api.pool) == {0: 1}


async def test_batches_and_files_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Batches by status, files by purpose with their bytes, a batch's job in the queue's figures; the next
    life begins with what is there.
    """
    monkeypatch.setattr(upkeep, "BEAT_S", 0.01)
    clock, job = FakeClock(), {"kind": "batch"}
    async with serving(tmp_path, JobPool(answer=holding(0), free=2), clock=clock) as api:
        batch = await api.until(await api.begin(chats(5)), "in_progress")
        await api.pool.until(lambda: len(api.pool.begun) == 2 and api.pool.open_calls == 3)
        assert api.value("batches", status="in_progress") == 1
        assert api.value("files", purpose="batch") == 1
        assert api.value("file_bytes", purpose="batch") == len(chats(5))
        clock.advance(30.0)
        async with asyncio.timeout(WAIT_S):
            while (
                api.value("job_oldest_seconds", **job) != 30.0
                or api.value("job_items_waiting", **job) != 2
                or api.value("jobs", status="processing", **job) != 1
            ):
                await asyncio.sleep(0.005)
        assert api.value("job_wait_seconds_count", **job) == 1
    async with serving(tmp_path, clock=clock) as api:
        batch = await api.over(batch)
        assert batch.output_file_id is not None
        output = await api.client.files.retrieve(batch.output_file_id)
        assert api.value("batches", status="in_progress") == api.value("batches", status="finalizing") == 0
        assert api.value("batches_ended_total", status="completed") == 1
        assert api.value("jobs_ended_total", status="done", **job) == 1
        assert api.value("file_bytes", purpose="batch") == len(chats(5))
        assert api.value("file_bytes", purpose="batch_output") == output.bytes
        await api.client.files.delete(output.id)
        assert api.value("files", purpose="batch_output") == 0
        assert api.value("file_bytes", purpose="batch_output") == 0
        clock.advance(31 * 86_400)
        monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    async with serving(tmp_path, clock=clock) as api:
        async with asyncio.timeout(WAIT_S):
            while await api.rows("file"):
                await asyncio.sleep(0.005)
        assert api.value("files", purpose="batch") == api.value("file_bytes", purpose="batch") == 0


async def test_a_batch_whose_input_is_gone_from_the_disk_fails_and_says_so(tmp_path: Path) -> None:
    """Nobody can tell any more whose the answers are; it does not wait for ever."""
    async with serving(tmp_path, JobPool(answer=holding(0))) as api:
        batch = await api.until(await api.begin(chats(1)), "in_progress")
        await api.pool.until(lambda: len(api.pool.begun) == 1)
        (api.folder / batch.id).unlink()
        api.pool.begun[0].feed(*said())
        batch = await api.over(batch)
        assert batch.status == "failed"
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert batch.errors.data[0].code == "results_lost"


async def test_how_batches_and_jobs_end_is_in_the_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """With numbers; what went wrong as a warning, with the reason."""
    caplog.set_level("INFO", "modeld.jobs")

    def answer(name: str, task: Task) -> list[Answer]:
        return [EngineError("no")] if number_of(task) == 3 else everything(name, task)

    async with serving(tmp_path, JobPool(answer=answer)) as api:
        good = await api.over(await api.begin(chats(2)))
        wrong = await api.over(await api.begin(chat(0) + b"{\n"))
        bad = await api.over(await api.begin(chat(3)))
    told = {(record.levelname, record.getMessage()) for record in caplog.records}

    def line_of(level: str, *pieces: str) -> bool:
        return any(found == level and all(piece in text for piece in pieces) for found, text in told)

    assert line_of("INFO", f"batch {good.id}", "is in_progress: 2 requests, 0 done, 0 failed")
    assert line_of("INFO", f"job {good.id}", "is done after", "2 of 2 items done, 0 failed")
    assert line_of("INFO", f"batch {good.id}", "is completed: 2 requests, 2 done, 0 failed")
    assert line_of("WARNING", f"batch {wrong.id}", "is failed", "mistakes: 1, the first: line 2: This line")
    assert line_of("WARNING", f"job {bad.id}", "is error after", "1 failed: no")
