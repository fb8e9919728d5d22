"""A program that reads a GGUF model's metadata: one file, or all pieces of a model in several.

    python -P -m modeld.library.gguf --file FILE [--file FILE …] [--parent PID]

It prints one line of JSON: {"metadata": …} as `modeld.library.metadata.Metadata`, {"error": sentence} for a
file that no engine will load, or {"unknown": reason} for one that is newer than the reader.

A program, because the reader brings numpy, and because it runs over bytes that come from elsewhere: here a
crash costs one answer. It dies with its parent.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import struct
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from modeld.library.architecture import LONGEST_LIST, Tensor, described

if TYPE_CHECKING:
    from gguf import GGUFReader

MAGIC = b"GGUF"

_PR_SET_PDEATHSIG = 1


class Refused(Exception):
    """The file is no model that an engine could load; the text says why."""


class Unknown(Exception):
    """The file may be sound, but this reader does not know its form."""


def read(path: Path) -> tuple[dict[str, Any], list[Tensor]]:
    """Return one file's keys, without long arrays, and its tensors. Raises Refused, Unknown or OSError."""
    with path.open("rb") as file:
        head = file.read(8)
    if head[:4] != MAGIC:
        raise Refused(f"{path} is not a GGUF file: it begins with {head[:4]!r}, not {MAGIC!r}")
    from gguf import constants, gguf_reader

    version = int.from_bytes(head[4:], "little")
    if not {version, int.from_bytes(head[4:], "big")} & set(gguf_reader.READER_SUPPORTED_VERSIONS):
        raise Unknown(f"{path} is GGUF version {version}")
    try:
        reader = _reader()(path)
        keys = {name: value for name, value in map(_value, reader.fields.items()) if value is not None}
    except (IndexError, KeyError, ValueError, OverflowError, struct.error) as error:
        raise Refused(f"{path} is cut short or damaged: its header cannot be read ({error})") from error
    kind = keys.get("general.file_type")
    if isinstance(kind, int) and kind in {int(each) for each in constants.LlamaFileType}:
        keys["general.file_type"] = constants.LlamaFileType(kind).name.removeprefix("MOSTLY_")
    else:
        keys.pop("general.file_type", None)
    tensors: list[Tensor] = reader.tensors  # type: ignore[assignment]  # as _reader makes them
    wanted, there = max((tensor.end for tensor in tensors), default=0), path.stat().st_size
    if wanted > there:
        raise Refused(f"{path} is cut short: its tensors take {wanted} bytes, the file has {there}")
    return keys, tensors


def _value(item: tuple[str, Any]) -> tuple[str, Any]:
    from gguf.constants import GGUFValueType

    name, field = item
    if field.types[:1] == [GGUFValueType.STRING]:
        return name, field.parts[-1].tobytes().decode("utf-8", "replace")
    if field.types[:1] == [GGUFValueType.ARRAY]:
        short = field.types[-1] != GGUFValueType.STRING and len(field.parts[-1]) <= LONGEST_LIST
        return name, field.parts[-1].tolist() if short else None
    return name, field.parts[-1].tolist()[0]


def _reader() -> type[GGUFReader]:
    """Return the reader, made to step over what is not asked for.

    As it comes it makes two objects for each word of the vocabulary (5 s and 190 MB for 49,152 words); an
    unknown type of tensor, or a missing tail, is an error without a name.
    """
    from gguf import constants, gguf_reader

    array, words = constants.GGUFValueType.ARRAY, constants.GGUFValueType.STRING

    class Reader(gguf_reader.GGUFReader):
        def _get_field_parts(
            self, orig_offs: int, raw_type: int
        ) -> tuple[int, list[Any], list[int], list[constants.GGUFValueType]]:
            if raw_type != array:
                return super()._get_field_parts(orig_offs, raw_type)
            data: Any = self.data
            order = "<" if self.endianess == constants.GGUFEndian.LITTLE else ">"
            inner, length = struct.unpack_from(f"{order}IQ", data, orig_offs)
            kind, start = constants.GGUFValueType(inner), orig_offs + 12
            if kind == array:
                return super()._get_field_parts(orig_offs, raw_type)
            if kind != words:
                values = self._get(start, self.gguf_scalar_to_np[kind], length)
                if len(values) != length:
                    raise ValueError(f"an array of {length} numbers goes beyond the end")
                return 12 + int(values.nbytes), [values], [0], [array, kind]
            end = start
            size_at, view = struct.Struct(f"{order}Q").unpack_from, memoryview(data)
            for _ in range(length):
                end += 8 + size_at(view, end)[0]
            if end > len(data):
                raise ValueError(f"a list of {length} words goes beyond the end")
            return end - orig_offs, [data[:0]], [0], [array, kind]

        def _build_tensors(self, start_offs: int, fields: list[gguf_reader.ReaderField]) -> None:
            listed: list[tuple[str, tuple[int, ...], int, int]] = []
            for field in fields:
                _, text, _, dims, number, place = field.parts
                shape = tuple(dims.tolist())
                listed.append((bytes(text).decode("utf-8"), shape, int(number[0]), int(place[0])))
            starts = sorted(offset for *_, offset in listed)
            following = dict(itertools.pairwise(starts))
            tensors = []
            for name, shape, raw, offset in listed:
                tensor = Tensor(name, shape, f"type {raw}", 0, 0)
                try:
                    kind = constants.GGMLQuantizationType(raw)
                    block, size = constants.GGML_QUANT_SIZES[kind]
                    total, label = tensor.elements // block * size, kind.name
                except (ValueError, KeyError):
                    # A type newer than the reader: it ends where the next begins.
                    total = following.get(offset, max(len(self.data) - start_offs, offset)) - offset
                    label = tensor.type
                tensors.append(Tensor(name, shape, label, total, start_offs + offset + total))
            self.tensors = tensors  # type: ignore[assignment]

    return Reader


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m modeld.library.gguf")
    parser.add_argument("--file", action="append", required=True, type=Path)
    parser.add_argument("--parent", type=int, default=0, help="process id to die with")
    chosen = parser.parse_args()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if chosen.parent and os.getppid() != chosen.parent:
        return 1  # it died before we could ask to be told
    answer: dict[str, Any]
    try:
        keys: dict[str, Any] = {}
        tensors: list[Tensor] = []
        for path in chosen.file:
            more, parts = read(path)
            keys = {**more, **keys}
            tensors += parts
        size = sum(path.stat().st_size for path in chosen.file)
        answer = {"metadata": described(keys, tensors, size)}
    except Refused as error:
        answer = {"error": str(error)}
    except Unknown as error:
        answer = {"unknown": str(error)}
    except OSError as error:
        answer = {"error": f"{error.filename} cannot be read: {error.strerror}"}
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
