"""What is known about the request being answered, from the first byte to the log line."""

from __future__ import annotations

from dataclasses import dataclass

from aiohttp import web

from modeld.ids import LOCAL, Identity, RequestId
from modeld.protocol.tasks import Usage

UNKNOWN = "unknown"
"""Label for models and routes that do not exist, so that strangers cannot make series in the metrics."""


@dataclass(slots=True)
class Exchange:
    """One request and its answer. Times are on the monotonic clock.

    `outcome` is the HTTP status the request counts under; it differs from the one sent when a stream fails
    after its headers, or when the client leaves.
    """

    id: RequestId
    started: float
    endpoint: str = UNKNOWN
    identity: Identity = LOCAL
    model: str = UNKNOWN
    outcome: int | None = None
    first_event: float | None = None
    chunks: int = 0
    usage: Usage | None = None


KEY = web.RequestKey("exchange", Exchange)
"""Where a request carries its exchange."""
