"""vLLM's transcripts as segments, and its refusals with their place."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from modeld.errors import BadRequest
from modeld.protocol.tasks import Segment
from modeld.worker.loaders.vllm.speech import blamed, segments_of


def test_segments_have_all_fields_and_count_from_0() -> None:
    """What vLLM leaves open is 0; a model that gives no times has one segment, or none for silence."""
    one = SimpleNamespace(
        id=7,
        seek=30,
        start=30.0,
        end=31.5,
        text=" a",
        tokens=[1, 2],
        temperature=0.0,
        avg_logprob=-0.5,
        compression_ratio=1.1,
        no_speech_prob=None,
    )
    assert segments_of(SimpleNamespace(segments=[one], text=" a"), 40.0) == [
        Segment(0, 30, 30.0, 31.5, " a", (1, 2), 0.0, -0.5, 1.1, 0.0)
    ]
    assert segments_of(SimpleNamespace(text="all"), 40.0) == [Segment(0, 0, 0.0, 40.0, "all")]
    assert segments_of(SimpleNamespace(segments=None, text=""), 40.0) == []


@pytest.mark.parametrize(
    ("message", "param", "place", "code"),
    [
        ("Invalid or corrupted audio data.", None, "file", "invalid_audio"),
        ("Unsupported language: 'xx'.", None, "language", "invalid_value"),
        ("must be positive", "temperature", "temperature", "engine_refused"),
    ],
)
def test_a_refusal_names_its_place(message: str, param: str | None, place: str, code: str) -> None:
    """The recording is blamed unless vLLM speaks of a language or names a field itself."""
    error = blamed(BadRequest(message, code="engine_refused", param=param))
    assert (error.param, error.code) == (place, code)
    assert message in error.message
