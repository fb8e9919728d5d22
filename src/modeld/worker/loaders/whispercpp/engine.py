"""whisper.cpp itself, by way of pywhispercpp's binding. Everything here runs in the engine's thread.

A recording is given to it in stretches of some minutes. The last segment of a stretch may have been cut by
its end, so it is dropped, and the next stretch begins where it began.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modeld.errors import EngineError, LoadFailed
from modeld.protocol.tasks import Segment
from modeld.worker.loaders.whispercpp.languages import UNSPACED
from modeld.worker.loaders.whispercpp.native import Native
from modeld.worker.loaders.whispercpp.segments import Passage, Token, segment
from modeld.worker.media.decode import RATE, Recording

if TYPE_CHECKING:
    from modeld.worker.media.decode import Samples

STRETCH_S = 300
"""Seconds of sound that the engine is given at once: 20 MB of samples, and ten of its own."""

TICK = RATE // 100
"""Samples in a tick."""

CARRIED = 200
"""Characters of what was written last that the next stretch gets as its prompt."""

HOTTER = 0.2
"""How much hotter each further attempt at a window is, when the one before repeated itself or was unsure."""

_ERROR = 4
"""ggml's level of log lines that tell of a failure."""


@dataclass(frozen=True)
class Wish:
    """How to transcribe; `language` is whisper's code, None to find out."""

    language: str | None
    translate: bool
    prompt: str
    temperature: float
    words: bool


@dataclass(frozen=True)
class Outcome:
    """What a recording was: its language (whisper's code), and the tokens written for it."""

    language: str
    tokens: int


class Engine:
    """A loaded model. One transcription at a time."""

    def __init__(self, binding: Any, context: Any, threads: int | None) -> None:
        self._binding = binding
        self._context = context
        self._threads = threads
        self._native = Native(binding, context)
        self._text_ids: int = binding.whisper_token_eot(context)
        self._multilingual = bool(binding.whisper_is_multilingual(context))

    def transcribe(
        self, recording: Recording, wish: Wish, emit: Callable[[Segment], None], stop: threading.Event
    ) -> Outcome | None:
        """Give each segment to `emit` as it is there; return None when `stop` was set on the way.

        Raises BadRequest for a recording that turns out to be broken, EngineError.
        """
        run = _Run(self, wish, emit, stop)
        for sound, last in _Stretches(recording, run, stop):
            run.work(sound, last)
            if stop.is_set():
                break
        return None if stop.is_set() else Outcome(run.language or "en", run.tokens)

    def full(self, sound: Samples, wish: Wish, language: str | None, prompt: str, run: _Run) -> None:
        """Let whisper.cpp work on one stretch."""
        binding = self._binding
        params = binding.whisper_full_default_params(
            binding.whisper_sampling_strategy.WHISPER_SAMPLING_GREEDY
        )
        if self._threads is not None:
            params.n_threads = self._threads
        params.print_progress = params.print_realtime = params.print_timestamps = False
        params.translate = wish.translate
        params.language = language or ("auto" if self._multilingual else "en")
        params.initial_prompt = prompt
        params.temperature = wish.temperature
        # No other temperature than the one that was asked for.
        params.temperature_inc = 0.0 if wish.temperature > 0 else HOTTER
        params.token_timestamps = wish.words
        params.suppress_nst = True  # as OpenAI's own decoder does: no notes, no [BLANK_AUDIO]
        binding.assign_new_segment_callback(params, run.on_segments)
        binding.assign_abort_callback(params, run.stopped)
        binding.assign_encoder_begin_callback(params, run.may_begin)
        code = binding.whisper_full(self._context, params, sound, sound.size)
        run.check()
        if code and not run.stopped():
            raise EngineError(f"whisper.cpp gave up with code {code}")

    def language(self) -> str:
        """Return the code of the language of the last stretch."""
        return str(self._binding.whisper_lang_str(self._binding.whisper_full_lang_id(self._context)))

    def passages(self, count: int) -> list[Passage]:
        """Return the newest segments."""
        binding, context = self._binding, self._context
        total = binding.whisper_full_n_segments(context)
        return [
            Passage(
                start=binding.whisper_full_get_segment_t0(context, at),
                end=binding.whisper_full_get_segment_t1(context, at),
                text=binding.whisper_full_get_segment_text(context, at).decode("utf-8", "replace"),
                tokens=tuple(self._tokens(at)),
                no_speech_prob=self._native.no_speech(at),
            )
            for at in range(total - count, total)
        ]

    def fallbacks(self) -> int:
        """Return how many temperatures have been given up since the model was loaded."""
        return self._native.fallbacks()

    def to_segment(self, passage: Passage, **where: Any) -> Segment:
        """Return the event for a passage."""
        return segment(passage, text_ids=self._text_ids, **where)

    def _tokens(self, at: int) -> Iterator[Token]:
        binding, context = self._binding, self._context
        for number in range(binding.whisper_full_n_tokens(context, at)):
            data = binding.whisper_full_get_token_data(context, at, number)
            raw = binding.whisper_token_to_bytes(context, data.id) if data.id < self._text_ids else b""
            yield Token(data.id, raw, data.plog, data.t0, data.t1)


