"""A program that pulls one model from a hub.

    python -m modeld.library.pull --repo ORG/NAME [--glob G] --cache DIR

It prints JSON lines: {"stage", "done", "total", "file", "why"} while it works (bytes of the whole model;
`total` is null while unknown; stages: waiting, listing, downloading, checking, retrying), and last either
{"done": folder} or {"error": sentence, "permanent": whether trying again is pointless}. Exit code 0 or 1.

One repository is pulled by one such program at a time; others wait, and then find what they want. What a
killed one leaves is gone on with. It dies with its parent.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence, Set
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from modeld.library.choose import Choice, NoClearChoice, RepoFile, choose
from modeld.library.fetch import TICK, check_room, program, say
from modeld.library.lock import make_private
from modeld.library.pull import record
from modeld.library.pull.transfer import Limits, Patience, get
from modeld.library.wheel import Refused

if TYPE_CHECKING:
    from modeld.library.pull.hub import HubFile, Listing


def main() -> int:
    """Run the program."""
    usual = Limits()
    parser = argparse.ArgumentParser(prog="python -m modeld.library.pull")
    parser.add_argument("--repo", required=True)
    parser.add_argument("--glob", default=None)
    parser.add_argument("--cache", required=True, type=Path)
    parser.add_argument("--prefer", default="", help="quantisations, by commas")
    parser.add_argument("--refresh", default="", help="not empty: ask the hub also for what is here")
    parser.add_argument("--stall", type=float, default=usual.stall)
    parser.add_argument("--tries", type=int, default=usual.tries)
    parser.add_argument("--pause", type=float, default=usual.pause)
    parser.add_argument("--parent", type=int, default=0, help="process id to die with")
    chosen = parser.parse_args()
    limits = Limits(chosen.stall, chosen.tries, chosen.pause)
    prefer = tuple(filter(None, chosen.prefer.split(",")))

    def work(scratch: Path) -> None:
        # Whoever had the lock before us may have pulled the same.
        if chosen.refresh or record.find(chosen.cache, chosen.repo, chosen.glob) is None:
            pull(chosen.cache, chosen.repo, chosen.glob, prefer, limits, scratch)

    return program(record.home(chosen.cache, chosen.repo), chosen.parent, work)


def pull(
    cache: Path, repo: str, glob: str | None, prefer: Sequence[str], limits: Limits, scratch: Path
) -> None:
    """Get what `repo` and `glob` mean, and write it down. Raises Refused, OSError or Gone."""
    from modeld.library.pull import hub

    told = Told()
    patience = Patience(limits, repo)
    told("listing", 0)
    listing, choice, asked = _meant(
        repo, glob, prefer, lambda: hub.listing(repo, limits.stall), patience, told
    )
    by_name = {file.name: file for file in listing.files}
    names = [file.name for file in (*choice.files, *((choice.projector,) if choice.projector else ()))]
    wanted = [
        patience.over(
            lambda file=by_name[name]: hub.completed(listing, file, limits.stall),  # type: ignore[misc]
            lambda why: told("retrying", 0, why),
        )
        for name in names
    ]
    folder = record.place(cache, repo, listing.commit, choice.name)
    parts = record.home(cache, repo) / record.PARTS
    parts.mkdir(mode=0o700, parents=True, exist_ok=True)
    if asked:
        _clear(parts, listing)
    known = record.present(cache, repo)
    here = [_here(folder / file.name, file, known.get(file.etag or "")) for file in wanted]
    told.total = sum(file.size or 0 for file in wanted)
    for number, file in enumerate(wanted):
        if not here[number]:
            here[number] = _taken(repo, file, folder / file.name, told)
        told.before += file.size or 0
    told.before = 0
    missing = sum(
        (file.size or 0) - _size(parts / (file.etag or ""))
        for file, there in zip(wanted, here, strict=True)
        if not there
    )
    check_room(parts, repo if glob is None else f"{repo}:{glob}", max(missing, 0))
    for file, there in zip(wanted, here, strict=True):
        told.file = file.name
        if not there:
            _get(listing, file, folder / file.name, parts, patience, limits, told)
        told.before += file.size or 0
    pulled = [record.PulledFile(file.name, file.size or 0, file.etag or "") for file in wanted]
    projector = pulled.pop() if choice.projector else None
    before = list(record.all_of(cache, repo))
    record.keep(
        cache,
        record.Pulled(repo, glob, listing.commit, choice.form, tuple(pulled), projector, folder),
        scratch,
    )
    _reclaim(before, {each.folder for each in record.all_of(cache, repo)})


def _meant(
    repo: str,
    glob: str | None,
    prefer: Sequence[str],
    ask: Callable[[], Listing],
    patience: Patience,
    told: Told,
) -> tuple[Listing, Choice, bool]:
    """Return the files there are, those that are meant, and whether the hub says so.

    When it cannot say, what other programs have pulled from there serves as well.
    """
    from modeld.library.pull import hub

    try:
        listing = patience.over(ask, lambda why: told("retrying", 0, why))
    except Refused:
        kept = hub.kept(repo)
        if kept is not None:
            with suppress(Refused):
                return kept, _chosen(kept, glob, prefer), False
        raise
    return listing, _chosen(listing, glob, prefer), True


def _taken(repo: str, file: HubFile, dest: Path, told: Told) -> bool:
    """Return whether another program had pulled this file, and it could be taken from there."""
    from modeld.library.pull import hub, shared

    found = shared.blob(hub.shared_cache(), repo, file.etag or "", file.size or 0)
    if found is None:
        return False
    told.file = file.name
    make_private(dest.parent)
    return shared.take(found, dest, file.etag or "", lambda done: told("checking", done))


def _reclaim(before: Sequence[record.Pulled], kept: Set[Path]) -> None:
    """Remove models that no reference stands for any more, now that a newer one is there."""
    for old in {each.folder for each in before} - kept:
        shutil.rmtree(old, ignore_errors=True)
        with suppress(OSError):  # other models of that commit
            old.parent.rmdir()


class Told:
    """Says progress: at most every half second of downloading, and at once when something else begins."""

    def __init__(self) -> None:
        self.file: str | None = None
        self.before = 0
        self.total: int | None = None
        self._stage: tuple[str, str | None] = ("", None)
        self._last = 0.0

    def __call__(self, stage: str, done: int, why: str | None = None) -> None:
        """Say that `done` bytes of the file are there."""
        now = time.monotonic()
        if why is None and (stage, self.file) == self._stage and now - self._last < TICK:
            return
        self._stage, self._last = (stage, self.file), now
        say(stage=stage, done=self.before + done, total=self.total, file=self.file, why=why)


def _chosen(listing: Listing, glob: str | None, prefer: Sequence[str]) -> Choice:
    files = [RepoFile(file.name, file.size) for file in listing.files]
    try:
        return choose(files, glob, what=listing.repo, prefer=prefer)
    except NoClearChoice as error:
        raise Refused(str(error)) from None


def _get(
    listing: Listing,
    file: HubFile,
    dest: Path,
    parts: Path,
    patience: Patience,
    limits: Limits,
    told: Told,
) -> None:
    from modeld.library.pull.hub import opened

    assert file.size is not None
    assert file.etag is not None
    make_private(dest.parent)
    get(
        parts / file.etag,
        dest,
        file.size,
        file.etag,
        patience,
        lambda start: opened(listing, file, start, limits.stall),
        told,
    )


def _clear(parts: Path, listing: Listing) -> None:
    """Remove parts of files that the repository has no more: nobody will ever go on with them."""
    known = {file.etag for file in listing.files}
    if None in known:
        return
    for name in os.listdir(parts):
        if name not in known:
            os.unlink(parts / name)


def _here(path: Path, file: HubFile, elsewhere: Path | None) -> bool:
    """Return whether the file is in its place, where it is put if it is in another model's folder."""
    # Under its final name a file was whole and checked.
    if path.is_file() and path.stat().st_size == file.size:
        return True
    if elsewhere is None or _size(elsewhere) != file.size:
        return False
    make_private(path.parent)
    try:
        path.unlink(missing_ok=True)
        os.link(elsewhere, path)
    except OSError:  # a disk without hard links
        return False
    return True


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


if __name__ == "__main__":
    sys.exit(main())
