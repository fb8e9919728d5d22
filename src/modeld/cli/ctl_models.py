"""`modeld ctl models|import|rm`: the models on this disk. They work with and without a daemon."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click
import msgspec

from modeld.admin.client import AdminClient
from modeld.admin.schemas import StatusReply
from modeld.cli.output import AS_JSON, document_out, line_out
from modeld.cli.table import Row, Screen, table
from modeld.cli.words import cell, count, memory, one_line
from modeld.config import paths
from modeld.errors import ModeldError, StartupError, UsageError

if TYPE_CHECKING:
    from modeld.cli.fits import Fit
    from modeld.library.entry import Entry
    from modeld.library.shelf import Brought
    from modeld.supervisor.observation import Limits

STATE = "modeld.state_dir"
"""Where the group leaves the state directory, in the context's `meta`."""

HEADINGS = ("MODEL", "FITS", "QUANT", "SIZE", "CONTEXT", "PARAMS")
WORDS = 3
COLOURS = {"yes": "green", "not now": "yellow", "no": "red", "broken": "red"}

CACHE = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Cache directory; the running daemon's by default.",
)


class Listed(msgspec.Struct, frozen=True):
    """A model as `--json` shows it. Sizes in bytes; what is unknown is null or empty.

    `fits` is "yes", "not now", "no" or "-", `memory` what it would take, `why` what is in the way. A broken
    one has an `error`.
    """

    path: str
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
    fits: str
    memory: int
    why: str
    error: str


class ListedModels(msgspec.Struct, frozen=True):
    """The document of `ctl models --json`."""

    models: tuple[Listed, ...]


@click.command()
@click.argument("path", type=click.Path(path_type=Path), nargs=-1)
@CACHE
@click.option(
    "--config",
    "-c",
    "file",
    type=click.Path(path_type=Path),
    help="Judge FITS by the memory limits of this file; the running daemon's by default.",
)
@AS_JSON
@click.pass_obj
def models(
    client: AdminClient, path: tuple[Path, ...], cache_dir: Path | None, file: Path | None, as_json: bool
) -> None:
    """Show the models in PATHs (files or folders), or in the cache: what they are, and if they fit here.

    Broken files are among them, with what is wrong. FITS is judged by what is free at this moment, or would
    be without the running daemon's idle models.
    """
    from modeld.cli.fits import fit_of

    daemon = _daemon(client)
    cache = _cache(daemon, cache_dir)
    limits = _limits(daemon, file)

    async def look() -> tuple[list[Entry], list[Fit]]:
        entries = await _entries(cache, path)
        return entries, await fit_of(entries, limits, daemon.models if daemon else ())

    entries, fits = asyncio.run(look())
    listed = tuple(map(_listed, entries, fits))
    if as_json:
        document_out(ListedModels(listed))
        return
    line_out(page(listed, Screen.of(sys.stdout)) if listed else "no models")


@click.command("import")
@click.argument("path", type=click.Path(path_type=Path), nargs=-1, required=True)
@click.option(
    "--copy/--link",
    "copied",
    help="Copy the files, or link them (the default), which takes no room where the disk is the same.",
)
@CACHE
@click.pass_obj
def bring(client: AdminClient, path: tuple[Path, ...], copied: bool, cache_dir: Path | None) -> None:
    """Bring models (files, or folders with models) into the cache's folder.

    Ends with 1 when one of several could not be; the others are there.
    """
    cache = _cache(_daemon(client), cache_dir)
    failed = False
    for entry in asyncio.run(_entries(cache, path)):
        try:
            line_out(_brought(entry, _bring(cache, entry, "copy" if copied else "link")))
        except ModeldError as error:
            failed = True
            click.echo(f"Error: {one_line(str(error))}", err=True)
    if failed:
        click.get_current_context().exit(1)


@click.command()
@click.argument("name")
@CACHE
@click.pass_context
def rm(context: click.Context, name: str, cache_dir: Path | None) -> None:
    """Remove a model from the cache: a path, a name of `ctl models`, or a repository.

    One that a configured model uses stays.
    """
    from modeld.library import shelf

    client = context.find_object(AdminClient)
    assert client is not None, "the group `ctl` makes one"
    cache = _cache(_daemon(client), cache_dir)
    entry = shelf.find(cache, name, tuple(asyncio.run(_entries(cache, ()))))
    users = sorted(_users(entry, cache, context.meta[STATE]))
    if users:
        raise UsageError(
            f"{entry.path} is in use by {', '.join(map(repr, users))}; "
            f"take it out of the configuration, or `modeld ctl remove {users[0]}`, first"
        )
    freed = shelf.remove(cache, entry)
    room = f"{memory(freed)} freed" if freed else "a link, so nothing is freed"
    line_out(f"removed {cell(entry.name)}: {one_line(entry.path)} ({room})")


# --- where and which ----------------------------------------------------------------------------------------


def _daemon(client: AdminClient) -> StatusReply | None:
    """Return what the running daemon says of itself; None when there is none."""
    try:
        return client.status()
    except StartupError:
        return None


