"""Speech on the real sherpa-onnx with the real Kokoro, through a real worker process."""

from __future__ import annotations

import asyncio
import io
import os
import shutil
import signal
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import av
import pytest
import pytest_asyncio

from modeld.clock import SystemClock
from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.channel import OpenCall
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import Audio, AudioFormat, ChatTask, Event, Message, SpeechTask, Task, Usage
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker
from tests.harness.loaded import logged
from tests.harness.models_kokoro import VOICES, kokoro_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)
MAGIC = {"mp3": b"\xff", "opus": b"OggS", "aac": b"\xff", "flac": b"fLaC", "wav": b"RIFF"}
CODEC = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le"}
PCM_BYTES_A_SECOND = 48_000
PATIENCE = 600.0
SHORT = "Good morning."
FIVE = (
    "The sun is going up now. The birds begin to sing. We walk along the river. The water is very cold. "
    "It will be a good day."
)
SKIPPED = "OOV word skipped"
"""What the engine itself writes when it comes to a word that it does not know."""


@dataclass
class Speaker:
    """A worker with Kokoro, and what it said while loading."""

    worker: Worker
    facts: Facts
    stages: list[tuple[str, float | None]]
    ring: LogRing

    def engine_skipped(self) -> list[str]:
        """Return the engine's own lines about words it left out."""
        return [line.text for line in self.ring.lines() if SKIPPED in line.text]


@asynccontextmanager
async def started(path: Path) -> AsyncIterator[Speaker]:
    """Load a speech model in a worker; nothing of it is left afterwards."""
    with tempfile.TemporaryDirectory(prefix="md") as name:
        folder, ring = Path(name), LogRing(SystemClock())
        (folder / "workers").mkdir()
        run = folder / "w1"
        worker = await Worker.start(ring, run, folder / "workers")
        try:
            stages: list[tuple[str, float | None]] = []
            spec = LoadSpec(
                name="m", loader="sherpa_onnx", usecase="tts", path=str(path), runtime_dir=str(run)
            )
            facts = await worker.load(spec, lambda stage, fraction: stages.append((stage, fraction)))
            yield Speaker(worker, facts, stages, ring)
        finally:
            await worker.stop(0.0)
            assert host.group_members(worker.pid) == []


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def speaker() -> AsyncIterator[Speaker]:
    """Give one worker for the tests that leave it whole."""
    async with started(kokoro_model()) as loaded:
        yield loaded


async def events(worker: Worker, task: Task) -> list[Event]:
    """Run a task to its end."""
    call = worker.call(task, "local")
    found: list[Event] = []
    while (batch := await call.take(PATIENCE)) is not None:
        found += batch
    return found


async def rest(call: OpenCall) -> None:
    """Read a call to its end."""
    while await call.take(PATIENCE) is not None:
        pass


async def spoken(worker: Worker, text: str, form: AudioFormat = "pcm", **more: object) -> tuple[bytes, Usage]:
    """Return the joined audio and the usage of a speech; the events must be audio, then one Usage."""
    fields: dict[str, object] = {"voice": "0", **more}
    *pieces, usage = await events(worker, SpeechTask(text=text, format=form, **fields))  # type: ignore[arg-type]
    assert isinstance(usage, Usage)
    assert all(isinstance(piece, Audio) for piece in pieces)
    return b"".join(piece.data for piece in pieces if isinstance(piece, Audio)), usage


def seconds(data: bytes) -> tuple[str, float]:
    """Decode a file; return its codec and length."""
    with av.open(io.BytesIO(data), "r") as container:
        stream = container.streams.audio[0]
        samples = sum(frame.samples for frame in container.decode(stream))
        return stream.codec_context.name, samples / stream.rate


async def test_it_loads_with_progress_and_tells_the_truth_about_itself(speaker: Speaker) -> None:
    """Stages with growing fractions; the voices by the model's names; one text at a time."""
    fractions = [fraction for _, fraction in speaker.stages if fraction is not None]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1
    facts = speaker.facts
    assert (facts.loader, facts.slots, facts.capabilities) == ("sherpa_onnx", 1, ("speech",))
    assert facts.voices == VOICES
    assert facts.bytes_used > 50 << 20
    assert facts.detail["family"] == "kokoro"


