"""The models in folders: found by their names, read once, and remembered by size and time of change."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterable, Sequence
from pathlib import Path

from msgspec.structs import replace

from modeld.errors import LoadFailed
from modeld.library import folders, ggml, safetensors
from modeld.library.about import About, Answer
from modeld.library.entry import Entry, Format, served_by
from modeld.library.listing_cache import Cache, Row
from modeld.library.metadata import Metadata
from modeld.library.reading import read_models
from modeld.library.walk import SHARD, Folder, Found, found_in, walk
from modeld.protocol.llama import projector_beside


class Listing:
    """Lists models. One call at a time does the work; others wait for it."""

    def __init__(self, cache_dir: Path | None) -> None:
        """What was read is kept in `cache_dir`, or in memory only."""
        self._cache = Cache(cache_dir)
        self._turn = asyncio.Lock()

    async def scan(self, *roots: Path) -> tuple[Entry, ...]:
        """Return the models in trees of folders, by path, with broken ones among them.

        Only files that are new or changed are opened. A model in several pieces is one entry, and projectors
        belong to the models beside them. Raises nothing for what is on the disk: a root that cannot be read
        is an entry with an error. Cancelling stops the reading.
        """
        async with self._turn:
            trees = [os.path.abspath(root) for root in roots]
            found, old = await asyncio.to_thread(self._found, trees)
            return await self._entries(found, old)

    async def look(self, path: Path) -> Entry:
        """Return one model, of whose files `path` is one, or the folder; with an error if it is none."""
        async with self._turn:
            wanted = os.path.abspath(path)
            found, _ = await asyncio.to_thread(self._beside, wanted)
            entries = await self._entries(found, ())
        name = os.path.basename(wanted)
        for entry in entries:
            if entry.path == wanted or name in entry.files or wanted in entry.mmproj:
                return entry
        inside = [entry for entry in entries if os.path.dirname(entry.path) == wanted]
        if len(inside) == 1:
            return inside[0]
        why = f"holds {len(inside)} models; name one" if inside else "is no model that is known here"
        if not os.path.lexists(wanted):
            why = "is not there"
        return Entry(wanted, "other", error=f"{wanted} {why}")

    def _found(self, trees: Sequence[str]) -> tuple[list[tuple[Folder, list[Found]]], list[str]]:
        self._cache.load()
        found = [(folder, list(found_in(folder))) for folder in walk(*trees)]
        return found, [path for tree in trees for path in self._cache.below(tree)]

    def _beside(self, path: str) -> tuple[list[tuple[Folder, list[Found]]], list[str]]:
        self._cache.load()
        folder = path if os.path.isdir(path) else os.path.dirname(path)
        return [(each, list(found_in(each))) for each in walk(folder, deep=False)], []

    async def _entries(
        self, found: Sequence[tuple[Folder, list[Found]]], old: Iterable[str]
    ) -> tuple[Entry, ...]:
        every = [each for _, models in found for each in models]
        known = {each.path: self._cache.find(each) for each in every if not each.problem}
        new = [each for each in every if not each.problem and known[each.path] is None]
        read = await self._read(new)
        gone = set(old) - known.keys()
        if read or gone:
            rows = {each.path: Row(each.signature, read[each.path][0]) for each in new if read[each.path][1]}
            await asyncio.to_thread(self._cache.keep, rows, gone)
        entries: list[Entry] = []
        for folder, models in found:
            there = []
            for each in models:
                entry = known.get(each.path) or (read[each.path][0] if each.path in read else _broken(each))
                there.append(entry)
            entries += _with_projectors(folder, there)
        return tuple(sorted(entries, key=lambda entry: entry.path))

    async def _read(self, new: Sequence[Found]) -> dict[str, tuple[Entry, bool]]:
        """Return an entry for each, and whether it may be kept: not what the system was in the way of."""
        gguf = [each for each in new if each.what == "gguf"]
        others = [each for each in new if each.what != "gguf"]
        jobs = [[Path(each.folder, name) for name in each.files] for each in gguf]
        answers = await read_models(jobs)
        read = {each.path: _of_answer(each, answer) for each, answer in zip(gguf, answers, strict=True)}
        if others:
            read |= await asyncio.to_thread(lambda: {each.path: _of_files(each) for each in others})
        return read


def _entry(
    found: Found, format: Format, metadata: Metadata, about: About, missing: Sequence[str] = ()
) -> Entry:
    missing = (*found.missing, *missing)
    error = ""
    if missing:
        few = missing[0] if len(missing) == 1 else f"{missing[0]}, …"
        error = f"{found.path} lacks {len(missing)} of its files: {few}; fetch them into {found.folder}"
        # The sums over the files that are there say nothing of the model.
        metadata = replace(metadata, parameters=None)
    name = metadata.name or _name(found)
    loader, usecase = served_by(format, about.capabilities) if not error else ("", "")
    return replace(
        _blank(found, format),
        kind=about.kind,
        name=name[:200],
        size=metadata.size if found.what == "folder" else found.size,
        missing=tuple(missing),
        capabilities=about.capabilities,
        loader=loader,
        usecase=usecase,
        error=error,
        metadata=metadata,
        about=about,
    )


def _blank(found: Found, format: Format) -> Entry:
    return Entry(
        path=found.path,
        format=format,
        name=_name(found),
        size=found.size,
        files=found.files,
        missing=found.missing,
        changed=max((changed for _, _, changed in found.signature), default=0) / 1e9,
    )


def _name(found: Found) -> str:
    path = Path(found.path)
    shard = SHARD.fullmatch(path.name)
    return shard[1] if shard else path.name if found.what in ("folder", "problem") else path.stem


def _broken(found: Found) -> Entry:
    return replace(_blank(found, _FORMATS[found.what]), error=f"{found.path} {found.problem}")


_FORMATS: dict[str, Format] = {"gguf": "gguf", "ggml": "ggml", "safetensors": "safetensors"}
_FORMATS |= {"folder": "other", "problem": "other"}


def _of_answer(found: Found, answer: Answer) -> tuple[Entry, bool]:
    if answer.metadata is not None and answer.about is not None:
        return _entry(found, "gguf", answer.metadata, answer.about), True
    error = answer.error or answer.unknown or answer.trouble
    entry = replace(_blank(found, "gguf"), error=error)
    # A reader that did not live to tell names no file; the next may.
    return entry, bool(answer.error) or answer.unknown.startswith(found.folder)


def _of_files(found: Found) -> tuple[Entry, bool]:
    """Read a model in another format than GGUF; all of them say little, and say it in one place."""
    path = Path(found.path)
    try:
        if found.what == "ggml":
            return _entry(found, "ggml", *ggml.describe(path)), True
        if found.what == "safetensors":
            metadata = safetensors.describe(path, [Path(found.folder, name) for name in found.files])
            return _entry(found, "safetensors", metadata, safetensors.about(path)), True
        names = [name for name, _, _ in found.signature]
        metadata, about, missing = folders.describe(path, names)
        format: Format = "safetensors"
        if folders.PIPELINE in names:
            format = "diffusers"
        elif metadata.format == "other":
            format = "onnx" if found.files[0].endswith(".onnx") else "other"
        return _entry(found, format, metadata, about, missing), True
    except (LoadFailed, OSError) as error:
        of_system = isinstance(error, OSError) or isinstance(error.__cause__, OSError)
        return replace(_blank(found, _FORMATS[found.what]), error=str(error)), not of_system


def _with_projectors(folder: Folder, entries: list[Entry]) -> list[Entry]:
    """Return the entries of a folder, with its projectors put to their models."""
    projectors = {os.path.basename(each.path): each for each in entries if each.kind == "mmproj"}
    models = [each for each in entries if each.format == "gguf" and each.kind == "model"]
    if not projectors or not models:
        return entries
    names = [name for name in folder.files if name.lower().endswith(".gguf")]
    taken: set[str] = set()
    changed: dict[str, Entry] = {}
    for model in models:
        first = projector_beside(os.path.basename(model.path), names)
        if first not in projectors:
            continue
        # Beside a single model they all are its own, in several precisions.
        mine = [first, *sorted(projectors.keys() - {first})] if len(models) == 1 else [first]
        taken.update(mine)
        metadata = projectors[first].metadata
        vision = metadata.vision if metadata else None
        more = tuple(
            word
            for word, able in (("vision", vision and vision.images), ("audio", vision and vision.audio))
            if able
        )
        changed[model.path] = replace(
            model,
            mmproj=tuple(os.path.join(folder.path, name) for name in mine),
            projector=metadata,
            capabilities=(*model.capabilities, *(word for word in more if word not in model.capabilities)),
        )
    left = [each for each in entries if os.path.basename(each.path) not in taken]
    return [changed.get(each.path, each) for each in left]
