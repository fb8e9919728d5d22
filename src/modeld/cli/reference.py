"""What a model's files say of the options that a command line leaves out."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path
from typing import TYPE_CHECKING

from modeld.errors import UsageError

if TYPE_CHECKING:
    from modeld.library.entry import Entry

_DEMO = {
    "minilm": ("llama_server", "embed"),
    "kokoro": ("sherpa_onnx", "tts"),
    "whisper": ("whispercpp", "transcription"),
}


def told_by_files(
    ref: str, base: Path, *, loader: str | None, usecase: str | None
) -> tuple[str, str | None, str | None]:
    """Return the reference to use, the loader and the use case; what the files do not tell stays None.

    What is given stays as it is. Only files on this disk are asked; of a split model the reference becomes
    its first piece. With no loader given, whatever cannot become a model here is refused at once: raises
    UsageError for a reference that is none, a path that is not there, a broken file, one that is no model.
    """
    from modeld.library.refs import BuiltRef, HubRef, LocalRef, parse

    if loader is not None and usecase is not None:
        return ref, loader, usecase
    try:
        found = parse(ref, base)
    except UsageError:
        if loader is None:
            raise
        return ref, loader, usecase  # some engines know models by names of their own
    if isinstance(found, BuiltRef):
        known = _DEMO.get(found.name, (None, None))
        same = loader in (None, known[0])
        return ref, loader or known[0], usecase or (known[1] if same else None)
    if isinstance(found, HubRef) and loader is None and found.glob is None and "gguf" in found.repo.lower():
        return ref, "llama_server", usecase  # by the hub's custom: such repositories hold GGUF files
    if not isinstance(found, LocalRef):
        return ref, loader, usecase
    path = Path(os.path.abspath(found.path))
    entry = _look(path)
    if loader is None:
        _refuse(path, entry)
    if entry.loader and loader in (None, entry.loader):
        loader, usecase = entry.loader, usecase or entry.usecase
    return (entry.path if path.name in entry.files[1:] else ref), loader, usecase


def _look(path: Path) -> Entry:
    from modeld.library.listing import Listing

    return asyncio.run(Listing(None).look(path))


def _refuse(path: Path, entry: Entry) -> None:
    """Raise UsageError for what is no model by itself."""
    if not os.path.lexists(path):
        raise UsageError(f"there is no {path}")
    if entry.error and (entry.format != "other" or not path.is_file()):
        raise UsageError(entry.error)
    if str(path) in entry.mmproj:
        raise UsageError(f"{path} is the projector of {entry.path}; add that, and it is taken with it")
    if entry.kind not in ("model", "unknown"):
        raise UsageError(f"{path} is no model by itself (kind: {entry.kind}); name the model it belongs to")
