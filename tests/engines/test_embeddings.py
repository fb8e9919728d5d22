"""Embeddings, reranking and tokens on the real llama.cpp, through a real worker process.

Vectors are compared with those of `tests.harness.reference_minilm`, which computes them from the original
weights without any engine.
"""

from __future__ import annotations

import array
import asyncio
import math
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from modeld.errors import BadRequest, LoadFailed
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    DetokenizeTask,
    EmbedTask,
    Message,
    RerankTask,
    Sampling,
    Score,
    Text,
    TokenizeTask,
    Tokens,
    Usage,
    Vector,
)
from tests.harness import reference_minilm as reference
from tests.harness.loaded import Loaded, loaded, logged, text_of
from tests.harness.models_minilm import CONTEXT, WIDTH, minilm, minilm_reranker

pytestmark = pytest.mark.engine

SENTENCES = (
    "A cat sits on the mat.",
    "A kitten is resting on a rug.",
    "The stock market fell by three percent today.",
    "Shares lost value on Wall Street.",
    "How do I bake sourdough bread?",
    "Unbelievable: tokenized, re-tokenized & joined!",
    "x",
)
LONG = "word " * 600
"""Over the model's context."""


@pytest.fixture(scope="module")
def embedder() -> Path:
    """Give the embedding model's file."""
    return minilm()


class Embedder(Loaded):
    """A worker with an embedding model."""

    async def vectors(self, *inputs: str | tuple[int, ...], **more: Any) -> list[list[float]]:
        """Embed, and return the vectors in the order of the inputs."""
        *found, usage = await self.ask(EmbedTask(inputs=inputs, **more))
        assert isinstance(usage, Usage)
        by_index = {event.index: event.data for event in found if isinstance(event, Vector)}
        assert sorted(by_index) == list(range(len(inputs)))
        assert len(found) == len(inputs)
        return [array.array("f", by_index[at]).tolist() for at in range(len(inputs))]


@asynccontextmanager
async def started(
    model: Path, folder: Path, *, usecase: str = "embed", **options: Any
) -> AsyncIterator[Embedder]:
    """Load a model in a worker; the worker is stopped at the end, and nothing of it is left."""
    more = {"threads": 1, "parallel": 2, **options}
    async with loaded(folder, model, "llama_server", usecase, **more) as it:
        yield Embedder(it.worker, it.facts, it.stages, it.ring)


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def ranking(vectors: Sequence[Sequence[float]], at: int) -> list[int]:
    """Return the indices of all vectors, nearest to one of them first."""
    return sorted(range(len(vectors)), key=lambda other: -dot(vectors[at], vectors[other]))


async def test_it_tells_the_truth_about_itself(embedder: Path, short_dir: Path) -> None:
    """The facts name what it can do, the length of its vectors, its real context, and its memory."""
    async with started(embedder, short_dir) as it:
        facts = it.facts
        assert facts.capabilities == ("embed", "tokenize")
        assert (facts.dimensions, facts.matryoshka) == (WIDTH, False)
        assert facts.context_length == CONTEXT
        assert facts.slots == 2
        assert facts.bytes_used > 50 << 20
        assert facts.detail["pooling"] == "mean"
        assert it.stages


async def test_vectors_equal_the_reference(embedder: Path, short_dir: Path) -> None:
    """Each value is within 1e-2 of the original model's (its cosine within 1e-3), as text and as tokens;
    every text ranks the others as the original does; prompt_tokens counts each token once.
    """
    async with started(embedder, short_dir) as it:
        ids = [reference.tokens(text) for text in SENTENCES]
        wanted = [reference.vector(each) for each in ids]
        for inputs in (SENTENCES, tuple(tuple(each) for each in ids)):
            found = await it.vectors(*inputs)
            for one, other in zip(found, wanted, strict=True):
                assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-2
                assert dot(one, other) > 1 - 1e-3
            for at in range(len(SENTENCES)):
                assert ranking(found, at) == ranking(wanted, at)
        usage = (await it.ask(EmbedTask(inputs=SENTENCES)))[-1]
        assert usage == Usage(sum(map(len, ids)), 0)
        near, far = dot(wanted[0], wanted[1]), dot(wanted[0], wanted[2])
        assert near > far + 0.3


