"""`modeld ctl models|import|rm`: the models on this disk. They work with and without a daemon."""

from __future__ import annotations

import asyncio
import os
import shlex
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from modeld.admin.client import AdminClient
from modeld.admin.schemas import StatusReply
from modeld.cli.model_table import ListedModels, listed_of, page, size
from modeld.cli.output import AS_JSON, document_out, line_out
from modeld.cli.table import Screen
from modeld.cli.words import cell, one_line
from modeld.config import paths
from modeld.errors import ModeldError, StartupError, UsageError

if TYPE_CHECKING:
    from modeld.cli.fits import Fit
    from modeld.library.checksums import Verified
    from modeld.library.entry import Entry
    from modeld.library.shelf import Brought
    from modeld.supervisor.observation import Limits

STATE = "modeld.state_dir"
"""Where the group leaves the state directory, in the context's `meta`."""

CACHE = click.option(
    "--cache-dir",
    type=click.Path(path_type=Path),
    help="Cache directory; the running daemon's by default.",
)


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
@click.option(
    "--verify",
    is_flag=True,
    help="Read every file whole, and compare its sha256 with that it was pulled with, or had the last time.",
)
@AS_JSON
@click.pass_obj
def models(
    client: AdminClient,
    path: tuple[Path, ...],
    cache_dir: Path | None,
    file: Path | None,
    verify: bool,
    as_json: bool,
) -> None:
    """Show the models in PATHs (files or folders), or in the cache: what they are, and if they fit here.

    Broken files are among them, with what is wrong. FITS is judged by what is free at this moment, or would
    be without the running daemon's idle models. Ends with 1 when a file that is named is broken,
    or one is not as it was.
    """
    from msgspec.structs import replace

    from modeld.cli.fits import fit_of
    from modeld.library import checksums

    daemon = _daemon(client)
    cache = _cache(daemon, cache_dir)
    limits = _limits(daemon, file)

    async def look() -> tuple[list[Entry], list[Fit]]:
        entries = await _entries(cache, path)
        return entries, await fit_of(entries, limits, daemon.models if daemon else ())

    entries, fits = asyncio.run(look())
    sums, damaged = [dict[str, str]() for _ in entries], False
    if verify:
        found = _verified(cache, entries)
        sums, damaged = [each.sha256 for each in found], any(each.wrong for each in found)
        entries = [
            replace(entry, error="; ".join(each.wrong)) if each.wrong else entry
            for entry, each in zip(entries, found, strict=True)
        ]
    elif as_json:
        sums = [checksums.told(cache, entry) for entry in entries]
    listed = tuple(map(listed_of, entries, fits, sums))
    if as_json:
        document_out(ListedModels(listed))
    else:
        line_out(page(listed, Screen.of(sys.stdout)) if listed else "no models")
    named = {os.path.abspath(each) for each in path}
    broken = any(entry.error and entry.path in named and not os.path.isdir(entry.path) for entry in entries)
    if damaged or broken:
        click.get_current_context().exit(1)


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
    failed, usable = False, ""
    for entry in asyncio.run(_entries(cache, path)):
        try:
            brought = _bring(cache, entry, "copy" if copied else "link")
            line_out(_brought(entry, brought))
            usable = usable or (shlex.quote(str(brought.path)) if entry.loader else "")
        except ModeldError as error:
            failed = True
            click.echo(f"Error: {one_line(str(error))}", err=True)
    if usable:
        line_out(f"use it with: modeld ctl add --model {one_line(usable)}")
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
    from modeld.library import removal
    from modeld.library.shelf import label

    client = context.find_object(AdminClient)
    assert client is not None, "the group `ctl` makes one"
    cache = _cache(_daemon(client), cache_dir)
    try:
        entry = removal.find(cache, name, tuple(asyncio.run(_entries(cache, ()))))
    except UsageError:
        if (begun := removal.remove_begun(cache, name)) is None:
            raise
        line_out(f"removed what had arrived of {cell(name)} ({size(begun)} freed)")
        return
    users = sorted(_users(entry, cache, context.meta[STATE]))
    if users:
        raise UsageError(
            f"{entry.path} is in use by {', '.join(map(repr, users))}; "
            f"take it out of the configuration, or `modeld ctl remove {users[0]}`, first"
        )
    freed = removal.remove(cache, entry)
    room = f"{size(freed)} freed" if freed else "a link, so nothing is freed"
    line_out(f"removed {cell(label(entry))}: {one_line(entry.path)} ({room})")


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
    from modeld.library.removal import paths_of
    from modeld.library.resolve import Resolver
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


def _verified(cache: Path, entries: Sequence[Entry]) -> list[Verified]:
    """Read the files of all models that are not broken; show how far it is on a terminal."""
    from modeld.library import checksums

    def each(hear: Callable[[int], None]) -> list[Verified]:
        return [
            checksums.Verified({}) if entry.error else checksums.verify(cache, entry, hear)
            for entry in entries
        ]

    if not sys.stderr.isatty():
        return each(lambda size: None)
    total = sum(entry.size for entry in entries if not entry.error)
    with click.progressbar(length=max(total, 1), label="reading", file=sys.stderr) as bar:
        return each(bar.update)


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
    from modeld.library import shelf

    where = one_line(str(brought.path))
    return f"{cell(shelf.label(entry))}: {_WORDS[brought.done]} {where} ({size(brought.size)})"
