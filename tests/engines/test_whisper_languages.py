"""Languages, found out and translated, on the real whisper.cpp with the real base model."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from modeld.protocol.tasks import Segment, TranscribeTask, Transcript
from tests.engines.test_whisper import Ears, heard, loaded
from tests.harness.models_whisper_base import whisper_base
from tests.harness.recordings import JAPANESE, SAID_IN_JAPANESE, SPOKEN

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ears() -> AsyncIterator[Ears]:
    """Give a worker with base."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with loaded(whisper_base(), Path(folder)) as made:
            yield made


async def listened(ears: Ears, task: TranscribeTask) -> tuple[str, str]:
    """Run a task; return the language and the text."""
    events = await ears.hear(task)
    [transcript] = [event for event in events if isinstance(event, Transcript)]
    return transcript.language, heard(events)


async def test_it_says_that_it_translates(ears: Ears) -> None:
    """A model of a hundred languages is one, and has the capability that the API asks for."""
    assert ears.facts.capabilities == ("transcription", "translation")
    assert ears.facts.detail["model"] == "whisper base"


async def test_the_language_is_found_out(ears: Ears) -> None:
    """Japanese and English are told apart, and each is written down as itself."""
    language, text = await listened(ears, TranscribeTask(media=JAPANESE.read_bytes()))
    assert language == "japanese"
    assert all(word in text for word in SAID_IN_JAPANESE)
    language, text = await listened(ears, TranscribeTask(media=SPOKEN.read_bytes()))
    assert language == "english"
    assert "quick brown fox" in text


async def test_a_translation_is_in_english(ears: Ears) -> None:
    """What is said in Japanese comes in English words, whether its language is told or found out."""
    for told in (None, "ja"):
        task = TranscribeTask(media=JAPANESE.read_bytes(), translate=True, language=told)
        language, text = await listened(ears, task)
        assert language == "japanese"
        assert text.isascii()
        assert "weather" in text.lower()
        assert "japanese" in text.lower()


async def test_words_of_a_language_without_spaces(ears: Ears) -> None:
    """Each character has its time; joined they are the text."""
    events = await ears.hear(TranscribeTask(media=JAPANESE.read_bytes(), words=True, language="ja"))
    words = [word for event in events if isinstance(event, Segment) for word in event.words]
    assert "".join(word.word for word in words) == heard(events).strip()
    assert len(words) > 15
    times = [word.start for word in words]
    assert times == sorted(times)
    assert 5 < words[-1].end < 9
