"""Media that are none, through HTTP, with real engines: the caller's fault each time, and nothing suffers."""

from __future__ import annotations

import asyncio
import io
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import pytest
import pytest_asyncio

from tests.harness.daemon import Daemon, running
from tests.harness.models import llama
from tests.harness.models_kokoro import kokoro, kokoro_model
from tests.harness.models_minilm import minilm
from tests.harness.models_whisper import whisper, whisper_tiny_en
from tests.harness.models_whisper_base import whisper_base
from tests.harness.recordings import BROKEN, SPOKEN, coded, playlists, spoken, tone, torn_page, wav
from tests.harness.workers import MIB, watched

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

LONGEST_S = 30
MOST_CHARACTERS = 80
MOST_BYTES = 4 * MIB

TRANSCRIBE = "/v1/audio/transcriptions"
TRANSLATE = "/v1/audio/translations"
MODELS = {TRANSCRIBE: "ears", TRANSLATE: "many"}
"""Which model is asked where: the second knows other languages, and translates."""

GROWTH = 64 * MIB
"""What a worker may take more while it looks at a bad file: decoders, and a body of MOST_BYTES in pieces."""


@dataclass
class House:
    """A daemon with every model that takes files or text, and the workers' pids."""

    daemon: Daemon
    http: aiohttp.ClientSession
    pids: dict[str, int] = field(default_factory=dict)

    async def post(self, path: str, **options: Any) -> tuple[int, Any]:
        """Post a request; return status and body, decoded if it is JSON."""
        async with self.http.post(self.daemon.url + path, **options) as response:
            raw = await response.read()
            return response.status, json.loads(raw) if response.content_type == "application/json" else raw

    async def lives(self) -> None:
        """See that no worker has died."""
        for name, pid in self.pids.items():
            assert await self.daemon.pid_of(name) == pid, await self.daemon.log(name)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def house() -> AsyncIterator[House]:
    """Run the daemon, with small limits."""
    models = [
        whisper("ears", whisper_tiny_en()),
        whisper("many", whisper_base()),
        kokoro("kokoro", kokoro_model()),
        {**llama("mini", minilm(), n_ctx=512), "usecase": "embed"},
    ]
    config = {
        "models": models,
        "max_request_body": MOST_BYTES,
        "media": {"audio_seconds": LONGEST_S, "speech_characters": MOST_CHARACTERS},
    }
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), config) as daemon, aiohttp.ClientSession() as http:
            made = House(daemon, http)
            for entry in models:
                made.pids[entry["name"]] = (await daemon.until(entry["name"], "ready"))["pid"]
            yield made


def form(model: str, media: bytes, filename: str = "a.wav", **fields: str) -> aiohttp.FormData:
    """Return the form of a transcription."""
    made = aiohttp.FormData()
    for name, value in {"model": model, **fields}.items():
        made.add_field(name, value)
    made.add_field("file", media, filename=filename, content_type="audio/wav")
    return made


def refusal(status: int, body: Any, *, code: str | None, param: str | None) -> str:
    """See that an answer is a refusal in OpenAI's envelope; return its message."""
    assert 400 <= status < 500, (status, body)
    error = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    assert (error["code"], error["param"]) == (code, param), error
    message = error["message"]
    assert isinstance(message, str)
    return message


@contextmanager
def flat(pid: int) -> Iterator[None]:
    """See that a process holds hardly more memory afterwards."""
    process = psutil.Process(pid)
    before = process.memory_info().rss
    yield
    assert process.memory_info().rss - before < GROWTH


CUT = {
    f"{container} {words}": coded(tone(2.0, rate=48000), container, codec)
    for container, codec, words in (
        ("mp4", "aac", "cut in half"),
        ("ipod", "aac", "cut in half"),
        ("flac", "flac", "cut in half"),
        ("caf", "pcm_s16le", "of a few bytes"),
        ("w64", "pcm_s16le", "of a few bytes"),
        ("webm", "libopus", "cut in half"),
        ("mp3", "libmp3lame", "of a few bytes"),
        ("ogg", "libopus", "of a few bytes"),
        ("adts", "aac", "of a few bytes"),
        ("mpegts", "aac", "of a few bytes"),
        ("aiff", "pcm_s16be", "of a few bytes"),
        ("avi", "pcm_s16le", "of a few bytes"),
    )
}
"""Of containers that tell their length a half; of others, where a half is a shorter recording, the start."""

