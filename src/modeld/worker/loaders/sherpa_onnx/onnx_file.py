"""The metadata of an ONNX file, read and added to without its weights and without the onnx package.

An ONNX file is one protobuf message, ModelProto; its field 14, `metadata_props`, holds pairs of a key (1)
and a value (2). All other fields are stepped over, so that a file of gigabytes costs a few reads.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_METADATA = 14
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_LONGEST_ENTRY = 1 << 20


def metadata(file: Path) -> dict[str, str]:
    """Return the metadata. Raises ValueError with the reason for what is no whole ONNX file; OSError."""
    size = file.stat().st_size
    if size == 0:
        raise ValueError("it is empty")
    found: dict[str, str] = {}
    with file.open("rb") as stream:
        while stream.tell() < size:
            field, kind = _tag(stream)
            if field == 0 or field > 100:
                raise ValueError("it is no ONNX file")
            if kind != _BYTES:
                _skip(stream, kind)
                continue
            length = _varint(stream)
            if stream.tell() + length > size:
                raise ValueError(f"it is cut off: it has {size} bytes, and needs {stream.tell() + length}")
            if field == _METADATA and length <= _LONGEST_ENTRY:
                key, value = _entry(stream.read(length))
                found[key] = value  # of equal keys the last one counts, as in the engine
            else:
                stream.seek(length, io.SEEK_CUR)
    return found


def metadata_bytes(values: Mapping[str, str]) -> bytes:
    """Return what, put behind a whole ONNX file, adds these metadata to it."""
    return b"".join(
        _field(_METADATA, _field(1, key.encode()) + _field(2, value.encode()))
        for key, value in values.items()
    )


def _field(number: int, content: bytes) -> bytes:
    return _number(number << 3 | _BYTES) + _number(len(content)) + content


def _number(value: int) -> bytes:
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*out, value])


def _entry(raw: bytes) -> tuple[str, str]:
    stream, parts = io.BytesIO(raw), {1: "", 2: ""}
    while stream.tell() < len(raw):
        field, kind = _tag(stream)
        if kind != _BYTES:
            _skip(stream, kind)
        else:
            parts[field] = stream.read(_varint(stream)).decode("utf-8", "replace")
    return parts[1], parts[2]


def _tag(stream: BinaryIO) -> tuple[int, int]:
    tag = _varint(stream)
    return tag >> 3, tag & 7


def _skip(stream: BinaryIO, kind: int) -> None:
    if kind == _VARINT:
        _varint(stream)
    elif kind in (_FIXED64, _FIXED32):
        stream.seek(8 if kind == _FIXED64 else 4, io.SEEK_CUR)
    else:
        raise ValueError("it is no ONNX file")


def _varint(stream: BinaryIO) -> int:
    value = shift = 0
    while True:
        byte = stream.read(1)
        if not byte or shift > 63:
            raise ValueError("it is no ONNX file")
        value |= (byte[0] & 0x7F) << shift
        if byte[0] < 0x80:
            return value
        shift += 7
