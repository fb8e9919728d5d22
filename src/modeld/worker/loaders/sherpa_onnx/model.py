"""A speech model that serves: one text at a time, sentence by sentence, in a thread of its own."""

from __future__ import annotations

import asyncio
import importlib
import importlib.metadata
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from modeld.errors import BadRequest, EngineError, LoadFailed
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import Audio, SpeechTask, Task, Usage, unsupported
from modeld.worker.loader import Emit, LoadedModel, Report
from modeld.worker.loaders.sherpa_onnx import piper
from modeld.worker.loaders.sherpa_onnx.folder import Found, look
from modeld.worker.loaders.sherpa_onnx.lexicon import Lexicon
from modeld.worker.loaders.sherpa_onnx.numbers import english
from modeld.worker.loaders.sherpa_onnx.text import plain, sentences
from modeld.worker.loaders.sherpa_onnx.voices import names, number
from modeld.worker.media.encode import Encoder, encoder

LOADER = "sherpa_onnx"

SPEEDS = (0.25, 4.0)

MOST_THREADS = 4
"""More gain nothing on models of this size."""

ENGLISH = ("hundred", "percent", "seven")
"""A lexicon with these words is an English one, and has the words of numbers."""

_MOST_TOLD, _LONGEST_TOLD = 20, 40


class SherpaModel:
    """Speaks. `run` may be called again at any time; texts are spoken in the order they came."""

    def __init__(self, engine: Any, facts: Facts, lexicon: Lexicon | None) -> None:
        self.facts = facts
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._engine = engine
        self._rate = int(engine.sample_rate)
        self._lexicon = lexicon
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="speech")
        self._turn = asyncio.Lock()
        self._closed = threading.Event()

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Speak a text. Cancelled, the engine goes on to the end of the sentence it is at, and no further.
        A task's `instructions` are not followed: no model of these families takes any.

        Raises BadRequest for an unknown voice, a speed out of range, and a text of which nothing can be said.
        """
        if not isinstance(task, SpeechTask):
            raise unsupported(LOADER, task)
        voice = number(self.facts.voices, task.voice)
        if not SPEEDS[0] <= task.speed <= SPEEDS[1]:
            raise BadRequest(
                f"the speed {task.speed:g} is not between {SPEEDS[0]:g} and {SPEEDS[1]:g}",
                code="invalid_value",
                param="speed",
            )
        text = self._readable(task.text)
        unknown = self._unknown(text)
        coder = encoder(task.format, self._rate)
        async with self._turn:
            spoken = await self._speak(sentences(text), voice, task.speed, coder, emit)
        if not spoken:
            why = f": the model's lexicon has none of {_listing(unknown)}" if unknown else ""
            raise BadRequest(
                f"nothing in this text can be spoken{why}", code="unspeakable_input", param="input"
            )
        await emit(Usage(len(task.text), round(spoken * 1000 / self._rate)))

    async def _speak(self, steps: list[str], voice: int, speed: float, coder: Encoder, emit: Emit) -> int:
        """Speak step by step; return how many samples came."""
        loop, stop, spoken = asyncio.get_running_loop(), threading.Event(), 0
        try:
            for at, step in enumerate(steps):
                last = at == len(steps) - 1
                count, data = await loop.run_in_executor(
                    self._thread, self._step, step, voice, speed, coder, last, stop
                )
                spoken += count
                if data:
                    await emit(Audio(data))
            if spoken and (rest := await loop.run_in_executor(self._thread, coder.finish)):
                await emit(Audio(rest))
        finally:
            stop.set()
        return spoken

    def _step(
        self, text: str, voice: int, speed: float, coder: Encoder, last: bool, stop: threading.Event
    ) -> tuple[int, bytes]:
        """Speak one step in the engine's thread and code it."""
        pieces: list[NDArray[np.float32]] = []

        def came(samples: Any, progress: float) -> int:
            # A copy: the array lies over the engine's own memory. 0 ends the engine's work.
            pieces.append(np.array(samples, dtype=np.float32))
            return 0 if stop.is_set() or self._closed.is_set() else 1

        if stop.is_set() or self._closed.is_set():
            return 0, b""
        try:
            self._engine.generate(text, sid=voice, speed=speed, callback=came)
        except RuntimeError as error:
            raise EngineError(f"sherpa-onnx failed: {error}") from error
        samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        return len(samples), coder.add(samples, last=last) if pieces else b""

    def _readable(self, text: str) -> str:
        """Return a text as the lexicon can say it: in plain signs, and in English all of it in words."""
        text = plain(text)
        if self._lexicon is None or not all(word in self._lexicon for word in ENGLISH):
            return text
        return self._lexicon.nearest(english(text))

    def _unknown(self, text: str) -> list[str]:
        """Return the words that will be left out, after writing them to the worker's log."""
        unknown = [] if self._lexicon is None else self._lexicon.unknown(text)
        if unknown:
            print(f"not in the lexicon, left out of the speech: {_listing(unknown)}", flush=True)
        return unknown

    async def close(self) -> None:
        """Let the engine go; what it is at ends with its sentence, or with the process."""
        self._closed.set()
        self._thread.shutdown(wait=False, cancel_futures=True)


