"""What the first bytes of a picture file say."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.protocol.pictures import HEAD, NotAPicture, look, look_base64
from tests.harness import pictures

SIDE = st.integers(1, 16_383)
HEADS = st.one_of(
    st.builds(lambda w, h: ("png", w, h, pictures.png_head(w, h)), SIDE, SIDE),
    st.builds(lambda w, h: ("gif", w, h, pictures.gif(w, h)), SIDE, SIDE),
    st.builds(
        lambda w, h, sizes: (
            "jpeg",
            w,
            h,
            pictures.jpeg_head(w, h, b"".join(pictures.jpeg_segment(size) for size in sizes)),
        ),
        SIDE,
        SIDE,
        st.lists(st.integers(0, 2000), max_size=5),
    ),
    st.builds(
        lambda kind, w, h: ("webp", w, h, pictures.webp_head(kind, w, h)),
        st.sampled_from(["VP8 ", "VP8L", "VP8X"]),
        SIDE,
        SIDE,
    ),
)


@given(HEADS, st.binary(max_size=50))
def test_format_and_size_are_read_from_the_header(head: tuple[str, int, int, bytes], rest: bytes) -> None:
    """Whatever follows, and whatever stands before the size in a JPEG file."""
    kind, width, height, data = head
    assert look(data + rest) == (kind, width, height)


@given(HEADS, st.data())
def test_a_header_cut_anywhere_never_tells_another_size(
    head: tuple[str, int, int, bytes], data: st.DataObject
) -> None:
    """A cut file is refused, or it was cut after its size and tells it rightly."""
    kind, width, height, whole = head
    cut = whole[: data.draw(st.integers(0, len(whole)))]
    try:
        assert look(cut) == (kind, width, height)
    except NotAPicture:
        assert len(cut) < len(whole)


@given(st.sampled_from([b"", b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff", b"GIF89a", b"RIFF1234WEBP"]), st.binary())
def test_any_bytes_are_a_picture_or_none(start: bytes, rest: bytes) -> None:
    """No other exception, whatever comes."""
    try:
        found = look(start + rest)
    except NotAPicture:
        return
    assert min(found.width, found.height) > 0


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "empty"),
        (b"\n <!DOCTYPE html><html>", "web page"),
        (b"<svg xmlns=", "SVG"),
        (b"%PDF-1.7", "%PDF"),
        (pictures.png_head(0, 5), "0x5"),
        (b"\x89PNG\r\n\x1a\n" + b"\0" * 30, "header"),
        (pictures.png_head(5, 5)[:20], "ends in the middle"),
        (b"\xff\xd8\xff\xda" + b"\0" * 30, "how large"),
        (b"\xff\xd8" + pictures.jpeg_segment(0) * 4000 + pictures.jpeg_head(1, 1)[2:], "how large"),
    ],
)
def test_what_is_none_says_what_it_is(data: bytes, words: str) -> None:
    """The words help whoever sent it."""
    with pytest.raises(NotAPicture, match=words):
        look(data)


@given(HEADS, st.integers(0, 3 * HEAD), st.integers(0, 40))
def test_in_base64_no_more_is_decoded_than_it_takes(
    head: tuple[str, int, int, bytes], more: int, segments: int
) -> None:
    """The answer is that for the file itself, also where a long JPEG tells its size late."""
    kind, width, height, data = head
    if kind == "jpeg":
        data = data[:2] + pictures.jpeg_segment(5000) * segments + data[2:]
    data += bytes(more)
    assert look_base64(base64.b64encode(data).decode()) == look(data) == (kind, width, height)
