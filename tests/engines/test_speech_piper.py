"""A Piper voice as its makers give it out, with a lexicon, on the real sherpa-onnx."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from modeld.errors import LoadFailed
from modeld.protocol.tasks import Audio, Segment, SpeechTask, TranscribeTask
from modeld.worker.loaders.sherpa_onnx.onnx_file import metadata_bytes
from modeld.worker.loaders.sherpa_onnx.piper import settings
from tests.engines.test_round_trip import MOST_WRONG, SENTENCE
from tests.engines.test_speech import Speaker, events, spoken, started
from tests.engines.test_whisper import loaded
from tests.harness.models_piper import piper_model
from tests.harness.models_whisper import whisper_tiny_en
from tests.harness.word_errors import word_error_rate

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FEWEST_S = 4.0
"""Seconds that the sentence takes; without blanks between the sounds it is over in three."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaker() -> AsyncIterator[Speaker]:
    """Give a worker with the voice."""
    async with started(piper_model()) as found:
        yield found


async def test_it_loads_as_it_is(speaker: Speaker) -> None:
    """Family and rate are from the file beside the network; a voice without names has numbers."""
    assert speaker.facts.detail["family"] == "vits"
    assert speaker.facts.detail["sample rate"] == "22050 Hz"
    assert speaker.facts.voices == ("0",)


async def test_what_it_says_is_understood(speaker: Speaker, short_dir: Path) -> None:
    """Whisper writes down what it says, with at most one word in five wrong."""
    found = await events(speaker.worker, SpeechTask(text=SENTENCE, voice="alloy", format="flac"))
    media = b"".join(event.data for event in found if isinstance(event, Audio))
    async with loaded(whisper_tiny_en(), short_dir) as ears:
        heard = await ears.hear(TranscribeTask(media=media))
    text = "".join(event.text for event in heard if isinstance(event, Segment))
    assert word_error_rate(SENTENCE, text) <= MOST_WRONG, text


async def test_a_voice_converted_for_sherpa_onnx_speaks_as_slowly(tmp_path: Path) -> None:
    """With metadata and tokens.txt of its own it gets the blanks that it lacks."""
    source = piper_model()
    known = settings(source / "joe.onnx")
    assert known is not None
    model = tmp_path / "en_US-joe-medium.onnx"
    model.write_bytes((source / "joe.onnx").read_bytes() + metadata_bytes(known.metadata))
    shutil.copy(source / "lexicon.txt", tmp_path)
    tokens = "".join(f"{sound} {number}\n" for sound, number in known.alphabet.items())
    (tmp_path / "tokens.txt").write_text(tokens, "utf-8")
    async with started(tmp_path) as speaker:
        _, usage = await spoken(speaker.worker, SENTENCE)
    assert usage.completion_tokens > FEWEST_S * 1000


async def test_without_a_lexicon_it_is_refused(tmp_path: Path) -> None:
    """The refusal says what to put there."""
    for name in ("joe.onnx", "joe.onnx.json"):
        shutil.copy(piper_model() / name, tmp_path)
    with pytest.raises(LoadFailed, match=r"put lexicon\*\.txt there") as caught:
        async with started(tmp_path):
            pass
    assert caught.value.permanent
