from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.worker.loaders.sherpa_onnx.text import LONGEST, SHORTEST, plain, sentences


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The sky is blue. The grass is green.", ["The sky is blue.", "The grass is green."]),
        ("Is it really so? Yes, it really is!", ["Is it really so?", "Yes, it really is!"]),
        ('She said: "It is late." Then she left.', ['She said: "It is late."', "Then she left."]),
        ("Dr. Jones met Mr. Smith at noon.", ["Dr. Jones met Mr. Smith at noon."]),
        ("J. R. R. Tolkien wrote it, e.g. at night.", ["J. R. R. Tolkien wrote it, e.g. at night."]),
        ("Pi is about 3.14 and version 2.0.1 is out.", ["Pi is about 3.14 and version 2.0.1 is out."]),
        ("So it was just him and I. They went home.", ["So it was just him and I.", "They went home."]),
        ("A heading line\n\nThe text below", ["A heading line", "The text below"]),
        ("Hi. It is a nice day.", ["Hi. It is a nice day."]),
        (
            "今日はとてもいい天気ですね。明日は雨が降るでしょう。",
            ["今日はとてもいい天気ですね。", "明日は雨が降るでしょう。"],
        ),
        ("no end at all", ["no end at all"]),
        ("  ", []),
    ],
)
def test_a_text_is_cut_where_sentences_end(text: str, expected: list[str]) -> None:
    """Full stops of abbreviations and numbers are no ends, and a greeting goes with what follows."""
    assert sentences(text) == expected


def test_a_long_sentence_is_cut_where_one_takes_breath() -> None:
    """At a comma rather than in the middle of a phrase, and at a space rather than in a word."""
    clause = "and then they went on for a while"
    steps = sentences(", ".join([clause] * 20) + ".")
    assert len(steps) > 2
    assert all(step.endswith((",", ".")) for step in steps)
    assert all(step.endswith("word") for step in sentences(" ".join(["word"] * 200)))


@given(st.text(st.sampled_from("ab I.!?,;\"')\n\u3002—x"), max_size=1500))
def test_every_word_is_spoken_once_and_in_order(text: str) -> None:
    """The steps joined are the text, blanks aside; none is empty, and none is longer than a step may be."""
    steps = sentences(text)
    assert "".join("".join(steps).split()) == "".join(text.split())
    assert all(step == step.strip() and step for step in steps)
    assert all(len(step) <= LONGEST + SHORTEST for step in steps)


def test_typography_becomes_what_a_lexicon_knows() -> None:
    """Quotes, apostrophes and ellipses of print do not make strangers of the words beside them."""
    assert plain("“It’s so…” «oui» a\u00a0b") == '"It\'s so..." "oui" a b'
