"""From a model reference to a file or folder on this disk."""

from __future__ import annotations

import asyncio
import difflib
import os
import stat
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

from modeld.errors import LoadFailed, UsageError
from modeld.library import child
from modeld.library.built.catalogue import CATALOGUE, Built
from modeld.library.choose import NoClearChoice, RepoFile, choose, words_for
from modeld.library.demo import pinned_sha256
from modeld.library.pull import record
from modeld.library.pull.client import Progress, pull
from modeld.library.pull.watch import Pulls
from modeld.library.refs import BuiltRef, HubRef, LocalRef, PackageRef, parse
from modeld.library.walk import walk


class Report(Protocol):
    """Hears how far the fetching of a model is."""

    def __call__(
        self, stage: str, fraction: float | None, done: int | None = None, total: int | None = None, /
    ) -> None:
        """Take a stage in words, how much of it is done (0..1), and of how many bytes, as far as is known."""


class Resolver:
    """Finds models; gets those that are in packages or at a hub into `cache_dir`, one at a time.

    In turn, so that the one that was asked for first has the whole line and is there soonest.
    """

    def __init__(self, cache_dir: Path, base: Path | None = None) -> None:
        """Relative paths are taken from `base`, or from the current directory without it.

        `pulls` are those under way, by the reference as `resolve` got it.
        """
        self.pulls = Pulls()
        self._cache = Path(os.path.abspath(cache_dir))
        self._base = base
        self._turn = asyncio.Lock()

    async def resolve(self, ref: str, report: Report, sha256: str | None = None) -> Path:
        """Return the absolute path of what `ref` names; `report` hears how far it is.

        `sha256` (hex) is what a fetched file must have; that of the demo models is known here. Cancelling
        stops a fetch and its pip. Raises LoadFailed, permanent when trying again is pointless.
        """
        try:
            found = parse(ref, self._base)
        except UsageError as error:
            raise LoadFailed(str(error), permanent=True) from None
        match found:
            case LocalRef(path):
                return _checked(path)
            case HubRef(repo, glob):
                folder = (self._base or Path.cwd()) / repo
                if folder.is_dir():
                    return _checked(folder) if glob is None else _picked(folder, glob, repo)
                try:
                    return await self._pulled(ref, found, report, sha256)
                except LoadFailed as error:
                    if error.permanent and glob is None:  # it may have been meant as one
                        words = f"{error}; nor is there a folder {folder}"
                        raise LoadFailed(words, permanent=True) from None
                    raise
            case PackageRef():
                return await self._package(found, report, sha256 or pinned_sha256(ref) or "")
            case BuiltRef(name):
                return await self._built(CATALOGUE[name], report)

    def located(self, ref: str) -> Path | None:
        """Return what `resolve` would, when it is on this disk; else None.

        Asks nothing of the network. Reads the disk, so call it in a thread.
        """
        try:
            found = parse(ref, self._base)
            match found:
                case LocalRef(path):
                    return _checked(path)
                case HubRef(repo, glob):
                    folder = (self._base or Path.cwd()) / repo
                    if folder.is_dir():
                        return _checked(folder) if glob is None else _picked(folder, glob, repo)
                    pulled = record.find(self._cache, repo, glob)
                    return pulled.path if pulled else None
                case PackageRef():
                    dest = self._package_file(found)
                    return dest if dest.is_file() else None
                case BuiltRef(name):
                    built = CATALOGUE[name]
                    folder = built.folder(self._cache)
                    return built.path(folder) if built.intact(folder) else None
        except (UsageError, LoadFailed, OSError):
            return None

    def _package_file(self, ref: PackageRef) -> Path:
        return self._cache / "pypi" / ref.package / ref.version / ref.member

    async def _pulled(self, asked: str, ref: HubRef, report: Report, sha256: str | None) -> Path:
        pulled = record.find(self._cache, ref.repo, ref.glob)
        if pulled is None:
            with self.pulls.doing(asked) as tell:
                async with self._in_turn(str(ref), report):
                    told = ""

                    def hear(progress: Progress) -> None:
                        nonlocal told
                        tell(progress)
                        words, fraction = _words(ref, progress)
                        if words != told:
                            told = words
                            report(words, fraction, *_sizes(progress.done, progress.total))

                    pulled = await pull(self._cache, ref, hear)
        if sha256 and sha256.lower() != pulled.files[0].etag:
            raise LoadFailed(
                f"{pulled.path} is not the file that is wanted: its sha256 is {pulled.files[0].etag}, "
                f"expected {sha256.lower()}",
                permanent=True,
            )
        return _checked(pulled.path)

    async def _package(self, ref: PackageRef, report: Report, sha256: str) -> Path:
        dest = self._package_file(ref)
        if not dest.is_file():
            async with self._in_turn(ref.requirement, report):
                options = {"package": ref.package, "version": ref.version, "member": ref.member}
                options |= {"dest": str(dest), "sha256": sha256}
                await _run("modeld.library.fetch", options, ref.requirement, report)
        return _checked(dest)

    async def _built(self, built: Built, report: Report) -> Path:
        folder = built.folder(self._cache)
        if not built.intact(folder):
            what = f"demo:{built.name}"
            async with self._in_turn(what, report):
                options = {"name": built.name, "dest": str(folder)}
                await _run("modeld.library.built", options, what, report)
        return _checked(built.path(folder))

    @asynccontextmanager
    async def _in_turn(self, what: str, report: Report) -> AsyncIterator[None]:
        if self._turn.locked():
            report(f"waiting to fetch {what}: another download goes first", None)
        async with self._turn:
            yield


