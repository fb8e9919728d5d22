"""What worker and daemon see alike of llama.cpp's files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.protocol.llama import projector_beside


@pytest.mark.parametrize(
    ("model", "names", "found"),
    [
        ("m.gguf", ["m.gguf"], None),
        ("m.gguf", ["m.gguf", "mmproj-x.gguf"], "mmproj-x.gguf"),
        ("m.gguf", ["m.gguf", "mmproj-BF16.gguf", "mmproj-F16.gguf", "mmproj-F32.gguf"], "mmproj-F16.gguf"),
        ("m.gguf", ["m.gguf", "mmproj-F32.gguf", "mmproj-model-bf16.gguf"], "mmproj-model-bf16.gguf"),
        ("m.gguf", ["m.gguf", "mmproj.txt", "MMPROJ.gguf"], "MMPROJ.gguf"),
        ("m.gguf", ["m.gguf", "other.gguf", "mmproj-F16.gguf"], None),
        ("m.gguf", ["m.gguf", "other.gguf", "mmproj-other.gguf", "mmproj-m.gguf"], "mmproj-m.gguf"),
        (
            "m-00001-of-00002.gguf",
            ["m-00001-of-00002.gguf", "m-00002-of-00002.gguf", "mmproj-x.gguf"],
            "mmproj-x.gguf",
        ),
    ],
)
def test_the_projector_beside_a_model(model: str, names: list[str], found: str | None) -> None:
    """Beside one model any; of several the one of half precision; beside several models its namesake."""
    assert projector_beside(model, names) == found


@given(st.lists(st.text(max_size=12) | st.text(max_size=5).map("mmproj{}.gguf".format)))
def test_it_is_one_of_the_names_in_whatever_order(names: list[str]) -> None:
    """The order of a directory does not matter, and nothing is made up."""
    found = projector_beside("m.gguf", names)
    assert found is None or found in names
    assert projector_beside("m.gguf", sorted(names)) == found
