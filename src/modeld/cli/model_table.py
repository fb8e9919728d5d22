"""The table of models on a disk, and the same as a document."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

from modeld.cli.table import Row, Screen, table
from modeld.cli.words import cell, count, memory, one_line

if TYPE_CHECKING:
    from modeld.cli.fits import Fit
    from modeld.library.entry import Entry

HEADINGS = ("MODEL", "FITS", "QUANT", "SIZE", "CONTEXT", "PARAMS")
BESIDE = "CAPABILITIES; PATH"
"""What stands behind each row, or below it on a terminal."""
WORDS = 3
"""Columns of words, the first ones; figures follow."""

COLOURS = {"yes": "green", "not now": "yellow", "no": "red", "broken": "red"}


class Listed(msgspec.Struct, frozen=True):
    """A model as `--json` shows it. Sizes in bytes; what is unknown is null or empty.

    `label` is what its file, or its folder, is called, `name` what it calls itself.
    `fits` is "yes", "not now", "no" or "-", `memory` what it would take, `why` what is in the way. A broken
    one has an `error`. `sha256` is that of each file of which it is known, by name.
    """

    path: str
    label: str
    name: str
    kind: str
    format: str
    size: int
    quantization: str | None
    context_length: int | None
    parameters: int | None
    capabilities: tuple[str, ...]
    loader: str
    usecase: str
    mmproj: tuple[str, ...]
    files: tuple[str, ...]
    missing: tuple[str, ...]
    sha256: dict[str, str]
    fits: str
    memory: int
    why: str
    error: str


class ListedModels(msgspec.Struct, frozen=True):
    """The document of `ctl models --json`."""

    models: tuple[Listed, ...]


def listed_of(entry: Entry, fit: Fit, sha256: dict[str, str]) -> Listed:
    """Return what is shown of a model."""
    from modeld.library.shelf import label

    known = entry.metadata
    return Listed(
        path=entry.path,
        label=label(entry),
        name=entry.name,
        kind=entry.kind,
        format=entry.format,
        size=entry.size,
        quantization=(known.quantization or None) if known else None,
        context_length=known.context_length if known else None,
        parameters=known.parameters if known else None,
        capabilities=entry.capabilities,
        loader=entry.loader,
        usecase=entry.usecase,
        mmproj=entry.mmproj,
        files=entry.files,
        missing=entry.missing,
        sha256=sha256,
        fits=str(fit.fits),
        memory=fit.bytes,
        why=fit.why,
        error=entry.error,
    )


def page(listed: Iterable[Listed], screen: Screen) -> str:
    """Return the models as a table; what they can do, where they are and what is wrong stands below."""
    rows = list(listed)
    broken = sum(bool(each.error) for each in rows)
    total = f"{count(len(rows), 'model')}, {size(_together(rows))}" + (f", {broken} broken" if broken else "")
    head, *lines = table(HEADINGS, WORDS, [_row(each) for each in rows], screen)
    return "\n".join([head if screen.width else f"{head}  {BESIDE}", *lines, total])


def _together(rows: Iterable[Listed]) -> int:
    """Return the bytes that all files take: one that goes by several names counts once."""
    seen: dict[tuple[int, int], int] = {}
    others = 0
    for each in rows:
        try:
            if len(each.files) == 1 and not os.path.isdir(each.path):
                status = os.stat(each.path)
                seen[status.st_dev, status.st_ino] = each.size
                continue
        except OSError:  # gone meanwhile, or a link that leads nowhere
            pass
        others += each.size
    return others + sum(seen.values())


def _row(each: Listed) -> Row:
    fits = "broken" if each.error else each.fits
    cells = (
        cell(each.label),
        fits,
        cell(each.quantization or "-"),
        size(each.size),
        str(each.context_length or "-"),
        parameters(each.parameters),
    )
    if each.error:
        return Row(cells, (one_line(each.error),), COLOURS[fits])
    does = ", ".join(each.capabilities) or (each.kind if each.kind != "model" else "")
    why = f"takes {memory(each.memory)}: {one_line(each.why)}" if each.why else ""
    name = f"“{one_line(each.name)}”" if each.name not in ("", each.label) else ""
    sums = [f"sha256 {sum_}" for sum_ in each.sha256.values()]
    if len(sums) > 1:
        sums = [f"{file}: {sum_}" for file, sum_ in zip(each.sha256, sums, strict=True)]
    return Row(cells, (does, why, one_line(each.path), name, *map(one_line, sums)), COLOURS.get(fits))


def parameters(number: int | None) -> str:
    """Return a number of weights as "135M" or "7.2B"; "-" when it is unknown."""
    if not number:
        return "-"
    for size, unit, decimals in ((10**9, "B", 1), (10**6, "M", 0)):
        if number >= 0.9995 * size:
            return f"{number / size:.{decimals}f}{unit}"
    return str(number)


def size(number: int) -> str:
    """Return the bytes of a file as "94 MiB", below one MiB as "12 KiB" or "8 B"."""
    if number >= 2**20:
        return memory(number)
    return f"{number / 1024:.0f} KiB" if number >= 1024 else f"{number} B"
