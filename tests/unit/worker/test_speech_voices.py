from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.worker.loaders.sherpa_onnx.voices import OPENAI, names, number

KOKORO = ("af_alloy", "af_nova", "am_echo", "bf_emma", "bm_george")


@pytest.mark.parametrize(
    ("metadata", "speakers", "expected"),
    [
        ({"speaker_names": "ann,bob"}, 2, ("ann", "bob")),
        ({"speaker_names": "ann, bob"}, 2, ("ann", "bob")),
        ({"id2speaker": "1->bob,0->ann"}, 2, ("ann", "bob")),
        ({"speaker_names": "ann,bob"}, 3, ("0", "1", "2")),
        ({"speaker_names": "ann,ann"}, 2, ("0", "1")),
        ({"id2speaker": "0->ann,7->bob"}, 2, ("0", "1")),
        ({}, 1, ("0",)),
    ],
)
def test_voices_are_named_by_the_model_or_numbered(
    metadata: dict[str, str], speakers: int, expected: tuple[str, ...]
) -> None:
    """A model's names count when there is one for each voice; otherwise all voices have numbers."""
    assert names(metadata, speakers) == expected


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [("bf_emma", 3), ("3", 3), (" 0 ", 0), ("alloy", 0), ("nova", 1), ("echo", 2)],
)
def test_a_voice_goes_by_name_number_or_openais_name(wanted: str, expected: int) -> None:
    """OpenAI's name is the model's own voice of that name where it has one."""
    assert number(KOKORO, wanted) == expected


@given(st.integers(1, 60), st.sampled_from(OPENAI))
def test_openais_names_always_mean_some_voice_and_the_same_one(count: int, wanted: str) -> None:
    """Whatever model it is, a stock client gets a voice, and tomorrow the same."""
    voices = tuple(f"speaker{at}" for at in range(count))
    assert number(voices, wanted) == number(voices, wanted) < count


def test_openais_names_differ_where_there_are_enough_voices() -> None:
    """Two names are two voices."""
    voices = tuple(f"speaker{at}" for at in range(len(OPENAI)))
    assert len({number(voices, name) for name in OPENAI}) == len(OPENAI)


@pytest.mark.parametrize("wanted", ["nobody", "5", "-1", "", "AF_ALLOY", "af_", "²", "9" * 400])
def test_an_unknown_voice_is_refused_with_those_there_are(wanted: str) -> None:
    """No voice is guessed: the refusal lists them."""
    with pytest.raises(BadRequest, match=r"af_alloy, af_nova, am_echo, bf_emma, bm_george") as caught:
        number(KOKORO, wanted)
    assert (caught.value.code, caught.value.param) == ("unknown_voice", "voice")


@pytest.mark.parametrize("wanted", ["af_alloy+af_nova", "af_alloy,af_nova", "af_alloy(2)+af_nova(1)"])
def test_a_blend_is_refused_as_such(wanted: str) -> None:
    """What other servers mix is not taken for a typing error."""
    with pytest.raises(BadRequest, match="blend of voices, which is not supported") as caught:
        number(KOKORO, wanted)
    assert (caught.value.code, caught.value.param) == ("unknown_voice", "voice")
