from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.worker.loaders.sherpa_onnx.numbers import english, spelled


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("0", "zero"),
        ("7 cats and 42 dogs", "seven cats and forty two dogs"),
        ("105", "one hundred five"),
        ("1,234,567", "one million two hundred thirty four thousand five hundred sixty seven"),
        ("2000000000001", "two trillion one"),
        ("In 2024, 1984 and 1905", "In twenty twenty four, nineteen eighty four and nineteen oh five"),
        ("1900 and 2005", "nineteen hundred and two thousand five"),
        ("3.14", "three point one four"),
        ("It is 5.", "It is five."),
        ("-5 and 10-5", "minus five and ten-five"),
        ("3%", "three percent"),
        ("2.5 %", "two point five percent"),
        (
            "1st 2nd 3rd 12th 20th 21st 100th",
            "first second third twelfth twentieth twenty first one hundredth",
        ),
        ("$5.50", "five dollars and fifty cents"),
        ("$1 or £1.01", "one dollar or one pound and one pence"),
        ("$3 million", "three million dollars"),
        ("€2.5 billion", "two point five billion euros"),
        ("$1,000.00", "one thousand dollars"),
        ("3 million", "three million"),
        ("007", "zero zero seven"),
        ("A4 and 3D", "A four and three D"),
        ("no numbers", "no numbers"),
    ],
)
def test_numbers_are_read_as_people_read_them(text: str, words: str) -> None:
    """Quantities, years, decimals, ordinals, money and percentages."""
    assert spelled(text) == words


@given(st.text(st.sampled_from("0123456789.,%$€£- stndrh million a"), max_size=60))
def test_no_digit_is_left(text: str) -> None:
    """Whatever it is, it is words afterwards, and a text without digits stays as it is."""
    out = spelled(text)
    assert not any(sign in "0123456789" for sign in out)
    if not any(sign in "0123456789" for sign in text):
        assert out == text


def test_signs_are_read_or_left_out() -> None:
    """What the engine would take for a part of a word goes; what ends and joins words stays."""
    assert english('(R&D) "costs" <5>%').split() == ["R", "and", "D", "costs", "five", "percent"]
    assert english("It's well-known; a, b: c? d! e.") == "It's well-known; a, b: c? d! e."
    assert english("ﬁne Ａ cafe\u0301") == "fine A café"
    assert english("[31m]").split() == ["thirty", "one", "m"]


@given(st.integers(0, 10**15 - 1), st.integers(0, 10**15 - 1))
def test_different_numbers_sound_different(one: int, other: int) -> None:
    """A reading tells which number it was."""
    assert (spelled(f"{one:,}") == spelled(f"{other:,}")) == (one == other)
