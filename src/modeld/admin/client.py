"""The client side of the admin socket: synchronous and on the standard library, so that `ctl` starts fast."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from modeld import errors
from modeld.admin.schemas import ErrorBody, ErrorReply, MoveEnd, StatusReply
from modeld.errors import ModeldError, StartupError
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.log_ring import LogLine
from modeld.supervisor.states import Status

ANSWER_S = 10.0
"""A daemon that says nothing for this long, before the first byte of an answer, counts as hung."""

T = TypeVar("T", bound=msgspec.Struct)


class AdminClient:
    """Speaks to one daemon. Methods raise StartupError when none answers, else the daemon's own error."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def status(self) -> StatusReply:
        """Return the daemon and its models."""
        with self._answer("GET", "/status") as answer:
            return self._decode(answer.read(), StatusReply)

    def move(self, name: str, verb: str) -> Iterator[FeedEvent | Status]:
        """Load, unload or restart a model: yield what happens, then its Status as the last item.

        Raises the move's error at its end. Leaving the iteration early does not stop the move.
        """
        with self._answer("POST", f"/models/{quote(name, safe='')}/{verb}") as answer:
            for line in self._lines(answer):
                if line.startswith((b'{"done"', b'{"error"')):
                    end = self._decode(line, MoveEnd)
                    if end.done is not None:
                        yield end.done
                        return
                    raise _error(end.error or ErrorBody("no reason given", "internal_error"))
                yield self._decode(line, FeedEvent)
        raise StartupError(f"modeld stopped before {verb} of {name} was over")

    def logs(self, name: str, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the kept lines of a model's worker, oldest first; with `follow` go on until modeld stops."""
        with self._answer("GET", f"/models/{quote(name, safe='')}/logs?follow={follow:d}") as answer:
            for line in self._lines(answer):
                yield self._decode(line, LogLine)

    def events(self, *, follow: bool = False) -> Iterator[FeedEvent]:
        """Yield the kept events, oldest first; with `follow` go on until modeld stops."""
        with self._answer("GET", f"/events?follow={follow:d}") as answer:
            for line in self._lines(answer):
                yield self._decode(line, FeedEvent)

    @contextmanager
    def _answer(self, method: str, target: str) -> Iterator[http.client.HTTPResponse]:
        connection = _UnixConnection(self._path)
        try:
            try:
                connection.request(method, target)
                answer = connection.getresponse()
            except (TimeoutError, BlockingIOError) as error:
                raise StartupError(
                    f"modeld does not answer on {self._path} (waited {ANSWER_S:g} s): it hangs"
                ) from error
            except PermissionError as error:
                raise StartupError(
                    f"no permission to speak to modeld on {self._path}: it belongs to another user"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                raise StartupError(
                    f"modeld is not running (no answer on {self._path}); start it with `modeld serve`"
                ) from error
            with answer:
                if answer.status != 200:
                    raise _error(self._decode(answer.read(), ErrorReply).error)
                connection.endless()
                yield answer
        finally:
            connection.close()

    def _lines(self, answer: http.client.HTTPResponse) -> Iterator[bytes]:
        """Yield complete lines; a stream that breaks off (modeld stopped) ends like one that is over."""
        while True:
            try:
                line = answer.readline()
            except (http.client.HTTPException, OSError):
                return
            if not line.endswith(b"\n"):
                return
            yield line

    def _decode(self, data: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.MsgspecError as error:
            raise StartupError(
                f"what answers on {self._path} is not this version of modeld: {error}; restart the daemon"
            ) from error


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("modeld", timeout=ANSWER_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(ANSWER_S)
        self.sock.connect(str(self._path))

    def endless(self) -> None:
        """Wait without limit from here on: streams are silent for as long as nothing happens."""
        if self.sock is not None:
            self.sock.settimeout(None)


def _error(body: ErrorBody) -> ModeldError:
    classes: dict[str, Any] = {"not_found": errors.NotFound, "bad_request": errors.BadRequest}
    error: ModeldError = classes.get(body.kind, ModeldError)(body.message, code=body.code)
    return error
