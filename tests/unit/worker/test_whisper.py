"""whispercpp without its engine: segments, words, languages, and long recordings in stretches."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError
from modeld.protocol.tasks import Segment, TranscribeTask, Word
from modeld.worker.loaders.whispercpp import engine as engines
from modeld.worker.loaders.whispercpp import languages
from modeld.worker.loaders.whispercpp.engine import Engine, Wish
from modeld.worker.loaders.whispercpp.model import wish_of
from modeld.worker.loaders.whispercpp.modelfile import ModelFile
from modeld.worker.loaders.whispercpp.segments import Passage, Token, compression_ratio, segment
from modeld.worker.media.decode import RATE, Recording

EOT = 100
WISH = Wish(language=None, translate=False, prompt="", temperature=0.0, words=False)


def tokens(*pieces: tuple[bytes, int, int]) -> tuple[Token, ...]:
    """Return text tokens of these bytes and times, between two tokens that are no text."""
    spoken = [Token(at, raw, -0.5, start, end) for at, (raw, start, end) in enumerate(pieces)]
    return (Token(EOT + 1, b"", -0.1, 0, 0), *spoken, Token(EOT + 9, b"", -0.1, 0, 0))


def told(passage: Passage, **more: Any) -> Segment:
    """Return the event for a passage."""
    options = {"id": 0, "offset": 0, "seek": 0, "temperature": 0.0, "words": True, "spaced": True, **more}
    return segment(passage, text_ids=EOT, **options)


# --- segments and words -------------------------------------------------------------------------------------


def test_tokens_are_joined_to_words_with_their_times() -> None:
    """A space begins a word; what belongs to it, punctuation too, stays with it."""
    parts = tokens((b" Hel", 0, 20), (b"lo", 20, 50), (b",", 50, 52), (b" world", 60, 90))
    found = told(Passage(0, 100, " Hello, world", parts), offset=1000)
    assert found.words == (Word("Hello,", 10.0, 10.52), Word("world", 10.6, 10.9))
    assert (found.start, found.end) == (10.0, 11.0)
    assert found.avg_logprob == -0.5
    assert len(found.tokens) == 6


def test_characters_cut_between_tokens_are_put_together() -> None:
    """Without spaces each character is a word, and one of several tokens is not cut."""
    raw = "日本".encode()
    parts = tokens((raw[:2], 0, 10), (raw[2:3], 10, 20), (raw[3:], 20, 40))
    found = told(Passage(0, 40, "日本", parts), spaced=False)
    assert found.words == (Word("日", 0.0, 0.2), Word("本", 0.2, 0.4))


def test_a_segment_without_text_has_figures_all_the_same() -> None:
    """Nothing said: no words, no logarithm of nothing."""
    found = told(Passage(5, 3, "", tokens()))
    assert (found.words, found.avg_logprob, found.compression_ratio) == ((), 0.0, 0.0)
    assert found.start == found.end == 0.05


@given(st.text(min_size=1))
def test_what_repeats_itself_compresses(text: str) -> None:
    """The ratio is positive, and higher for a text said a hundred times."""
    assert 0 < compression_ratio(text) < compression_ratio(text * 100)


# --- languages and wishes -----------------------------------------------------------------------------------


def test_languages_by_code_region_and_name() -> None:
    """All hundred languages are known by code and by name, some with a region; others are not guessed."""
    assert len(languages.NAMES) == 100
    assert all(languages.code(code) == code for code in languages.NAMES)
    assert all(languages.code(name.title()) == code for code, name in languages.NAMES.items())
    assert (languages.code("de-AT"), languages.code("zh_TW"), languages.code("PT")) == ("de", "zh", "pt")
    assert languages.code("klingon") is None
    assert languages.code("") is None


def _model(words: int) -> ModelFile:
    return ModelFile(vocabulary=words, audio_layers=4, text_layers=4, text_context=448, size=1)


def test_a_multilingual_model_finds_out_or_is_told() -> None:
    """Without a language it is left to the engine; with one, or to translate, the engine is told."""
    many = _model(51865)
    assert many.multilingual
    assert many.kind == "tiny"
    assert wish_of(TranscribeTask(media=b""), many).language is None
    wish = wish_of(TranscribeTask(media=b"", language="German", translate=True, temperature=0.3), many)
    assert (wish.language, wish.translate, wish.temperature) == ("de", True, 0.3)


def test_an_english_model_refuses_what_it_cannot_do() -> None:
    """Another language and a translation are the caller's mistakes, which name the model."""
    english = _model(51864)
    assert english.kind == "tiny.en"
    assert wish_of(TranscribeTask(media=b"", language="en-GB"), english).language == "en"
    for task in (TranscribeTask(media=b"", language="fr"), TranscribeTask(media=b"", translate=True)):
        with pytest.raises(BadRequest, match=r"tiny\.en"):
            wish_of(task, english)


# --- stretches ----------------------------------------------------------------------------------------------


