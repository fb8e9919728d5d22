"""`openai` for Python, strict, on files and batches: the way of OpenAI's guide, with scripted models."""

from __future__ import annotations

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types import Batch, FileObject

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import fake

pytestmark = pytest.mark.asyncio(loop_scope="module")

CHAT = "/v1/chat/completions"
RESPOND = "/v1/responses"
WITHIN_S = 120.0


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with a model that answers at once and one that never ends, at two gateways."""
    models = [fake("quick", reply="Hello there."), fake("slow", tokens=100_000, token_delay=0.05)]
    lab = {"name": "lab", "models": [fake("own", reply="From the lab.")]}
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        config = {"models": models, "gateways": [lab], "allow_fake": True}
        async with running(Path(folder), config) as started:
            yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


def requests(*bodies: dict[str, Any], url: str = CHAT) -> bytes:
    """Return an input file."""
    lines = [
        {"custom_id": f"request-{at}", "method": "POST", "url": url, "body": body}
        for at, body in enumerate(bodies)
    ]
    return b"\n".join(json.dumps(line).encode() for line in lines)


def chat(model: str = "quick", **more: Any) -> dict[str, Any]:
    """Return the body of a chat."""
    return {"model": model, "messages": [{"role": "user", "content": "Hi"}], **more}


async def begin(sdk: Sdk, data: bytes, endpoint: str = CHAT, **more: Any) -> Batch:
    """Upload an input and begin a batch."""
    file = await sdk.call("files.create", file=("in.jsonl", data), purpose="batch")
    batch = await sdk.call(
        "batches.create", input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
    )
    assert isinstance(batch, Batch)
    return batch


async def until(sdk: Sdk, batch: Batch, *statuses: str) -> Batch:
    """Ask for a batch until it has one of these statuses."""
    async with asyncio.timeout(WITHIN_S):
        while batch.status not in statuses:
            await asyncio.sleep(0.02)
            batch = await sdk.call("batches.retrieve", batch_id=batch.id)
    return batch


async def lines(sdk: Sdk, id: str | None) -> list[dict[str, Any]]:
    """Return the lines of a file."""
    content = await sdk.call("files.content", file_id=id)
    return [json.loads(line) for line in content.content.splitlines()]


async def test_the_whole_way(sdk: Sdk, tmp_path: Path) -> None:
    """Upload from the disk, begin, wait, read both files, find everything in the lists, delete."""
    path = tmp_path / "batch.jsonl"
    path.write_bytes(requests(*[chat(n=2)] * 30, chat(messages=[]), chat()))
    file = await sdk.call("files.create", file=path, purpose="batch")
    assert isinstance(file, FileObject)
    assert (file.filename, file.bytes, file.purpose) == ("batch.jsonl", path.stat().st_size, "batch")
    batch: Batch = await sdk.call(
        "batches.create",
        input_file_id=file.id,
        endpoint=CHAT,
        completion_window="24h",
        metadata={"what": "a test"},
        output_expires_after={"anchor": "created_at", "seconds": 7200},
    )
    batch = await until(sdk, batch, "completed", "failed")
    assert batch.status == "completed", batch
    assert batch.request_counts is not None
    assert (batch.request_counts.total, batch.request_counts.completed) == (32, 31)
    answers = await lines(sdk, batch.output_file_id)
    wanted = [f"request-{at}" for at in range(32) if at != 30]
    assert [answer["custom_id"] for answer in answers] == wanted
    for answer in answers:
        completion = openai.types.chat.ChatCompletion.model_validate(answer["response"]["body"])
        assert {choice.message.content for choice in completion.choices} == {"Hello there."}
    [failed] = await lines(sdk, batch.error_file_id)
    assert (failed["custom_id"], failed["response"]["status_code"]) == ("request-30", 400)
    assert batch.usage is not None
    used = [answer["response"]["body"]["usage"]["total_tokens"] for answer in answers]
    assert batch.usage.total_tokens == sum(used) > 0
    listed = await sdk.items("batches.list", limit=1)
    assert listed[0].id == batch.id
    output = await sdk.call("files.retrieve", file_id=batch.output_file_id)
    assert output.expires_at == output.created_at + 7200
    ids = {one.id for one in await sdk.items("files.list", purpose="batch_output")}
    assert {batch.output_file_id, batch.error_file_id} <= ids
    for id in (file.id, batch.output_file_id, batch.error_file_id):
        assert (await sdk.call("files.delete", file_id=id)).deleted
    with pytest.raises(openai.NotFoundError):
        await sdk.call("files.content", file_id=batch.output_file_id)


async def test_responses(sdk: Sdk) -> None:
    """They are answered as the SDK reads them, and can be fetched one by one."""
    data = requests({"model": "quick", "input": "Hi"}, {"model": "quick", "input": "Hello"}, url=RESPOND)
    batch = await until(sdk, await begin(sdk, data, RESPOND), "completed", "failed")
    assert batch.status == "completed", batch
    for answer in await lines(sdk, batch.output_file_id):
        response = openai.types.responses.Response.model_validate(answer["response"]["body"])
        assert response.output_text == "Hello there."
        again = await sdk.call("responses.retrieve", response_id=response.id)
        assert again.output_text == response.output_text


async def test_an_input_with_mistakes(sdk: Sdk) -> None:
    """The batch fails with the mistakes' lines."""
    data = requests(chat(), chat("other")) + b"\nnot json"
    batch = await until(sdk, await begin(sdk, data), "completed", "failed")
    assert batch.status == "failed"
    assert batch.errors is not None
    assert batch.errors.data is not None
    assert [(one.line, one.code) for one in batch.errors.data] == [
        (2, "mismatched_model"),
        (3, "invalid_json_line"),
    ]


