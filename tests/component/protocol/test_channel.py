from __future__ import annotations

import asyncio
import socket

import pytest

from modeld.errors import BadFrame, EngineError, FrameTooLarge, WorkerDied
from modeld.protocol import messages as m
from modeld.protocol.channel import CREDIT_STEP, MERGE_AFTER, WINDOW, OpenCall
from modeld.protocol.framing import HEADER, MAX_FRAME, FrameEncoder
from modeld.protocol.tasks import ChatTask, CompletionTask, Event, Finish, Message, Text, Usage
from tests.component.protocol.conftest import Ends

TASK = ChatTask(messages=(Message(role="user", content="hi"),))


async def _rest(call: OpenCall) -> list[Event]:
    """Read a call to its end."""
    got: list[Event] = []
    async with asyncio.timeout(60):
        while (events := await call.take(None)) is not None:
            got += events
    return got


async def test_messages_of_no_call_reach_their_owner(ends: Ends) -> None:
    """Control messages come out in order, untouched, and belong to no call."""
    sent = [m.Hello(1, 42), m.Progress("loading", 0.5), m.Ready(m.Facts("fake", "none")), m.Drained()]
    for message in sent:
        ends.worker.send(message)
    await ends.until(lambda: len(ends.control) == len(sent))
    assert ends.control == sent
    assert ends.caller.open_calls == 0


async def test_calls_are_multiplexed_and_each_keeps_its_order(ends: Ends) -> None:
    """Events of many calls, mixed on one link, reach each reader in order and nobody else."""
    calls = [ends.caller.call(TASK, "local") for _ in range(5)]
    received = await ends.seen_by_worker(5)
    assert received == [m.Call(call.id, TASK, "local", WINDOW) for call in calls]
    assert len({call.id for call in calls}) == 5
    for number in range(20):
        for call in calls:
            ends.worker.send(m.Emit(call.id, Text(f"{call.id}:{number} ")))
    for call in calls:
        ends.worker.send(m.Emit(call.id, Finish("stop")))
        ends.worker.send(m.Ended(call.id))
    for call in calls:
        *texts, last = await _rest(call)
        assert "".join(event.text for event in texts if isinstance(event, Text)) == "".join(
            f"{call.id}:{number} " for number in range(20)
        )
        assert last == Finish("stop")
        assert call.over.done()
    assert ends.caller.open_calls == 0


async def test_a_failed_call_gives_its_events_and_then_its_error(ends: Ends) -> None:
    """Failed ends one call with the worker's error; the others go on."""
    failing, going = ends.caller.call(TASK, "local"), ends.caller.call(TASK, "local")
    ends.worker.send(m.Emit(failing.id, Text("so far")))
    ends.worker.send(m.Failed(failing.id, m.to_failure(EngineError("no more", code="oom"))))
    ends.worker.send(m.Emit(going.id, Text("fine")))
    assert await failing.take(10) == [Text("so far")]
    with pytest.raises(EngineError, match="no more") as caught:
        await failing.take(10)
    assert caught.value.code == "oom"
    assert await going.take(10) == [Text("fine")]
    assert not going.over.done()