class _Run:
    """One transcription: where it is, and what the engine's callbacks do. No exception may leave those."""

    def __init__(
        self, engine: Engine, wish: Wish, emit: Callable[[Segment], None], stop: threading.Event
    ) -> None:
        self.language = wish.language
        self.tokens = 0
        self.next = 0
        """Samples of the stretch that are done with."""
        self._engine = engine
        self._wish = wish
        self._emit = emit
        self._stop = stop
        self._prompt = wish.prompt
        self._offset = 0  # samples before the stretch
        self._end = 0  # ticks of the stretch: the engine hears half minutes, and may end behind the sound
        self._count = 0
        self._window = self._heard = 0  # ticks of the recording
        self._cold = 0  # fallbacks before the window
        self._held: list[tuple[Passage, int, float]] = []  # the newest, with its window and temperature
        self._failure: BaseException | None = None

    def work(self, sound: Samples, last: bool) -> None:
        """Work on one stretch; `next` says afterwards where the one after it begins in it."""
        self._held.clear()
        self._end = -(-sound.size // TICK)
        self._window = self._heard = self._offset // TICK
        self._engine.full(sound, self._wish, self.language, self._prompt, self)
        if self._stop.is_set():
            return
        if self.language is None:
            self.language = self._engine.language()
        self.next = sound.size
        for held in self._held:
            if not last and held[0].start * TICK >= sound.size // 2:
                self.next = held[0].start * TICK
            else:
                self._give(*held)
        self._offset += self.next

    def check(self) -> None:
        """Raise what went wrong in a callback."""
        if self._failure is not None:
            raise self._failure

    def stopped(self) -> bool:
        """Answer the engine, which asks between two steps."""
        return self._stop.is_set() or self._failure is not None

    def may_begin(self, *_: Any) -> bool:
        """Answer the engine, which asks before it encodes the next half minute: from where the last ended."""
        try:
            self._window = self._heard
            self._cold = self._engine.fallbacks()
        except BaseException as error:
            self._failure = error
        return not self.stopped()

    def on_segments(self, _context: Any, count: int, _data: Any = None) -> None:
        """Take in the segments of one window."""
        try:
            if self._wish.language is None and self.language is None:
                self.language = self._engine.language()
            temperature = self._wish.temperature
            if not temperature:
                temperature = round((self._engine.fallbacks() - self._cold) * HOTTER, 1)
            for passage in self._engine.passages(count):
                for before in self._held:
                    self._give(*before)
                passage = replace(passage, end=min(passage.end, self._end))
                self._held = [(passage, self._window, temperature)]
                self._heard = self._offset // TICK + passage.end
        except BaseException as error:
            self._failure = error

    def _give(self, passage: Passage, seek: int, temperature: float) -> None:
        self.tokens += len(passage.tokens)
        self._prompt = (self._prompt + passage.text)[-CARRIED:]
        event = self._engine.to_segment(
            passage,
            id=self._count,
            offset=self._offset // TICK,
            seek=seek,
            temperature=temperature,
            words=self._wish.words,
            spaced=self._wish.translate or self.language not in UNSPACED,
        )
        self._count += 1
        self._emit(event)


class _Stretches:
    """The recording in stretches, each with whether it is the last."""

    def __init__(self, recording: Recording, run: _Run, stop: threading.Event) -> None:
        self._recording = recording
        self._run = run
        self._stop = stop

    def __iter__(self) -> Iterator[tuple[Samples, bool]]:
        import numpy as np

        pieces: list[Samples] = []
        size = 0
        for piece in self._recording.samples():
            if self._stop.is_set():
                return
            # One piece more than a stretch is looked at, so that the last is known to be.
            if size >= STRETCH_S * RATE:
                sound = np.concatenate(pieces)
                yield sound, False
                rest = sound[self._run.next :].copy()
                pieces, size = [rest], rest.size
            pieces.append(piece)
            size += piece.size
        yield np.concatenate(pieces), True


def load(path: Path, *, gpu: bool, flash_attn: bool, threads: int | None) -> Engine:
    """Load a model that `modelfile.read` has found sound. Raises LoadFailed."""
    binding = importlib.import_module("_pywhispercpp")
    params = binding.whisper_context_default_params()
    params.use_gpu = gpu
    params.flash_attn = flash_attn
    failures: list[str] = []

    def on_line(level: Any, text: str) -> None:
        sys.stderr.write(text)
        if int(level) == _ERROR and "Core ML" not in text:
            failures.append(text.strip())

    # A context that did not load looks like any other, and its first use ends the process.
    binding.whisper_log_set(on_line)
    try:
        context = binding.whisper_init_from_file_with_params(str(path), params)
    finally:
        binding.whisper_log_set(None)
    if failures:
        raise LoadFailed(f"whisper.cpp failed to load {path}: {'; '.join(failures)}")
    return Engine(binding, context, threads)
