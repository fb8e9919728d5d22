"""Picture files made from nothing: whole small ones, and headers that promise more than there is."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable

Pixels = Callable[[int, int], tuple[int, int, int]]
"""The colour at x, y."""


def red(x: int, y: int) -> tuple[int, int, int]:
    """All of it red."""
    return 255, 0, 0


def slope(x: int, y: int) -> tuple[int, int, int]:
    """Brighter to the right and downwards."""
    return x * 4 % 256, y * 4 % 256, 0


def png(width: int = 64, height: int = 64, pixels: Pixels = red) -> bytes:
    """Return a whole PNG file."""
    rows = b"".join(b"\0" + b"".join(bytes(pixels(x, y)) for x in range(width)) for y in range(height))
    return png_head(width, height) + _chunk(b"IDAT", zlib.compress(rows)) + _chunk(b"IEND", b"")


def png_head(width: int, height: int) -> bytes:
    """Return the beginning of a PNG file that says it is this large."""
    return b"\x89PNG\r\n\x1a\n" + _chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))


def gif(width: int = 1, height: int = 1) -> bytes:
    """Return a GIF file whose only picture is one black pixel, in a frame of this size."""
    frame = struct.pack("<HHBBB", width, height, 0x80, 0, 0) + bytes(6)
    return b"GIF89a" + frame + b"," + struct.pack("<HHHHB", 0, 0, 1, 1, 0) + b"\x02\x02D\x01\x00;"


def jpeg_head(width: int, height: int, before: bytes = b"") -> bytes:
    """Return the beginning of a JPEG file; `before` are segments ahead of the one that tells the size."""
    return b"\xff\xd8" + before + b"\xff\xc0" + struct.pack(">HBHHB", 17, 8, height, width, 3) + bytes(9)


def jpeg_segment(size: int) -> bytes:
    """Return a segment with so many bytes of no meaning."""
    return b"\xff\xe1" + struct.pack(">H", size + 2) + bytes(size)


def webp_head(kind: str, width: int, height: int) -> bytes:
    """Return the beginning of a WebP file: lossy "VP8 ", lossless "VP8L" or extended "VP8X"."""
    body = {
        "VP8 ": b"\x10\x02\x00\x9d\x01\x2a" + struct.pack("<HH", width, height),
        "VP8L": b"\x2f" + struct.pack("<I", (width - 1) | (height - 1) << 14),
        "VP8X": bytes(4) + (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little"),
    }[kind]
    return b"RIFF" + struct.pack("<I", 12 + len(body)) + b"WEBP" + kind.encode() + bytes(4) + body


def data_url(data: bytes, kind: str = "image/png") -> str:
    """Return a file as it stands in a request."""
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