async def start(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load the model in `spec.path`. Raises LoadFailed."""
    report("looking at the files", 0.0)
    version = _version()
    has_espeak, scratch = version.startswith(("0.", "1.")), Path(spec.runtime_dir)
    found = await asyncio.to_thread(look, Path(spec.path), has_espeak=has_espeak)
    lexicon = await asyncio.to_thread(_lexicon, found)
    report(f"loading {found.model.name}", 0.2)
    found = await asyncio.to_thread(piper.completed, found, scratch, has_espeak=has_espeak)
    try:
        engine = await asyncio.to_thread(_engine, found, _threads())
    finally:
        await asyncio.to_thread(piper.discarded, scratch)
    report("loaded", 1.0)
    speakers = max(1, int(engine.num_speakers))
    detail = {
        "engine": f"sherpa-onnx {version}",
        "family": found.family,
        "sample rate": f"{engine.sample_rate} Hz",
        "lexicon": _pronunciation(found, lexicon),
    }
    facts = Facts(
        loader=LOADER,
        device="cpu",
        slots=1,
        bytes_used=_resident_bytes(),
        capabilities=("speech",),
        voices=names(found.metadata, speakers),
        detail=detail,
    )
    return SherpaModel(engine, facts, lexicon)


def _pronunciation(found: Found, lexicon: Lexicon | None) -> str:
    if lexicon is not None:
        return f"{len(lexicon)} words"
    return "none: it pronounces by espeak-ng" if found.data_dir is not None else "none: it reads letters"


def _lexicon(found: Found) -> Lexicon | None:
    try:
        return Lexicon(found.lexicons) if found.lexicons else None
    except (OSError, ValueError) as error:
        raise LoadFailed(
            f"{found.model.parent}: its lexicon cannot be read: {error}", permanent=True
        ) from None


def _engine(found: Found, threads: int) -> Any:
    try:
        sherpa: Any = importlib.import_module("sherpa_onnx")
    except ImportError as error:
        raise LoadFailed(
            f"sherpa-onnx cannot be imported ({error}); modeld engines install sherpa_onnx", permanent=True
        ) from None
    config = sherpa.OfflineTtsConfig(
        model=sherpa.OfflineTtsModelConfig(num_threads=threads, **{found.family: _family(sherpa, found)}),
        rule_fsts=",".join(str(file) for file in found.rules),
        max_num_sentences=1,  # of the engine's own batches: it looks whether to stop after each
    )
    try:
        if not config.validate():
            raise LoadFailed(
                f"sherpa-onnx does not accept {found.model.parent}; the worker's log says why", permanent=True
            )
        return sherpa.OfflineTts(config)
    except RuntimeError as error:
        raise LoadFailed(f"sherpa-onnx cannot load {found.model}: {error}", permanent=True) from None


def _family(sherpa: Any, found: Found) -> Any:
    lexicon = ",".join(str(file) for file in found.lexicons)
    model = "acoustic_model" if found.family == "matcha" else "model"
    paths: dict[str, Any] = {
        model: found.model,
        "tokens": found.tokens,
        "lexicon": lexicon,
        "voices": found.voices,
        "vocoder": found.vocoder,
        "data_dir": found.data_dir,
        "dict_dir": found.dict_dir if found.family != "kitten" else None,
    }
    if found.family == "kokoro" and not found.lexicons:
        # An engine with espeak ends the process when a model of several languages is not told which.
        paths["lang"] = found.metadata.get("voice")
    make = getattr(sherpa, f"OfflineTts{found.family.capitalize()}ModelConfig")
    return make(**{key: str(value) for key, value in paths.items() if value})


def _version() -> str:
    for name in ("sherpa-onnx", "sherpa_onnx"):
        try:
            return importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return "(of unknown version)"


def _threads() -> int:
    """Return how many threads the engine gets: half of the cores, since others run too."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(MOST_THREADS, cores // 2))


def _resident_bytes() -> int:
    """Return this process's resident memory, 0 where the system does not tell cheaply."""
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def _listing(words: list[str]) -> str:
    more = f" and {len(words) - _MOST_TOLD} more" if len(words) > _MOST_TOLD else ""
    return ", ".join(repr(word[:_LONGEST_TOLD]) for word in words[:_MOST_TOLD]) + more
