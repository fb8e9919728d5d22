from __future__ import annotations

import importlib
import io
import struct
import wave
from typing import Any, get_args

import av
import numpy as np
import pytest
from numpy.typing import NDArray

from modeld.errors import BadRequest
from modeld.protocol.tasks import AudioFormat
from modeld.worker.media import encode
from modeld.worker.media.encode import PCM_RATE, UNKNOWN_SIZE, encoder, formats, wav_header

FORMATS: tuple[AudioFormat, ...] = get_args(AudioFormat)
CODED: tuple[AudioFormat, ...] = ("mp3", "opus", "aac", "flac", "wav")
MAGIC = {"opus": b"OggS", "flac": b"fLaC", "wav": b"RIFF", "mp3": b"\xff", "aac": b"\xff"}
CODEC = {"mp3": "mp3", "opus": "opus", "aac": "aac", "flac": "flac", "wav": "pcm_s16le"}
SECONDS = 2.0
TONE = 440.0


def _tone(rate: int, seconds: float = SECONDS) -> NDArray[np.float32]:
    steps = np.arange(round(rate * seconds))
    return (0.5 * np.sin(2 * np.pi * TONE * steps / rate)).astype(np.float32)


def _pieces(form: AudioFormat, rate: int, size: int) -> list[bytes]:
    samples, coder = _tone(rate), encoder(form, rate)
    starts = range(0, len(samples), size)
    out = [coder.add(samples[at : at + size], last=at == starts[-1]) for at in starts]
    return [*out, coder.finish()]


def _decoded(data: bytes) -> tuple[str, int, NDArray[np.float32]]:
    with av.open(io.BytesIO(data), "r") as container:
        resampler = av.AudioResampler(format="flt", layout="mono", rate=PCM_RATE)
        stream = container.streams.audio[0]
        frames: list[Any] = [out for frame in container.decode(stream) for out in resampler.resample(frame)]
        samples = np.concatenate([frame.to_ndarray().reshape(-1) for frame in frames])
        return stream.codec_context.name, stream.rate, samples


