"""Writing a GGUF file, version 3: what llama.cpp reads.

Little-endian: magic, version, two counts, the fields, the tensors' names, shapes and places, then their data,
each on a boundary of ALIGNMENT bytes. Written here and not by the gguf package, so that the same input gives
the same bytes with whichever version of that is installed.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import IO, TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Array: TypeAlias = NDArray[np.float16] | NDArray[np.float32]

ALIGNMENT = 32
"""Bytes; what the format takes for granted where no field says otherwise."""

_MAGIC, _VERSION = b"GGUF", 3
_UINT32, _INT32, _FLOAT32, _BOOL, _STRING, _ARRAY = 4, 5, 6, 7, 8, 9
_TENSOR_KINDS = {"<f4": 0, "<f2": 1}

Value: TypeAlias = "str | bool | int | float | Sequence[str] | Sequence[int]"
"""A field's value; a whole number is written as unsigned, a list of them as signed ones, all of 32 bits."""


def write(out: IO[bytes], fields: Mapping[str, Value], tensors: Mapping[str, Array]) -> None:
    """Write fields and tensors in their order; a tensor is float32 or float16, its axes as numpy has them."""
    head = [_MAGIC, struct.pack("<IQQ", _VERSION, len(tensors), len(fields))]
    for name, value in fields.items():
        head += [_text(name), _field(value)]
    offset = 0
    for name, array in tensors.items():
        shape = array.shape[::-1]  # GGUF names the fastest axis first
        kind = _TENSOR_KINDS[array.dtype.newbyteorder("<").str]
        head += [_text(name), struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)]
        offset += array.nbytes + _padding(array.nbytes)
    described = b"".join(head)
    out.write(described + bytes(_padding(len(described))))
    for array in tensors.values():
        out.write(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
        out.write(bytes(_padding(array.nbytes)))


def _padding(size: int) -> int:
    return -size % ALIGNMENT


def _text(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _field(value: Value) -> bytes:
    match value:
        case bool():
            return struct.pack("<I?", _BOOL, value)
        case int():
            return struct.pack("<II", _UINT32, value)
        case float():
            return struct.pack("<If", _FLOAT32, value)
        case str():
            return struct.pack("<I", _STRING) + _text(value)
    return _array(value)


def _array(values: Sequence[Any]) -> bytes:
    if isinstance(values[0], str):
        return struct.pack("<IIQ", _ARRAY, _STRING, len(values)) + b"".join(map(_text, values))
    return struct.pack(f"<IIQ{len(values)}i", _ARRAY, _INT32, len(values), *values)
