from __future__ import annotations

import contextlib
import tracemalloc
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadFrame, FrameTooLarge
from modeld.protocol import messages as m
from modeld.protocol.framing import HEADER, FrameDecoder, FrameEncoder
from tests.unit.protocol.strategies import TO_DAEMON, TO_WORKER, struct, to_daemon, to_worker


def _frames(messages: list[Any]) -> bytes:
    encoder = FrameEncoder()
    return b"".join(bytes(encoder.encode(message)) for message in messages)


def _framed(payload: bytes) -> bytes:
    return HEADER.pack(len(payload)) + payload


@pytest.mark.parametrize("kind", TO_WORKER, ids=lambda kind: kind.__name__)
def test_every_message_to_a_worker_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    """Decoding what was encoded gives an equal message, for each type and any content."""

    @given(struct(kind))
    def survives(message: Any) -> None:
        frame = bytes(FrameEncoder().encode(message))
        assert FrameDecoder[Any](m.ToWorker).feed(frame) == [(message, len(frame))]

    survives()


@pytest.mark.parametrize("kind", TO_DAEMON, ids=lambda kind: kind.__name__)
def test_every_message_to_the_daemon_survives_the_wire(kind: type[msgspec.Struct]) -> None:
    """Decoding what was encoded gives an equal message, for each type and any content."""

    @given(struct(kind))
    def survives(message: Any) -> None:
        frame = bytes(FrameEncoder().encode(message))
        assert FrameDecoder[Any](m.ToDaemon).feed(frame) == [(message, len(frame))]

    survives()


@given(st.lists(to_daemon(), max_size=4), st.data())
def test_any_cut_of_the_stream_gives_the_same_messages(messages: list[Any], data: st.DataObject) -> None:
    """However a stream is cut, the same messages come out, each as soon as its last byte is in."""
    stream = _frames(messages)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    decoder: FrameDecoder[Any] = FrameDecoder(m.ToDaemon)
    got: list[Any] = []
    whole = 0
    ends = []
    for message in messages:
        whole += len(_frames([message]))
        ends.append(whole)
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        got += decoder.feed(stream[start:end])
        assert len(got) == sum(1 for at in ends if at <= end)
    assert [message for message, _ in got] == messages
    assert sum(size for _, size in got) == len(stream)


def test_every_single_cut_gives_the_same_messages() -> None:
    """A stream cut once, at each position there is, and byte by byte, gives the same messages."""
    messages = [m.Hello(1, 2), m.Progress("loading", 0.5), m.Drained(), m.Ended(7)]
    stream = _frames(messages)
    for cut in range(len(stream) + 1):
        decoder: FrameDecoder[Any] = FrameDecoder(m.ToDaemon)
        got = decoder.feed(stream[:cut]) + decoder.feed(stream[cut:])
        assert [message for message, _ in got] == messages
    decoder = FrameDecoder(m.ToDaemon)
    assert [pair[0] for at in range(len(stream)) for pair in decoder.feed(stream[at : at + 1])] == messages


@given(st.lists(st.binary(max_size=64), max_size=6))
def test_garbage_raises_link_errors_only(pieces: list[bytes]) -> None:
    """Bytes that are not the protocol raise BadFrame or FrameTooLarge, never anything else."""
    decoder: FrameDecoder[Any] = FrameDecoder(m.ToDaemon, limit=1000)
    with contextlib.suppress(BadFrame, FrameTooLarge):
        for piece in pieces:
            assert all(isinstance(message, TO_DAEMON) for message, _ in decoder.feed(piece))


@given(to_worker(), st.binary(min_size=1, max_size=8), st.data())
def test_damaged_messages_raise_bad_frame_only(message: Any, noise: bytes, data: st.DataObject) -> None:
    """A real message with bytes overwritten decodes to a message or raises BadFrame, never anything else."""
    payload = bytearray(FrameEncoder().encode(message)[HEADER.size :])
    at = data.draw(st.integers(0, len(payload) - 1))
    payload[at : at + len(noise)] = noise
    try:
        ((decoded, _),) = FrameDecoder[Any](m.ToWorker).feed(_framed(bytes(payload)))
    except BadFrame:
        return
    assert isinstance(decoded, TO_WORKER)


@pytest.mark.parametrize(
    "payload",
    [
        pytest.param(b"", id="empty"),
        pytest.param(b"\xc1", id="not msgpack"),
        pytest.param(b"\x91\xa7unknown", id="unknown tag"),
        pytest.param(b"\x91\xa4load", id="field missing"),
        pytest.param(b"\x92\xa6cancel\xa1x", id="wrong type"),
        pytest.param(b"\x91\xa5drain\x00", id="bytes left over"),
        pytest.param(b"\x91\xa2\xff\xfe", id="not UTF-8"),
    ],
)
def test_a_payload_that_is_no_message_is_a_bad_frame(payload: bytes) -> None:
    """Each way in which a payload can be wrong is a BadFrame that names its size."""
    with pytest.raises(BadFrame, match=f"a frame of {len(payload)} bytes is not a known message"):
        FrameDecoder[Any](m.ToWorker).feed(_framed(payload))


def test_a_payload_nested_too_deeply_is_a_bad_frame() -> None:
    """Nesting beyond Python's recursion limit is the peer's fault, not a RecursionError of ours."""
    fields = b"".join(
        msgspec.msgpack.encode(key) + msgspec.msgpack.encode("x")
        for key in ("name", "loader", "usecase", "path", "runtime_dir")
    )
    deep = b"\x81\xa1a" + b"\x91" * 100_000 + b"\xc0"
    payload = b"\x92\xa4load\x86" + fields + msgspec.msgpack.encode("options") + deep
    with pytest.raises(BadFrame):
        FrameDecoder[Any](m.ToWorker).feed(_framed(payload))


def test_a_header_over_the_limit_is_refused_before_its_payload() -> None:
    """Four bytes that announce too much are enough to be refused; nothing of the frame is waited for."""
    decoder: FrameDecoder[Any] = FrameDecoder(m.ToDaemon, limit=10)
    assert decoder.feed(HEADER.pack(11)[:3]) == []
    with pytest.raises(FrameTooLarge, match="announces a frame of 11 bytes, the limit is 10 bytes"):
        decoder.feed(HEADER.pack(11)[3:])


def test_a_header_over_the_limit_behind_good_messages_is_refused() -> None:
    """The limit holds for every header of a piece, not only for the first."""
    with pytest.raises(FrameTooLarge):
        FrameDecoder[Any](m.ToDaemon, limit=100).feed(_frames([m.Drained()]) + HEADER.pack(2**32 - 1))


def test_an_announced_size_costs_no_memory() -> None:
    """A header within the limit makes nothing of its size: memory grows only with bytes that came."""
    decoder: FrameDecoder[Any] = FrameDecoder(m.ToDaemon)
    tracemalloc.start()
    try:
        assert decoder.feed(HEADER.pack(64 << 20) + b"x" * 1000) == []
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_message_over_the_limit_is_not_encoded() -> None:
    """What the peer would refuse is refused here, with the numbers; the limit itself still goes."""
    size = len(FrameEncoder().encode(m.Dying("x" * 1000))) - HEADER.size
    assert len(FrameEncoder(limit=size).encode(m.Dying("x" * 1000))) == size + HEADER.size
    with pytest.raises(FrameTooLarge, match=f"{size} bytes is over the link's limit of {size - 1} bytes"):
        FrameEncoder(limit=size - 1).encode(m.Dying("x" * 1000))
