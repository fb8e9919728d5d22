"""Recordings for tests: a spoken sentence, tones in any container, and files that are none."""

from __future__ import annotations

import io
import struct
import wave
from pathlib import Path

import av
import numpy as np

SPOKEN = Path(__file__).parents[1] / "fixtures" / "fox.ogg"
"""Ogg Opus, 24 kHz, 5.1 s, a synthetic voice."""

SENTENCE = "The quick brown fox jumps over the lazy dog, and the old river runs slowly to the sea."
"""What is said in it."""

JAPANESE = Path(__file__).parents[1] / "fixtures" / "weather_ja.ogg"
"""Ogg Opus, 24 kHz, 6.6 s, a synthetic voice that speaks Japanese."""

SAID_IN_JAPANESE = ("こんにちは", "天気", "日本語", "ありがとう")
"""Words that are said in it: hello, weather, Japanese, thank you."""


def tone(seconds: float, *, rate: int = 16000, channels: int = 1, hertz: float = 440.0) -> bytes:
    """Return a WAV file with a tone."""
    time = np.arange(round(seconds * rate)) / rate
    samples = (np.sin(2 * np.pi * hertz * time) * 10_000).astype("<i2")
    return wav(np.repeat(samples, channels).tobytes(), rate=rate, channels=channels)


def wav(frames: bytes, *, rate: int = 16000, channels: int = 1) -> bytes:
    """Return a WAV file around 16-bit samples."""
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(channels)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes(frames)
    return out.getvalue()


def announcing(media: bytes, size: int) -> bytes:
    """Return a WAV file whose header says that so many bytes of sound follow."""
    return (
        media[:4]
        + struct.pack("<I", min(size + 36, 2**32 - 1))
        + media[8:40]
        + struct.pack("<I", size)
        + media[44:]
    )


def coded(media: bytes, container: str, codec: str, *, rate: int | None = None) -> bytes:
    """Return a recording in another container and codec."""
    out = io.BytesIO()
    with av.open(io.BytesIO(media), "r") as source, av.open(out, "w", format=container) as target:
        stream = target.add_stream(codec, rate=rate or source.streams.audio[0].rate)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        for frame in source.decode(audio=0):
            frame.pts = None
            for packet in stream.encode(frame):
                target.mux(packet)
        for packet in stream.encode(None):
            target.mux(packet)
    return out.getvalue()


def spoken(seconds: float = 0.0, *, times: int = 1) -> bytes:
    """Return the sentence as a WAV file of 16 kHz, so often, with so many seconds of silence after each."""
    pieces = []
    resampler = av.AudioResampler(format="s16", layout="mono", rate=16000)
    with av.open(str(SPOKEN)) as source:
        for frame in source.decode(audio=0):
            pieces += [piece.to_ndarray().tobytes() for piece in resampler.resample(frame)]
    return wav((b"".join(pieces) + bytes(2 * round(16000 * seconds))) * times)


BROKEN: dict[str, bytes] = {
    "nothing": b"",
    "html": b"<!DOCTYPE html><html><body>Sign in to go on</body></html>" * 20,
    "text": b"hello there\n" * 100,
    "rubbish": bytes(range(256)) * 64,
    "zip": b"PK\x03\x04" + bytes(2000),
    "playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "header alone": tone(2.0)[:44],
    "truncated wav": tone(2.0)[:20_000],
    "ten hours announced": announcing(wav(bytes(32_000)), 36_000 * 32_000),
    "one sample": wav(b"\0\0", rate=44100),
}
"""Files that are no recordings; those that only encoders can make are in the tests that have them."""
