"""`openai` for Python, strict: transcription on the real whisper.cpp through a real daemon."""

from __future__ import annotations

import io
import json
import re
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai.types.audio import (
    Transcription,
    TranscriptionTextDeltaEvent,
    TranscriptionTextDoneEvent,
    TranscriptionVerbose,
    Translation,
    TranslationVerbose,
)

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon, running
from tests.harness.models import fake
from tests.harness.models_whisper import whisper, whisper_tiny_en
from tests.harness.models_whisper_base import whisper_base
from tests.harness.recordings import BROKEN, JAPANESE, SPOKEN, coded

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

CREATE = "audio.transcriptions.create"
TRANSLATE = "audio.translations.create"
WEATHER = re.compile(r"weather", re.IGNORECASE)
HEARD = re.compile(r"quick.*fox.*river", re.IGNORECASE)


def recording() -> dict[str, Any]:
    """Return the arguments of a transcription; files are read once, so each call needs its own."""
    return {"model": "whisper-1", "file": io.BytesIO(SPOKEN.read_bytes())}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with tiny.en, by its name in a folder of models, base, and a model that only chats."""
    file = whisper_tiny_en()
    ears = whisper("ears", Path("tiny.en"), aliases=["whisper-1"])
    ears["whispercpp_config"]["models_dir"] = str(file.parent)
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        many = whisper("many", whisper_base())
        config = {"models": [ears, many, fake("chatty")], "allow_fake": True}
        async with running(Path(folder), config) as started:
            await started.until("ears", "ready")
            await started.until("many", "ready")
            await started.until("chatty", "ready")
            yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


async def test_json_is_the_text_with_its_seconds(sdk: Sdk) -> None:
    """The default answer has the text and the recording's length; raw bytes without a name are read."""
    answer = await sdk.call(CREATE, **recording())
    assert isinstance(answer, Transcription)
    assert HEARD.search(answer.text)
    assert answer.usage is not None
    assert answer.usage.type == "duration"
    assert answer.usage.seconds == pytest.approx(5.14, abs=0.05)


async def test_verbose_json_has_every_field(sdk: Sdk) -> None:
    """Segments with all ten fields, and words since they were asked for."""
    answer = await sdk.call(
        CREATE,
        **recording(),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        language="en",
        prompt="A fox.",
        temperature=0,
    )
    assert isinstance(answer, TranscriptionVerbose)
    assert answer.language == "english"
    assert float(answer.duration) == pytest.approx(5.14, abs=0.05)
    assert answer.segments
    assert answer.segments[0].avg_logprob < 0
    assert answer.words
    assert " ".join(word.word for word in answer.words) == answer.text


async def test_words_come_only_when_asked_for(daemon: Daemon) -> None:
    """verbose_json alone has segments and no words."""
    async with AsyncSdk(daemon.url) as client:
        plain = await client.call(CREATE, **recording(), response_format="verbose_json")
    assert plain.words is None
    assert plain.segments


async def test_subtitles_and_text_are_strings(daemon: Daemon) -> None:
    """text, srt and vtt come as the SDK gives them: strings of their own form."""
    async with AsyncSdk(daemon.url) as client:
        text = await client.call(CREATE, **recording(), response_format="text")
        srt = await client.call(CREATE, **recording(), response_format="srt")
        vtt = await client.call(CREATE, **recording(), response_format="vtt")
    assert isinstance(text, str)
    assert HEARD.search(text)
    assert re.match(r"1\n00:00:0\d,\d{3} --> 00:00:0\d,\d{3}\n.*fox", srt)
    assert re.match(r"WEBVTT\n\n00:00:0\d\.\d{3} --> 00:00:0\d\.\d{3}\n.*fox", vtt)


async def test_a_stream_gives_deltas_and_the_whole(sdk: Sdk) -> None:
    """stream=True gives the SDK's typed events; the deltas joined are the text at the end."""
    events = await sdk.items(CREATE, **recording(), stream=True)
    *deltas, done = events
    assert deltas
    assert all(isinstance(event, TranscriptionTextDeltaEvent) for event in deltas)
    assert isinstance(done, TranscriptionTextDoneEvent)
    assert "".join(event.delta for event in deltas) == done.text
    assert HEARD.search(done.text)
    assert done.usage is not None
    assert done.usage.output_tokens > 10


@pytest.mark.filterwarnings("ignore:.*deprecated:DeprecationWarning")  # the SDK calls translations old
async def test_a_translation(daemon: Daemon) -> None:
    """Japanese comes as English, in the SDK's own types; npm's test has the subtitles."""

    def japanese() -> dict[str, Any]:
        return {"model": "many", "file": io.BytesIO(JAPANESE.read_bytes())}

    async with AsyncSdk(daemon.url) as client:
        answer = await client.call(TRANSLATE, **japanese())
        assert isinstance(answer, Translation)
        assert WEATHER.search(answer.text)
        verbose = await client.call(TRANSLATE, **japanese(), response_format="verbose_json", temperature=0)
        assert isinstance(verbose, TranslationVerbose)
        assert verbose.language == "english"
        assert WEATHER.search(verbose.text)
        assert float(verbose.duration) == pytest.approx(6.6, abs=0.1)
        assert verbose.segments
        assert 0 < verbose.segments[0].no_speech_prob < 0.5


async def test_a_wrong_name_and_another_container_do_no_harm(daemon: Daemon) -> None:
    """The content decides: an m4a that calls itself wav, under a name in another script."""
    media = coded(SPOKEN.read_bytes(), "ipod", "aac", rate=24000)
    async with AsyncSdk(daemon.url) as client:
        answer = await client.call(CREATE, model="ears", file=("会議.wav", media, "audio/wav"))
    assert HEARD.search(answer.text)


async def test_mistakes_are_the_sdks_own_errors(sdk: Sdk, daemon: Daemon) -> None:
    """Bad media, wrong models and wrong fields are BadRequestError or NotFoundError with code and param; the
    worker stays.
    """
    pid = await daemon.pid_of("ears")
    for media in (BROKEN["html"], BROKEN["truncated wav"], BROKEN["ten hours announced"], b""):
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.call(CREATE, model="ears", file=("a.mp3", media))
        assert caught.value.param == "file"
    for change, param in (
        ({"model": "chatty"}, "model"),
        ({"language": "xx"}, "language"),
        ({"language": "fr"}, "language"),
        ({"timestamp_granularities": ["word"]}, "timestamp_granularities"),
        ({"response_format": "diarized_json"}, "response_format"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await sdk.call(CREATE, **{**recording(), **change})
        assert caught.value.param == param
    with (
        pytest.warns(DeprecationWarning, match="deprecated"),  # the SDK calls the whole API an old one
        pytest.raises(openai.BadRequestError, match="cannot translate") as caught,
    ):
        await sdk.call(TRANSLATE, **recording())
    assert caught.value.code == "unsupported_task"
    with pytest.raises(openai.NotFoundError):
        await sdk.call(CREATE, **{**recording(), "model": "nobody"})
    status = await daemon.model("ears")
    assert (status["pid"], status["state"]) == (pid, "ready")


async def test_the_prompt_and_the_words_are_in_no_log(daemon: Daemon) -> None:
    """What people say is nobody's business: neither prompt nor text reaches the logs."""
    async with AsyncSdk(daemon.url) as client:
        await client.call(CREATE, **recording(), prompt="CANARY")
    await daemon.line("/v1/audio/transcriptions")
    logs = "\n".join(daemon.lines) + await daemon.log("ears")
    assert "CANARY" not in logs
    assert "lazy" not in logs
    assert json.dumps(SPOKEN.name) not in logs
