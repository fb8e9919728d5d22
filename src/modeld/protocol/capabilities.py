"""What `python -m modeld.worker --capabilities` prints: one line of JSON, a map of loader to `Capability`."""

from __future__ import annotations

import msgspec


class Capability(msgspec.Struct, frozen=True):
    """Whether a loader's engine is really there.

    `detail`: what was found (package and version, path of a binary), or what is missing. `fix`: the command
    that would help, e.g. "pip install 'modeld[gguf]'"; "" when nothing is missing.
    """

    available: bool
    detail: str
    fix: str = ""