@pytest.mark.parametrize("form", FORMATS)
async def test_each_format_is_what_it_says(speaker: Speaker, form: AudioFormat) -> None:
    """The bytes begin as the format does and decode to as much sound as the usage says."""
    data, usage = await spoken(speaker.worker, SHORT, form)
    told = usage.completion_tokens / 1000
    assert usage.prompt_tokens == len(SHORT)
    assert told > 0.4
    if form == "pcm":
        assert len(data) / PCM_BYTES_A_SECOND == pytest.approx(told, abs=0.01)
        return
    assert data.startswith(MAGIC[form])
    codec, length = seconds(data)
    assert codec.startswith(CODEC[form])
    assert length == pytest.approx(told, abs=0.15)  # a lossy codec pads its frames


async def test_the_first_sentence_leaves_before_the_others_are_spoken(speaker: Speaker) -> None:
    """Five sentences come in five pieces, and the first is less than a third of the work."""
    pieces = [
        event.data
        for event in await events(speaker.worker, SpeechTask(text=FIVE, voice="0", format="pcm"))
        if isinstance(event, Audio)
    ]
    assert len(pieces) == 5
    assert 0 < len(pieces[0]) < sum(map(len, pieces)) / 3


async def test_cancel_stops_the_engine_before_the_rest_of_a_text(speaker: Speaker) -> None:
    """After a cancel the call ends at once, the engine speaks but a few sentences, and the next text comes.

    Each sentence has a word that the engine complains about, which shows how far it has come.
    """
    before = len(speaker.engine_skipped())
    text = " ".join(f"We go home with qq{letter}zz today." for letter in "abcdefghijklmnop")
    call = speaker.worker.call(SpeechTask(text=text, voice="0", format="pcm"), "local")
    while not await call.take(PATIENCE):
        pass
    call.cancel()
    await asyncio.wait_for(call.over, 60)
    assert (await spoken(speaker.worker, SHORT))[0]
    assert speaker.worker.open_calls == 0
    assert 1 <= len(speaker.engine_skipped()) - before < 12  # of 16; three where nobody else works


async def test_a_cancelled_text_in_the_queue_is_never_spoken(speaker: Speaker) -> None:
    """It is over at once, the one before it goes on to its end, and the one behind gets its turn."""
    before = len(speaker.engine_skipped())
    first = speaker.worker.call(SpeechTask(text=FIVE, voice="0", format="pcm"), "local")
    while not await first.take(PATIENCE):
        pass
    second = speaker.worker.call(SpeechTask(text="We go qqxzz now.", voice="0", format="pcm"), "local")
    second.cancel()
    await asyncio.wait_for(second.over, 60)
    assert not first.over.done()
    behind = asyncio.ensure_future(spoken(speaker.worker, SHORT))
    await rest(first)
    assert (await behind)[0]
    assert len(speaker.engine_skipped()) == before


async def test_two_at_once_are_both_spoken_whole(speaker: Speaker) -> None:
    """One waits for the other, and each is what it would have been alone."""
    alone, _ = await spoken(speaker.worker, SHORT)
    both = await asyncio.gather(*(spoken(speaker.worker, SHORT) for _ in range(2)))
    assert [len(data) for data, _ in both] == [len(alone)] * 2


async def test_voices_and_speed(speaker: Speaker) -> None:
    """A number, a name and OpenAI's first name are the same voice, another is another; speed is speed."""
    plain, usage = await spoken(speaker.worker, SHORT)
    assert (await spoken(speaker.worker, SHORT, voice=VOICES[0]))[0] == plain
    assert (await spoken(speaker.worker, SHORT, voice="alloy"))[0] == plain
    assert (await spoken(speaker.worker, SHORT, voice=VOICES[4]))[0] != plain
    _, fast = await spoken(speaker.worker, SHORT, speed=2.0)
    assert fast.completion_tokens < usage.completion_tokens * 0.8


