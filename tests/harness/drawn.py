"""Pictures in tests of image models: files to send, good and bad, and what came back. Needs Pillow."""

from __future__ import annotations

import io
import os
import struct
import zlib
from collections.abc import Iterable

from PIL import Image

from modeld.protocol.tasks import Event, ImageFormat, Picture


def pictures(events: Iterable[Event]) -> list[Picture]:
    """Return the finished ones."""
    return [event for event in events if isinstance(event, Picture) and event.preview is None]


def previews(events: Iterable[Event]) -> list[Picture]:
    """Return the unfinished ones."""
    return [event for event in events if isinstance(event, Picture) and event.preview is not None]


def opened(data: bytes, form: ImageFormat = "png") -> Image.Image:
    """Return the picture in a file of that format, wholly decoded."""
    picture = Image.open(io.BytesIO(data), formats=[form.upper()])
    picture.load()
    return picture


def file(picture: Image.Image, form: str = "PNG") -> bytes:
    """Return a picture as a file."""
    out = io.BytesIO()
    picture.save(out, form)
    return out.getvalue()


def bomb() -> bytes:
    """Return a PNG file of a few kilobytes that unpacks to 20000x20000 pixels."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    rows = zlib.compress(b"\0" * (20_000 // 8 + 1) * 20_000, 9)
    header = struct.pack(">IIBBBBB", 20_000, 20_000, 1, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def bad_files() -> list[tuple[bytes, str]]:
    """Return what is no picture, or none that can be used, each with its error code.

    Nothing, a web page, half a file, a beginning, another kind of file, noise, and one that unpacks to
    gigabytes.
    """
    good = file(Image.effect_noise((64, 48), 50))
    bad = [
        b"",
        b"<html><body>no</body></html>",
        good[: len(good) // 2],
        good[:30],
        file(Image.new("L", (8, 8)), "GIF"),
        os.urandom(1000),
    ]
    return [*((data, "invalid_image") for data in bad), (bomb(), "image_too_large")]
