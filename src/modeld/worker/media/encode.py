"""Speech as a file of some audio format, made piece by piece while the speech is still coming.

All pieces of one encoder joined are one valid file, which no header promises more than it can know: mp3 has
no Xing frame, FLAC says that its length is unknown, and WAV carries 0xFFFFFFFF for its sizes, which readers
take for "to the end of the file", unless the whole length is known when the header is made.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Protocol, cast

import av
import av.error
import numpy as np

from modeld.errors import BadRequest

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from modeld.protocol.tasks import AudioFormat

PCM_RATE = 24_000
"""Samples a second of the headerless format: there is nowhere to say another rate."""

UNKNOWN_SIZE = 0xFFFFFFFF

_HEADER_BYTES = 44
_FLAC_LENGTH = 18
"""Where in a FLAC file the 64 bits begin that end with the number of samples."""


class Encoder(Protocol):
    """Codes mono samples of one rate."""

    def add(self, samples: NDArray[np.float32], *, last: bool = False) -> bytes:
        """Return what can be sent after these samples (-1..1); b"" when the codec waits for more.

        `last` says that no samples will follow; `finish` is called all the same.
        """
        ...

    def finish(self) -> bytes:
        """Return the rest of the file."""
        ...


class _Coded:
    """A codec of libav in its container."""

    def __init__(self, codec: str, container: str, rates: Iterable[int], rate: int, bit_rate: int) -> None:
        self._rate = rate
        self._flac = container == "flac"
        self._begun = False
        self._sink = _Sink()
        # Without flush_packets the muxer holds 32 KB back, which is seconds of speech.
        options = {"flush_packets": "1", "fflags": "+bitexact", **_OPTIONS.get(container, {})}
        self._output: Any = av.open(cast("Any", self._sink), "w", format=container, options=options)
        self._stream = cast("Any", self._output.add_stream(codec, rate=_nearest(rate, rates), layout="mono"))
        if bit_rate:
            self._stream.bit_rate = bit_rate

    def add(self, samples: NDArray[np.float32], *, last: bool = False) -> bytes:
        if len(samples):
            frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="mono")
            frame.sample_rate = self._rate
            self._output.mux(self._stream.encode(frame))
        data = self._sink.take()
        if self._flac and last and not self._begun:
            data = _flac_of_length(data, len(samples))
        self._begun = self._begun or bool(data)
        return data

    def finish(self) -> bytes:
        self._output.mux(self._stream.encode(None))
        self._output.close()
        return self._sink.take()


class _Plain:
    """16-bit little-endian samples, with or without a WAV header."""

    def __init__(self, rate: int, *, header: bool) -> None:
        self._to_rate = rate if header else PCM_RATE
        self._header = header
        self._resampler: Any = None
        self._rate = rate
        if self._to_rate != rate:
            self._resampler = av.AudioResampler(format="flt", layout="mono", rate=self._to_rate)

    def add(self, samples: NDArray[np.float32], *, last: bool = False) -> bytes:
        data = _int16(samples if self._resampler is None else self._resampled(samples))
        if self._header:
            self._header = False
            data = wav_header(self._rate, len(data) if last else None) + data
        return data

    def finish(self) -> bytes:
        if self._resampler is not None:
            return _int16(_joined(self._resampler.resample(None)))
        return self.add(np.zeros(0, np.float32), last=True) if self._header else b""

    def _resampled(self, samples: NDArray[np.float32]) -> NDArray[np.float32]:
        if not len(samples):
            return samples
        frame = av.AudioFrame.from_ndarray(samples.reshape(1, -1), format="flt", layout="mono")
        frame.sample_rate = self._rate
        return _joined(self._resampler.resample(frame))


class _Sink:
    """A file that can only be written to, so that no muxer tries to go back and change a header."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: bytes) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        """Return what was written since the last time."""
        data = b"".join(self._pieces)
        self._pieces.clear()
        return data


_MPEG_RATES = (8000, 11025, 12000, 16000, 22050, 24000, 32000, 44100, 48000)
_OPUS_RATES = (8000, 12000, 16000, 24000, 48000)
_CODECS: dict[str, tuple[str, str, tuple[int, ...], int]] = {
    "mp3": ("libmp3lame", "mp3", _MPEG_RATES, 64_000),
    "opus": ("libopus", "ogg", _OPUS_RATES, 32_000),
    "aac": ("aac", "adts", _MPEG_RATES, 64_000),
    "flac": ("flac", "flac", (), 0),
}
"""By format: codec, container, rates it can have (none: any), bits a second (0: as many as it takes)."""

_OPTIONS = {
    "mp3": {"write_xing": "0", "id3v2_version": "0"},  # both would need what is not known yet
    "ogg": {"page_duration": "200000"},  # microseconds; a page is sent when it is whole
}


def encoder(format: AudioFormat, rate: int) -> Encoder:
    """Return an encoder for mono speech of `rate` samples a second.

    A rate that the format does not have is raised to the next one that it has. Raises BadRequest when the
    codec is missing here.
    """
    if format in ("wav", "pcm"):
        return _Plain(rate, header=format == "wav")
    try:
        codec, container, rates, bit_rate = _CODECS[format]
        return _Coded(codec, container, rates, rate, bit_rate)
    except (KeyError, av.error.FFmpegError, av.codec.codec.UnknownCodecError):
        raise BadRequest(
            f"audio cannot be coded as {format!r} here; these work: {', '.join(formats())}",
            code="unsupported_format",
            param="response_format",
        ) from None


def formats() -> list[str]:
    """Return the formats whose codecs are there."""
    there = [name for name, (codec, *_) in _CODECS.items() if codec in av.codecs_available]
    return [*there, "wav", "pcm"]


def wav_header(rate: int, size: int | None) -> bytes:
    """Return the header of 16-bit mono WAV; `size` in bytes of samples, None when it is not known."""
    if size is None or size > UNKNOWN_SIZE - _HEADER_BYTES:
        riff, data = UNKNOWN_SIZE, UNKNOWN_SIZE
    else:
        riff, data = size + _HEADER_BYTES - 8, size
    return struct.pack(
        "<4sI4s4sIHHIIHH4sI",
        *(b"RIFF", riff, b"WAVE"),
        *(b"fmt ", 16, 1, 1, rate, rate * 2, 2, 16),
        *(b"data", data),
    )


def _flac_of_length(data: bytes, samples: int) -> bytes:
    """Return the beginning of a FLAC file with its length in it: the last 36 of 64 bits."""
    at, size = _FLAC_LENGTH, 8
    if not data.startswith(b"fLaC") or len(data) < at + size or not 0 < samples < 1 << 36:
        return data
    bits = int.from_bytes(data[at : at + size], "big") >> 36 << 36 | samples
    return data[:at] + bits.to_bytes(size, "big") + data[at + size :]


def _nearest(rate: int, rates: Iterable[int]) -> int:
    """Return the lowest of `rates` that loses nothing, else the highest; `rate` itself without any."""
    ordered = sorted(rates)
    return next((other for other in ordered if other >= rate), ordered[-1] if ordered else rate)


def _int16(samples: NDArray[np.float32]) -> bytes:
    data: bytes = np.rint(np.clip(samples, -1.0, 1.0) * 32767.0).astype("<i2").tobytes()
    return data


def _joined(frames: Iterable[Any]) -> NDArray[np.float32]:
    pieces = [frame.to_ndarray().reshape(-1) for frame in frames]
    return np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