async def test_many_inputs_keep_their_places(embedder: Path, short_dir: Path) -> None:
    """Two calls of 200 inputs at once: each vector belongs to its own input, whatever came first."""
    texts = tuple(f"number {at}" for at in range(200))
    async with started(embedder, short_dir) as it:
        here, there = await asyncio.gather(it.vectors(*texts), it.vectors(*reversed(texts)))
        assert max(abs(a - b) for a, b in zip(here[7], there[192], strict=True)) < 1e-3
        [alone] = await it.vectors("number 7")
        assert max(range(200), key=lambda at: dot(here[at], alone)) == 7


async def test_one_input_too_long_is_named_and_harms_nobody(embedder: Path, short_dir: Path) -> None:
    """Text over the context in the middle of a batch, or token ids over it, is BadRequest with its index and
    both sizes; a call beside it is answered, and one of exactly the context's length as well.
    """
    async with started(embedder, short_dir) as it:
        beside = asyncio.ensure_future(it.vectors("hello"))
        for bad in (LONG, (7592,) * 602):
            with pytest.raises(BadRequest, match=r"input\[20\] has 602 tokens, .* at most 512") as caught:
                await it.ask(EmbedTask(inputs=(*["ok"] * 20, bad, "ok")))
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[20]")
        assert await beside
        assert await it.vectors("word " * (CONTEXT - 2))


async def test_a_physical_batch_that_is_too_small_is_the_callers_limit(
    embedder: Path, short_dir: Path
) -> None:
    """With the owner's own ubatch_size the limit is that: a 400 with both sizes, not the engine's 500."""
    async with started(embedder, short_dir, extra_args=["--ubatch-size", "64"]) as it:
        with pytest.raises(BadRequest, match=r"input\[1\] has 102 tokens, .* at most 64") as caught:
            await it.ask(EmbedTask(inputs=("ok", "word " * 100)))
        assert caught.value.code == "context_length_exceeded"
        assert await it.vectors("ok")


async def test_what_an_embedding_model_does_not_do(embedder: Path, short_dir: Path) -> None:
    """Chat, completion and reranking are BadRequest that says what it does; so is an unknown token."""
    chat = ChatTask(messages=(Message(role="user", content="x"),))
    async with started(embedder, short_dir) as it:
        for task in (chat, CompletionTask(prompt="x"), RerankTask(query="x", documents=("y",))):
            with pytest.raises(BadRequest, match=r"does not do \w+; it does: embed, tokenize") as caught:
                await it.ask(task)
            assert caught.value.code == "unsupported_task"
        with pytest.raises(BadRequest, match=r"input\[0\]\[1\] is 999999; this model has 30522 tokens"):
            await it.ask(EmbedTask(inputs=((101, 999999),)))


async def test_shorter_vectors_only_where_the_model_allows(embedder: Path, short_dir: Path) -> None:
    """Another length than its own is refused with `dimensions`; with matryoshka it is cut, at length 1."""
    async with started(embedder, short_dir) as it:
        [whole] = await it.vectors("hello", dimensions=WIDTH)
        for wanted in (WIDTH - 1, WIDTH + 1, 1):
            with pytest.raises(BadRequest, match="384 only") as caught:
                await it.vectors("hello", dimensions=wanted)
            assert (caught.value.code, caught.value.param) == ("unsupported_dimensions", "dimensions")
    async with started(embedder, short_dir, matryoshka=True) as it:
        assert it.facts.matryoshka
        [short] = await it.vectors("hello", dimensions=64)
        length = math.sqrt(sum(value * value for value in whole[:64]))
        assert short == pytest.approx([value / length for value in whole[:64]], abs=1e-4)
        assert dot(short, short) == pytest.approx(1, abs=1e-5)
        with pytest.raises(BadRequest, match="1 to 384"):
            await it.vectors("hello", dimensions=WIDTH + 1)