async def test_cancelling(sdk: Sdk, daemon: Daemon) -> None:
    """It ends at once, and its model is free; a second time is refused."""
    batch = await until(sdk, await begin(sdk, requests(*[chat("slow")] * 100)), "in_progress")
    await daemon.until_status("slow", lambda status: status["in_flight"] > 0)
    batch = await sdk.call("batches.cancel", batch_id=batch.id)
    batch = await until(sdk, batch, "cancelled")
    assert len(await lines(sdk, batch.error_file_id)) == 100
    await daemon.until_idle("slow")
    done = await until(sdk, await begin(sdk, requests(chat())), "completed", "failed")
    with pytest.raises(openai.ConflictError):
        await sdk.call("batches.cancel", batch_id=done.id)


async def test_a_gateway_has_batches_for_its_own_models(daemon: Daemon) -> None:
    """Its models are not the default gateway's; files are seen at both."""
    async with AsyncSdk(f"{daemon.url}/lab") as lab, AsyncSdk(daemon.url) as sdk:
        batch = await until(lab, await begin(lab, requests(chat("own"))), "completed", "failed")
        [answer] = await lines(sdk, batch.output_file_id)
        assert answer["response"]["body"]["choices"][0]["message"]["content"] == "From the lab."
        batch = await until(sdk, await begin(sdk, requests(chat("own"))), "completed", "failed")
        assert batch.status == "failed"


async def test_the_owner_sees_batches_among_the_jobs(daemon: Daemon) -> None:
    """Under the batch's own id, with what it is at, and for a while when it is over: who waits a moment too
    late learns how it ended.
    """
    async with AsyncSdk(daemon.url) as sdk:
        batch = await until(sdk, await begin(sdk, requests(*[chat("slow")] * 3)), "in_progress")
        job = (await daemon.ctl("jobs", "show", batch.id, "--json")).json
        assert (job["kind"], job["items"], job["model"]) == ("batch", 3, "slow")
        assert (await daemon.ctl("jobs", "cancel", batch.id)).code == 0
        await until(sdk, batch, "cancelled")
        assert (await daemon.ctl("jobs", "wait", batch.id)).code == 1
        done = await until(sdk, await begin(sdk, requests(chat())), "completed")
        waited = await daemon.ctl("jobs", "wait", done.id)
        assert (waited.code, waited.out) == (0, f"{done.id} is done, 1 of 1 item done\n")
