"""The header by which clients name what they send, so that sending it again does nothing new.

A name is its caller's own, and of one kind of thing: a job, a file, a batch. It holds for as long as the
thing is there.
"""

from __future__ import annotations

from aiohttp import web

from modeld.errors import BadRequest, Conflict

HEADER = "Idempotency-Key"
LONGEST = 255


def name_of(request: web.Request) -> str | None:
    """Return the name that a request goes by, None without one. Raises BadRequest."""
    name = request.headers.get(HEADER)
    if name is None:
        return None
    if not 0 < len(name) <= LONGEST or not name.isprintable():
        raise BadRequest(
            f"the header {HEADER} is 1 to {LONGEST} printable characters, this one has {len(name)}",
            code="invalid_value",
        )
    return name


def used_before(name: str | None) -> Conflict:
    """Return the error of a name that was used for something else."""
    return Conflict(
        f"the idempotency key {name!r} was used before with another request; "
        "send a new key with a new request",
        code="idempotency_key_reused",
    )
