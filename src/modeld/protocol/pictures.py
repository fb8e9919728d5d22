"""What a picture file's first bytes say: its format and its size in pixels. Pure; nothing is unpacked."""

from __future__ import annotations

import binascii
import struct
from typing import Literal, NamedTuple, TypeAlias

Format: TypeAlias = Literal["png", "jpeg", "gif", "webp"]

MOST_SEGMENTS = 2048
"""Segments of a JPEG file looked at before its size is found; honest files have some dozens."""


HEAD = 1 << 16
"""Characters of base64 in which most pictures tell their size."""


class NotAPicture(ValueError):
    """The bytes are none of the formats; the words say what they are instead."""


class Picture(NamedTuple):
    """A picture as its header describes it."""

    format: Format
    width: int
    height: int


def look(data: bytes | bytearray | memoryview) -> Picture:
    """Return what the header says, whatever the file was called. Raises NotAPicture.

    Reads PNG (RFC 2083), JPEG (ITU T.81), GIF (GIF89a) and WebP (RFC 9649).
    """
    head = bytes(data[:32])
    try:
        if head.startswith(b"\x89PNG\r\n\x1a\n"):
            found = _png(head)
        elif head.startswith(b"\xff\xd8\xff"):
            found = _jpeg(memoryview(data))
        elif head[:6] in (b"GIF87a", b"GIF89a"):
            found = Picture("gif", *struct.unpack_from("<HH", head, 6))
        elif head[:4] == b"RIFF" and head[8:12] == b"WEBP":
            found = _webp(head)
        else:
            raise NotAPicture(_words(head))
    except (struct.error, IndexError):
        raise NotAPicture("the file ends in the middle of its header") from None
    if not found.width or not found.height:
        raise NotAPicture(f"a {found.format} file of {found.width}x{found.height} pixels holds no picture")
    return found


def look_base64(payload: str) -> Picture:
    """Do the same for a file in base64, of which no more is decoded than it takes.

    Raises NotAPicture, and ValueError for what is not base64, if that is seen.
    """
    if len(payload) > HEAD:
        try:
            return look(binascii.a2b_base64(payload[:HEAD]))
        except NotAPicture:  # a JPEG file may begin with a thumbnail, colours and more
            pass
    return look(binascii.a2b_base64(payload))


def _png(head: bytes) -> Picture:
    length, kind, width, height = struct.unpack_from(">I4sII", head, 8)
    if kind != b"IHDR" or length != 13:
        raise NotAPicture("the PNG file does not begin with its header")
    return Picture("png", width, height)


def _jpeg(data: memoryview) -> Picture:
    at = 2
    for _ in range(MOST_SEGMENTS):
        if data[at] != 0xFF:
            break
        while (marker := data[at + 1]) == 0xFF:  # filling
            at += 1
        if marker == 0xD9 or marker == 0xDA:  # the end, or the picture itself: too late for a size
            break
        if 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            height, width = struct.unpack_from(">HH", data, at + 5)
            return Picture("jpeg", width, height)
        if marker == 0x01 or 0xD0 <= marker <= 0xD8:  # without a length
            at += 2
            continue
        (length,) = struct.unpack_from(">H", data, at + 2)
        if length < 2:
            break
        at += 2 + length
    raise NotAPicture("the JPEG file does not say how large its picture is")


def _webp(head: bytes) -> Picture:
    kind = head[12:16]
    if kind == b"VP8 ":
        if head[23:26] != b"\x9d\x01\x2a":
            raise NotAPicture("the WebP file does not begin with a whole picture")
        width, height = struct.unpack_from("<HH", head, 26)
        return Picture("webp", width & 0x3FFF, height & 0x3FFF)
    if kind == b"VP8L":
        if head[20] != 0x2F:
            raise NotAPicture("the WebP file does not begin with its header")
        (bits,) = struct.unpack_from("<I", head, 21)
        return Picture("webp", (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1)
    if kind == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        if len(head) < 30:
            raise IndexError
        return Picture("webp", width, height)
    raise NotAPicture("the WebP file is of an unknown kind")


def _words(head: bytes) -> str:
    if not head:
        return "the file is empty"
    start = head.lstrip().lower()
    if start.startswith((b"<!doctype html", b"<html")):
        return "this is a web page, not a picture"
    if start.startswith((b"<?xml", b"<svg")):
        return "SVG and other text is not read; PNG, JPEG, GIF and WebP are"
    return f"the file begins with {head[:8]!r}, which is not PNG, JPEG, GIF or WebP"
