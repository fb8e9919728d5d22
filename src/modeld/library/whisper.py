"""Models of whisper by their usual names: `base.en` is the file ggml-base.en.bin in the folder of models."""

from __future__ import annotations

import re
from pathlib import Path

FOLDER = Path("~/.local/share/pywhispercpp/models")
"""Where pywhispercpp keeps what it has downloaded, when no other folder is configured."""

_NAME = re.compile(
    r"(?:(?:tiny|base|small|medium)(?:\.en)?|large(?:-v[123])?(?:-turbo)?|distil-[a-z0-9.-]+)(?:-q[458]_[01K])?"
)
_FILE = re.compile(r"ggml-[A-Za-z0-9._-]+\.bin")


def named(reference: str, folder: str | None) -> Path | None:
    """Return the file in `folder` that a reference stands for: a name such as `base.en`, a file name such as
    `ggml-base.en.bin`, or one in a hub's repository (`org/repo:ggml-base.en.bin`). None for any other.

    A file of a repository counts only when it is there: it may be had in another way.
    """
    home = Path(folder).expanduser() if folder else FOLDER.expanduser()
    if _NAME.fullmatch(reference):
        return home / f"ggml-{reference}.bin"
    if _FILE.fullmatch(reference):
        return home / reference
    _, colon, name = reference.rpartition(":")
    if colon and _FILE.fullmatch(name) and (home / name).is_file():
        return home / name
    return None
