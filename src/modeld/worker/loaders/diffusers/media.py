"""Pictures from callers: decoded behind limits, and made into what a pipeline takes.

What a file is, is read from its content. Its size in pixels is checked in its header, before anything is
unpacked: a few kilobytes of PNG can hold gigabytes.
"""

from __future__ import annotations

import io
from typing import Any

from modeld.errors import BadRequest

MAX_SIDE = 4096
"""Pixels of the longest side of a picture, taken in or drawn."""

MAX_PIXELS = 16 * 1024 * 1024
"""Pixels of a picture, taken in or drawn: 64 MiB once unpacked."""

FORMATS = ("PNG", "JPEG", "WEBP")
"""What is decoded; other decoders are not tried on strangers' bytes."""


def decode(data: bytes, param: str) -> Any:
    """Return a picture file as an RGBA image, upright. Raises BadRequest with the code invalid_image."""
    from PIL import Image, ImageOps

    if not data:
        raise _invalid(param, "the file is empty")
    try:
        with Image.open(io.BytesIO(data), formats=FORMATS) as file:
            _check_size(file.width, file.height, param)
            return ImageOps.exif_transpose(file).convert("RGBA")
    except BadRequest:
        raise
    except Image.UnidentifiedImageError:
        raise _invalid(param, f"{len(data)} bytes that are none of {', '.join(FORMATS)}") from None
    except Exception as error:  # decoders raise whatever they like at broken files
        words = str(error).strip() or type(error).__name__
        raise _invalid(param, f"the file is broken: {words[:200]}") from None


def _check_size(width: int, height: int, param: str) -> None:
    if max(width, height) > MAX_SIDE or width * height > MAX_PIXELS:
        raise _invalid(
            param,
            f"it is {width}x{height} pixels; at most {MAX_SIDE} on a side and {MAX_PIXELS} in all are taken",
        )


def _invalid(param: str, why: str) -> BadRequest:
    return BadRequest(f"the picture in {param!r} cannot be used: {why}", code="invalid_image", param=param)


def drawing_area(mask: Any) -> Any:
    """Return a mask as inpainting takes it: grey, white where to draw.

    A mask with a transparent pixel says it by transparency, any other by its brightness.
    """
    from PIL import ImageChops

    alpha = mask.getchannel("A")
    if alpha.getextrema()[0] < 255:
        return ImageChops.invert(alpha)
    return mask.convert("RGB").convert("L")


def has_holes(picture: Any) -> bool:
    """Say whether a picture has a wholly transparent pixel: then it is its own mask."""
    return bool(picture.getchannel("A").getextrema()[0] == 0)


def encode(picture: Any) -> bytes:
    """Return a picture as a PNG file."""
    file = io.BytesIO()
    picture.save(file, "PNG")
    return file.getvalue()
