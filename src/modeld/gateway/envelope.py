"""Errors on the wire: the one table from error class to HTTP, and OpenAI's envelope with all four keys."""

from __future__ import annotations

import math
from typing import NamedTuple

import msgspec
from aiohttp import web

from modeld import errors
from modeld.ids import RequestId


class Row(NamedTuple):
    """How one class of error is answered; `retry_after` in seconds, None when waiting does not help."""

    status: int
    type: str
    retry_after: float | None = None


TABLE: dict[type[errors.ModeldError], Row] = {
    errors.BadRequest: Row(400, "invalid_request_error"),
    errors.Unauthorized: Row(401, "invalid_request_error"),
    errors.Forbidden: Row(403, "permission_error"),
    errors.NotFound: Row(404, "invalid_request_error"),
    errors.MethodNotAllowed: Row(405, "invalid_request_error"),
    errors.Conflict: Row(409, "invalid_request_error"),
    errors.TooLarge: Row(413, "invalid_request_error"),
    errors.UnsupportedMedia: Row(415, "invalid_request_error"),
    errors.UpstreamFailed: Row(424, "external_connector_error"),
    errors.Overloaded: Row(429, "rate_limit_error", 1.0),
    errors.EngineError: Row(502, "server_error"),
    errors.LinkError: Row(502, "server_error"),
    errors.WorkerDied: Row(502, "server_error", 1.0),
    errors.LoadFailed: Row(503, "server_error", 5.0),
    errors.ModelFailed: Row(503, "server_error"),
    errors.ModelUnavailable: Row(503, "server_error", 2.0),
    errors.StoreFailed: Row(503, "server_error", 2.0),
    errors.DeadlineExceeded: Row(504, "server_error"),
}
"""A class not listed is answered as its nearest listed base; without one it is a bug of ours."""

BUG = Row(500, "server_error")

HOPELESS = (errors.ModelFailed, errors.DeadlineExceeded, errors.Conflict)
"""Errors that SDKs would retry by themselves, which changes nothing or costs a second generation."""

LONGEST_WAIT_S = 3600.0
"""The most that a client is told to wait; by then much may have changed."""

CLIENT_CLOSED = 499
"""The status a request is counted under whose client left before the answer; never sent."""


def row_of(error: BaseException) -> Row:
    """Return the table's row for an error."""
    for cls in type(error).__mro__:
        if cls in TABLE:
            return TABLE[cls]
    return BUG


def hopeless(error: BaseException) -> bool:
    """Say whether sending the same request again is pointless."""
    return isinstance(error, HOPELESS) or bool(getattr(error, "permanent", False))


class _Error(msgspec.Struct):
    message: str
    type: str
    param: str | None
    code: str | None


class _Envelope(msgspec.Struct):
    error: _Error


def body(message: str, type: str, param: str | None, code: str | None) -> bytes:
    """Return the JSON text of an envelope."""
    # Messages may quote what a client sent; text that cannot be encoded must not turn one error into another.
    clean = message.encode("utf-8", "replace").decode()
    return msgspec.json.encode(_Envelope(_Error(clean, type, param, code)))


def envelope(error: BaseException, request_id: RequestId) -> bytes:
    """Return the JSON text for an error; for a bug it gives away nothing but the request id."""
    row = row_of(error)
    if row is BUG or not isinstance(error, errors.ModeldError):
        text = f"modeld failed to answer this request; its log has the reason under {request_id}"
        return body(text, BUG.type, None, "internal_error")
    return body(error.message, row.type, error.param, error.code)


def _wait(known: float | None, usual: float) -> float:
    """Return for how many seconds to wait: what the error knows, if that is a time, else what is usual."""
    if known is None or not math.isfinite(known):
        return usual
    return min(max(known, 0.0), LONGEST_WAIT_S)


def to_response(error: BaseException, request_id: RequestId) -> web.Response:
    """Return the whole HTTP answer to an error, with what retrying clients need to know."""
    row = row_of(error)
    headers: dict[str, str] = {}
    if hopeless(error):
        headers["x-should-retry"] = "false"
    elif row.retry_after is not None:
        seconds = _wait(getattr(error, "retry_after", None), row.retry_after)
        headers["retry-after"] = str(max(1, math.ceil(seconds)))
        headers["retry-after-ms"] = str(max(1, math.ceil(seconds * 1000)))
    if row.status == 401:
        headers["www-authenticate"] = "Bearer"
    return web.Response(
        status=row.status,
        body=envelope(error, request_id),
        headers=headers,
        content_type="application/json",
    )


_PLAIN_CODES = {
    400: "invalid_request",
    404: "not_found",
    405: "method_not_allowed",
    413: "request_too_large",
    417: "expectation_failed",
}


def plain_response(status: int, message: str, headers: dict[str, str] | None = None) -> web.Response:
    """Return an envelope for a refusal that has no error class, such as one of the HTTP parser."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return web.Response(
        status=status,
        body=body(message, kind, None, _PLAIN_CODES.get(status, "http_error")),
        headers=headers,
        content_type="application/json",
    )