def _cache(daemon: StatusReply | None, given: Path | None) -> Path:
    """Return the cache: the one named, else the running daemon's, else what the environment says."""
    if given is None and daemon is not None and daemon.cache_dir:
        given = Path(daemon.cache_dir)
    return paths.cache_dir(given, os.environ)


def _limits(daemon: StatusReply | None, file: Path | None) -> Limits:
    """Return the limits of memory: of the file named, else the running daemon's, else the usual ones."""
    from modeld.supervisor.observation import Limits

    if file is not None:
        from modeld.config.load import load_config

        given = load_config(file, os.environ).memory
        return Limits(given.ram, given.vram, given.headroom)
    if daemon is not None:
        return Limits(daemon.memory.ram, daemon.memory.vram, daemon.memory.headroom)
    return Limits()


async def _entries(cache: Path, named: Iterable[Path]) -> list[Entry]:
    """Return the models in files and folders, each once; without any, those of the cache."""
    from modeld.library.listing import Listing

    listing = Listing(cache)
    if not (wanted := list(named)):
        return list(await listing.scan(cache)) if cache.is_dir() else []
    if missing := [path for path in wanted if not os.path.lexists(path)]:
        raise UsageError(f"there is no {missing[0]}")
    found = await listing.scan(*(path for path in wanted if path.is_dir()))
    single = [await listing.look(path) for path in wanted if not path.is_dir()]
    return list({entry.path: entry for entry in (*found, *single)}.values())


def _users(entry: Entry, cache: Path, state: Path) -> Iterator[str]:
    """Yield the configured models that a model's files belong to."""
    from modeld.library.resolve import Resolver
    from modeld.library.shelf import paths_of
    from modeld.store.effective import stored_models

    mine = [_real(path) for path in paths_of(entry)]
    for stored in stored_models(state / "modeld.sqlite3"):
        base = Path(stored.base)
        found = Resolver(cache, base).located(str(stored.document.get("model", "")))
        used = [found] if found is not None else []
        used += [base / text for text in _texts(stored.document) if "\0" not in text]
        if any(_within(_real(path), each) for path in used for each in mine):
            yield stored.key


def _texts(document: Any) -> Iterator[str]:
    """Yield every text in a model's settings: a projector, an adapter or a part is named by its path."""
    if isinstance(document, str):
        yield document
    elif isinstance(document, Mapping):
        for value in document.values():
            yield from _texts(value)
    elif isinstance(document, list):
        for value in document:
            yield from _texts(value)


def _real(path: str | Path) -> str:
    """Return a path with links in its folders resolved, and not what it is itself a link to."""
    folder, name = os.path.split(os.path.abspath(path))
    return os.path.join(os.path.realpath(folder), name)


def _within(path: str, own: str) -> bool:
    return path == own or path.startswith(f"{own}{os.sep}")


def _bring(cache: Path, entry: Entry, way: Literal["copy", "link"]) -> Brought:
    from modeld.library.shelf import bring as put

    if way == "link" or not sys.stderr.isatty():
        return put(cache, entry, way)
    with click.progressbar(length=max(entry.size, 1), label=cell(entry.name)[:24], file=sys.stderr) as bar:
        return put(cache, entry, way, bar.update)


# --- what is shown ------------------------------------------------------------------------------------------


_WORDS = {
    "copied": "copied to",
    "linked": "linked to",
    "pointed": "now a link, which needs the original where it is:",
    "there": "there already:",
}


def _brought(entry: Entry, brought: Brought) -> str:
    where = one_line(str(brought.path))
    return f"{cell(entry.name)}: {_WORDS[brought.done]} {where} ({memory(brought.size)})"


def _listed(entry: Entry, fit: Fit) -> Listed:
    known = entry.metadata
    return Listed(
        path=entry.path,
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
        fits=str(fit.fits),
        memory=fit.bytes,
        why=fit.why,
        error=entry.error,
    )


def page(listed: Iterable[Listed], screen: Screen) -> str:
    """Return the models as a table; what they can do, where they are and what is wrong stands below."""
    rows = list(listed)
    broken = sum(bool(each.error) for each in rows)
    size = sum(each.size for each in rows)
    total = f"{count(len(rows), 'model')}, {memory(size)}" + (f", {broken} broken" if broken else "")
    return "\n".join([*table(HEADINGS, WORDS, [_row(each) for each in rows], screen), total])


def _row(each: Listed) -> Row:
    fits = "broken" if each.error else each.fits
    cells = (
        cell(each.name),
        fits,
        cell(each.quantization or "-"),
        memory(each.size),
        str(each.context_length or "-"),
        parameters(each.parameters),
    )
    if each.error:
        return Row(cells, (one_line(each.error),), COLOURS[fits])
    does = ", ".join(each.capabilities) or (each.kind if each.kind != "model" else "")
    why = f"takes {memory(each.memory)}: {one_line(each.why)}" if each.why else ""
    return Row(cells, (does, why, one_line(each.path)), COLOURS.get(fits))


def parameters(number: int | None) -> str:
    """Return a number of weights as "135M" or "7.2B"; "-" when it is unknown."""
    if not number:
        return "-"
    for size, unit, decimals in ((10**9, "B", 1), (10**6, "M", 0)):
        if number >= 0.9995 * size:
            return f"{number / size:.{decimals}f}{unit}"
    return str(number)
