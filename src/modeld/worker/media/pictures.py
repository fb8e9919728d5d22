"""Pictures from callers, decoded behind limits, and pictures for them, coded as they asked. Needs Pillow.

What a file is, is read from its content. Its size in pixels is checked in its header, before anything is
unpacked: a few kilobytes of PNG can hold gigabytes.
"""

from __future__ import annotations

import io
from typing import Any

from modeld.errors import BadRequest
from modeld.protocol.messages import MediaLimits
from modeld.protocol.pictures import Format, NotAPicture, look
from modeld.protocol.tasks import ImageFormat

Size = tuple[int, int]
"""Width and height in pixels."""

FORMATS: tuple[Format, ...] = ("png", "jpeg", "webp")
"""What is decoded; other decoders are not tried on strangers' bytes."""

MOST_WEBP = 16_383
"""Pixels along a side that a WebP file can have."""


def decode(data: bytes, param: str, limits: MediaLimits) -> Any:
    """Return a picture file as an RGBA image, upright. Raises BadRequest.

    The code is invalid_image, or image_too_large for one over the limits.
    """
    try:
        found = look(data)
    except NotAPicture as error:
        raise _unusable(param, str(error)) from None
    if found.format not in FORMATS:
        raise _unusable(param, f"it is a {found.format} file; {', '.join(FORMATS)} are taken")
    size = found.width, found.height
    if max(size) > limits.image_side or size[0] * size[1] > limits.image_pixels:
        words = (
            f"it is {by(size)} pixels; at most {limits.image_side} on a side and "
            f"{limits.image_pixels} in all are taken"
        )
        raise _unusable(param, words, "image_too_large")
    from PIL import Image, ImageOps

    Image.MAX_IMAGE_PIXELS = None  # the limit is ours, and has been checked
    try:
        with Image.open(io.BytesIO(data), formats=[found.format.upper()]) as file:
            if file.size != size:
                raise ValueError(f"its headers say {by(size)} and {by(file.size)}")
            return ImageOps.exif_transpose(file).convert("RGBA")
    except Exception as error:  # decoders raise whatever they like at broken files
        words = str(error).strip() or type(error).__name__
        raise _unusable(param, f"the file is broken: {words[:200]}") from None


def _unusable(param: str, why: str, code: str = "invalid_image") -> BadRequest:
    return BadRequest(f"the picture in {param!r} cannot be used: {why}", code=code, param=param)


def check_drawn(size: Size, multiple: int, limits: MediaLimits, form: ImageFormat = "png") -> None:
    """Raise BadRequest unless a model whose sides are multiples of `multiple` can draw this size."""
    most = min(limits.image_side, MOST_WEBP) if form == "webp" else limits.image_side
    if any(side % multiple or not 0 < side <= most for side in size):
        words = f"this model draws sides that are multiples of {multiple}, up to {most}"
    elif size[0] * size[1] > limits.image_pixels:
        words = f"it is {size[0] * size[1]} pixels, and {limits.image_pixels} are the most"
    else:
        return
    raise BadRequest(f"{by(size)} is not possible: {words}", code="invalid_value", param="size")


def by(size: Size) -> str:
    """Return a size as people write it."""
    return f"{size[0]}x{size[1]}"


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


def kept(picture: Any, original: Any | None, area: Any | None) -> Any:
    """Put back what an edit was not to touch: engines only nearly keep it."""
    if original is None or area is None:
        return picture
    from PIL import Image

    return Image.composite(picture.convert("RGB"), original.convert("RGB"), area)


def encode(picture: Any, form: ImageFormat = "png", quality: int = 100) -> bytes:
    """Return a picture as a file; `quality` 0..100 is that of jpeg and webp, and png loses nothing."""
    file = io.BytesIO()
    if form == "png":
        picture.save(file, "PNG")
    elif form == "jpeg":
        picture.convert("RGB").save(file, "JPEG", quality=quality)
    else:
        picture.convert("RGB").save(file, "WEBP", quality=quality)
    return file.getvalue()
