"""Callers' pictures, as far as their first bytes tell; what is further inside is tried with the engines."""

from __future__ import annotations

import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.protocol.messages import MediaLimits
from modeld.worker.media import pictures
from tests.harness.pictures import gif, jpeg_head, png_head, webp_head

LIMITS = MediaLimits(image_pixels=64 * 32, image_side=64)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_image"),
        (b"<html><body>no</body></html>", "invalid_image"),
        (png_head(8, 8)[:20], "invalid_image"),
        (os.urandom(3).join([b"\0"] * 500), "invalid_image"),
        (gif(), "invalid_image"),
        (png_head(20_000, 20_000), "image_too_large"),
        (jpeg_head(72, 8), "image_too_large"),
        (webp_head("VP8X", 64, 40), "image_too_large"),
    ],
)
@pytest.mark.parametrize("param", ["image", "mask"])
def test_what_is_no_picture_or_too_large_is_refused_unread(data: bytes, code: str, param: str) -> None:
    """No decoder is asked, let alone loaded; the refusal names the field."""
    with pytest.raises(BadRequest) as caught:
        pictures.decode(data, param, LIMITS)
    assert (caught.value.code, caught.value.param) == (code, param)
    assert f"'{param}'" in caught.value.message


@given(st.integers(0, 80), st.integers(0, 80), st.sampled_from([1, 8, 16]))
def test_what_is_drawn_fits_model_and_limits_or_is_refused(width: int, height: int, multiple: int) -> None:
    """A size passes exactly if both sides are multiples, there, and within the limits."""
    fits = (
        min(width, height) > 0
        and not width % multiple
        and not height % multiple
        and max(width, height) <= 64
        and width * height <= 64 * 32
    )
    if fits:
        pictures.check_drawn((width, height), multiple, LIMITS)
    else:
        with pytest.raises(BadRequest, match=f"{width}x{height} is not possible") as caught:
            pictures.check_drawn((width, height), multiple, LIMITS)
        assert caught.value.param == "size"
