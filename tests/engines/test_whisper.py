"""Transcription on the real whisper.cpp with the real tiny.en, through a real worker process."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from modeld.clock import SystemClock
from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.channel import OpenCall
from modeld.protocol.messages import Facts, LoadSpec, MediaLimits
from modeld.protocol.tasks import (
    ChatTask,
    Event,
    Message,
    Segment,
    Task,
    TranscribeTask,
    Transcript,
    Usage,
)
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker
from tests.harness.loaded import logged, text_of
from tests.harness.models_whisper import whisper_tiny_en
from tests.harness.recordings import BROKEN, SENTENCE, SPOKEN, coded, spoken, tone, wav

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PATIENCE = 600.0
"""Seconds for one answer: a busy machine takes ten times as long as a quiet one."""

CANCEL_S = 30.0
"""Seconds in which a cancelled call is over, also on a busy machine; the recordings cancelled take longer."""

MOST_ERRORS = 0.2

LONGEST_S = 900.0
"""Seconds that a recording may have here."""


@dataclass
class Ears:
    """A worker with tiny.en, and what it said while loading."""

    worker: Worker
    facts: Facts
    stages: list[tuple[str, float | None]]
    ring: LogRing

    async def hear(self, task: Task) -> list[Event]:
        """Run a task to its end."""
        call = self.worker.call(task, "local")
        events: list[Event] = []
        while (batch := await call.take(PATIENCE)) is not None:
            events += batch
        return events


@asynccontextmanager
async def loaded(model: Path, folder: Path) -> AsyncIterator[Ears]:
    """Load a model in a worker; at the end nothing of it is left."""
    ring = LogRing(SystemClock())
    (folder / "workers").mkdir(exist_ok=True)
    run = folder / "w1"
    worker = await Worker.start(ring, run, folder / "workers")
    try:
        stages: list[tuple[str, float | None]] = []
        spec = LoadSpec(
            name="ears",
            loader="whispercpp",
            usecase="transcription",
            path=str(model),
            runtime_dir=str(run),
            options={"n_threads": 1, "flash_attn": False},
            limits=MediaLimits(audio_seconds=LONGEST_S),
        )
        facts = await worker.load(spec, lambda stage, fraction: stages.append((stage, fraction)))
        yield Ears(worker, facts, stages, ring)
    finally:
        await worker.stop(0.0)
        assert host.group_members(worker.pid) == []
        assert not run.exists()


@pytest.fixture(scope="module")
def tiny() -> Path:
    """Give the model's file, built once for all runs."""
    return whisper_tiny_en()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def ears(tiny: Path) -> AsyncIterator[Ears]:
    """Give one worker to the tests that leave it as it was."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with loaded(tiny, Path(folder)) as made:
            yield made


def heard(events: list[Event]) -> str:
    """Return the text of all segments."""
    return "".join(event.text for event in events if isinstance(event, Segment))


async def rest(call: OpenCall) -> None:
    """Read a call to its end."""
    while await call.take(PATIENCE) is not None:
        pass


def word_errors(said: str, written: str) -> float:
    """Return the word error rate: edits that make one text the other, for each word said."""
    theirs, ours = (re.findall(r"[a-z']+", text.lower()) for text in (said, written))
    row = list(range(len(ours) + 1))
    for count, word in enumerate(theirs, 1):
        above, row[0] = row[0], count
        for at, other in enumerate(ours, 1):
            above, row[at] = row[at], min(row[at] + 1, row[at - 1] + 1, above + (word != other))
    return row[-1] / len(theirs)


async def test_it_loads_with_progress_and_tells_the_truth_about_itself(ears: Ears) -> None:
    """Loading reports growing fractions; the facts name engine, model, memory and what it can do."""
    fractions = [fraction for _, fraction in ears.stages if fraction is not None]
    assert fractions[0] == 0
    assert fractions[-1] == 1
    assert fractions == sorted(fractions)
    assert (ears.facts.loader, ears.facts.slots, ears.facts.device) == ("whispercpp", 1, "cpu")
    assert ears.facts.capabilities == ("transcription",)  # English only: it cannot translate
    assert ears.facts.bytes_used > 70 << 20
    assert ears.facts.detail["model"] == "whisper tiny.en"
    assert ears.facts.detail["engine"].startswith("pywhispercpp ")


async def test_the_sentence_comes_back(ears: Ears) -> None:
    """A spoken sentence is written down with at most a fifth of its words wrong; events come in order."""
    events = await ears.hear(TranscribeTask(media=SPOKEN.read_bytes()))
    assert word_errors(SENTENCE, heard(events)) <= MOST_ERRORS
    *segments, transcript, usage = events
    assert all(isinstance(event, Segment) for event in segments)
    assert isinstance(transcript, Transcript)
    assert transcript.language == "english"
    assert transcript.duration == pytest.approx(5.14, abs=0.05)
    assert isinstance(usage, Usage)
    assert usage.prompt_tokens == pytest.approx(5140, abs=50)
    assert usage.completion_tokens > 15


async def test_segments_and_words_carry_what_the_engine_knows(ears: Ears) -> None:
    """Log probability, compression and tokens are real; words cover the text and go forward in time."""
    media = coded(SPOKEN.read_bytes(), "mp3", "libmp3lame", rate=24000)
    events = await ears.hear(TranscribeTask(media=media, words=True, language="en", temperature=0.0))
    [first, *_] = segments = [event for event in events if isinstance(event, Segment)]
    assert first.id == 0
    assert first.seek == 0
    assert -1 < first.avg_logprob < 0
    assert 0.5 < first.compression_ratio < 2.4
    assert len(first.tokens) > 10
    words = [word for segment in segments for word in segment.words]
    assert " ".join(word.word for word in words) == heard(events).strip()
    times = [time for word in words for time in (word.start, word.end)]
    assert times == sorted(times)
    assert 0 <= times[0] < 1
    assert 4 < times[-1] < 5.6


async def test_whether_anybody_speaks_is_the_engines_own_figure(ears: Ears) -> None:
    """Of a voice the engine is sure, of a tone it is not: no_speech_prob is between 0 and 1, and differs."""
    voice = (await ears.hear(TranscribeTask(media=SPOKEN.read_bytes())))[0]
    sound = (await ears.hear(TranscribeTask(media=tone(8.0))))[0]
    assert isinstance(voice, Segment)
    assert isinstance(sound, Segment)
    assert 0 < voice.no_speech_prob < 0.1 < sound.no_speech_prob < 1


async def test_the_temperature_told_is_the_one_that_was_used(ears: Ears) -> None:
    """A voice is written down at 0; what the engine is unsure of is tried again hotter, and that is told; a
    temperature that was asked for is the only one.
    """
    for media, asked, told in (
        (SPOKEN.read_bytes(), None, {0.0}),
        (tone(8.0), None, {0.2, 0.4, 0.6, 0.8, 1.0}),
        (tone(8.0), 0.5, {0.5}),
    ):
        events = await ears.hear(TranscribeTask(media=media, temperature=asked))
        seen = {event.temperature for event in events if isinstance(event, Segment)}
        assert seen <= told
        assert seen


async def test_two_minutes_are_written_down_whole_and_on_the_way(ears: Ears) -> None:
    """Segments of a long recording come one after the other while it is worked on, in order, to its end, and
    hardly a sentence is lost.
    """
    times = 16
    call = ears.worker.call(TranscribeTask(media=spoken(3.0, times=times)), "local")
    batches: list[list[Event]] = []
    while (batch := await call.take(PATIENCE)) is not None:
        batches.append(batch)
    events = [event for batch in batches for event in batch]
    *segments, transcript, _ = events
    assert isinstance(transcript, Transcript)
    assert transcript.duration == pytest.approx(times * 8.14, rel=0.01)
    assert len(batches) > 1
    found = [segment for segment in segments if isinstance(segment, Segment)]
    starts = [segment.start for segment in found]
    assert starts == sorted(starts)
    assert [segment.id for segment in found] == list(range(len(segments)))
    assert found[-1].end > transcript.duration - 15
    assert len(re.findall("fox", heard(events))) >= 0.8 * times


async def test_two_at_once_take_turns(ears: Ears) -> None:
    """A model works on one recording at a time; both are answered, and alike."""
    task = TranscribeTask(media=SPOKEN.read_bytes())
    first, second = await asyncio.gather(ears.hear(task), ears.hear(task))
    assert heard(first) == heard(second)
    assert word_errors(SENTENCE, heard(first)) <= MOST_ERRORS


async def test_segments_come_while_the_engine_works_and_cancel_frees_it(ears: Ears) -> None:
    """The first segment of a long recording is there before the rest is heard; a cancel ends the call soon,
    and the next one does not wait for the recording's end.
    """
    call = ears.worker.call(TranscribeTask(media=spoken(3.0, times=100)), "local")
    while not (events := await call.take(PATIENCE)):
        pass
    assert isinstance(events[0], Segment)
    call.cancel()
    await asyncio.wait_for(call.over, CANCEL_S)
    # Thirteen minutes of sound would take longer than this patience.
    again = await ears.hear(TranscribeTask(media=SPOKEN.read_bytes()))
    assert word_errors(SENTENCE, heard(again)) <= MOST_ERRORS
    assert ears.worker.open_calls == 0


@pytest.mark.parametrize("name", BROKEN)
async def test_bad_media_is_the_callers_fault_and_the_worker_lives(ears: Ears, name: str) -> None:
    """What is no recording is BadRequest with the code invalid_audio, in a sentence."""
    with pytest.raises(BadRequest, match=r"'file': the file ") as caught:
        await ears.hear(TranscribeTask(media=BROKEN[name]))
    assert caught.value.code == "invalid_audio"
    assert not ears.worker.ended.done()


async def test_what_is_too_long_is_refused_also_while_another_is_worked_on(ears: Ears) -> None:
    """Eighty minutes of silence in a small file are refused by their packets, before it is its turn."""
    media = coded(wav(bytes(2 * 8000 * 4800), rate=8000), "flac", "flac")
    assert len(media) < 1 << 20
    busy = ears.worker.call(TranscribeTask(media=spoken(3.0, times=50)), "local")
    while not await busy.take(PATIENCE):
        pass
    with pytest.raises(BadRequest, match=r"media\.audio_seconds") as caught:
        await ears.hear(TranscribeTask(media=media))
    assert caught.value.code == "audio_too_long"
    assert not busy.over.done()
    busy.cancel()
    await asyncio.wait_for(busy.over, CANCEL_S)


async def test_a_cancelled_call_in_the_queue_is_over_at_once(ears: Ears) -> None:
    """It never begins; the one that is worked on goes on, and the one behind both gets its turn."""
    first = ears.worker.call(TranscribeTask(media=spoken(3.0, times=3)), "local")
    while not await first.take(PATIENCE):
        pass
    second = ears.worker.call(TranscribeTask(media=spoken(3.0, times=100)), "local")
    second.cancel()
    await asyncio.wait_for(second.over, CANCEL_S)
    assert not first.over.done() or first.over.exception() is None
    await rest(first)
    again = await ears.hear(TranscribeTask(media=SPOKEN.read_bytes()))
    assert word_errors(SENTENCE, heard(again)) <= MOST_ERRORS


@pytest.mark.parametrize(
    ("task", "param"),
    [
        (TranscribeTask(media=b"x", language="klingon"), "language"),
        (TranscribeTask(media=b"x", language="de"), "language"),
        (TranscribeTask(media=b"x", translate=True), "model"),
        (ChatTask(messages=(Message(role="user", content="hi"),)), None),
    ],
    ids=["no language", "another language", "translate", "chat"],
)
async def test_what_the_model_cannot_do_is_refused(ears: Ears, task: Task, param: str | None) -> None:
    """An English-only model neither knows other languages nor translates, and chats with nobody."""
    with pytest.raises(BadRequest) as caught:
        await ears.hear(task)
    assert caught.value.param == param


async def test_the_engines_output_is_the_log_and_says_nothing_of_what_is_said(ears: Ears) -> None:
    """The engine's own lines are in the log; the recording's words and the prompt are not."""
    await ears.hear(TranscribeTask(media=SPOKEN.read_bytes(), prompt="CANARY"))
    await logged(ears.ring, "whisper_model_load")
    log = text_of(ears.ring)
    assert "CANARY" not in log
    assert "lazy" not in log


async def test_a_crash_is_told_and_costs_the_call_only(tiny: Path, short_dir: Path) -> None:
    """When the worker is killed in its work, the call fails with how it died."""
    async with loaded(tiny, short_dir) as ears:
        call = ears.worker.call(TranscribeTask(media=spoken(3.0, times=20)), "local")
        await call.take(0.5)
        os.kill(ears.worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await rest(call)


async def test_unloading_gives_the_memory_back_also_in_the_middle_of_work(
    tiny: Path, short_dir: Path
) -> None:
    """After stop the worker and its memory are gone, whatever the engine was at."""
    async with loaded(tiny, short_dir) as ears:
        ears.worker.call(TranscribeTask(media=spoken(3.0, times=20)), "local")
        pid = ears.worker.pid
        assert host.tree_memory(pid) > 70 << 20
        await asyncio.wait_for(ears.worker.stop(0.0), 2 * CANCEL_S)
        assert host.tree_memory(pid) == 0


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[: 40 << 20], "is cut short after 41943040 bytes; fetch it again"),
        (lambda raw: b"GGUF" + raw[4:1000], "is a GGUF file; whisper.cpp reads its own format"),
        (lambda raw: b"<html>" * 100, "is not a whisper.cpp model"),
        (lambda raw: raw[:4] + b"\xff" * 100, "its header makes no sense"),
    ],
    ids=["truncated", "gguf", "html", "rubbish"],
)
async def test_a_broken_model_is_refused_for_good(
    tiny: Path, short_dir: Path, change: Any, words: str
) -> None:
    """A file that whisper.cpp cannot read is a permanent LoadFailed that says what is wrong with it."""
    broken = short_dir / "ggml-broken.bin"
    broken.write_bytes(change(tiny.read_bytes()))
    with pytest.raises(LoadFailed, match=re.escape(words)) as caught:
        async with loaded(broken, short_dir):
            pass
    assert caught.value.permanent