@pytest.mark.parametrize(
    ("task", "words", "param"),
    [
        (SpeechTask(text=SHORT, voice="nobody"), "it has: jf_alpha, jf_gongitsune", "voice"),
        (SpeechTask(text=SHORT, voice="jf_alpha+jm_kumo"), "blend of voices", "voice"),
        (SpeechTask(text=SHORT, voice="5"), "0 to 4", "voice"),
        (SpeechTask(text=SHORT, voice="0", speed=9.0), "not between 0.25 and 4", "speed"),
        (SpeechTask(text="日本語", voice="0"), "lexicon has none of '日', '本', '語'", "input"),
        (SpeechTask(text=" ", voice="0"), "nothing in this text", "input"),
        (ChatTask(messages=(Message(role="user", content="hi"),)), "does not do this: chat", None),
    ],
    ids=["voice", "blend", "number", "speed", "unspeakable", "blank", "chat"],
)
async def test_a_bad_task_is_the_callers_fault(
    speaker: Speaker, task: Task, words: str, param: str | None
) -> None:
    """The refusal says what is wrong, where, and what there is; the worker lives."""
    with pytest.raises(BadRequest) as caught:
        await events(speaker.worker, task)
    assert words in caught.value.message
    assert caught.value.param == param
    assert speaker.worker.open_calls == 0


async def test_a_refused_call_harms_nobody_beside_it(speaker: Speaker) -> None:
    """A text that is being spoken goes on to its end."""
    beside = asyncio.ensure_future(spoken(speaker.worker, SHORT))
    with pytest.raises(BadRequest):
        await events(speaker.worker, SpeechTask(text=SHORT, voice="nobody"))
    assert (await beside)[0]


async def test_words_that_are_left_out_are_told(speaker: Speaker) -> None:
    """One line of the log names them all; what can be said is said."""
    data, _ = await spoken(speaker.worker, "Hello blorfle and “snarkwump”.")
    assert data
    await logged(speaker.ring, "not in the lexicon, left out of the speech: 'blorfle', 'snarkwump'")


async def test_numbers_are_said(speaker: Speaker) -> None:
    """The lexicon has no digits; as words the engine leaves nothing of them out."""
    before = speaker.engine_skipped()
    data, _ = await spoken(speaker.worker, "It's $5.50 on the 21st, 10-5.")
    assert data
    assert speaker.engine_skipped() == before


async def test_a_crash_is_told_and_contained() -> None:
    """The engine lives in the worker: killed, it takes the worker and its calls; the memory is free."""
    async with started(kokoro_model()) as loaded:
        worker = loaded.worker
        assert host.tree_memory(worker.pid) > 50 << 20
        call = worker.call(SpeechTask(text=FIVE, voice="0", format="mp3"), "local")
        while not await call.take(PATIENCE):
            pass
        os.kill(worker.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied, match="SIGKILL"):
            await rest(call)
        await worker.stop(0.0)
        assert host.tree_memory(worker.pid) == 0


async def test_a_broken_model_is_refused_for_good(tmp_path: Path) -> None:
    """A truncated file, and one whose inside is damaged, are permanent LoadFailed with the reason."""
    folder = tmp_path / "broken"
    shutil.copytree(kokoro_model(), folder)
    whole = (folder / "model.onnx").read_bytes()
    (folder / "model.onnx").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(LoadFailed, match=r"model\.onnx: it is cut off: it has \d+ bytes") as caught:
        async with started(folder):
            pass
    assert caught.value.permanent
    (folder / "model.onnx").write_bytes(whole[:2000] + b"\x00" * 2000 + whole[4000:])
    with pytest.raises(LoadFailed, match=r"sherpa-onnx cannot load .*model\.onnx: ") as caught:
        async with started(folder):
            pass
    assert caught.value.permanent
