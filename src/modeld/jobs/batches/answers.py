"""The files that a batch writes: a line for each request, in the input's order, answers and errors apart.

It reads the input once more, for the names of the lines, and is for a thread.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from modeld.gateway.encoding import dumps
from modeld.ids import new_id
from modeld.jobs.batches.records import BatchUsage, CachedTokens, ReasoningTokens
from modeld.jobs.batches.scan import BOM, LINE
from modeld.jobs.files.shelf import Part, Shelf
from modeld.store.job_records import ItemResult

EXPIRED = {
    "code": "batch_expired",
    "message": "This request could not be executed before the completion window expired.",
}
CANCELLED = {
    "code": "batch_cancelled",
    "message": "This request was not executed, because the batch was cancelled.",
}


class _Usage(msgspec.Struct):
    """Tokens as chat and embeddings count them, and as responses do."""

    prompt_tokens: int = 0
    prompt_tokens_details: CachedTokens | None = None
    completion_tokens: int = 0
    completion_tokens_details: ReasoningTokens | None = None
    input_tokens: int = 0
    input_tokens_details: CachedTokens | None = None
    output_tokens: int = 0
    output_tokens_details: ReasoningTokens | None = None


class _Answer(msgspec.Struct):
    usage: _Usage | None = None


class _Failure(msgspec.Struct):
    code: str
    message: str
    status: int | None = None
    type: str | None = None
    param: str | None = None


_ANSWER = msgspec.json.Decoder(_Answer)
_FAILURE = msgspec.json.Decoder(_Failure)


def names(path: Path) -> Generator[str, None, None]:
    """Give the custom_id of each line that is not blank. Raises OSError."""
    with path.open("rb") as file:
        if file.read(len(BOM)) != BOM:
            file.seek(0)
        for line in file:
            if line.strip():
                yield LINE.decode(line).custom_id


class Answers:
    """The output of one batch on its way to the disk; `usage` adds up as it goes.

    `good` and `bad` are the two files, None while there is nothing in them. Raises OSError.
    """

    def __init__(self, shelf: Shelf, batch: str) -> None:
        self.good: Part | None = None
        self.bad: Part | None = None
        self.usage = BatchUsage()
        self._shelf = shelf
        self._names = names(shelf.lent(batch))

    def add(self, results: Sequence[ItemResult]) -> None:
        """Write what became of the next requests."""
        good, bad = list[bytes](), list[bytes]()
        for result in results:
            name = next(self._names)
            if result.state == "done" and result.body is not None:
                self._count(result.body)
                good.append(_line(name, _response(200, msgspec.Raw(result.body)), None))
            else:
                bad.append(_failed(name, result))
        if good:
            self.good = self.good or self._shelf.begin()
            self.good.write(b"".join(good))
        if bad:
            self.bad = self.bad or self._shelf.begin()
            self.bad.write(b"".join(bad))

    def drop(self) -> None:
        """Forget what was not kept, and read the input no further; raises nothing."""
        self._names.close()
        for part in (self.good, self.bad):
            if part is not None:
                part.drop()

    def _count(self, body: bytes) -> None:
        usage = _ANSWER.decode(body).usage
        if usage is None:
            return
        total = self.usage
        read = usage.prompt_tokens + usage.input_tokens
        written = usage.completion_tokens + usage.output_tokens
        total.input_tokens += read
        total.output_tokens += written
        total.total_tokens += read + written
        for cached in (usage.prompt_tokens_details, usage.input_tokens_details):
            total.input_tokens_details.cached_tokens += cached.cached_tokens if cached else 0
        for thought in (usage.completion_tokens_details, usage.output_tokens_details):
            total.output_tokens_details.reasoning_tokens += thought.reasoning_tokens if thought else 0


def _failed(name: str, result: ItemResult) -> bytes:
    """Return the line of a request without an answer: what the endpoint said, or why it was not asked.

    The error stands in its own place too where it has a response: there are clients that look only there.
    """
    if result.body is None:
        return _line(name, None, CANCELLED)
    failure = _FAILURE.decode(result.body)
    told = {"code": failure.code, "message": failure.message}
    if failure.status is None:
        return _line(name, None, EXPIRED if failure.code == "expired" else told)
    error = {
        "message": failure.message,
        "type": failure.type or "server_error",
        "param": failure.param,
        "code": failure.code,
    }
    return _line(name, _response(failure.status, {"error": error}), told)


def _response(status: int, body: Any) -> dict[str, Any]:
    return {"status_code": status, "request_id": new_id("req_"), "body": body}


def _line(name: str, response: dict[str, Any] | None, error: dict[str, str] | None) -> bytes:
    entry = {"id": new_id("batch_req_"), "custom_id": name, "response": response, "error": error}
    return dumps(entry) + b"\n"
