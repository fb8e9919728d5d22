"""`openai` for Python, strict: speech from the real Kokoro through a real daemon."""

from __future__ import annotations

import base64
import io
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import openai
import pytest
import pytest_asyncio

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import fake
from tests.harness.models_kokoro import VOICES, kokoro, kokoro_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CREATE = "audio.speech.create"
MORNING = {"model": "kokoro", "input": "Good morning.", "voice": "alloy"}
TYPES = {
    "mp3": ("audio/mpeg", "mp3", "mp3"),
    "opus": ("audio/ogg", "ogg", "opus"),
    "aac": ("audio/aac", "aac", "aac"),
    "flac": ("audio/flac", "flac", "flac"),
    "wav": ("audio/wav", "wav", "pcm_s16le"),
}
"""By format: content type, container and codec as libav finds them in the bytes."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with Kokoro at the default gateway, and a model that only chats."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        models = [
            kokoro("kokoro", kokoro_model(), aliases=["tts-1"]),
            kokoro("later", kokoro_model(), load="on_demand"),
            fake("chatty"),
        ]
        async with running(Path(folder), {"models": models, "allow_fake": True}) as started:
            await started.until("kokoro", "ready")
            await started.until("chatty", "ready")
            yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


@pytest.mark.parametrize("form", TYPES)
async def test_each_format_is_its_content_type(daemon: Daemon, form: str) -> None:
    """What the header says is what libav finds in the bytes."""
    async with AsyncSdk(daemon.url) as client:
        answer = await client.call(CREATE, **MORNING, response_format=form)
    content_type, container, codec = TYPES[form]
    assert answer.response.headers["content-type"] == content_type
    with av.open(io.BytesIO(answer.content), "r") as file:
        assert file.format.name == container
        stream = file.streams.audio[0]
        assert stream.codec_context.name.startswith(codec)
        assert sum(frame.samples for frame in file.decode(stream)) / stream.rate > 0.5


async def test_mp3_is_what_comes_when_nothing_is_said(sdk: Sdk) -> None:
    """The default is OpenAI's, by an alias that stock clients use, in either client."""
    answer = await sdk.call(CREATE, **{**MORNING, "model": "tts-1"}, speed=1.5)
    assert answer.response.headers["content-type"] == "audio/mpeg"
    assert answer.content[0] == 0xFF


async def test_it_can_be_read_while_it_is_spoken(daemon: Daemon) -> None:
    """with_streaming_response gives pieces; joined they are whole."""
    async with AsyncSdk(daemon.url) as sdk:
        streaming: Any = sdk.client.audio.speech.with_streaming_response
        text = "The sun is up now. The birds sing."
        async with streaming.create(**{**MORNING, "input": text}, response_format="pcm") as answer:
            assert answer.headers["content-type"] == "audio/pcm"
            assert answer.headers["transfer-encoding"] == "chunked"
            pieces = [piece async for piece in answer.iter_bytes()]
    assert len(pieces) > 1
    assert len(b"".join(pieces)) % 2 == 0


async def test_events(daemon: Daemon) -> None:
    """stream_format sse, which the SDK hands on as bytes: deltas, then done with the usage."""
    async with AsyncSdk(daemon.url) as sdk:
        answer = await sdk.call(CREATE, **MORNING, stream_format="sse", response_format="flac")
    events = [
        json.loads(line.removeprefix("data: "))
        for line in answer.content.decode().split("\n\n")
        if line.startswith("data: {")
    ]
    assert {event["type"] for event in events[:-1]} == {"speech.audio.delta"}
    audio = b"".join(base64.b64decode(event["audio"]) for event in events[:-1])
    assert audio.startswith(b"fLaC")
    assert events[-1]["type"] == "speech.audio.done"
    assert events[-1]["usage"]["input_tokens"] == len(MORNING["input"])


@pytest.mark.parametrize(
    ("fields", "param", "words"),
    [
        ({"voice": "nobody"}, "voice", "jf_alpha"),
        ({"response_format": "ogg"}, "response_format", "mp3, opus, aac, flac, wav, pcm"),
        ({"input": ""}, "input", "nothing to say"),
        ({"input": "x" * 4097}, "input", "4096"),
        ({"model": "chatty"}, "model", "cannot do this"),
    ],
)
async def test_what_is_wrong_is_a_bad_request(
    sdk: Sdk, fields: dict[str, Any], param: str, words: str
) -> None:
    """The SDK raises its own class, with the field at fault and what would be right."""
    with pytest.raises(openai.BadRequestError, match=words) as caught:
        await sdk.call(CREATE, **{**MORNING, **fields})
    assert caught.value.param == param


async def test_a_speech_model_does_not_chat(sdk: Sdk) -> None:
    """The refusal says what the model is for."""
    with pytest.raises(openai.BadRequestError, match="speech"):
        await sdk.chat(model="kokoro", messages=[{"role": "user", "content": "hi"}])


async def test_the_voices(daemon: Daemon) -> None:
    """They are listed by name: of a loaded model, of one that has been unloaded, and of one that has never
    been loaded, which this loads.
    """
    async with AsyncSdk(daemon.url) as sdk:
        for name, before, after in (
            ("kokoro", "ready", "ready"),
            ("later", "stopped", "ready"),
            ("later", "ready", "ready"),
        ):
            assert (await daemon.model(name))["state"] == before
            answer: Any = await sdk.client.get(f"/audio/voices?model={name}", cast_to=object)
            assert [voice["id"] for voice in answer["voices"]] == list(VOICES)
            assert (await daemon.model(name))["state"] == after
        await daemon.admin("POST", "/models/later/unload")
        await daemon.until("later", "stopped")
        answer = await sdk.client.get("/audio/voices?model=later", cast_to=object)
    assert [voice["id"] for voice in answer["voices"]] == list(VOICES)
    assert (await daemon.model("later"))["state"] == "stopped"
