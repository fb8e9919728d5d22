"""What a response is to the store: as it begins, as it ends, as it is read.

Times are seconds since the epoch, None: never. `identity` is the caller's. A `body` is the response's JSON
with output [], since its items are stored by themselves.
"""

from __future__ import annotations

import msgspec

from modeld.store.chains import Item


class Origin(msgspec.Struct, frozen=True):
    """What a response goes on from: an earlier response, a conversation, or nothing."""

    previous: str | None = None
    conversation: str | None = None


class Draft(msgspec.Struct, frozen=True):
    """A background response as it is queued.

    `inputs`: the items it was asked with. `before`: all items before those; they are stored where what it
    goes on from is not. `streamed`: its events are logged.
    """

    id: str
    identity: str
    body: bytes
    created: float
    expires: float | None
    inputs: tuple[Item, ...]
    before: tuple[Item, ...]
    origin: Origin
    streamed: bool


class Done(msgspec.Struct, frozen=True):
    """A response at its end; else as in Draft.

    `keep` False: only its conversation grows. `log`: the events (number, data) that are not in the log yet;
    all can be read until `log_expires`, or as long as the response is there.
    """

    id: str
    identity: str
    status: str
    body: bytes
    created: float
    expires: float | None
    inputs: tuple[Item, ...]
    outputs: tuple[Item, ...]
    before: tuple[Item, ...]
    origin: Origin
    keep: bool = True
    log: tuple[tuple[int, bytes], ...] = ()
    log_expires: float | None = None


class Stored(msgspec.Struct, frozen=True):
    """A response as it is stored. `owner`: the life of the daemon that began it, None when it is over."""

    id: str
    status: str
    body: bytes
    output: tuple[Item, ...]
    created: float
    expires: float | None
    background: bool
    streamed: bool
    owner: str | None
    log_expires: float | None = None
    identity: str = ""


class History(msgspec.Struct, frozen=True):
    """All items up to and with a response's output, and its status."""

    items: tuple[Item, ...]
    status: str
