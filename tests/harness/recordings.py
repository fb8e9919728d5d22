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

_HEADER = {
    "riff": (4, 4),
    "fmt": (16, 4),
    "channels": (22, 2),
    "rate": (24, 4),
    "bits": (34, 2),
    "data": (40, 4),
}
"""Where the fields of a plain WAV header are, and how many bytes each has."""

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


def claiming(media: bytes, **fields: int) -> bytes:
    """Return a WAV file whose header says something else; numbers wrap round as they do in 32 or 16 bits."""
    raw = bytearray(media)
    for name, value in fields.items():
        at, size = _HEADER[name]
        raw[at : at + size] = (value % (1 << 8 * size)).to_bytes(size, "little")
    return bytes(raw)


def film() -> bytes:
    """Return a short video without sound."""
    out = io.BytesIO()
    with av.open(out, "w", format="matroska") as target:
        stream = target.add_stream("mpeg4", rate=5)
        assert isinstance(stream, av.VideoStream)
        stream.width = stream.height = 32
        for _ in range(5):
            target.mux(stream.encode(av.VideoFrame(32, 32, "yuv420p")))
        target.mux(stream.encode(None))
    return out.getvalue()


def torn_page(ogg: bytes) -> bytes:
    """Return an Ogg file of which a page in the middle has lost its beginning."""
    at = ogg.index(b"OggS", len(ogg) // 2)
    return ogg[:at] + b"XXXX" + ogg[at + 4 :]


def playlists(url: str, file: str) -> dict[str, bytes]:
    """Return lists, in every form that players know, that lead to an address and to a file."""
    return {
        "m3u8": f"#EXTM3U\n#EXT-X-TARGETDURATION:9\n#EXTINF:9,\n{url}\n#EXT-X-ENDLIST\n".encode(),
        "m3u8 of a file": f"#EXTM3U\n#EXTINF:9,\nfile://{file}\n#EXT-X-ENDLIST\n".encode(),
        "m3u": f"#EXTM3U\n#EXTINF:9,a\n{url}\n{file}\n".encode(),
        "concat": f"ffconcat version 1.0\nfile '{file}'\nfile '{url}'\n".encode(),
        "sdp": (
            b"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\n"
            b"m=audio 5004 RTP/AVP 0\na=rtpmap:0 PCMU/8000\n"
        ),
        "dash": (
            '<?xml version="1.0"?><MPD xmlns="urn:mpeg:dash:schema:mpd:2011" type="static" '
            'mediaPresentationDuration="PT9S"><Period><AdaptationSet><Representation id="1" bandwidth="1">'
            f"<BaseURL>{url}</BaseURL></Representation></AdaptationSet></Period></MPD>"
        ).encode(),
        "asx": f'<asx version="3.0"><entry><ref href="{url}"/></entry></asx>'.encode(),
        "pls": f"[playlist]\nFile1={url}\nFile2={file}\nNumberOfEntries=2\n".encode(),
        "reference": f"[Reference]\nRef1={url}?MSWMExt=.asf\n".encode(),
    }


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
    "json": b'{"audio": "yes", "seconds": 5}' * 50,
    "text": b"hello there\n" * 100,
    "rubbish": bytes(range(256)) * 64,
    "zip": b"PK\x03\x04" + bytes(2000),
    "playlist": b"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\nfile:///etc/passwd\n#EXT-X-ENDLIST\n",
    "list of files": b"ffconcat version 1.0\nfile /etc/passwd\n",
    "header alone": tone(2.0)[:44],
    "truncated wav": tone(2.0)[:20_000],
    "ten hours announced": announcing(wav(bytes(32_000)), 36_000 * 32_000),
    "one sample a second": claiming(tone(1.0), rate=1),
    "a billion samples a second": claiming(tone(1.0), rate=10**9),
    "a negative rate": claiming(tone(1.0), rate=-16000),
    "no channel": claiming(tone(1.0), channels=0),
    "64 channels": tone(0.1, channels=64),
    "65535 channels": claiming(tone(1.0), channels=65535),
    "no bits": claiming(tone(1.0), bits=0),
    "a format of no size": claiming(tone(1.0), fmt=0),
    "a format of a huge size": claiming(tone(1.0), fmt=2**31 - 1),
    "a film without sound": film(),
    "one sample": wav(b"\0\0", rate=44100),
}
"""Files that are no recordings; those that only encoders can make are in the tests that have them."""
