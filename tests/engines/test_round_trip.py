"""What one real model says, another writes down."""

from __future__ import annotations

import tempfile
from pathlib import Path

import pytest

from modeld.clock import SystemClock
from modeld.protocol.messages import LoadSpec
from modeld.protocol.tasks import Audio, Event, Segment, SpeechTask, Task, TranscribeTask
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker
from tests.harness.models_kokoro import kokoro_model
from tests.harness.models_whisper import whisper_tiny_en
from tests.harness.word_errors import errors, word_error_rate

pytestmark = pytest.mark.engine

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it runs back to the house by the river."
MOST_WRONG = 0.2
"""Word error rate: words put in, left out or changed, for each word that was said."""


async def _answered(loader: str, usecase: str, model: Path, task: Task) -> list[Event]:
    """Load a model in a worker, run one task, and end the worker."""
    with tempfile.TemporaryDirectory(prefix="md") as name:
        folder, run = Path(name), Path(name) / "w1"
        (folder / "workers").mkdir()
        worker = await Worker.start(LogRing(SystemClock()), run, folder / "workers")
        try:
            options = {"n_threads": 1} if loader == "whispercpp" else {}
            spec = LoadSpec(
                name="m",
                loader=loader,
                usecase=usecase,
                path=str(model),
                runtime_dir=str(run),
                options=options,
            )
            await worker.load(spec, lambda stage, fraction: None)
            call = worker.call(task, "local")
            events: list[Event] = []
            while (batch := await call.take(600)) is not None:
                events += batch
            return events
        finally:
            await worker.stop(0.0)


def test_errors_are_counted_as_they_should_be() -> None:
    """One word changed, one put in, one left out."""
    assert errors(["a", "b", "c"], ["a", "b", "c"]) == 0
    assert errors(["a", "b", "c"], ["a", "x", "c"]) == 1
    assert errors(["a", "b"], ["a", "x", "b"]) == 1
    assert errors(["a", "b", "c"], ["c"]) == 2
    assert errors([], ["a"]) == 1


async def test_what_kokoro_says_whisper_writes_down() -> None:
    """Spoken as mp3 and written down again, at most one word in five is wrong."""
    spoken = await _answered(
        "sherpa_onnx", "tts", kokoro_model(), SpeechTask(text=SENTENCE, voice="0", format="mp3")
    )
    media = b"".join(event.data for event in spoken if isinstance(event, Audio))
    heard = await _answered(
        "whispercpp", "transcription", whisper_tiny_en(), TranscribeTask(media=media, language="en")
    )
    text = "".join(event.text for event in heard if isinstance(event, Segment))
    assert word_error_rate(SENTENCE, text) <= MOST_WRONG, text
