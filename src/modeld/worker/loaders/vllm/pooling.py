"""Vectors and scores from vLLM."""

from __future__ import annotations

import asyncio
import base64
import binascii
import math
from array import array
from collections.abc import Sequence
from functools import partial
from typing import Any, TypeAlias

import msgspec

from modeld.errors import BadRequest, EngineError
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import EmbedTask, RerankTask, Score, Usage, Vector
from modeld.worker.loader import Emit
from modeld.worker.loaders.vllm.ask import Asker
from modeld.worker.loaders.vllm.serving import Serving

BATCH_INPUTS = 32
"""Inputs in one request to vLLM: few enough that the first vectors leave early."""

Item: TypeAlias = str | tuple[int, ...]


class _Embedding(msgspec.Struct):
    index: int
    embedding: str


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0


class _Embeddings(msgspec.Struct):
    data: list[_Embedding]
    usage: _Usage


class _Rank(msgspec.Struct):
    index: int
    relevance_score: float


class _Ranks(msgspec.Struct):
    results: list[_Rank]
    usage: _Usage


class Pooling:
    """Embeds and scores with one model. `vocabulary`: how many tokens it has."""

    def __init__(self, serving: Serving, asker: Asker, name: str, vocabulary: int) -> None:
        self._serving = serving
        self._asker = asker
        self._name = name
        self._vocabulary = vocabulary

    async def embed(self, task: EmbedTask, facts: Facts, emit: Emit) -> None:
        """Answer with a Vector for each input, then Usage. Raises BadRequest."""
        dimensions = self._check(task, facts)
        used = 0
        for first in range(0, len(task.inputs), BATCH_INPUTS):
            part = task.inputs[first : first + BATCH_INPUTS]
            try:
                vectors, tokens = await self.vectors(part, dimensions, f"input[{first}]")
            except BadRequest as error:
                raise self._placed(error, part, first, "input", facts) from None
            used += tokens
            for index, data in vectors:
                await emit(Vector(first + index, data))
        await emit(Usage(used, 0))

    async def vectors(
        self, part: Sequence[Item], dimensions: int | None, field: str
    ) -> tuple[list[tuple[int, bytes]], int]:
        """Return the vectors of some inputs with their indices, and the tokens read."""
        from vllm.entrypoints.pooling.embed.protocol import EmbeddingCompletionRequest

        by_kind: dict[bool, list[int]] = {}
        for at, item in enumerate(part):  # vLLM takes texts or tokens, and not both at once
            by_kind.setdefault(isinstance(item, str), []).append(at)
        found: list[tuple[int, bytes]] = []
        used = 0
        for places in by_kind.values():
            inputs = [part[at] if isinstance(part[at], str) else list(part[at]) for at in places]
            body: dict[str, Any] = {"model": self._name, "input": inputs, "encoding_format": "base64"}
            body["endianness"] = "little"
            if dimensions is not None:
                body["dimensions"] = dimensions
            request = self._asker.made(EmbeddingCompletionRequest, body, field)
            answer = await self._asker.whole(partial(self._serving.embedding, request), field)
            decoded = _decoded(answer, _Embeddings)
            if sorted(one.index for one in decoded.data) != list(range(len(inputs))):
                raise EngineError(f"vLLM gave {len(decoded.data)} vectors for {len(inputs)} inputs")
            found += [(places[one.index], vector(one.embedding)) for one in decoded.data]
            used += decoded.usage.prompt_tokens
        return found, used

    async def rerank(self, task: RerankTask, facts: Facts, emit: Emit) -> None:
        """Answer with a Score for each document, then Usage. Raises BadRequest."""
        from vllm.entrypoints.pooling.scoring.protocol import RerankRequest

        used = 0
        for first in range(0, len(task.documents), BATCH_INPUTS):
            part = task.documents[first : first + BATCH_INPUTS]
            body = {"model": self._name, "query": task.query, "documents": list(part), "top_n": 0}
            request = self._asker.made(RerankRequest, body, "documents")
            try:
                answer = await self._asker.whole(
                    partial(self._serving.scores, request), f"documents[{first}]"
                )
            except BadRequest as error:
                raise self._placed(error, part, first, "documents", facts) from None
            ranks = _decoded(answer, _Ranks)
            if sorted(rank.index for rank in ranks.results) != list(range(len(part))):
                raise EngineError(f"vLLM gave {len(ranks.results)} scores for {len(part)} documents")
            for rank in ranks.results:
                if not math.isfinite(rank.relevance_score):
                    raise EngineError("vLLM gave a score that is not a number")
                await emit(Score(first + rank.index, rank.relevance_score))
            used += ranks.usage.prompt_tokens
            await asyncio.sleep(0)
        await emit(Usage(used, 0))

    def _check(self, task: EmbedTask, facts: Facts) -> int | None:
        """Refuse what can be known to fail; return the dimensions that vLLM is to be asked for."""
        native, wanted = facts.dimensions or 0, task.dimensions
        if wanted is not None and wanted != native and not (facts.matryoshka and 1 <= wanted < native):
            choice = f"1 to {native}" if facts.matryoshka else f"{native} only"
            raise BadRequest(
                f"dimensions is {wanted}, this model's vectors have {choice}; leave dimensions out",
                code="unsupported_dimensions",
                param="dimensions",
            )
        for at, item in enumerate(task.inputs):
            if isinstance(item, tuple):
                check_tokens(item, self._vocabulary, f"input[{at}]")
        return None if wanted == native else wanted

    def _placed(
        self, error: BadRequest, part: Sequence[Item], first: int, field: str, facts: Facts
    ) -> BadRequest:
        """Name the input that is too long: vLLM only says that there is one."""
        if error.code != "context_length_exceeded":
            return error
        sizes = [len(item) if isinstance(item, tuple) else self._count(item) for item in part]
        longest = max(range(len(sizes)), key=sizes.__getitem__)
        limit = facts.context_length or 0
        return BadRequest(
            f"{field}[{first + longest}] has {sizes[longest]} tokens, this model takes at most {limit}; "
            "split it, or raise max_model_len if the model was trained for more",
            code=error.code,
            param=f"{field}[{first + longest}]",
        )

    def _count(self, text: str) -> int:
        return len(self._serving.renderer.renderer.get_tokenizer().encode(text))


def check_tokens(ids: Sequence[int], vocabulary: int, param: str) -> None:
    """Refuse ids that the model has no token for. Raises BadRequest."""
    for at, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise BadRequest(
                f"{param}[{at}] is {token}; this model has {vocabulary} tokens, numbered from 0",
                code="invalid_token",
                param=f"{param}[{at}]",
            )


def _decoded(answer: Any, kind: Any) -> Any:
    try:
        return msgspec.json.decode(bytes(answer.body), type=kind)
    except (msgspec.MsgspecError, AttributeError) as error:
        raise EngineError(f"vLLM's answer cannot be read: {error}") from error


def vector(text: str) -> bytes:
    """Return a vector from its base64: little-endian float32. Raises EngineError for what is none."""
    try:
        data = base64.b64decode(text, validate=True)
        numbers = array("f", data)
    except (binascii.Error, ValueError) as error:
        raise EngineError(f"vLLM gave a vector that cannot be read: {error}") from None
    if not numbers or not math.isfinite(sum(numbers)):
        raise EngineError("vLLM gave a vector that is empty, or holds what is not a number")
    return data