def _pitch(samples: NDArray[np.float32]) -> float:
    middle = samples[PCM_RATE // 2 : PCM_RATE // 2 + PCM_RATE]
    return float(np.argmax(np.abs(np.fft.rfft(middle))))


@pytest.mark.parametrize("rate", [16_000, 22_050, 24_000, 44_100])
@pytest.mark.parametrize("form", CODED)
def test_joined_pieces_are_one_file_of_the_format(form: AudioFormat, rate: int) -> None:
    """The bytes begin as the format does, and decode to the tone that went in, as long as it was."""
    data = b"".join(_pieces(form, rate, rate // 3))
    assert data.startswith(MAGIC[form])
    codec, _, samples = _decoded(data)
    assert codec.startswith(CODEC[form])
    assert len(samples) / PCM_RATE == pytest.approx(SECONDS, abs=0.12)  # a lossy codec pads its frames
    assert _pitch(samples) == pytest.approx(TONE, abs=3)


@pytest.mark.parametrize("rate", [16_000, 24_000])
def test_pcm_is_24_khz_whatever_the_voice_has(rate: int) -> None:
    """There is no header to say another rate, so it is resampled."""
    samples = np.frombuffer(b"".join(_pieces("pcm", rate, rate // 3)), "<i2").astype(np.float32)
    assert len(samples) / PCM_RATE == pytest.approx(SECONDS, abs=0.01)
    assert _pitch(samples) == pytest.approx(TONE, abs=2)


@pytest.mark.parametrize("form", FORMATS)
def test_pieces_leave_as_they_come(form: AudioFormat) -> None:
    """Each half second that goes in lets something out: nothing is held back to the end."""
    *pieces, _ = _pieces(form, 24_000, 12_000)
    assert len(pieces) == 4
    assert all(pieces)


@pytest.mark.parametrize("form", FORMATS)
def test_the_size_of_the_pieces_does_not_matter(form: AudioFormat) -> None:
    """The same samples in other portions are as long; a portion may be empty."""
    coder = encoder(form, 24_000)
    samples = _tone(24_000)
    odd = [samples[:1], samples[1:1], samples[1:777], samples[777:]]
    data = b"".join([*(coder.add(part) for part in odd), coder.finish()])
    whole = b"".join(_pieces(form, 24_000, len(samples)))
    if form == "pcm":
        assert data == whole
    else:
        assert len(_decoded(data)[2]) == len(_decoded(whole)[2])


def test_a_wav_says_its_length_when_it_is_known() -> None:
    """All samples at once: true sizes; else those that mean "to the end", which readers take."""
    coder = encoder("wav", 24_000)
    data = coder.add(_tone(24_000), last=True) + coder.finish()
    with wave.open(io.BytesIO(data)) as file:
        assert (file.getnframes(), file.getframerate(), file.getnchannels()) == (48_000, 24_000, 1)
    assert struct.unpack("<I", data[4:8]) == (len(data) - 8,)
    data = b"".join(_pieces("wav", 24_000, 12_000))
    assert struct.unpack("<I", data[4:8]) == struct.unpack("<I", data[40:44]) == (UNKNOWN_SIZE,)
    with wave.open(io.BytesIO(data)) as file:
        assert len(file.readframes(file.getnframes())) == 48_000 * 2


@pytest.mark.parametrize(
    ("form", "kind"), [("mp3", "MP3"), ("opus", "OGG"), ("flac", "FLAC"), ("wav", "WAV")]
)
def test_another_library_reads_them_too(form: AudioFormat, kind: str) -> None:
    """libsndfile, which has nothing of libav, finds format, length and tone in the formats that it knows.

    It reads no FLAC whose length is not known, so that comes in one piece.
    """
    soundfile: Any = importlib.import_module("soundfile")
    size = 48_000 if form == "flac" else 8_000
    with soundfile.SoundFile(io.BytesIO(b"".join(_pieces(form, 24_000, size)))) as file:
        assert (file.format, file.samplerate, file.channels) == (kind, 24_000, 1)
        samples = file.read(frames=10 * 24_000, dtype="float32")
    assert len(samples) / 24_000 == pytest.approx(SECONDS, abs=0.12)
    assert _pitch(samples) == pytest.approx(TONE, abs=3)


def test_a_flac_says_its_length_when_it_is_known() -> None:
    """All samples at once: their number; in pieces: none, which readers take for "to the end"."""
    soundfile: Any = importlib.import_module("soundfile")
    coder = encoder("flac", 24_000)
    data = coder.add(_tone(24_000), last=True) + coder.finish()
    assert soundfile.info(io.BytesIO(data)).frames == 48_000
    assert len(soundfile.read(io.BytesIO(data))[0]) == 48_000
    pieces = b"".join(_pieces("flac", 24_000, 12_000))
    assert int.from_bytes(pieces[18:26], "big") & (1 << 36) - 1 == 0
    assert len(_decoded(pieces)[2]) == 48_000


def test_nothing_is_still_a_file() -> None:
    """A WAV without samples has its header, with a true length of 0."""
    assert encoder("wav", 8_000).finish() == wav_header(8_000, 0)
    assert encoder("pcm", 8_000).finish() == b""


def test_loud_samples_are_clipped_and_do_not_wrap() -> None:
    """Beyond full scale it stays at full scale."""
    data = encoder("pcm", PCM_RATE).add(np.array([2.0, -2.0, 0.0], np.float32))
    assert struct.unpack("<3h", data) == (32767, -32767, 0)


def test_a_missing_codec_is_told_with_those_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """A build of libav without a codec is a refusal that lists what works."""
    assert formats() == list(FORMATS)
    monkeypatch.setitem(encode._CODECS, "mp3", ("no_such_codec", "mp3", (), 0))
    assert "mp3" not in formats()
    with pytest.raises(BadRequest, match="these work: opus, aac, flac, wav, pcm") as caught:
        encoder("mp3", 24_000)
    assert caught.value.param == "response_format"
