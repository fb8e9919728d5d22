"""What `python -m modeld.worker --capabilities` prints: one line of JSON, a map of loader to `Capability`."""

from __future__ import annotations

import msgspec


class Capability(msgspec.Struct, frozen=True):
    """Whether a loader's engine is really there.

    `detail`: what was found (package and version, path of a binary), or what is missing. `fix`: the command
    that would help, e.g. "modeld engines install whispercpp"; "" when nothing is missing. `python`: the
    interpreter that was asked, "" for the daemon's own; the supervisor fills it in.
    """

    available: bool
    detail: str
    fix: str = ""
    python: str = ""