class ScriptedEngine(Engine):
    """Hears one segment in each `every` seconds; a segment that the sound's end cuts is heard cut."""

    def __init__(self, every: float) -> None:
        self.every = round(every * RATE)
        self.sizes: list[int] = []
        self.prompts: list[str] = []
        self.languages: list[str | None] = []
        self._text_ids = EOT
        self._now: list[Passage] = []

    def full(self, sound: Any, wish: Wish, language: str | None, prompt: str, run: Any) -> None:
        """Report the segments that begin in the sound; each sample says which second of the whole it is."""
        self.sizes.append(sound.size)
        self.prompts.append(prompt)
        self.languages.append(language)
        at = 0
        while at < sound.size and not run.stopped():
            end = min(at + self.every - int(sound[at]) % self.every, sound.size)
            self._now = [Passage(at // 160, end // 160, f" {int(sound[at]) // self.every}", ())]
            run.on_segments(None, 1)
            at = end
        run.check()

    def fallbacks(self) -> int:
        """Count none."""
        return 0

    def language(self) -> str:
        """Hear German."""
        return "de"

    def passages(self, count: int) -> list[Passage]:
        """Return what was heard last."""
        return self._now[-count:]


class Counted:
    """A recording whose every sample is its own number."""

    def __init__(self, seconds: float) -> None:
        self.size = round(seconds * RATE)

    def samples(self) -> Iterator[Any]:
        """Give it in pieces of half a second."""
        for start in range(0, self.size, RATE // 2):
            yield np.arange(start, min(start + RATE // 2, self.size), dtype=np.float64)


def heard(
    engine: ScriptedEngine, seconds: float, stop: threading.Event | None = None, **more: Any
) -> tuple[list[Segment], Any]:
    """Transcribe and return the segments and the outcome."""
    found: list[Segment] = []
    wish = Wish(**{**{name: getattr(WISH, name) for name in Wish.__dataclass_fields__}, **more})
    recording = cast("Recording", Counted(seconds))
    outcome = engine.transcribe(recording, wish, found.append, stop or threading.Event())
    return found, outcome


@pytest.mark.parametrize("seconds", [0.2, 6.9, 10.0, 10.5, 20.0, 33.3, 61.0])
def test_stretches_join_without_gap_or_repeat(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """However the recording is cut, each segment comes once, in order, with its place in the whole."""
    monkeypatch.setattr(engines, "STRETCH_S", 10)
    engine = ScriptedEngine(every=3)
    found, outcome = heard(engine, seconds)
    count = int(np.ceil(round(seconds * RATE) / (3 * RATE)))
    assert [segment.text for segment in found] == [f" {number}" for number in range(count)]
    assert [segment.id for segment in found] == list(range(count))
    assert [segment.start for segment in found] == [3.0 * number for number in range(count)]
    assert found[-1].end == pytest.approx(seconds, abs=0.011)
    assert max(engine.sizes) <= 11 * RATE  # a stretch and a piece
    assert outcome.language == "de"


def test_a_segment_that_never_ends_does_not_stop_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """A single segment over the whole stretch is taken as it is, cut."""
    monkeypatch.setattr(engines, "STRETCH_S", 10)
    found, _ = heard(ScriptedEngine(every=1000), 25)
    assert [(segment.start, segment.end) for segment in found] == [(0.0, 10.0), (10.0, 20.0), (20.0, 25.0)]


def test_later_stretches_know_the_language_and_what_was_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The language is found out once; the prompt begins as the caller's and goes on with the text."""
    monkeypatch.setattr(engines, "STRETCH_S", 10)
    engine = ScriptedEngine(every=3)
    heard(engine, 20, prompt="Names:")
    assert engine.languages[0] is None
    assert set(engine.languages[1:]) == {"de"}
    assert engine.prompts[0] == "Names:"
    assert engine.prompts[1] == "Names: 0 1 2"


def test_seek_is_where_the_engines_window_began() -> None:
    """All segments of one window have its beginning, in hundredths of a second, as their seek."""

    class Windows(ScriptedEngine):
        def full(self, sound: Any, wish: Wish, language: str | None, prompt: str, run: Any) -> None:
            for window in ((0, 900), (900, 1500)), ((1500, 2000),):
                assert run.may_begin()
                for start, end in window:
                    self._now = [Passage(start, end, " x", ())]
                    run.on_segments(None, 1)

    found, _ = heard(Windows(every=1), 20)
    assert [(segment.start, segment.seek) for segment in found] == [(0.0, 0), (9.0, 0), (15.0, 1500)]


def test_no_segment_ends_behind_the_sound() -> None:
    """The engine hears whole half minutes, and may put an end into the silence that it added."""

    class Late(ScriptedEngine):
        def full(self, sound: Any, wish: Wish, language: str | None, prompt: str, run: Any) -> None:
            self._now = [Passage(0, 3000, " x", ())]
            run.on_segments(None, 1)

    found, _ = heard(Late(every=1), 6.5)
    assert [(segment.start, segment.end) for segment in found] == [(0.0, 6.5)]


def test_a_stop_ends_it_without_an_outcome(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a stop no stretch is begun."""
    monkeypatch.setattr(engines, "STRETCH_S", 10)
    stop = threading.Event()
    stop.set()
    engine = ScriptedEngine(every=3)
    assert heard(engine, 60, stop) == ([], None)
    assert engine.sizes == []


def test_what_goes_wrong_in_a_callback_is_raised_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception must not pass through the engine; it comes out when the engine has returned."""
    engine = ScriptedEngine(every=3)

    def broken(count: int) -> list[Passage]:
        raise EngineError("broken")

    monkeypatch.setattr(engine, "passages", broken)
    with pytest.raises(EngineError, match="broken"):
        heard(engine, 5)
