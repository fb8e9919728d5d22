"""From what engines say to the results that MASS's clients read. Pure, but for the time a chat takes.

An item's result is stored as the piece of JSON that it is in the answer; an answer is pieces put together.
"""

from __future__ import annotations

import sys
from array import array
from collections.abc import Callable, Sequence

import msgspec

from modeld.errors import EngineError
from modeld.gateway.encoding import dumps, unfinished
from modeld.jobs.kinds import Collector, TaskKind
from modeld.jobs.ports import Kind
from modeld.protocol.tasks import Event, Finish, Reasoning, Text, Tokens, Usage, Vector
from modeld.store.job_records import ItemResult, Job, TakenItem

CANCELLED = "the job was cancelled"
STATUS = {"cancelled": "error"}
"""MASS knows four statuses: what was cancelled is an error that says so."""


class ChatCollector:
    """Gathers a chat's answer, `id`; `monotonic` is the clock that its speed is taken by."""

    def __init__(self, id: str, model: str, monotonic: Callable[[], float]) -> None:
        self._id = id
        self._model = model
        self._monotonic = monotonic
        self._text: list[str] = []
        self._thought: list[str] = []
        self._finish: str | None = None
        self._usage = Usage(0, 0)
        self._first: float | None = None
        self._last = 0.0

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        self._last = self._monotonic()
        self._first = self._last if self._first is None else self._first
        for event in events:
            match event:
                case Text():
                    self._text.append(event.text)
                case Reasoning():
                    self._thought.append(event.text)
                case Finish():
                    self._finish = event.reason
                case Usage():
                    self._usage = event
                case _:
                    pass

    def body(self) -> bytes:
        """Return the response. Raises EngineError when the answer has no finish."""
        if self._finish is None or self._first is None:
            raise unfinished(0)
        usage = self._usage
        seconds = self._last - self._first
        # The first token came with the first event: what the seconds were spent on are the others.
        speed = (
            (usage.completion_tokens - 1) / seconds if usage.completion_tokens > 1 and seconds > 0 else 0.0
        )
        return dumps(
            {
                "id": self._id,
                "model": self._model,
                "message": {"role": "assistant", "content": "".join(self._text)},
                "finish_reason": self._finish,
                "reasoning_content": "".join(self._thought),
                "usage": {
                    "prompt_tokens": usage.prompt_tokens,
                    "completion_tokens": usage.completion_tokens,
                    "total_tokens": usage.prompt_tokens + usage.completion_tokens,
                },
                "tokens_per_second": round(speed, 2),
            }
        )


class VectorCollector:
    """Gathers the one vector of an item, as a list of numbers."""

    def __init__(self) -> None:
        self._data: bytes | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            if isinstance(event, Vector):
                self._data = event.data

    def body(self) -> bytes:
        """Return the numbers. Raises EngineError when there is no vector."""
        if self._data is None:
            raise EngineError("the engine ended the call without a vector", code="incomplete_answer")
        numbers = array("f", self._data)
        if sys.byteorder == "big":
            numbers.byteswap()
        return dumps(numbers.tolist())


class TokensCollector:
    """Gathers the tokens of a text."""

    def __init__(self) -> None:
        self._ids: tuple[int, ...] | None = None

    def add(self, events: Sequence[Event]) -> None:
        """Take events in."""
        for event in events:
            if isinstance(event, Tokens):
                self._ids = (self._ids or ()) + event.ids

    def body(self) -> bytes:
        """Return the token ids. Raises EngineError when there was no answer."""
        if self._ids is None:
            raise EngineError("the engine ended the call without tokens", code="incomplete_answer")
        return dumps(self._ids)


class Detail(msgspec.Struct):
    """What a job remembers of its submission: the model's name as the caller wrote it."""

    model: str


_DETAIL = msgspec.json.Decoder(Detail)


def kinds(monotonic: Callable[[], float]) -> dict[str, Kind]:
    """Return the kinds of job that these paths submit."""

    def chat(item: TakenItem) -> Collector:
        id = item.job_id if item.kind == "chat" else f"{item.job_id}-{item.place}"
        return ChatCollector(id, _DETAIL.decode(item.detail).model, monotonic)

    vectors, tokens = TaskKind(lambda item: VectorCollector()), TaskKind(lambda item: TokensCollector())
    chats = TaskKind(chat)
    return {
        "chat": chats,
        "batch_chat": chats,
        "embed": vectors,
        "batch_embed": vectors,
        "tokenize": tokens,
    }


def answer(job: Job, items: Sequence[ItemResult]) -> bytes:
    """Return the body that tells how a job stands; `items` are all of its items when it is over."""
    told: dict[str, object] = {"job_id": job.id, "status": STATUS.get(job.status, job.status)}
    if job.status == "done":
        told["result"] = msgspec.Raw(_result(job, items))
    elif job.over:
        told["error"] = CANCELLED if job.status == "cancelled" else job.error or "it failed"
    return dumps(told)


def _result(job: Job, items: Sequence[ItemResult]) -> bytes:
    """Put a result together. An item of a batch that failed has an `error` in its place."""
    id, model = dumps(job.id), dumps(_DETAIL.decode(job.detail).model)
    first = items[0].body or b"null"
    match job.kind:
        case "chat":
            return first
        case "batch_chat":
            pieces = (item.body if item.state == "done" else _failed(item) for item in items)
            return b'{"id":%b,"model":%b,"responses":[%b]}' % (
                id,
                model,
                b",".join(piece or b"null" for piece in pieces),
            )
        case "embed":
            return b'{"id":%b,"model":%b,"embedding":%b}' % (id, model, first)
        case "batch_embed":
            vectors = (
                b'{"index":%d,"embedding":%b}' % (item.place, item.body or b"null")
                if item.state == "done"
                else _failed(item)
                for item in items
            )
            return b'{"id":%b,"model":%b,"embeddings":[%b]}' % (id, model, b",".join(vectors))
        case "tokenize":
            return b'{"tokens":%b}' % first
        case _:
            return b"null"


def _failed(item: ItemResult) -> bytes:
    message = msgspec.json.decode(item.body)["message"] if item.body else CANCELLED
    return dumps({"index": item.place, "error": message})