async def test_the_engines_output_is_the_log_and_never_what_was_embedded(
    embedder: Path, short_dir: Path
) -> None:
    """The engine's own words can be read in the log; the texts it was given are not among them."""
    async with started(embedder, short_dir) as it:
        assert await it.vectors("a secret sentence")
        await logged(it.ring, "model loaded")
        assert "secret" not in text_of(it.ring)


@pytest.mark.parametrize("options", [{}, {"pooling": "rank"}], ids=["by its file", "as configured"])
async def test_a_reranker_scores_documents(short_dir: Path, options: dict[str, Any]) -> None:
    """Each document has one score under its own index, the same in any company; it gives no vectors, and a
    document that is too long is named.
    """
    documents = tuple(f"document {at} about {'cats' if at % 2 else 'stocks'}" for at in range(20))
    async with started(minilm_reranker(), short_dir, **options) as it:
        assert it.facts.capabilities == ("rerank", "tokenize")
        assert it.facts.dimensions is None
        *found, usage = await it.ask(RerankTask(query="cats", documents=documents))
        scores = {event.index: event.score for event in found if isinstance(event, Score)}
        assert sorted(scores) == list(range(20))
        assert len(set(scores.values())) > 10
        assert isinstance(usage, Usage)
        assert usage.prompt_tokens > 20 * 6
        [alone, _] = await it.ask(RerankTask(query="cats", documents=(documents[17],)))
        assert isinstance(alone, Score)
        assert alone.score == pytest.approx(scores[17], abs=0.05)
        with pytest.raises(BadRequest, match="does not do embed; it does: rerank, tokenize"):
            await it.ask(EmbedTask(inputs=("x",)))
        with pytest.raises(BadRequest, match=r"documents\[2\] has 60\d tokens, .* at most 512") as caught:
            await it.ask(RerankTask(query="cats", documents=("a", "b", LONG)))
        assert caught.value.param == "documents[2]"


async def test_a_model_without_a_pooling_says_what_to_set(demo_gguf: Path, short_dir: Path) -> None:
    """A language model as it is gives no vectors: it fails to load, with the option that helps; with the
    option it loads and embeds.
    """
    with pytest.raises(LoadFailed, match="set pooling in llama_server_config to mean, cls or last") as caught:
        async with started(demo_gguf, short_dir, n_ctx=512):
            pass
    assert caught.value.permanent
    async with started(demo_gguf, short_dir, n_ctx=512, pooling="last") as it:
        assert it.facts.dimensions == 576
        [one, other] = await it.vectors("a", "b")
        assert dot(one, one) == pytest.approx(1, abs=1e-3)
        assert dot(one, other) < 0.999


async def test_every_model_splits_and_joins_text(demo_gguf: Path, embedder: Path, short_dir: Path) -> None:
    """Tokens join to the text again; with `special` those that frame a prompt are there; an unknown id and
    embedding on a language model are BadRequest.
    """
    async with started(embedder, short_dir) as it:
        [split] = await it.ask(TokenizeTask(text=SENTENCES[5]))
        assert split == Tokens(tuple(reference.tokens(SENTENCES[5])))
        [bare] = await it.ask(TokenizeTask(text=SENTENCES[5], special=False))
        assert bare == Tokens(tuple(reference.tokens(SENTENCES[5])[1:-1]))
    async with started(demo_gguf, short_dir, usecase="generate", n_ctx=512) as it:
        assert "tokenize" in it.facts.capabilities
        text = "Grüße, 世界! \n  two  spaces"
        [split] = await it.ask(TokenizeTask(text=text, special=False))
        assert isinstance(split, Tokens)
        assert await it.ask(DetokenizeTask(tokens=split.ids)) == [Text(text)]
        with pytest.raises(BadRequest, match=r"tokens\[1\] is 10000000; this model has 49152 tokens"):
            await it.ask(DetokenizeTask(tokens=(1, 10_000_000)))
        with pytest.raises(BadRequest, match="does not do embed; it does: chat, completion"):
            await it.ask(EmbedTask(inputs=("x",)))
        chat = ChatTask(messages=(Message(role="user", content="hi"),), sampling=Sampling(max_tokens=2))
        assert await it.ask(chat)
