"""`openai` for npm: speech from the real Kokoro; npm/speech.mjs makes the calls."""

from __future__ import annotations

import base64
import json
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import node
from tests.harness.daemon import Daemon, running
from tests.harness.models_kokoro import kokoro, kokoro_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with Kokoro."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": [kokoro("kokoro", kokoro_model())]}) as started:
            await started.until("kokoro", "ready")
            yield started


async def test_formats(daemon: Daemon) -> None:
    """The bytes are what their content type says; the other formats are read in Python's test."""
    found = await node.seen("speech.mjs", daemon.url, "formats")
    assert {form: seen["type"] for form, seen in found.items()} == {
        "mp3": "audio/mpeg",
        "wav": "audio/wav",
        "pcm": "audio/pcm",
    }
    assert found["mp3"]["start"].startswith("\xff")
    assert found["wav"]["start"] == "RIFF"
    assert found["pcm"]["size"] == found["wav"]["size"] - 44
    assert found["wav"]["size"] > 0.5 * 48_000


async def test_the_body_can_be_read_while_it_is_spoken(daemon: Daemon) -> None:
    """The answer's body is a stream of pieces."""
    found = await node.seen("speech.mjs", daemon.url, "pieces")
    assert found["type"] == "audio/pcm"
    assert len(found["sizes"]) > 1
    assert sum(found["sizes"]) > 48_000


async def test_events(daemon: Daemon) -> None:
    """stream_format sse comes as text: deltas in base64, then done with the usage."""
    found = await node.seen("speech.mjs", daemon.url, "events")
    assert found["type"].startswith("text/event-stream")
    *events, end = [
        line.removeprefix("data: ") for line in found["text"].split("\n\n") if line.startswith("data:")
    ]
    assert end == "[DONE]"
    *deltas, done = [json.loads(event) for event in events]
    assert b"".join(base64.b64decode(delta["audio"]) for delta in deltas).startswith(b"RIFF")
    assert done["type"] == "speech.audio.done"
    assert done["usage"]["input_tokens"] == len("Good morning.")


async def test_a_refusal(daemon: Daemon) -> None:
    """An unknown voice raises the SDK's own error, with the field at fault and the request id."""
    found = await node.seen("speech.mjs", daemon.url, "refusal")
    assert (found["name"], found["status"]) == ("BadRequestError", 400)
    assert (found["code"], found["param"]) == ("unknown_voice", "voice")
    assert found["requestID"].startswith("req_")
