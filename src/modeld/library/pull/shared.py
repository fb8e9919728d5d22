"""What other programs have pulled before: the cache of huggingface-hub, which is read and never changed.

    <cache>/models--ORG--NAME/refs/main                  the commit that was pulled last
    <cache>/models--ORG--NAME/snapshots/<commit>/<file>  links to
    <cache>/models--ORG--NAME/blobs/<etag>

A file is taken from it by a hard link, else by a link that points there.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from modeld.library.pull.transfer import digest_of

_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)
_ETAG = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}", re.ASCII)
_INDEX = ".index.json"
_LARGEST_INDEX = 64 * 1024**2


def files(cache: Path, repo: str) -> tuple[str, dict[str, tuple[int, str]]] | None:
    """Return the commit that is there of a repository, and its files: bytes and checksum, by name.

    None when there is none, or when it lacks weights that it lists.
    """
    home = _home(cache, repo)
    try:
        commit = (home / "refs" / "main").read_text().strip()
        if not _COMMIT.fullmatch(commit):
            return None
        root = home / "snapshots" / commit
        found = {}
        for folder, _, names in os.walk(root):
            for name in names:
                path = Path(folder, name)
                blob = path.resolve()
                if blob.parent == (home / "blobs").resolve() and _ETAG.fullmatch(blob.name):
                    found[path.relative_to(root).as_posix()] = (blob.stat().st_size, blob.name)
        whole = all(_listed(root / name) <= found.keys() for name in found if name.endswith(_INDEX))
    except (OSError, ValueError):  # it belongs to somebody else, or is not what it should be
        return None
    return (commit, found) if found and whole else None


def _listed(index: Path) -> set[str]:
    """Return the files of weights that an index names. Raises OSError or ValueError."""
    with index.open("rb") as stream:
        document = json.loads(stream.read(_LARGEST_INDEX))
    weights = document.get("weight_map") if isinstance(document, dict) else None
    return {str(name) for name in weights.values()} if isinstance(weights, dict) else set()


def blob(cache: Path, repo: str, etag: str, size: int) -> Path | None:
    """Return a file that is there by its checksum and bytes, if it may be read."""
    path = _home(cache, repo) / "blobs" / etag
    try:
        there = path.is_file() and path.stat().st_size == size and os.access(path, os.R_OK)
    except OSError:
        return None
    return path.resolve() if there else None


def take(found: Path, dest: Path, etag: str, tell: Callable[[int], None]) -> bool:
    """Put a file at `dest`; return False for one that is not what its checksum says, or cannot be had.

    `tell` gets the bytes that have been checked.
    """
    try:
        if digest_of(found, etag, tell) != etag:
            return False
        dest.unlink(missing_ok=True)
        try:
            os.link(found, dest)
        except OSError:  # another disk, or another's file
            dest.symlink_to(found)
    except OSError:
        return False
    return True


def _home(cache: Path, repo: str) -> Path:
    return cache / f"models--{repo.replace('/', '--')}"
