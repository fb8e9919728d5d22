"""`openai` for Python, strict, on background responses: polled, cancelled, streamed, taken up again.

The models are scripted, since a run that is watched on its way must take just so long.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.conformance.responses_daemon import (
    ANSWER,
    CREATE,
    RETRIEVE,
    THOUGHT,
    helped,
    said,
    scripted,
    settled,
    until,
)
from tests.harness.daemon import Daemon
from tests.harness.responses import check_stream, replay

pytestmark = pytest.mark.asyncio(loop_scope="module")

THINKER: dict[str, Any] = {"model": "thinker", "input": "What is the weather?", "background": True}
SLOW: dict[str, Any] = {"model": "slow", "input": "Tell me a story.", "background": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with scripted models."""
    async with scripted("thinker", "slow", "failing") as started:
        yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


async def test_polling(sdk: Sdk) -> None:
    """It comes back at once, queued and empty, and is found completed later, under the same id."""
    begun = await sdk.call(CREATE, **THINKER)
    assert (begun.status, begun.output, begun.background) == ("queued", [], True)
    over = await settled(sdk, begun.id)
    assert (over.id, over.status) == (begun.id, "completed")
    assert said([item.to_dict() for item in over.output]) == [("reasoning", THOUGHT), ("message", ANSWER)]
    after = await sdk.call(CREATE, model="thinker", input="And tomorrow?", previous_response_id=begun.id)
    assert after.usage.input_tokens > over.usage.input_tokens


async def test_a_failure_is_found(sdk: Sdk) -> None:
    """A run whose engine fails is failed, with an error of the SDK's closed list, and what it had said."""
    begun = await sdk.call(CREATE, model="failing", input="Drive on.", background=True)
    over = await settled(sdk, begun.id)
    assert over.status == "failed"
    assert over.error.code == "server_error"
    assert "the wheels came off" in over.error.message


async def test_cancelling(sdk: Sdk, daemon: Daemon) -> None:
    """A run is cancelled, its model is free, and a second time changes nothing; so does one after the end."""
    begun = await sdk.call(CREATE, **SLOW)
    await daemon.until_status("slow", lambda status: status["in_flight"] > 0)
    cancelled = await sdk.call("responses.cancel", response_id=begun.id)
    assert (cancelled.id, cancelled.status) == (begun.id, "cancelled")
    await daemon.until_idle("slow")
    assert await sdk.call("responses.cancel", response_id=begun.id) == cancelled
    assert await sdk.call(RETRIEVE, response_id=begun.id) == cancelled
    done = await settled(sdk, (await sdk.call(CREATE, **THINKER)).id)
    assert await sdk.call("responses.cancel", response_id=done.id) == done


async def test_what_ran_in_the_foreground_cannot_be_cancelled(sdk: Sdk) -> None:
    """To cancel a response that was not made in the background is a BadRequestError, an unknown one a 404."""
    answer = await sdk.call(CREATE, model="thinker", input="x")
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call("responses.cancel", response_id=answer.id)
    assert "background" in caught.value.message
    with pytest.raises(openai.NotFoundError):
        await sdk.call("responses.cancel", response_id="resp_0")


async def test_deleting_stops_it(sdk: Sdk, daemon: Daemon) -> None:
    """A run that is deleted while it runs is gone, and so is its work."""
    begun = await sdk.call(CREATE, **SLOW)
    await daemon.until_status("slow", lambda status: status["in_flight"] > 0)
    await sdk.call("responses.delete", response_id=begun.id)
    await daemon.until_idle("slow")
    with pytest.raises(openai.NotFoundError):
        await sdk.call(RETRIEVE, response_id=begun.id)


async def test_not_going_on_from_what_is_not_over(sdk: Sdk) -> None:
    """A response that is still on its way cannot be continued."""
    begun = await sdk.call(CREATE, **SLOW)
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(CREATE, model="thinker", input="Go on.", previous_response_id=begun.id)
    assert caught.value.param == "previous_response_id"
    await sdk.call("responses.cancel", response_id=begun.id)


async def test_a_stream_taken_up_again(sdk: Sdk, daemon: Daemon) -> None:
    """A stream that is left goes on without its reader; the rest is read from where it was left, while it
    runs and when it is over, and all of it from the start.
    """
    enough = 5
    begun = await until(sdk, CREATE, lambda event: event.sequence_number == enough, **SLOW)
    id = begun[0].response.id
    assert [event.type for event in begun[:3]] == [
        "response.created",
        "response.queued",
        "response.in_progress",
    ]
    again = await until(
        sdk,
        RETRIEVE,
        lambda event: event.sequence_number == enough + 5,
        response_id=id,
        starting_after=enough,
    )
    assert [event.sequence_number for event in again] == [*range(enough + 1, enough + 6)]
    assert (await sdk.call(RETRIEVE, response_id=id)).status == "in_progress"
    await sdk.call("responses.cancel", response_id=id)
    whole = await sdk.items(RETRIEVE, stream=True, response_id=id)
    assert whole[: enough + 6] == begun + again
    final = check_stream([event.to_dict() for event in whole])
    assert final["status"] == "cancelled"
    rest = await sdk.items(RETRIEVE, stream=True, response_id=id, starting_after=enough)
    assert rest == whole[enough + 1 :]


async def test_two_readers_of_one_run(sdk: Sdk) -> None:
    """Whoever reads a run reads the same, at the same time and later; the helper puts it together."""
    begun = await until(sdk, CREATE, lambda event: True, **THINKER)
    id = begun[0].response.id
    one, two = await asyncio.gather(
        *(sdk.items(RETRIEVE, stream=True, response_id=id) for _ in range(2)),
    )
    assert one == two
    final = check_stream([event.to_dict() for event in one])
    assert said(final["output"]) == [("reasoning", THOUGHT), ("message", ANSWER)]
    if isinstance(sdk, AsyncSdk):
        async with sdk.client.responses.stream(response_id=id, starting_after=3) as stream:
            numbers = [event.sequence_number async for event in stream]
            assert (await stream.get_final_response()).output_text == ANSWER
        assert numbers == [*range(4, len(one))]


async def test_replays_on_the_wire(sdk: Sdk, daemon: Daemon) -> None:
    """A replay past the end is an empty stream that ends well; a number that is none is a BadRequestError."""
    streamed = await helped(sdk, **THINKER)
    id, last = streamed.final.id, streamed.events[-1].sequence_number
    past = await replay(daemon.url, id, last)
    assert (past.status, past.events, past.done) == (200, [], True)
    assert (await replay(daemon.url, id)).whole()["id"] == id
    for number in (-1, "x"):
        with pytest.raises(openai.BadRequestError):
            await sdk.items(RETRIEVE, stream=True, response_id=id, starting_after=number)


async def test_only_streams_are_replayed(sdk: Sdk) -> None:
    """A run that was not asked for as a stream has none to read again."""
    begun = await sdk.call(CREATE, **THINKER)
    with pytest.raises(openai.BadRequestError):
        await sdk.items(RETRIEVE, stream=True, response_id=begun.id)