async def test_a_slow_readers_text_merges_on_the_way(ends: Ends) -> None:
    """Text that waits for its reader merges beyond MERGE_AFTER events; each choice keeps its own text."""
    call = ends.caller.call(TASK, "local")
    for number in range(200):
        ends.worker.send(m.Emit(call.id, Text(f"{number} ", index=number // 100)))
    ends.worker.send(m.Emit(call.id, Usage(1, 200)))
    ends.worker.send(m.Ended(call.id))
    async with asyncio.timeout(60):
        await asyncio.wait({call.over})  # nothing was read until now
    got = await _rest(call)
    assert len(got) <= MERGE_AFTER + 2
    assert got[-1] == Usage(1, 200)
    for index in range(2):
        text = "".join(event.text for event in got if isinstance(event, Text) and event.index == index)
        assert text == "".join(f"{number} " for number in range(100 * index, 100 * index + 100))


async def test_credit_goes_back_as_the_reader_takes(ends: Ends) -> None:
    """What the reader took comes back as Credit in steps of CREDIT_STEP bytes or more; what waits not."""
    call = ends.caller.call(TASK, "local")
    await ends.seen_by_worker(1)
    half = ends.worker.send(m.Emit(call.id, Text("x" * (CREDIT_STEP // 2))))
    assert await call.take(10) == [Text("x" * (CREDIT_STEP // 2))]
    rest = ends.worker.send(m.Emit(call.id, Text("y" * (CREDIT_STEP // 2))))
    assert ends.received[1:] == []
    assert await call.take(10) == [Text("y" * (CREDIT_STEP // 2))]
    received = await ends.seen_by_worker(2)
    assert received[1:] == [m.Credit(call.id, half + rest)]


async def test_cancel_is_sent_once_and_the_call_is_over_when_the_worker_says_so(ends: Ends) -> None:
    """Cancelling asks; the call is open until the worker's answer, and a second cancel is nothing."""
    call = ends.caller.call(TASK, "local")
    call.cancel()
    call.cancel()
    received = await ends.seen_by_worker(2)
    assert received[1:] == [m.Cancel(call.id)]
    assert not call.over.done()
    assert ends.caller.calls() == (call,)
    ends.worker.send(m.Ended(call.id))
    async with asyncio.timeout(60):
        await asyncio.wait({call.over})
    call.cancel()  # after the end: nothing is sent
    ends.caller.send(m.Drain())
    await ends.seen_by_worker(3)
    assert ends.received[2:] == [m.Drain()]
    assert await call.take(0) is None


async def test_an_aborted_call_ends_with_the_error_though_the_worker_ends_it_well(ends: Ends) -> None:
    """A call cut short does not look complete: its events, then the error, whatever the worker answers."""
    call = ends.caller.call(TASK, "local")
    ends.worker.send(m.Emit(call.id, Text("half")))
    assert await call.take(10) == [Text("half")]
    call.abort(WorkerDied("cut short"))
    received = await ends.seen_by_worker(2)
    assert received[1:] == [m.Cancel(call.id)]
    ends.worker.send(m.Ended(call.id))
    async with asyncio.timeout(60):
        await asyncio.wait({call.over})
    with pytest.raises(WorkerDied, match="cut short"):
        await call.take(10)


async def test_a_timeout_loses_nothing(ends: Ends) -> None:
    """A take that times out gives [], and the event that comes later is there."""
    call = ends.caller.call(TASK, "local")
    assert await call.take(0.01) == []
    ends.worker.send(m.Emit(call.id, Text("late")))
    assert await call.take(10) == [Text("late")]


async def test_events_of_unknown_calls_are_ignored(ends: Ends) -> None:
    """What crosses with the end of a call is dropped; the link goes on."""
    ends.worker.send(m.Emit(99, Text("to nobody")))
    ends.worker.send(m.Ended(99))
    ends.worker.send(m.Failed(98, m.to_failure(EngineError("to nobody"))))
    ends.worker.send(m.Drained())
    await ends.until(lambda: ends.control)
    assert ends.control == [m.Drained()]
    assert not ends.caller.closed.done()


async def test_end_of_file_fails_the_open_calls_once_their_owner_says_why(ends: Ends) -> None:
    """When the peer goes, calls stay open until fail_all; then each gives its events and the reason."""
    calls = [ends.caller.call(TASK, "local") for _ in range(3)]
    ends.worker.send(m.Emit(calls[0].id, Text("said")))
    ends.worker.close()
    async with asyncio.timeout(60):
        await asyncio.wait({ends.caller.closed})
    assert ends.caller.closed.result() is None
    assert await calls[1].take(0) == []
    late = ends.caller.call(TASK, "local")  # the owner does not know yet
    ends.caller.fail_all(WorkerDied("killed by signal 9"))
    assert await calls[0].take(10) == [Text("said")]
    for call in [*calls, late]:
        with pytest.raises(WorkerDied, match="signal 9"):
            await call.take(10)
        assert call.over.done()
    assert ends.caller.open_calls == 0


async def test_a_call_after_the_end_raises(ends: Ends) -> None:
    """Once the calls were failed, a new one raises the same reason at once."""
    ends.caller.fail_all(WorkerDied("killed by signal 9"))
    with pytest.raises(WorkerDied, match="signal 9"):
        ends.caller.call(TASK, "local")


async def test_a_call_too_large_for_the_link_is_refused_and_leaves_no_trace(ends: Ends) -> None:
    """An oversized task raises FrameTooLarge; no call is open and the link still works."""
    with pytest.raises(FrameTooLarge):
        ends.caller.call(CompletionTask(prompt="x" * (MAX_FRAME + 1)), "local")
    assert ends.caller.open_calls == 0
    call = ends.caller.call(TASK, "local")
    assert await ends.seen_by_worker(1) == [m.Call(call.id, TASK, "local", WINDOW)]


async def test_garbage_closes_the_link_and_says_so(raw: tuple[Ends, socket.socket]) -> None:
    """Bytes that are not the protocol end the link with BadFrame, and the peer sees end-of-file."""
    ends, sock = raw
    loop = asyncio.get_running_loop()
    await loop.sock_sendall(sock, HEADER.pack(4) + b"junk")
    async with asyncio.timeout(60):
        await asyncio.wait({ends.caller.closed})
        assert await loop.sock_recv(sock, 10) == b""
    assert isinstance(ends.caller.closed.result(), BadFrame)


async def test_an_oversized_header_closes_the_link(raw: tuple[Ends, socket.socket]) -> None:
    """A header that announces too much ends the link with FrameTooLarge; nothing more is needed."""
    ends, sock = raw
    await asyncio.get_running_loop().sock_sendall(sock, HEADER.pack(MAX_FRAME + 1))
    async with asyncio.timeout(60):
        await asyncio.wait({ends.caller.closed})
    assert isinstance(ends.caller.closed.result(), FrameTooLarge)


async def test_half_a_frame_at_the_end_is_a_plain_end(raw: tuple[Ends, socket.socket]) -> None:
    """A peer killed in the middle of a frame ended; it did not break the protocol."""
    ends, sock = raw
    frame = FrameEncoder().encode(m.Hello(1, 2))
    await asyncio.get_running_loop().sock_sendall(sock, bytes(frame[:-1]))
    sock.shutdown(socket.SHUT_RDWR)
    async with asyncio.timeout(60):
        await asyncio.wait({ends.caller.closed})
    assert ends.caller.closed.result() is None
    assert ends.control == []


async def test_closing_sends_what_was_queued(ends: Ends) -> None:
    """Frames queued just before close arrive; frames after it are dropped without an error."""
    ends.worker.send(m.Progress("last words"))
    ends.worker.close()
    async with asyncio.timeout(60):
        await asyncio.wait({ends.worker.closed, ends.caller.closed})
    assert ends.worker.send(m.Drained()) > HEADER.size
    assert ends.control == [m.Progress("last words")]


async def test_drain_waits_for_a_peer_that_does_not_read(raw: tuple[Ends, socket.socket]) -> None:
    """drain() returns at once on an idle link, and only after the peer has read on a full one."""
    ends, sock = raw
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(60):
        await ends.caller.drain()
    expected = ends.caller.send(m.Call(1, CompletionTask(prompt="x" * (8 << 20)), "local", WINDOW))
    await asyncio.sleep(0)  # the turn in which queued frames are written
    await asyncio.sleep(0)
    draining = asyncio.ensure_future(ends.caller.drain())
    await asyncio.wait({draining}, timeout=0.05)
    assert not draining.done()
    size = 0
    async with asyncio.timeout(60):
        while size < expected:
            size += len(await loop.sock_recv(sock, 1 << 20))
        await draining
    assert size == expected


async def test_large_messages_pass_whole(ends: Ends) -> None:
    """A message far larger than any socket buffer arrives as it was sent."""
    task = CompletionTask(prompt="é" * (4 << 20))
    call = ends.caller.call(task, "local")
    assert await ends.seen_by_worker(1) == [m.Call(call.id, task, "local", WINDOW)]
