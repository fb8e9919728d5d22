"""`openai` for npm against whisper.cpp; npm/transcriptions.mjs calls, and what it saw is checked here."""

from __future__ import annotations

import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import node
from tests.harness.daemon import Daemon, running
from tests.harness.models_whisper import whisper, whisper_tiny_en
from tests.harness.models_whisper_base import whisper_base
from tests.harness.recordings import JAPANESE, SAID_IN_JAPANESE, SPOKEN

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SCRIPT = "transcriptions.mjs"
HEARD = re.compile(r"quick.*fox.*river", re.IGNORECASE)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with tiny.en, and base, which translates."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        models = [whisper("ears", whisper_tiny_en()), whisper("many", whisper_base())]
        async with running(Path(folder), {"models": models}) as started:
            await started.until("ears", "ready")
            await started.until("many", "ready")
            yield started


async def test_each_format_is_what_the_sdk_expects(daemon: Daemon) -> None:
    """json and verbose_json are objects with their fields, text and vtt are strings."""
    found = await node.seen(SCRIPT, daemon.url, "formats", str(SPOKEN))
    assert HEARD.search(found["json"]["text"])
    assert found["json"]["usage"]["type"] == "duration"
    verbose = found["verbose"]
    assert verbose["language"] == "english"
    assert len(verbose["segments"][0]) == 10
    assert " ".join(word["word"] for word in verbose["words"]) == verbose["text"]
    assert HEARD.search(found["text"])
    assert found["vtt"].startswith("WEBVTT\n\n00:00:0")


async def test_a_translation(daemon: Daemon) -> None:
    """Japanese comes as English subtitles; transcribed, it is told to be Japanese."""
    found = await node.seen(SCRIPT, daemon.url, "translation", str(JAPANESE))
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\n", found["srt"])
    assert "weather" in found["srt"].lower()
    assert found["heard"]["language"] == "japanese"
    assert SAID_IN_JAPANESE[1] in found["heard"]["text"]


async def test_a_stream_is_deltas_and_then_the_whole(daemon: Daemon) -> None:
    """The SDK iterates over the events; the deltas joined are the text."""
    *deltas, done = await node.seen(SCRIPT, daemon.url, "stream", str(SPOKEN))
    assert deltas
    assert {event["type"] for event in deltas} == {"transcript.text.delta"}
    assert done["type"] == "transcript.text.done"
    assert "".join(event["delta"] for event in deltas) == done["text"]
    assert HEARD.search(done["text"])


async def test_refusals_are_the_sdks_own_errors(daemon: Daemon) -> None:
    """Each refusal is its class, with code, param and request id."""
    found = await node.seen(SCRIPT, daemon.url, "errors", str(SPOKEN))
    assert all(error["requestID"].startswith("req_") for error in found.values())
    assert found["model"]["name"] == "NotFoundError"
    for which, code, param in (
        ("junk", "invalid_audio", "file"),
        ("language", "invalid_value", "language"),
        ("translation", "unsupported_task", "model"),
    ):
        error = found[which]
        assert (error["name"], error["code"], error["param"]) == ("BadRequestError", code, param)
