"""Recordings of any container, codec and rate, decoded piece by piece to what speech models hear.

The content decides what a file is; there is no name to believe. No length that a header claims is believed
either: memory grows with what has been decoded and not yet taken, and a recording that ends long before its
header says, or that is longer than allowed by its packets, is refused before any model works on it.
"""

from __future__ import annotations

import io
import logging
import math
import struct
from collections.abc import Iterator
from typing import TYPE_CHECKING, NoReturn, TypeAlias

from modeld.errors import BadRequest

if TYPE_CHECKING:
    import av
    import numpy as np
    from av.audio.frame import AudioFrame
    from av.audio.stream import AudioStream
    from av.container import InputContainer
    from numpy.typing import NDArray

    Samples: TypeAlias = NDArray[np.float32]

RATE = 16000
"""Samples in a second of what comes out: mono, float32, -1..1."""

CONTAINERS = (
    "aac,ac3,aiff,amr,ape,asf,au,avi,caf,eac3,flac,flv,m4a,matroska,mov,mp3,mp4,mpeg,mpegts,ogg,tta,w64,wav,"
    "webm,wv"
)
"""What is read. Others, playlists above all, make the decoder open further files and addresses."""

KNOWN_LENGTH = frozenset({"flac", "mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
"""Containers whose header tells how long the recording is; in others it is a guess, or made to fit."""

SHORTFALL = 0.9
ROUNDING_S = 0.25
"""Part of the announced length that must be there, less some time: encoders round, and count their delay."""

UNKNOWN_SIZE = 0x7FFFF000
"""Sizes from here on (and 0) stand in WAV headers of programs that did not know the length yet."""

LOWEST_RATE, HIGHEST_RATE = 2000, 1_000_000
"""Samples in a second that a recording must have and may have: one of 1 Hz would be hours long in a few
kilobytes, and one of 1 GHz takes a filter of its own size to bring down.
"""

MOST_CHANNELS = 24
"""Channels that are mixed into one: nobody says where further ones stand."""

MOST_DAMAGED = 50
"""Packets that may be damaged before a recording counts as noise, when they outnumber the sound ones."""

log = logging.getLogger("modeld.worker.media")

_READABLE = "wav, mp3, m4a, mp4, webm, ogg, opus, flac, aac and other usual containers are read"


class Recording:
    """One recording. `duration` is in seconds: by its packets, and once it is decoded by its samples."""

    def __init__(self, media: bytes, most_seconds: float = math.inf) -> None:
        """Look at what it is, without decoding it.

        Raises BadRequest with the code invalid_audio; audio_too_long over `most_seconds`.
        """
        self._media = media
        self._most = most_seconds
        if not media:
            raise invalid("the file is empty (0 bytes)")
        _check_wav(media)
        self.duration = self._measured()

    def samples(self) -> Iterator[Samples]:
        """Decode it: pieces of some tens of milliseconds.

        Raises BadRequest as the constructor does: packets may hold more than they say, or less.
        """
        count = 0
        with self._opened() as container:
            try:
                for frame in _frames(container):
                    count += len(frame)
                    if count > self._most * RATE:
                        raise self._too_long("more than that")
                    yield frame
            except BadRequest:
                raise
            except Exception as error:  # of whatever kind: it is the file that brought it about
                _unreadable(error, f" after {count / RATE:.1f} s")
        if not count:
            raise invalid("the file holds no sound that can be decoded")
        self.duration = count / RATE

    def _measured(self) -> float:
        """Read through the packets; return the length in seconds."""
        import av

        with self._opened() as container:
            if not container.streams.audio:
                raise invalid(f"the file holds no sound: its container is {container.format.long_name}")
            stream = container.streams.audio[0]
            if rate := getattr(stream, "rate", None):  # one of an unknown codec has none
                _check_rate(rate)
            claimed = container.duration / av.time_base if container.duration else 0.0
            known = container.format.name in KNOWN_LENGTH
            start = max(float((stream.start_time or 0) * (stream.time_base or 0)), 0.0)
            total = end = 0.0
            broken = ""
            try:
                for packet in container.demux(stream):
                    base = packet.time_base or 0
                    length = float((packet.duration or 0) * base)
                    if packet.pts is not None:
                        end = max(end, float(packet.pts * base) + length - start)
                    # Gaps between timestamps are no sound; they count where packets do not tell their length.
                    total = total + length if length or not packet.size else max(total, end)
                    if total > self._most:
                        raise self._too_long(f"{max(total, claimed if known else 0.0):.0f} s or more")
            except BadRequest:
                raise
            except Exception as error:  # the same
                broken = f" ({_words(error)})"
        length = max(end, 0.0)
        if known and length < claimed * SHORTFALL - ROUNDING_S:
            raise _cut_short(claimed, length)
        if broken and not length:
            raise invalid(f"the file cannot be decoded{broken}")
        return length

    def _too_long(self, what: str) -> BadRequest:
        return BadRequest(
            f"invalid value for 'file': the recording is too long: it has {what}, the limit is "
            f"{self._most:g} s (media.audio_seconds in the configuration sets it); send it in parts",
            code="audio_too_long",
            param="file",
        )

    def _opened(self) -> InputContainer:
        import av

        # A playlist inside would be refused twice: its format is not on the list, and nothing may be opened.
        options = {"format_whitelist": CONTAINERS, "protocol_whitelist": "none"}
        try:
            return av.open(io.BytesIO(self._media), mode="r", container_options=options)
        except Exception as error:
            head = self._media[:200].lstrip().lower()
            if head.startswith((b"<!doctype", b"<html", b"<?xml")):
                raise invalid(f"the file is a web page, not a recording; {_READABLE}") from None
            _unreadable(error)


def _frames(container: InputContainer) -> Iterator[Samples]:
    import av

    stream = container.streams.audio[0]
    resampler, form = None, None
    for frame in _decoded(container, stream):
        # A stream may change its rate or layout on the way, which a resampler does not survive.
        now = (frame.format.name, frame.layout.name, frame.sample_rate)
        if now != form:
            _check_rate(frame.sample_rate)
            if frame.layout.nb_channels > MOST_CHANNELS:
                raise invalid(
                    f"the file has {frame.layout.nb_channels} channels; at most {MOST_CHANNELS} are mixed"
                )
            yield from _flushed(resampler)
            resampler, form = av.AudioResampler(format="flt", layout="mono", rate=RATE), now
        assert resampler is not None
        frame.pts = None  # gaps in the timestamps are not filled: what is there is heard
        for piece in resampler.resample(frame):
            yield _array(piece)
    yield from _flushed(resampler)


def _decoded(container: InputContainer, stream: AudioStream) -> Iterator[AudioFrame]:
    """Decode packet by packet; a damaged one costs what was in it."""
    import av

    sound, damaged = 0, 0
    for packet in container.demux(stream):
        try:
            yield from stream.decode(packet)
            sound += 1
        except av.error.InvalidDataError as error:
            damaged += 1
            if damaged > max(sound, MOST_DAMAGED):
                raise
            if damaged == 1:
                log.warning("a recording has damaged parts, which are left out: %s", _words(error))


def _check_rate(rate: int) -> None:
    if not LOWEST_RATE <= rate <= HIGHEST_RATE:
        raise invalid(f"the file has {rate} samples in a second; speech has {RATE} or so")


def _check_wav(media: bytes) -> None:
    """Refuse a WAV file that lacks much of what its header announces: decoders go by the size."""
    if media[:4] != b"RIFF" or media[8:12] != b"WAVE":
        return
    at, per_second = 12, 0
    while at + 8 <= len(media):
        name, size = struct.unpack_from("<4sI", media, at)
        at += 8
        if name == b"fmt " and at + 12 <= len(media):
            (per_second,) = struct.unpack_from("<I", media, at + 8)
        if name == b"data":
            there = len(media) - at
            if 0 < size < UNKNOWN_SIZE and per_second and there < size * SHORTFALL - per_second * ROUNDING_S:
                raise _cut_short(size / per_second, there / per_second)
            return
        at += size + size % 2


def _flushed(resampler: av.AudioResampler | None) -> Iterator[Samples]:
    if resampler is not None:
        for piece in resampler.resample(None):
            yield _array(piece)


def _array(frame: AudioFrame) -> Samples:
    import numpy as np

    return frame.to_ndarray().reshape(-1).astype(np.float32, copy=False)


def invalid(message: str) -> BadRequest:
    """Return the error for a recording that cannot be used."""
    return BadRequest(f"invalid value for 'file': {message}", code="invalid_audio", param="file")


def _cut_short(claimed: float, there: float) -> BadRequest:
    return invalid(
        f"the file is cut short: its header announces {claimed:.1f} s of sound, {there:.1f} s are there"
    )


def _unreadable(error: Exception, where: str = "") -> NoReturn:
    raise invalid(f"the file cannot be decoded{where}: {_words(error)}; {_READABLE}") from None


def _words(error: Exception) -> str:
    return (getattr(error, "strerror", None) or str(error) or type(error).__name__)[:200].lower()
