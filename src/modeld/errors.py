"""Every error modeld raises on purpose: one class for each different reaction of whoever catches it.

`kind` names a class on the worker link (`protocol.messages.Failure`); `code` and `param` are what OpenAI's
error envelope shows. The table from class to HTTP status lives in `gateway.envelope`, since only the gateway
speaks HTTP. Messages are written for the person who reads them: what happened, with the numbers, and the fix.
"""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar


class ModeldError(Exception):
    """Base of the tree. `code` is a stable word for programs, `param` the offending field as a JSON path."""

    kind: ClassVar[str] = "internal"
    default_code: ClassVar[str] = "internal_error"

    def __init__(self, message: str, *, code: str | None = None, param: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code or self.default_code
        self.param = param

    def __str__(self) -> str:
        return self.message


# --- the caller's fault -------------------------------------------------------------------------------------


class BadRequest(ModeldError):
    """The request can never work as it stands (HTTP 400)."""

    kind = "bad_request"
    default_code = "invalid_request"


class NotFound(ModeldError):
    """The thing named does not exist (HTTP 404)."""

    kind = "not_found"
    default_code = "not_found"


class Unauthorized(ModeldError):
    """No key, or a wrong one (HTTP 401)."""

    kind = "unauthorized"
    default_code = "invalid_api_key"


class Forbidden(ModeldError):
    """The request comes from where it must not come from, e.g. a foreign Host (HTTP 403)."""

    kind = "forbidden"
    default_code = "forbidden"


class MethodNotAllowed(ModeldError):
    """The path exists, the method does not (HTTP 405)."""

    kind = "method_not_allowed"
    default_code = "method_not_allowed"


class Conflict(ModeldError):
    """It contradicts what was asked before, and sending it again changes nothing (HTTP 409)."""

    kind = "conflict"
    default_code = "conflict"


class TooLarge(ModeldError):
    """The body is over the configured limit (HTTP 413)."""

    kind = "too_large"
    default_code = "request_too_large"


class UnsupportedMedia(ModeldError):
    """The body is not of a content type this route reads (HTTP 415)."""

    kind = "unsupported_media"
    default_code = "unsupported_media_type"


# --- not now ------------------------------------------------------------------------------------------------


class Overloaded(ModeldError):
    """The queue is full (HTTP 429); `retry_after` is in seconds."""

    kind = "overloaded"
    default_code = "queue_full"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, retry_after: float = 1.0
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after = retry_after


class ModelFailed(ModeldError):
    """The model is FAILED: loading it again without a change would fail again (HTTP 503, not retried)."""

    kind = "model_failed"
    default_code = "model_failed"


class ModelUnavailable(ModeldError):
    """The model cannot serve at this moment: stopped, draining, or no memory free (HTTP 503).

    `retry_after` is in seconds, None when nobody can say.
    """

    kind = "model_unavailable"
    default_code = "model_unavailable"

    def __init__(
        self,
        message: str,
        *,
        code: str | None = None,
        param: str | None = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.retry_after = retry_after


class DeadlineExceeded(ModeldError):
    """A named limit of time ran out (HTTP 504)."""

    kind = "deadline"
    default_code = "deadline_exceeded"


class StoreFailed(ModeldError):
    """What must be kept could not be: disk full, or the file held by others (HTTP 503, worth another try)."""

    kind = "store_failed"
    default_code = "store_failed"


class UpstreamFailed(ModeldError):
    """A server that the caller named did not do its part (HTTP 424)."""

    kind = "upstream_failed"
    default_code = "http_error"


# --- the engine's or the worker's fault ---------------------------------------------------------------------


class EngineError(ModeldError):
    """The engine answered with an error of its own (HTTP 502)."""

    kind = "engine"
    default_code = "engine_error"


class WorkerDied(ModeldError):
    """The worker process, or the engine inside it, ended while a call was open (HTTP 502)."""

    kind = "worker_died"
    default_code = "worker_died"


class LoadFailed(ModeldError):
    """A model did not load. `permanent` says that trying again without a change is pointless."""

    kind = "load_failed"
    default_code = "load_failed"

    def __init__(
        self, message: str, *, code: str | None = None, param: str | None = None, permanent: bool = False
    ) -> None:
        super().__init__(message, code=code, param=param)
        self.permanent = permanent


# --- the link -----------------------------------------------------------------------------------------------


class LinkError(ModeldError):
    """Bytes on the worker link that are not the protocol: the peer is broken, the link is closed."""

    kind = "link"
    default_code = "link_error"


class FrameTooLarge(LinkError):
    """A frame announces, or a message needs, more bytes than the limit."""

    kind = "frame_too_large"
    default_code = "frame_too_large"


class BadFrame(LinkError):
    """A frame whose payload is not a known message."""

    kind = "bad_frame"
    default_code = "bad_frame"


# --- what people write --------------------------------------------------------------------------------------


class UsageError(ModeldError):
    """Bad input on the command line or in the environment (CLI exit code 2)."""

    kind = "usage"
    default_code = "usage"


class ConfigError(UsageError):
    """Bad input in a file; the message begins with file:line:column, ends with the fix (CLI exit code 2)."""

    kind = "config"
    default_code = "config"

    def __init__(self, message: str, *, file: Path | None = None, line: int = 0, column: int = 0) -> None:
        where = f"{file}:{line}:{column}: " if file and line else f"{file}: " if file else ""
        super().__init__(where + message)
        self.file, self.line, self.column = file, line, column


class StartupError(ModeldError):
    """The daemon cannot start: port taken, state directory in use or not writable (CLI exit code 1)."""

    kind = "startup"
    default_code = "startup"
