"""The client side of the admin socket: synchronous and on the standard library, so that `ctl` starts fast."""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

import msgspec

from modeld import errors
from modeld.admin.schemas import (
    LARGEST_CHANGE,
    Change,
    ChangeEnd,
    ChangePlan,
    ChangeResult,
    DevicesReply,
    ErrorBody,
    ErrorReply,
    EstimateReply,
    JobReport,
    JobsReply,
    MoveEnd,
    StatusReply,
)
from modeld.errors import ModeldError, StartupError, UsageError
from modeld.supervisor.events import FeedEvent
from modeld.supervisor.log_ring import LogLine
from modeld.supervisor.states import Status

ANSWER_S = 10.0
"""A daemon that says nothing for this long, before the first byte of an answer, counts as hung."""

WORK_S = 60.0
"""The same for an answer that needs files to be read first: an estimate, a plan."""

NOT_RUNNING = "not_running"
"""Code of the StartupError for a daemon that is not there, in contrast to one that cannot be spoken to."""

T = TypeVar("T", bound=msgspec.Struct)


class AdminClient:
    """Speaks to one daemon. Methods raise StartupError when none answers, else the daemon's own error."""

    def __init__(self, socket_path: Path) -> None:
        self._path = socket_path

    def status(self) -> StatusReply:
        """Return the daemon and its models."""
        with self._answer("GET", "/status") as answer:
            return self._decode(answer.read(), StatusReply)

    def devices(self) -> DevicesReply:
        """Return the machine's memories and the loaders, as the daemon sees them now."""
        with self._answer("GET", "/devices", patience=WORK_S) as answer:
            return self._decode(answer.read(), DevicesReply)

    def estimate(self, name: str) -> EstimateReply:
        """Return a model's footprint, line by line."""
        with self._answer("GET", f"{_model(name)}/estimate", patience=WORK_S) as answer:
            return self._decode(answer.read(), EstimateReply)

    def plan(self, change: Change) -> ChangePlan:
        """Return what a change would do, and do nothing."""
        with self._changes(msgspec.structs.replace(change, dry_run=True)) as answer:
            return self._decode(answer.read(), ChangePlan)

    def apply(self, change: Change) -> Iterator[FeedEvent | ChangeResult]:
        """Carry a change out: yield what happens, then its result as the last item.

        Raises what the daemon refuses it with (then nothing has changed). Leaving the iteration early does
        not stop the change.
        """
        with self._changes(msgspec.structs.replace(change, dry_run=False)) as answer:
            for line in self._lines(answer):
                if _ends(line):
                    end = self._decode(line, ChangeEnd)
                    if end.done is None:
                        raise _error(end.error)
                    yield end.done
                    return
                yield self._decode(line, FeedEvent)
        raise StartupError(
            "modeld stopped before the change was over; part of it may be done: "
            "start modeld again, see `modeld ctl status`, and repeat the command"
        )

    def move(self, name: str, verb: str, force: bool = False) -> Iterator[FeedEvent | Status]:
        """Load, unload or restart a model: yield what happens, then its Status as the last item.

        `force` goes with load: it evicts busy models too. Raises the move's error at its end. Leaving the
        iteration early does not stop the move.
        """
        with self._answer("POST", f"{_model(name)}/{verb}" + ("?force=1" if force else "")) as answer:
            for line in self._lines(answer):
                if _ends(line):
                    end = self._decode(line, MoveEnd)
                    if end.done is None:
                        raise _error(end.error)
                    yield end.done
                    return
                yield self._decode(line, FeedEvent)
        raise StartupError(f"modeld stopped before {verb} of {name} was over")

    def logs(self, name: str, *, follow: bool = False) -> Iterator[LogLine]:
        """Yield the kept lines of a model's worker, oldest first; with `follow` go on until modeld stops."""
        with self._answer("GET", f"{_model(name)}/logs?follow={follow:d}") as answer:
            for line in self._lines(answer):
                yield self._decode(line, LogLine)

    def events(self, *, follow: bool = False) -> Iterator[FeedEvent]:
        """Yield the kept events, oldest first; with `follow` go on until modeld stops."""
        with self._answer("GET", f"/events?follow={follow:d}") as answer:
            for line in self._lines(answer):
                yield self._decode(line, FeedEvent)

    def jobs(self, limit: int, *, unfinished: bool) -> JobsReply:
        """Return the newest jobs."""
        with self._answer("GET", f"/jobs?limit={limit}&unfinished={unfinished:d}") as answer:
            return self._decode(answer.read(), JobsReply)

    def job(self, id: str) -> JobReport:
        """Return one job. Raises NotFound."""
        with self._answer("GET", _job(id)) as answer:
            return self._decode(answer.read(), JobReport)

    def cancel_job(self, id: str) -> JobReport:
        """End a job, and return it. Raises NotFound for one that is over or unknown."""
        with self._answer("POST", f"{_job(id)}/cancel") as answer:
            return self._decode(answer.read(), JobReport)

    def follow_job(self, id: str) -> Iterator[JobReport]:
        """Yield a job as it is, and again as its items end, until it is over. Raises NotFound."""
        with self._answer("GET", f"{_job(id)}/follow") as answer:
            for line in self._lines(answer):
                yield self._decode(line, JobReport)

    def _changes(self, change: Change) -> AbstractContextManager[http.client.HTTPResponse]:
        body = msgspec.json.encode(change)
        if len(body) > LARGEST_CHANGE:  # found out by the daemon it would only be a broken pipe here
            raise UsageError(
                f"the change is {len(body) / 1024**2:.1f} MiB of JSON, the limit is "
                f"{LARGEST_CHANGE // 1024**2} MiB; add the models in several steps"
            )
        return self._answer("POST", "/changes", body, patience=WORK_S)

    @contextmanager
    def _answer(
        self, method: str, target: str, body: bytes | None = None, *, patience: float | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        patience = ANSWER_S if patience is None else patience
        connection = _UnixConnection(self._path, patience)
        try:
            try:
                # A daemon may refuse before it has read the whole body; its answer is there all the same.
                with suppress(BrokenPipeError, ConnectionResetError):
                    connection.request(method, target, body)
                answer = connection.getresponse()
            except (TimeoutError, BlockingIOError) as error:
                raise StartupError(
                    f"modeld does not answer on {self._path} (waited {patience:g} s): it hangs"
                ) from error
            except PermissionError as error:
                raise StartupError(
                    f"no permission to speak to modeld on {self._path}: it belongs to another user"
                ) from error
            except (OSError, http.client.HTTPException) as error:
                raise StartupError(
                    f"modeld is not running (no answer on {self._path}); start it with `modeld serve`",
                    code=NOT_RUNNING,
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
    def __init__(self, path: Path, patience: float) -> None:
        super().__init__("modeld", timeout=patience)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))

    def endless(self) -> None:
        """Wait without limit from here on: streams are silent for as long as nothing happens."""
        if self.sock is not None:
            self.sock.settimeout(None)


def _model(name: str) -> str:
    return _under("models", name, "the model's name is empty; `modeld ctl status` shows those there are")


def _job(id: str) -> str:
    return _under("jobs", id, "the job's id is empty; `modeld ctl jobs list` shows those there are")


def _under(folder: str, name: str, empty: str) -> str:
    if not name:  # the address would be another one
        raise UsageError(empty)
    return f"/{folder}/{quote(name, safe='')}"


def _ends(line: bytes) -> bool:
    """Say whether a line of a stream is its last one, by its form; an event begins with its time."""
    return line.startswith((b'{"done"', b'{"error"', b"{}"))


_CLASSES: dict[str, type[ModeldError]] = {
    kind.kind: kind
    for kind in (errors.NotFound, errors.BadRequest, errors.UsageError, errors.ConfigError, errors.TooLarge)
}
"""Errors that a caller tells apart by their class; the rest are plain ModeldErrors with their code."""


def _error(body: ErrorBody | None) -> ModeldError:
    body = body or ErrorBody("no reason given", "internal_error")
    error = _CLASSES.get(body.kind, ModeldError)(body.message)
    error.code = body.code
    return error
