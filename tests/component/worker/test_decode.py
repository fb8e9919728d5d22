"""Decoding recordings, with the real decoder."""

from __future__ import annotations

import functools
import io
import tracemalloc
from collections.abc import Iterator

import av
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.worker.media.decode import RATE, Recording
from tests.harness.decoding import MOST_SECONDS, Decoder
from tests.harness.recordings import (
    BROKEN,
    announcing,
    claiming,
    coded,
    film,
    playlists,
    tone,
    torn_page,
    wav,
)

CODINGS = [
    ("mp3", "libmp3lame"),
    ("ogg", "libopus"),
    ("webm", "libopus"),
    ("mp4", "aac"),
    ("ipod", "aac"),
    ("flac", "flac"),
    ("adts", "aac"),
    ("aiff", "pcm_s16be"),
    ("wav", "pcm_f32le"),
]


def heard(media: bytes) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    """Return all samples."""
    return np.concatenate(list(Recording(media).samples()))


def loudest(samples: np.ndarray[tuple[int], np.dtype[np.float32]]) -> float:
    """Return the frequency with the most energy, in hertz."""
    spectrum = np.abs(np.fft.rfft(samples))
    return float(np.argmax(spectrum) * RATE / len(samples))


@pytest.mark.parametrize(("container", "codec"), CODINGS, ids=lambda word: word)
def test_every_usual_container_is_read_by_its_content(container: str, codec: str) -> None:
    """A tone of two seconds comes out as that tone, mono, at 16 kHz, whatever it was packed in."""
    media = coded(tone(2.0, rate=48000), container, codec)
    recording = Recording(media)
    samples = heard(media)
    assert recording.duration == pytest.approx(2.0, abs=0.15)
    assert len(samples) / RATE == pytest.approx(2.0, abs=0.15)
    assert samples.dtype == np.float32
    assert loudest(samples) == pytest.approx(440, abs=2)
    assert 0.2 < float(np.abs(samples[RATE // 2 : RATE]).max()) < 0.5


@pytest.mark.parametrize("rate", [8000, 11025, 22050, 44100, 96000])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_rate_and_channel_count(rate: int, channels: int) -> None:
    """Rates are converted and channels mixed."""
    samples = heard(tone(1.0, rate=rate, channels=channels))
    assert len(samples) == pytest.approx(RATE, abs=RATE * 0.01)
    assert loudest(samples) == pytest.approx(440, abs=2)


@pytest.mark.parametrize("size", [0, 0xFFFFFFFF, 0x7FFFFFFF])
def test_a_wav_written_to_a_pipe_does_not_know_its_length(size: int) -> None:
    """The stand-ins that programs write for an unknown length are no promise."""
    assert len(heard(announcing(tone(1.0), size))) == RATE


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_no_recording_is_refused_in_a_sentence(name: str) -> None:
    """Nothing that is not a whole recording is decoded: 400 with a code, the field and words for people."""
    with pytest.raises(BadRequest, match=r"^invalid value for 'file': the file ") as caught:
        heard(BROKEN[name])
    assert caught.value.code == "invalid_audio"
    assert caught.value.param == "file"


@pytest.mark.parametrize(("container", "codec"), [("mp4", "aac"), ("flac", "flac"), ("wav", "pcm_s16le")])
def test_a_truncated_file_is_refused(container: str, codec: str) -> None:
    """Where a header tells the length, half of it is not taken for the whole."""
    media = coded(tone(4.0, rate=44100), container, codec)
    with pytest.raises(BadRequest) as caught:
        heard(media[: len(media) // 2])
    assert caught.value.code == "invalid_audio"


def test_a_film_holds_no_sound() -> None:
    """A video without sound is said to be one."""
    with pytest.raises(BadRequest, match="the file holds no sound: its container is Matroska"):
        heard(film())


@pytest.mark.parametrize("size", [-2, -(2**31), 2**32 - 1])
@pytest.mark.parametrize("field", ["riff", "data"])
def test_sizes_that_cannot_be_are_no_promise(field: str, size: int) -> None:
    """A negative or huge size says "to the end", as at programs that write to a pipe."""
    assert len(heard(claiming(tone(1.0), **{field: size}))) == RATE


def test_a_torn_page_costs_what_was_on_it() -> None:
    """An Ogg file goes on behind a page that cannot be read."""
    media = torn_page(coded(tone(4.0, rate=48000), "ogg", "libopus"))
    assert 2 * RATE < len(heard(media)) < 3.5 * RATE


@pytest.mark.parametrize("name", playlists("http://127.0.0.1:9/a.ts", "/etc/hostname"))
def test_a_playlist_leads_nowhere(name: str) -> None:
    """Lists of files and addresses are refused like any other text."""
    with pytest.raises(BadRequest) as caught:
        heard(playlists("http://127.0.0.1:9/a.ts", "/etc/hostname")[name])
    assert caught.value.code == "invalid_audio"


def test_a_damaged_part_costs_what_was_in_it() -> None:
    """Rubbish in the middle of an mp3 leaves the rest to be heard."""
    media = bytearray(coded(tone(6.0), "mp3", "libmp3lame"))
    middle = len(media) // 2
    media[middle : middle + 400] = b"\xa5" * 400
    assert 4 * RATE < len(heard(bytes(media))) <= 6.2 * RATE


LIMIT = 3.0


@pytest.mark.parametrize(("container", "codec"), CODINGS, ids=lambda word: word)
def test_what_is_too_long_is_refused_before_it_is_decoded(container: str, codec: str) -> None:
    """Its packets are added up, in any container; the message names the limit, and what fits is taken."""
    media = coded(tone(LIMIT + 1, rate=48000), container, codec)
    with pytest.raises(BadRequest, match=r"too long: .* the limit is 3 s \(media\.audio_seconds") as caught:
        Recording(media, LIMIT)
    assert (caught.value.code, caught.value.param) == ("audio_too_long", "file")
    assert Recording(media, LIMIT + 1.2).duration == pytest.approx(LIMIT + 1, abs=0.15)


def test_a_length_that_only_decoding_shows_is_refused_there() -> None:
    """Packets may hold more than they say: what is decoded is counted too."""
    recording = Recording(tone(2.0))
    recording._most = 1.0  # as if its packets had promised less
    with pytest.raises(BadRequest) as caught:
        list(recording.samples())
    assert caught.value.code == "audio_too_long"


def test_a_header_makes_no_recording_too_long() -> None:
    """An hour in the header over two seconds of sound is a file that is cut short; a stand-in is nothing."""
    with pytest.raises(BadRequest, match="cut short"):
        Recording(announcing(tone(2.0), 3600 * 32_000), LIMIT)
    assert Recording(announcing(tone(2.0), 0xFFFFFFFF), LIMIT).duration == pytest.approx(2.0, abs=0.1)


def test_gaps_in_the_timestamps_are_not_sound() -> None:
    """A second that is said to be an hour in costs a second, and no hour's limit."""
    out = io.BytesIO()
    with av.open(io.BytesIO(tone(2.0)), "r") as source, av.open(out, "w", format="matroska") as target:
        stream = target.add_stream("pcm_s16le", rate=16000)
        assert isinstance(stream, av.AudioStream)
        stream.layout = "mono"
        for number, frame in enumerate(source.decode(audio=0)):
            frame.pts = number * 1024 + (3600 * 16000 if number > 10 else 0)
            target.mux(stream.encode(frame))
        target.mux(stream.encode(None))
    recording = Recording(out.getvalue(), LIMIT)
    assert sum(len(piece) for piece in recording.samples()) == pytest.approx(2 * RATE, rel=0.05)


MUTATED = [*CODINGS, ("caf", "pcm_s16le"), ("avi", "pcm_s16le"), ("mpegts", "aac"), ("flv", "libmp3lame")]


@pytest.fixture(scope="module")
def decoder() -> Iterator[Decoder]:
    """Give a process that decodes, so that its death is a failed test and not the end of all."""
    with Decoder() as started:
        yield started


@pytest.mark.parametrize(("container", "codec"), MUTATED, ids=lambda word: word)
@given(data=st.data())
@settings(max_examples=25)
def test_no_damage_brings_anything_but_a_refusal(
    decoder: Decoder, container: str, codec: str, data: st.DataObject
) -> None:
    """Whatever bytes are flipped, cut out, put in or doubled, it is decoded, within the limit of seconds, or
    refused with a code; the process lives.
    """
    media = bytearray(_small(container, codec))
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, max(len(media) - 1, 0)))
        match data.draw(st.sampled_from(("change", "flip", "cut", "double", "end"))):
            case "change":
                media[at : at + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
            case "flip":
                media[at : at + 1] = bytes(
                    byte ^ data.draw(st.integers(1, 255)) for byte in media[at : at + 1]
                )
            case "cut":
                del media[at : at + data.draw(st.integers(1, 2000))]
            case "double":
                media[at:at] = media[at : at + data.draw(st.integers(1, 2000))]
            case "end":
                del media[data.draw(st.integers(0, len(media))) :]
    answer = decoder.decode(bytes(media))
    assert answer.get("code") in (None, "invalid_audio", "audio_too_long")
    seconds = answer.get("seconds", 0.0)
    assert isinstance(seconds, float)
    assert seconds <= MOST_SECONDS


@functools.cache
def _small(container: str, codec: str) -> bytes:
    rate = 44100 if container == "flv" else 48000  # it has no other
    return coded(tone(0.3, rate=rate), container, codec)


def test_a_small_file_that_is_long_takes_no_memory() -> None:
    """Five minutes of silence in a few kilobytes are decoded piece by piece, in little memory."""
    media = coded(wav(bytes(2 * 8000 * 300), rate=8000), "flac", "flac")
    assert len(media) < 100_000
    recording = Recording(media)
    assert recording.duration == pytest.approx(300, abs=1)
    tracemalloc.start()
    try:
        total = sum(len(piece) for piece in recording.samples())
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert total == pytest.approx(300 * RATE, rel=0.01)
    assert peak < total  # a quarter of what its samples take