BAD = {
    **{name: media for name, media in BROKEN.items() if media},
    **{name: media[: len(media) // 2 if name.endswith("half") else 60] for name, media in CUT.items()},
}


@pytest.mark.parametrize("path", MODELS)
async def test_what_is_no_recording_is_refused_and_the_worker_lives(house: House, path: str) -> None:
    """Truncated, empty of sound, text in any form, headers that lie: 400 with a sentence, every time, in the
    same process, whose memory stays as it was.
    """
    pid = house.pids[MODELS[path]]
    with flat(pid):
        for name, media in BAD.items():
            status, body = await house.post(path, data=form(MODELS[path], media))
            assert status == 400, (name, body)
            assert "the file" in refusal(status, body, code="invalid_audio", param="file"), name
    status, body = await house.post(path, data=form(MODELS[path], b""))
    assert "0 bytes" in refusal(status, body, code="invalid_value", param="file")
    await house.lives()


@pytest.mark.parametrize("name", ["right content", "torn page", "silence", "unknown length"])
async def test_the_content_decides_and_what_can_be_heard_is(house: House, name: str) -> None:
    """A wrong name does no harm, a damaged page costs itself, silence is nothing said."""
    media = {
        "right content": SPOKEN.read_bytes(),
        "torn page": torn_page(SPOKEN.read_bytes()),
        "silence": wav(bytes(32_000 * 3)),
        "unknown length": tone(1.0)[:40] + bytes(4) + tone(1.0)[44:],
    }[name]
    status, body = await house.post(TRANSCRIBE, data=form("ears", media, filename="list.m3u8"))
    assert status == 200, body
    if name == "silence":
        assert body["text"] == ""
    if name == "right content":
        assert "quick brown fox" in body["text"]
    await house.lives()


@pytest.mark.parametrize("path", MODELS)
async def test_hours_in_kilobytes_are_refused_by_their_packets(house: House, path: str) -> None:
    """An archive bomb of silence, in FLAC and in Ogg, is over the limit before it is unpacked; the answer
    names the limit, and the worker holds no more than the file meanwhile.
    """
    bombs = {
        "flac": coded(wav(bytes(2 * 8000 * 3600), rate=8000), "flac", "flac"),
        "ogg": coded(wav(bytes(2 * 8000 * 300), rate=8000), "ogg", "libopus"),
        "wav": tone(LONGEST_S + 1.0),
    }
    async with watched(house.daemon.pid) as seen:
        before = sum(psutil.Process(pid).memory_info().rss for pid in house.pids.values())
        for name, media in bombs.items():
            status, body = await house.post(path, data=form(MODELS[path], media))
            assert status == 400, (name, body)
            message = refusal(status, body, code="audio_too_long", param="file")
            assert f"the limit is {LONGEST_S} s (media.audio_seconds" in message
    assert seen.looks
    assert seen.peak - before < 2 * GROWTH
    await house.lives()


async def test_playlists_open_neither_files_nor_addresses(house: House, short_dir: Path) -> None:
    """Lists that lead to an address here and to a file are refused, and nobody comes to either."""
    came: list[object] = []

    def visited(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        came.append(writer.get_extra_info("peername"))
        writer.close()

    secret = short_dir / "secret.wav"
    secret.write_bytes(tone(1.0))
    server = await asyncio.start_server(visited, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server:
        lists = playlists(f"http://127.0.0.1:{port}/a.ts", str(secret))
        for name, media in lists.items():
            for filename in (f"a.{name}", "a.m3u8", "a.sdp"):
                status, body = await house.post(TRANSCRIBE, data=form("ears", media, filename=filename))
                assert status == 400, (name, body)
                refusal(status, body, code="invalid_audio", param="file")
    assert came == []
    await house.lives()


def part(headers: str, content: bytes) -> bytes:
    """Return one part of a form, behind its boundary."""
    return b"--b\r\n" + headers.encode() + b"\r\n\r\n" + content + b"\r\n"


NAMED = part('Content-Disposition: form-data; name="model"', b"ears")
SOUND = part('Content-Disposition: form-data; name="file"; filename="a.wav"', tone(1.0))
END = b"--b--\r\n"
FORM = "multipart/form-data; boundary=b"
NONSENSE: dict[str, tuple[str, bytes, int, str | None, str | None]] = {
    "no file": (FORM, NAMED + END, 400, "missing_required_parameter", "file"),
    "two files": (FORM, NAMED + SOUND + SOUND + END, 400, "invalid_value", "file"),
    "no model": (FORM, SOUND + END, 400, "missing_required_parameter", "model"),
    "a file as text": (
        FORM,
        NAMED + part('Content-Disposition: form-data; name="file"', b"RIFF") + END,
        400,
        "invalid_value",
        "file",
    ),
    "no boundary": ("multipart/form-data", NAMED + SOUND + END, 400, "invalid_body", None),
    "another boundary": ("multipart/form-data; boundary=c", NAMED + SOUND + END, 400, "invalid_body", None),
    "no end": (FORM, NAMED + SOUND[:1000], 400, "invalid_body", None),
    "nothing": (FORM, b"", 400, "invalid_body", None),
    "megabytes of headers": (
        FORM,
        NAMED + part(f'X-A: {"a" * 2 * MIB}\r\nContent-Disposition: form-data; name="a"', b"") + END,
        400,
        "invalid_body",
        None,
    ),
    "many headers": (
        FORM,
        NAMED + part("\r\n".join(f"X-{at}: a" for at in range(50_000)), b"") + SOUND + END,
        400,
        "invalid_body",
        None,
    ),
    "a wrong charset": (
        FORM,
        part(
            'Content-Disposition: form-data; name="model"\r\nContent-Type: text/plain; charset=nope',
            b"\xff\xfe",
        )
        + SOUND
        + END,
        400,
        "invalid_body",
        "model",
    ),
    "a form in a form": (
        FORM,
        NAMED + part("Content-Type: multipart/mixed; boundary=d", b"--d\r\n\r\nx\r\n--d--") + END,
        400,
        "invalid_body",
        None,
    ),
    "a long field": (
        FORM,
        part('Content-Disposition: form-data; name="prompt"', b"a" * 2 * MIB) + NAMED + SOUND + END,
        413,
        "request_too_large",
        "prompt",
    ),
    "more than may be": (
        FORM,
        NAMED
        + part('Content-Disposition: form-data; name="file"; filename="a"', bytes(MOST_BYTES + 1))
        + END,
        413,
        "request_too_large",
        None,
    ),
    "thousands of parts": (
        FORM,
        part('Content-Disposition: form-data; name="x"', b"") * 5000 + END,
        400,
        "invalid_body",
        None,
    ),
    "json": ("application/json", b'{"model": "ears"}', 415, "unsupported_media_type", None),
    "no type": ("", NAMED + SOUND + END, 415, "unsupported_media_type", None),
}
"""By name: content type, body, and the answer's status, code and param."""


@pytest.mark.parametrize("name", NONSENSE)
@pytest.mark.parametrize("path", MODELS)
async def test_forms_that_are_none(house: House, path: str, name: str) -> None:
    """Each has its own refusal, before a model is asked."""
    content_type, body, wanted, code, param = NONSENSE[name]
    skip = () if content_type else ("content-type",)
    headers = {"content-type": content_type} if content_type else {}
    status, answer = await house.post(path, data=io.BytesIO(body), headers=headers, skip_auto_headers=skip)
    assert status == wanted, answer
    refusal(status, answer, code=code, param=param)
    await house.lives()


async def test_unknown_fields_are_ignored(house: House) -> None:
    """A newer client's fields do no harm, nor does a field that comes twice."""
    sent = form("nobody", SPOKEN.read_bytes(), hue="blue", **{"chunking_strategy[type]": "server_vad"})
    sent.add_field("model", "ears")
    status, body = await house.post(TRANSCRIBE, data=sent)
    assert status == 200, body


async def test_clients_that_stop_in_the_middle_leave_nothing(house: House) -> None:
    """A connection that closes in the middle of a file costs the daemon nothing, and no call is opened."""
    host, _, port = house.daemon.url.removeprefix("http://").partition(":")
    head = (
        f"POST {TRANSCRIBE} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {FORM}\r\n"
        f"Content-Length: {MOST_BYTES}\r\n\r\n"
    ).encode()
    before = await house.daemon.metrics()
    with flat(house.daemon.pid):
        for _ in range(20):
            _, writer = await asyncio.open_connection(host, int(port))
            writer.write(head + NAMED + SOUND[:20_000])
            await writer.drain()
            writer.close()
            await writer.wait_closed()
    status, _ = await house.post(TRANSCRIBE, data=form("ears", wav(bytes(32_000))))
    assert status == 200
    after = await house.daemon.metrics()
    bad = [name for name in after if 'status="5' in name and after[name] > before.get(name, 0)]
    assert bad == []
    await house.lives()


@pytest.mark.parametrize(
    ("change", "code", "param"),
    [
        ({"input": ""}, "invalid_value", "input"),
        ({"input": " \n"}, "invalid_value", "input"),
        ({"input": "x" * (MOST_CHARACTERS + 1)}, "input_too_long", "input"),
        ({"input": "\u0000\u0001\ufffe"}, "unspeakable_input", "input"),
        ({"input": "()[]{}<>"}, "unspeakable_input", "input"),
        ({"input": "漢字" * 20}, "unspeakable_input", "input"),
        ({"input": "🦊🦊🦊"}, "unspeakable_input", "input"),
        ({"input": "xqzt" * 20}, "unspeakable_input", "input"),
        ({"input": ["a"]}, "invalid_type", "input"),
        ({"voice": "a+b"}, "unknown_voice", "voice"),
        ({"voice": "-1"}, "unknown_voice", "voice"),
        ({"voice": "9" * 500}, "unknown_voice", "voice"),
        ({"speed": 1e308}, "invalid_value", "speed"),
        ({"speed": 0}, "invalid_value", "speed"),
        ({"response_format": "exe"}, "invalid_value", "response_format"),
        ({"stream_format": "video"}, "invalid_value", "stream_format"),
    ],
)
async def test_texts_that_cannot_be_spoken(
    house: House, change: dict[str, Any], code: str, param: str
) -> None:
    """Empty, long, of signs and of no language: 400 that says why, and the worker lives."""
    body = {"model": "kokoro", "input": "Hello.", "voice": "alloy", **change}
    with flat(house.pids["kokoro"]):
        status, answer = await house.post("/v1/audio/speech", json=body)
    message = refusal(status, answer, code=code, param=param)
    if code == "input_too_long":
        assert f"the limit is {MOST_CHARACTERS} (media.speech_characters" in message
    await house.lives()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ("", "input"),
        ([], "input"),
        ([""], "input[0]"),
        ([[]], "input[0]"),
        ([1, "a"], "input"),
        ([[-1]], "input[0]"),
        ([2**31], "input"),
        (["a"] * 2049, "input"),
        ("long " * 3000, "input"),
        ([[10**6]], "input[0]"),
        (5, "input"),
        (None, "input"),
    ],
)
async def test_texts_that_have_no_vector(house: House, given: Any, param: str) -> None:
    """Empty, of the wrong type, too long, of tokens that are none: 400 with the place."""
    status, answer = await house.post("/v1/embeddings", json={"model": "mini", "input": given})
    assert status == 400, answer
    assert answer["error"]["param"].startswith(param), answer
    assert set(answer["error"]) == {"message", "type", "param", "code"}
    await house.lives()


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"input": "\\ud800"}'])
@pytest.mark.parametrize("path", ["/v1/audio/speech", "/v1/embeddings"])
async def test_json_that_is_none(house: House, path: str, raw: bytes) -> None:
    """Text that is not JSON is refused as such."""
    status, answer = await house.post(path, data=raw, headers={"content-type": "application/json"})
    assert status == 400
    assert answer["error"]["type"] == "invalid_request_error"
    await house.lives()


LISTEN: tuple[str, str, dict[str, Any]] = ("ears", TRANSCRIBE, {})
SPEAK: tuple[str, str, dict[str, Any]] = (
    "kokoro",
    "/v1/audio/speech",
    {
        "model": "kokoro",
        "voice": "0",
        "input": "The sun is up. The birds sing. We walk home. It was a good day.",
    },
)


@pytest.mark.parametrize(("model", "path", "body"), [LISTEN, SPEAK], ids=["whisper", "kokoro"])
async def test_whoever_leaves_frees_the_engine_and_the_queue(
    house: House, model: str, path: str, body: dict[str, Any]
) -> None:
    """A client that leaves the queue is forgotten at once, one that leaves the engine within its step, and
    the next is served by the same worker.
    """

    def asked() -> asyncio.Task[tuple[int, Any]]:
        sent = {"json": body} if body else {"data": form("ears", spoken(3.0, times=3))}
        return asyncio.ensure_future(house.post(path, **sent))

    async def until(in_flight: int, queued: int) -> None:
        await house.daemon.until_status(
            model, lambda status: (status["in_flight"], status["queued"]) == (in_flight, queued), within=60.0
        )

    first = asked()
    await until(1, 0)
    second = asked()
    await until(1, 1)
    second.cancel()
    await until(1, 0)
    assert not first.done()
    first.cancel()
    await until(0, 0)
    await asyncio.wait({first, second})
    short = {"json": {**body, "input": "Hello."}} if body else {"data": form("ears", wav(bytes(32_000)))}
    status, _ = await house.post(path, **short)
    assert status == 200
    await house.lives()
