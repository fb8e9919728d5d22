"""A llama.cpp model that gives vectors, or scores documents: what runs for the usecase `embed`.

The engine takes many inputs in one request but says neither which of them it refuses nor when one of them is
done, so a call goes to it in small batches, as many at once as it has slots. A closed connection stops the
engine's work, here as with streams.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
import sys
from array import array
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias

import msgspec

from modeld.errors import BadRequest, EngineError
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import (
    DetokenizeTask,
    EmbedTask,
    RerankTask,
    Score,
    Task,
    TokenizeTask,
    Usage,
    Vector,
)
from modeld.worker.loader import Emit
from modeld.worker.loaders.llama_server import tokens
from modeld.worker.loaders.llama_server.client import Client, EngineUsage, TooLong
from modeld.worker.loaders.llama_server.engine import Engine

BATCH_INPUTS = 16
"""Inputs in one request to the engine: few enough that calls beside this one get their turn."""

BATCH_SIZE = 8_192
"""Weight of one request to the engine, if it has more than one input; see `weight`."""

Item: TypeAlias = str | tuple[int, ...]


class _Embedding(msgspec.Struct):
    index: int
    embedding: str


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: EngineUsage


class _Rank(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranks(msgspec.Struct):
    results: list[_Rank]
    usage: EngineUsage


class EmbeddingModel:
    """One loaded model; see `worker.loader.LoadedModel`."""

    def __init__(self, engine: Engine, client: Client, facts: Facts, vocabulary: int) -> None:
        self.facts = facts
        self._engine = engine
        self._client = client
        self._vocabulary = vocabulary

    @property
    def died(self) -> asyncio.Future[str]:
        """Done when the engine's process has ended by itself."""
        return self._engine.died

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Answer with vectors, scores, tokens or text. Raises BadRequest for what this model does not do."""
        match task:
            case EmbedTask() if "embed" in self.facts.capabilities:
                await self._embed(task, emit)
            case RerankTask() if "rerank" in self.facts.capabilities:
                await self._rerank(task, emit)
            case TokenizeTask() | DetokenizeTask():
                await tokens.run(self._client, task, self._vocabulary, emit)
            case _:
                raise cannot(task, self.facts)

    async def close(self) -> None:
        """End the engine."""
        await self._engine.stop()

    async def _embed(self, task: EmbedTask, emit: Emit) -> None:
        self._check(task)

        async def work(first: int, part: Sequence[Item]) -> int:
            vectors, used = await embedded(self._client, part)
            for index, data in vectors:
                await emit(Vector(first + index, _cut(data, task.dimensions)))
            return used

        await emit(Usage(await self._in_batches(task.inputs, work, "input"), 0))

    async def _rerank(self, task: RerankTask, emit: Emit) -> None:
        async def work(first: int, part: Sequence[Item]) -> int:
            answer = await self._client.ask("/v1/rerank", {"query": task.query, "documents": part}, _Ranks)
            _complete([rank.index for rank in answer.results], len(part))
            for rank in answer.results:
                if not math.isfinite(rank.relevance_score):
                    raise EngineError("the engine gave a score that is not a number")
                await emit(Score(first + rank.index, rank.relevance_score))
            return answer.usage.prompt_tokens

        await emit(Usage(await self._in_batches(task.documents, work, "documents"), 0))

    def _check(self, task: EmbedTask) -> None:
        """Refuse what can be known to fail before the engine works. Raises BadRequest."""
        native, wanted = self.facts.dimensions or 0, task.dimensions
        if wanted is not None and wanted != native and not (self.facts.matryoshka and 1 <= wanted < native):
            choice = f"1 to {native}" if self.facts.matryoshka else f"{native} only"
            raise BadRequest(
                f"dimensions is {wanted}, this model's vectors have {choice}; leave dimensions out",
                code="unsupported_dimensions",
                param="dimensions",
            )
        for at, item in enumerate(task.inputs):
            if isinstance(item, tuple):
                tokens.check(item, self._vocabulary, f"input[{at}]")
                limit = self.facts.context_length
                if limit is not None and len(item) > limit:
                    raise too_long(f"input[{at}]", TooLong(len(item), limit))

    async def _in_batches(
        self, items: Sequence[Item], work: Callable[[int, Sequence[Item]], Awaitable[int]], param: str
    ) -> int:
        """Do all items in batches; return the tokens read. Raises BadRequest that names a too long one."""
        # For each call its own: the engine takes turns between calls, a queue in here would not.
        slots = asyncio.Semaphore(self.facts.slots)
        limit = self.facts.context_length

        async def one(first: int, part: Sequence[Item]) -> int:
            async with slots:
                try:
                    return await work(first, part)
                except TooLong as refused:
                    if len(part) == 1:
                        raise too_long(f"{param}[{first}]", refused, limit) from None
                # The engine does not say which one is too long; alone, it is refused by itself.
                used = 0
                for at, item in enumerate(part, first):
                    try:
                        used += await work(at, [item])
                    except TooLong as refused:
                        raise too_long(f"{param}[{at}]", refused, limit) from None
                return used

        try:
            async with asyncio.TaskGroup() as group:
                done = [group.create_task(one(first, part)) for first, part in batches(items)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        return sum(task.result() for task in done)


def batches(items: Sequence[Item]) -> list[tuple[int, Sequence[Item]]]:
    """Cut items into consecutive batches within BATCH_INPUTS and BATCH_SIZE; each with its first index."""
    found: list[tuple[int, Sequence[Item]]] = []
    first, size = 0, 0
    for at, item in enumerate(items):
        if at > first and (at - first == BATCH_INPUTS or size + weight(item) > BATCH_SIZE):
            found.append((first, items[first:at]))
            first, size = at, 0
        size += weight(item)
    if first < len(items):
        found.append((first, items[first:]))
    return found


def weight(item: Item) -> int:
    """Return about how much work an input is, in characters: a token is four of them in English."""
    return len(item) if isinstance(item, str) else 4 * len(item)


async def embedded(client: Client, part: Sequence[Item]) -> tuple[list[tuple[int, bytes]], int]:
    """Ask for the vectors of a batch; return them with their indices, and the tokens read.

    Raises EngineError for a vector that is missing, empty, of another length than the rest, or not a number.
    """
    body = {"input": list(part), "encoding_format": "base64"}
    answer = await client.ask("/v1/embeddings", body, _Embeddings)
    _complete([each.index for each in answer.data], len(part))
    vectors = [(each.index, _vector(each.embedding)) for each in answer.data]
    if len({len(data) for _, data in vectors}) > 1:
        raise EngineError("the engine gave vectors of different lengths")
    return vectors, answer.usage.prompt_tokens


def _complete(indices: list[int], count: int) -> None:
    if sorted(indices) != list(range(count)):
        raise EngineError(f"the engine was asked for {count} answers, and gave those of {sorted(indices)}")


def _vector(text: str) -> bytes:
    try:
        data = base64.b64decode(text, validate=True)
        numbers = array("f", data)
    except (binascii.Error, ValueError) as error:
        raise EngineError(f"the engine gave a vector that cannot be read: {error}") from None
    if not numbers:
        raise EngineError("the engine gave an empty vector")
    # A sum is not finite as soon as one of its terms is not.
    if not math.isfinite(sum(_native(numbers))):
        raise EngineError("the engine gave a vector that holds what is not a number")
    return data


def _native(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers


def _cut(data: bytes, dimensions: int | None) -> bytes:
    """Return the first `dimensions` values at length 1 again."""
    if dimensions is None or dimensions * 4 == len(data):
        return data
    numbers = _native(array("f", data[: dimensions * 4]))
    length = math.sqrt(sum(number * number for number in numbers))
    if length:
        numbers = array("f", [number / length for number in numbers])
    return _native(numbers).tobytes()


def too_long(param: str, refused: TooLong, context: int | None = None) -> BadRequest:
    """Return the error for one input over the model's context.

    The engine names the size of its batch where that is what an input meets first; `context` may be less.
    """
    limit = min(refused.limit, context or refused.limit)
    return BadRequest(
        f"{param} has {refused.given} tokens, this model takes at most {limit}; split it, "
        "or raise n_ctx if the model was trained for more",
        code="context_length_exceeded",
        param=param,
    )


def cannot(task: Task, facts: Facts) -> BadRequest:
    """Return the error for a task that a model does not do."""
    kind = type(task).__name__.removesuffix("Task").lower()
    return BadRequest(
        f"this model does not do {kind}; it does: {', '.join(facts.capabilities)}", code="unsupported_task"
    )