async def _run(module: str, options: Mapping[str, str], what: str, report: Report) -> None:
    """Run a program that fetches. Raises LoadFailed with what it says of its failure."""
    told = f"fetching {what}"
    report(told, None)

    def hear(message: dict[str, Any]) -> None:
        nonlocal told
        words, fraction = _progress(what, message)
        if words != told:
            told = words
            report(words, fraction, *_sizes(message["done"], message["total"]))

    await child.run(module, options, told, hear)


def _sizes(done: int, total: int | None) -> tuple[int | None, int | None]:
    """Return the bytes that are here, and of how many; nothing while the sum is unknown."""
    return (min(done, total), total) if total else (None, None)


def _words(ref: HubRef, progress: Progress) -> tuple[str, float | None]:
    """Return how far a pull is, for people, and how much of it is done."""
    text, total = f"pulling {ref}", progress.total
    if progress.stage == "waiting":
        return f"{text}: another process is pulling from there", None
    if progress.stage == "listing":
        return text, None
    far = f": {progress.done / 1000**2:.1f} of {total / 1000**2:.1f} MB" if total else ""
    done = progress.done / total if total else None
    if progress.stage == "retrying":
        return f"{text}{far}: trying again, {progress.why}", done
    return f"{text}{far}{' are here' if progress.stage == 'checking' else ''}", done


def _progress(what: str, message: dict[str, Any]) -> tuple[str, float | None]:
    stage, done, total = message["stage"], message["done"], message["total"]
    text = f"fetching {what}"
    if stage == "building":
        return f"building {what} ({total / 1000**2:.1f} MB)", None
    if stage == "waiting":
        return f"{text}: another process is fetching it", None
    if stage == "checking":
        return f"{text}: checking", 1.0
    if not total:
        return f"{text}: {done / 1000**2:.1f} MB" if done else text, None
    # pip rounds the size it announces.
    done = min(done, total)
    return f"{text}: {done / 1000**2:.1f} of {total / 1000**2:.1f} MB", done / total


def _checked(path: Path) -> Path:
    """Return `path`, absolute, or the one model file in it. Raises LoadFailed (permanent)."""
    path = Path(os.path.abspath(path))
    try:
        kind = path.stat().st_mode
        if not os.access(path, os.R_OK | (os.X_OK if stat.S_ISDIR(kind) else 0)):
            raise PermissionError
        if stat.S_ISDIR(kind):
            return _in_folder(path)
        if not stat.S_ISREG(kind):
            raise LoadFailed(f"{path} is neither a file nor a folder", permanent=True)
        if path.stat().st_size == 0:
            raise LoadFailed(f"{path} is empty (0 bytes)", permanent=True)
    except (FileNotFoundError, NotADirectoryError):
        raise LoadFailed(f"there is no file {path}{_near(path)}", permanent=True) from None
    except PermissionError:
        raise LoadFailed(
            f"{path} cannot be read by user id {os.geteuid()}; check its permissions and its folders'",
            permanent=True,
        ) from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise LoadFailed(f"{path} cannot be read: {reason}", permanent=True) from None
    return path


_DESCRIBED = frozenset({"config.json", "model_index.json"})
"""Files that make a folder a model: of transformers, and of diffusers (with the weights in subfolders)."""


def _in_folder(folder: Path) -> Path:
    names = sorted(entry.name for entry in folder.iterdir() if entry.is_file())
    if any(name.endswith(".gguf") for name in names):
        files = [RepoFile(name, (folder / name).stat().st_size) for name in names]
        try:
            return _checked(folder / choose(files, what=str(folder), form="gguf").name)
        except NoClearChoice as error:
            each = (f"{folder / choice.name} ({words_for(choice.size)})" for choice in error.candidates)
            words = f"{folder} holds {len(error.candidates)} models; name the one to load: {', '.join(each)}"
            raise LoadFailed(words if error.candidates else str(error), permanent=True) from None
    if not _DESCRIBED.isdisjoint(names) or any(name.endswith(".onnx") for name in names):
        return folder
    raise LoadFailed(
        f"{folder} is a folder without a model: no GGUF file, no {', no '.join(sorted(_DESCRIBED))}, "
        "no ONNX file",
        permanent=True,
    )


def _picked(folder: Path, glob: str, what: str) -> Path:
    """Return the file in a folder, or below it, that a pattern chooses. Raises LoadFailed (permanent)."""
    files = [
        RepoFile(os.path.relpath(os.path.join(each.path, name), folder), file.size)
        for each in walk(str(folder))
        for name, file in each.files.items()
        if not file.problem
    ]
    try:
        return _checked(folder / choose(files, glob, what=what).name)
    except NoClearChoice as error:
        raise LoadFailed(str(error), permanent=True) from None


def _near(path: Path) -> str:
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return f", nor a folder {path.parent}"
    except OSError:
        return ""
    alike = difflib.get_close_matches(path.name, names[:1000], 1)
    return f"; did you mean {path.parent / alike[0]}?" if alike else ""
