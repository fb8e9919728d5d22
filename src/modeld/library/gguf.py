"""A program that reads GGUF models' metadata: of one, or of many in one go.

    python -P -m modeld.library.gguf --file FILE [--file FILE …] [--parent PID]
    python -P -m modeld.library.gguf [--parent PID]

The first reads one model, of which each piece is a --file. The second reads models from its input, one a
line, as a JSON list of the pieces' paths. For each model it prints one line of JSON, a
`modeld.library.about.Answer`.

A program, because it runs over bytes that come from elsewhere: here a crash costs one answer, and the work
disturbs nobody. It dies with its parent.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import itertools
import math
import os
import resource
import signal
import stat
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modeld.library.about import Answer, about
from modeld.library.architecture import Tensor, described
from modeld.library.header import Header
from modeld.library.header import read as read_header
from modeld.library.window import Refused, Unknown, damaged
from modeld.library.word_lists import Workspace

MOST_MEMORY = 1 << 30
"""Bytes of address space; the reader's own limits keep it below a tenth. The second fence."""

MOST_PIECES = 1000
"""Files of one model."""

_MOST_IN_BYTE = 16
"""Numbers in a byte: today's densest type has seven."""

_LARGEST_SIZE = 1 << 53
"""Of a product of sizes that a file names."""

_PR_SET_PDEATHSIG = 1


def answer(paths: Sequence[Path], workspace: Workspace | None = None) -> Answer:
    """Read one model, all pieces of it. Never raises for what is in the files."""
    path = paths[0] if paths else Path()
    try:
        if not 0 < len(paths) <= MOST_PIECES:
            raise Refused(f"is one of {len(paths)} pieces, at most {MOST_PIECES} are read")
        keys: dict[str, Any] = {}
        lengths: dict[str, int] = {}
        tensors: list[Tensor] = []
        size = 0
        for path in paths:
            header, there = _header(path, workspace)
            keys = {**header.keys, **keys}
            lengths = {**header.lengths, **lengths}
            tensors += _tensors(header, there)
            size += there
        _in_words(keys)
        metadata = described(keys, tensors, size)
        sizes = [metadata.feed_forward_length]
        for layer in metadata.layers:
            sizes += [layer.keys, layer.values, layer.state]
        if max(sizes) > _LARGEST_SIZE:
            raise damaged("its sizes are beyond all sense")
        return Answer(metadata, about(keys, lengths, tensors))
    except Refused as error:
        return Answer(error=f"{path} {error}")
    except Unknown as error:
        return Answer(unknown=f"{path} {error}")
    except MemoryError:
        return Answer(unknown=f"{path} takes more than {MOST_MEMORY >> 20} MiB of memory to read")
    except OSError as error:
        return Answer(trouble=f"{path} cannot be read: {error.strerror or error}")


def _header(path: Path, workspace: Workspace | None) -> tuple[Header, int]:
    with path.open("rb", buffering=0) as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise Refused("is not a regular file")
        return read_header(stream, status.st_size, workspace), status.st_size


def _tensors(header: Header, there: int) -> list[Tensor]:
    """Return the tensors with their sizes in bytes. Raises Refused when the file ends before they do."""
    kinds = _kinds()
    following: dict[int, int] = {}
    tensors = []
    wanted = header.data
    for name, shape, raw, offset in header.tensors:
        kind = kinds.get(raw)
        if kind is not None:
            label, block, width = kind
            total = math.prod(shape) // block * width
        else:
            # A type newer than the reader: it ends where the next begins.
            if not following:
                starts = sorted({each[3] for each in header.tensors})
                following = dict(itertools.pairwise([*starts, max(there - header.data, starts[-1])]))
            label, total = f"type {raw}", following[offset] - offset
            if math.prod(shape) > there * _MOST_IN_BYTE:
                raise Refused(f"is cut short or damaged: its tensor {name[:80]!r} is of {shape} numbers")
        end = header.data + offset + total
        wanted = max(wanted, end)
        tensors.append(Tensor(name, shape, label, total, end))
    if tensors and wanted > there:
        raise Refused(f"is cut short: its tensors take {wanted} bytes, the file has {there}")
    return tensors


def _in_words(keys: dict[str, Any]) -> None:
    """Put the file type's name in the place of its number; one that is not known is left out."""
    kind = keys.pop("general.file_type", None)
    name = _file_types().get(kind) if isinstance(kind, int) else None
    if name:
        keys["general.file_type"] = name


@functools.cache
def _constants() -> Any:
    """Return the gguf package's `constants` alone: the package itself brings numpy, 20 MB and 0.2 s."""
    package = importlib.util.find_spec("gguf")
    places = (package and package.submodule_search_locations) or ()
    spec = importlib.util.spec_from_file_location(
        "modeld_gguf_constants", Path(next(iter(places), "")) / "constants.py"
    )
    if spec is None or spec.loader is None or not places:
        from gguf import constants  # a package in another form, whatever it brings

        return constants
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@functools.cache
def _kinds() -> dict[int, tuple[str, int, int]]:
    """Return each type of tensor: its name, the numbers in a block, and the bytes of a block."""
    known = _constants()
    return {int(kind): (kind.name, *size) for kind, size in known.GGML_QUANT_SIZES.items()}


@functools.cache
def _file_types() -> dict[int, str]:
    known = _constants()
    return {int(kind): kind.name.removeprefix("MOSTLY_").removeprefix("ALL_") for kind in known.LlamaFileType}


def serve(lines: Iterable[bytes]) -> None:
    """Answer each line of input with a line of output."""
    workspace = Workspace()
    for line in lines:
        paths = msgspec.json.decode(line, type=list[str])
        found = answer([Path(path) for path in paths], workspace)
        sys.stdout.buffer.write(msgspec.json.encode(found) + b"\n")
        sys.stdout.buffer.flush()


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m modeld.library.gguf")
    parser.add_argument("--file", action="append", default=[], help="a piece of the one model to read")
    parser.add_argument("--parent", type=int, default=0, help="process id to die with")
    chosen = parser.parse_args()
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)
    if chosen.parent and os.getppid() != chosen.parent:
        return 1  # it died before we could ask to be told
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, resource.getrlimit(resource.RLIMIT_AS)[1]))
    serve([msgspec.json.encode(chosen.file)] if chosen.file else sys.stdin.buffer)
    return 0


if __name__ == "__main__":
    sys.exit(main())
