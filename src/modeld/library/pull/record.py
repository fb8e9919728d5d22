"""What a reference stood for when it was pulled; with it the model is found again without a network."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from modeld.library.choose import Form

PARTS, RECORDS = ".incoming", ".pulled"
"""Folders of a repository: what has arrived of files so far, and what references stood for."""

_COMMIT = re.compile(r"[0-9a-f]{7,64}", re.ASCII)


@dataclass(frozen=True, slots=True)
class PulledFile:
    """A file as it was pulled: its path in the repository, its bytes and its checksum (hex)."""

    name: str
    size: int
    etag: str


@dataclass(frozen=True, slots=True)
class Pulled:
    """A model on this disk. `files` in the order of `choose.Choice`; `path` is what a loader opens."""

    repo: str
    glob: str | None
    commit: str
    form: Form
    files: tuple[PulledFile, ...]
    projector: PulledFile | None
    folder: Path

    @property
    def path(self) -> Path:
        """The first file of the model, or the whole folder."""
        return self.folder if self.form == "folder" else self.folder / self.files[0].name

    @property
    def size(self) -> int:
        """Bytes of all files, the projector's too."""
        return sum(file.size for file in self.all)

    @property
    def all(self) -> tuple[PulledFile, ...]:
        """Every file, the projector last."""
        return (*self.files, self.projector) if self.projector else self.files


def home(cache: Path, repo: str) -> Path:
    """Return the folder of a repository (`org/name`)."""
    return cache / "hub" / repo


def repository(cache: Path, path: str) -> str:
    """Return the repository that a file was pulled from; "" for another file."""
    hub, *below = os.path.relpath(path, os.path.abspath(cache)).split(os.sep)
    return "/".join(below[:2]) if hub == "hub" and len(below) > 2 else ""


def place(cache: Path, repo: str, commit: str, name: str) -> Path:
    """Return the folder of a model; `name` is that of its choice ("" for the whole repository)."""
    label = name.replace("/", "--") or "model"
    if len(label.encode()) > 200:
        label = hashlib.sha256(label.encode()).hexdigest()
    return home(cache, repo) / commit / label


def aside(cache: Path, repo: str) -> tuple[Path, ...]:
    """Return the folders of a repository that hold no models."""
    return home(cache, repo) / PARTS, home(cache, repo) / RECORDS


def all_of(cache: Path, repo: str) -> Iterator[Pulled]:
    """Yield what references to a repository stood for, whether its files are still there or not."""
    for path in sorted((home(cache, repo) / RECORDS).glob("*.json")):
        try:
            yield _read(json.loads(path.read_bytes()), cache, repo)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            continue


def present(cache: Path, repo: str) -> dict[str, Path]:
    """Return where whole files of a repository are, by their checksums, as far as references were pulled."""
    found: dict[str, Path] = {}
    for pulled in all_of(cache, repo):
        for file in pulled.all:
            path = pulled.folder / file.name
            if path.is_file() and path.stat().st_size == file.size:
                found[file.etag] = path
    return found


def find(cache: Path, repo: str, glob: str | None) -> Pulled | None:
    """Return what this reference stood for, if all of it is still on the disk; reads nothing but sizes."""
    try:
        found = _read(json.loads(_path(cache, repo, glob).read_bytes()), cache, repo)
        whole = all((found.folder / file.name).stat().st_size == file.size for file in found.all)
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return found if whole and found.files and found.glob == glob else None


def keep(cache: Path, pulled: Pulled, scratch: Path) -> None:
    """Write the record, whole or not at all; `scratch` is a folder on the same disk. Raises OSError."""
    path = _path(cache, pulled.repo, pulled.glob)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    fresh = scratch / "record"
    fresh.write_text(
        json.dumps(
            {
                "glob": pulled.glob,
                "commit": pulled.commit,
                "form": pulled.form,
                "files": [asdict(file) for file in pulled.files],
                "projector": asdict(pulled.projector) if pulled.projector else None,
            }
        )
    )
    os.replace(fresh, path)


def _path(cache: Path, repo: str, glob: str | None) -> Path:
    # A glob may hold anything, also slashes and more letters than a file's name.
    key = "default" if glob is None else hashlib.sha256(glob.encode()).hexdigest()[:32]
    return home(cache, repo) / RECORDS / f"{key}.json"


def _read(kept: dict[str, Any], cache: Path, repo: str) -> Pulled:
    if not _COMMIT.fullmatch(kept["commit"]):
        raise ValueError(kept)
    files = tuple(PulledFile(**file) for file in kept["files"])
    return Pulled(
        repo=repo,
        glob=kept["glob"],
        commit=kept["commit"],
        form=kept["form"],
        files=files,
        projector=PulledFile(**kept["projector"]) if kept["projector"] else None,
        folder=place(cache, repo, kept["commit"], "" if kept["form"] == "folder" else files[0].name),
    )
