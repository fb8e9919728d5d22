"""A whisper.cpp model that serves: load, check what is asked, hand it to the engine's thread, cancel."""

from __future__ import annotations

import asyncio
import importlib.metadata
import importlib.util
import os
import resource
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from modeld.errors import BadRequest, EngineError, LoadFailed
from modeld.protocol.messages import Facts, LoadSpec, MediaLimits
from modeld.protocol.tasks import Segment, Task, TranscribeTask, Transcript, Usage, unsupported
from modeld.worker.loader import Emit, Report
from modeld.worker.loaders.whispercpp import languages, modelfile
from modeld.worker.loaders.whispercpp.engine import Engine, Outcome, Wish, load
from modeld.worker.loaders.whispercpp.modelfile import ModelFile
from modeld.worker.media.decode import Recording

LOADER = "whispercpp"

STEP_S = 5.0
"""Seconds that a cancelled call waits for the engine's step to end. A slow machine may take longer over half
a minute of sound; the call is over then, and only the next one waits on.
"""


class WhisperModel:
    """One loaded model; see `worker.loader.LoadedModel`."""

    def __init__(
        self,
        engine: Engine,
        thread: ThreadPoolExecutor,
        file: ModelFile,
        facts: Facts,
        limits: MediaLimits,
    ) -> None:
        self.facts = facts
        self._limits = limits
        # The engine lives in this process: its death is the worker's.
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._thread = thread
        self._file = file
        self._stops: set[threading.Event] = set()

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Transcribe: Segments as they are there, then Transcript and Usage."""
        if not isinstance(task, TranscribeTask):
            raise unsupported(LOADER, task)
        wish = wish_of(task, self._file)
        recording = await asyncio.to_thread(Recording, task.media, self._limits.audio_seconds)
        outcome = await self._work(recording, wish, emit)
        await emit(Transcript(languages.NAMES.get(outcome.language, outcome.language), recording.duration))
        await emit(Usage(round(recording.duration * 1000), outcome.tokens))

    async def close(self) -> None:
        """Stop what runs. The memory goes with the process."""
        for stop in self._stops:
            stop.set()
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def _work(self, recording: Recording, wish: Wish, emit: Emit) -> Outcome:
        loop = asyncio.get_running_loop()
        ready: asyncio.Queue[Segment | None] = asyncio.Queue()
        stop = threading.Event()
        self._stops.add(stop)

        def give(segment: Segment) -> None:
            loop.call_soon_threadsafe(ready.put_nowait, segment)

        def over(done: asyncio.Future[Outcome | None]) -> None:
            if not done.cancelled():
                done.exception()  # seen, also when the call has been cancelled and nobody looks
            ready.put_nowait(None)

        # One thread: calls take turns, and one that follows a cancelled call waits for its last step.
        working = loop.run_in_executor(self._thread, self._engine.transcribe, recording, wish, give, stop)
        working.add_done_callback(over)
        try:
            while (segment := await ready.get()) is not None:
                await emit(segment)
            outcome = working.result()
        finally:
            stop.set()
            self._stops.discard(stop)
            if not working.done():
                await asyncio.wait({working}, timeout=STEP_S)
        if outcome is None:
            raise EngineError("the engine's work on this recording was stopped")
        return outcome


def wish_of(task: TranscribeTask, model: ModelFile) -> Wish:
    """Return what the engine is asked. Raises BadRequest for what the model cannot do."""
    code = None
    if task.language is not None:
        code = languages.code(task.language)
        if code is None:
            raise BadRequest(
                f"invalid value for 'language': {task.language[:40]!r} is no language that whisper knows; "
                "give a code such as en, de or fr, or leave it out",
                code="invalid_value",
                param="language",
            )
    if not model.multilingual:
        if task.translate:
            raise BadRequest(
                f"this model ({model.kind}) knows English only and cannot translate; "
                "use a multilingual whisper model",
                code="unsupported_task",
                param="model",
            )
        if code not in (None, "en"):
            raise BadRequest(
                f"invalid value for 'language': this model ({model.kind}) knows English only, not {code!r}; "
                "use a multilingual whisper model",
                code="invalid_value",
                param="language",
            )
        code = "en"
    return Wish(
        language=code,
        translate=task.translate,
        prompt=task.prompt or "",
        temperature=task.temperature or 0.0,
        words=task.words,
    )


async def start(spec: LoadSpec, report: Report) -> WhisperModel:
    """Check the model's file, load it in the engine's thread, and say what it can do."""
    for module in ("_pywhispercpp", "av", "numpy"):
        if importlib.util.find_spec(module) is None:
            raise LoadFailed(
                f"the package {module.lstrip('_')} is not installed; modeld engines install whispercpp",
                permanent=True,
            )
    loop = asyncio.get_running_loop()
    path, options = Path(spec.path), spec.options
    told = 0.0

    def progress(fraction: float) -> None:
        nonlocal told
        if fraction - told >= 0.05 or fraction == 1:
            told = fraction
            loop.call_soon_threadsafe(report, "reading the model", fraction)

    report("reading the model", 0.0)
    thread = ThreadPoolExecutor(1, thread_name_prefix="whisper")
    try:
        file = await loop.run_in_executor(thread, modelfile.read, path, progress)
        report("loading the model", None)
        engine = await loop.run_in_executor(
            thread,
            lambda: load(
                path,
                gpu=spec.gpus > 0,
                flash_attn=bool(options.get("flash_attn")),
                threads=options.get("n_threads"),
            ),
        )
    except BaseException:
        thread.shutdown(wait=False, cancel_futures=True)
        raise
    return WhisperModel(engine, thread, file, _facts(file, spec), spec.limits)


def _facts(file: ModelFile, spec: LoadSpec) -> Facts:
    return Facts(
        loader=LOADER,
        device="chosen by the engine" if spec.gpus else "cpu",
        slots=1,
        bytes_used=_resident(),
        capabilities=("transcription", "translation") if file.multilingual else ("transcription",),
        detail={
            "engine": f"pywhispercpp {importlib.metadata.version('pywhispercpp')}",
            "model": f"whisper {file.kind}",
            "languages": "99 and more" if file.multilingual else "english",
        },
    )


def _resident() -> int:
    """Return this process's resident memory in bytes."""
    try:
        return int(Path("/proc/self/statm").read_text("ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS: its peak, in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
