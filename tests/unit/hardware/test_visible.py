from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.hardware.visible import visible

UUIDS = ["GPU-aaaa1111-0", "GPU-aaaa2222-1", "GPU-bbbb3333-2"]


@pytest.mark.parametrize(
    ("value", "chosen"),
    [
        ("1", {1}),
        ("2,0", {0, 2}),
        (" 0 , 1 ", {0, 1}),
        ("0,GPU-bbbb3333-2", {0, 2}),
        ("GPU-bbbb", {2}),
        ("gpu-BBBB", {2}),
        ("GPU-aaaa2", {1}),
        ("0,-1,2", {0}),
        ("1,1", {1}),
    ],
)
def test_numbers_uuids_and_beginnings_of_uuids_name_gpus(value: str, chosen: set[int]) -> None:
    """Every form that CUDA takes is taken, and "-1" ends the list without a complaint."""
    assert visible(value, UUIDS) == (frozenset(chosen), "")


@pytest.mark.parametrize("value", ["", "  ", "-1", "-1,0"])
def test_no_gpu_on_purpose_says_what_hides_them(value: str) -> None:
    """A list that hides every GPU leaves none, and the sentence names the variable and the way out."""
    chosen, sentence = visible(value, UUIDS)
    assert chosen == frozenset()
    assert "CUDA_VISIBLE_DEVICES" in sentence
    assert "unset it" in sentence


@pytest.mark.parametrize(
    ("value", "chosen", "words"),
    [
        ("7", set(), "there is no GPU 7: this machine has 3 GPUs, counted from 0"),
        ("0,7,1", {0}, "there is no GPU 7"),
        ("9" * 5000, set(), "there is no GPU 9"),
        ("all", set(), "'all' is neither a number nor a GPU's UUID"),
        ("0,,1", {0}, "'' is neither"),
        ("GPU-aaaa", set(), "the beginning of 2 UUIDs"),
        ("GPU-cccc", set(), "no GPU has the UUID GPU-cccc"),
        ("MIG-aaaa", set(), "a part of a GPU (MIG)"),
        ("٣", set(), "neither a number"),
    ],
)
def test_a_bad_entry_ends_the_list_and_is_named(value: str, chosen: set[int], words: str) -> None:
    """As in CUDA the GPUs before a bad entry stay; the sentence says which entry is bad and why."""
    found, sentence = visible(value, UUIDS)
    assert found == frozenset(chosen)
    assert sentence.startswith("CUDA_VISIBLE_DEVICES=")
    assert words in sentence


@given(st.text(alphabet=st.sampled_from("0123456789,-GPU abf\n٣x"), max_size=30), st.integers(0, 8))
def test_any_text_is_answered(value: str, count: int) -> None:
    """No text raises; what is chosen exists, and nothing chosen always comes with a sentence."""
    chosen, sentence = visible(value, [f"GPU-{at}abf" for at in range(count)])
    assert all(0 <= at < count for at in chosen)
    assert chosen or sentence


@given(st.lists(st.integers(0, 7), min_size=1), st.lists(st.booleans(), min_size=8, max_size=8))
def test_a_number_and_the_uuid_at_it_are_the_same(numbers: list[int], as_uuid: list[bool]) -> None:
    """Any mixture of the two forms chooses exactly the GPUs it names."""
    uuids = [f"GPU-{at:08x}-{at}" for at in range(8)]
    value = ",".join(uuids[at] if as_uuid[at] else str(at) for at in numbers)
    assert visible(value, uuids) == (frozenset(numbers), "")
