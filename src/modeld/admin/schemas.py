"""The bodies of the admin socket: JSON documents and lines of NDJSON.

A stream of a move (load, unload, restart) is any number of FeedEvent lines and then one `MoveEnd`.
"""

from __future__ import annotations

import msgspec

from modeld.supervisor.states import Status


class DaemonInfo(msgspec.Struct, frozen=True):
    """The daemon about itself. `uptime` is in seconds, `address` the public one, e.g. "http://127.0.0.1:8000"."""

    version: str
    pid: int
    uptime: float
    address: str


class StatusReply(DaemonInfo, frozen=True):
    """GET /status."""

    models: tuple[Status, ...] = ()


class ErrorBody(msgspec.Struct, frozen=True):
    """What went wrong: `message` for people, `code` and `kind` (the error's class) for programs."""

    message: str
    code: str
    kind: str = "internal"


class ErrorReply(msgspec.Struct, frozen=True):
    """Every answer that is not 2xx."""

    error: ErrorBody


class MoveEnd(msgspec.Struct, frozen=True, omit_defaults=True):
    """The last line of a move: exactly one of the two is set."""

    done: Status | None = None
    error: ErrorBody | None = None
