"""Embeddings, reranking and tokens on the real llama.cpp, through a real worker process.

Vectors are compared with those of `tests.harness.reference_minilm`, which computes them from the original
weights without any engine.
"""

from __future__ import annotations

import array
import asyncio
import math
import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from modeld.clock import SystemClock
from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.channel import OpenCall
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    DetokenizeTask,
    EmbedTask,
    Event,
    Message,
    RerankTask,
    Sampling,
    Score,
    Task,
    Text,
    TokenizeTask,
    Tokens,
    Usage,
    Vector,
)
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.worker import Worker
from tests.harness import reference_minilm as reference
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


@dataclass
class Loaded:
    """A worker with its model, and what it said while loading."""

    worker: Worker
    facts: Facts
    stages: list[tuple[str, float | None]]
    ring: LogRing

    async def ask(self, task: Task) -> list[Event]:
        """Run a task to its end."""
        call = self.worker.call(task, "local")
        events: list[Event] = []
        while (batch := await call.take(120)) is not None:
            events += batch
        return events

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
) -> AsyncIterator[Loaded]:
    """Load a model in a worker; the worker is stopped at the end, and nothing of it is left."""
    ring = LogRing(SystemClock())
    (folder / "workers").mkdir(exist_ok=True)
    run = folder / "w1"
    worker = await Worker.start(ring, run, folder / "workers")
    try:
        stages: list[tuple[str, float | None]] = []
        spec = LoadSpec(
            name="m",
            loader="llama_server",
            usecase=usecase,
            path=str(model),
            runtime_dir=str(run),
            options={"threads": 1, "parallel": 2, **options},
        )
        facts = await worker.load(spec, lambda stage, fraction: stages.append((stage, fraction)))
        yield Loaded(worker, facts, stages, ring)
    finally:
        await worker.stop(0.0)
        assert host.group_members(worker.pid) == []
        assert not run.exists()


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


def ranking(vectors: Sequence[Sequence[float]], at: int) -> list[int]:
    """Return the indices of all vectors, nearest to one of them first."""
    return sorted(range(len(vectors)), key=lambda other: -dot(vectors[at], vectors[other]))


async def rest(call: OpenCall) -> None:
    """Read a call to its end."""
    while await call.take(120) is not None:
        pass


async def test_it_tells_the_truth_about_itself(embedder: Path, short_dir: Path) -> None:
    """The facts name what it can do, the length of its vectors, its real context, and its memory."""
    async with started(embedder, short_dir) as loaded:
        facts = loaded.facts
        assert facts.capabilities == ("embed", "tokenize")
        assert (facts.dimensions, facts.matryoshka) == (WIDTH, False)
        assert facts.context_length == CONTEXT
        assert facts.slots == 2
        assert facts.bytes_used > 50 << 20
        assert facts.detail["pooling"] == "mean"
        assert loaded.stages


async def test_vectors_equal_the_reference(embedder: Path, short_dir: Path) -> None:
    """Each value is within 1e-2 of the original model's (its cosine within 1e-3), as text and as tokens;
    every text ranks the others as the original does; prompt_tokens counts each token once.
    """
    async with started(embedder, short_dir) as loaded:
        ids = [reference.tokens(text) for text in SENTENCES]
        wanted = [reference.vector(each) for each in ids]
        for inputs in (SENTENCES, tuple(tuple(each) for each in ids)):
            found = await loaded.vectors(*inputs)
            for one, other in zip(found, wanted, strict=True):
                assert max(abs(a - b) for a, b in zip(one, other, strict=True)) < 1e-2
                assert dot(one, other) > 1 - 1e-3
            for at in range(len(SENTENCES)):
                assert ranking(found, at) == ranking(wanted, at)
        usage = (await loaded.ask(EmbedTask(inputs=SENTENCES)))[-1]
        assert usage == Usage(sum(map(len, ids)), 0)
        near, far = dot(wanted[0], wanted[1]), dot(wanted[0], wanted[2])
        assert near > far + 0.3


async def test_many_inputs_keep_their_places(embedder: Path, short_dir: Path) -> None:
    """Two calls of 200 inputs at once: each vector belongs to its own input, whatever came first."""
    texts = tuple(f"number {at}" for at in range(200))
    async with started(embedder, short_dir) as loaded:
        here, there = await asyncio.gather(loaded.vectors(*texts), loaded.vectors(*reversed(texts)))
        assert max(abs(a - b) for a, b in zip(here[7], there[192], strict=True)) < 1e-3
        [alone] = await loaded.vectors("number 7")
        assert max(range(200), key=lambda at: dot(here[at], alone)) == 7


async def test_one_input_too_long_is_named_and_harms_nobody(embedder: Path, short_dir: Path) -> None:
    """Text over the context in the middle of a batch, or token ids over it, is BadRequest with its index and
    both sizes; a call beside it is answered, and one of exactly the context's length as well.
    """
    async with started(embedder, short_dir) as loaded:
        beside = asyncio.ensure_future(loaded.vectors("hello"))
        for bad in (LONG, (7592,) * 602):
            with pytest.raises(BadRequest, match=r"input\[20\] has 602 tokens, .* at most 512") as caught:
                await loaded.ask(EmbedTask(inputs=(*["ok"] * 20, bad, "ok")))
            assert (caught.value.code, caught.value.param) == ("context_length_exceeded", "input[20]")
        assert await beside
        assert await loaded.vectors("word " * (CONTEXT - 2))


async def test_a_physical_batch_that_is_too_small_is_the_callers_limit(
    embedder: Path, short_dir: Path
) -> None:
    """With the owner's own ubatch_size the limit is that: a 400 with both sizes, not the engine's 500."""
    async with started(embedder, short_dir, extra_args=["--ubatch-size", "64"]) as loaded:
        with pytest.raises(BadRequest, match=r"input\[1\] has 102 tokens, .* at most 64") as caught:
            await loaded.ask(EmbedTask(inputs=("ok", "word " * 100)))
        assert caught.value.code == "context_length_exceeded"
        assert await loaded.vectors("ok")


async def test_what_an_embedding_model_does_not_do(embedder: Path, short_dir: Path) -> None:
    """Chat, completion and reranking are BadRequest that says what it does; so is an unknown token."""
    chat = ChatTask(messages=(Message(role="user", content="x"),))
    async with started(embedder, short_dir) as loaded:
        for task in (chat, CompletionTask(prompt="x"), RerankTask(query="x", documents=("y",))):
            with pytest.raises(BadRequest, match=r"does not do \w+; it does: embed, tokenize") as caught:
                await loaded.ask(task)
            assert caught.value.code == "unsupported_task"
        with pytest.raises(BadRequest, match=r"input\[0\]\[1\] is 999999; this model has 30522 tokens"):
            await loaded.ask(EmbedTask(inputs=((101, 999999),)))


async def test_shorter_vectors_only_where_the_model_allows(embedder: Path, short_dir: Path) -> None:
    """Another length than its own is refused with `dimensions`; with matryoshka it is cut, at length 1."""
    async with started(embedder, short_dir) as loaded:
        [whole] = await loaded.vectors("hello", dimensions=WIDTH)
        for wanted in (WIDTH - 1, WIDTH + 1, 1):
            with pytest.raises(BadRequest, match="384 only") as caught:
                await loaded.vectors("hello", dimensions=wanted)
            assert (caught.value.code, caught.value.param) == ("unsupported_dimensions", "dimensions")
    async with started(embedder, short_dir, matryoshka=True) as loaded:
        assert loaded.facts.matryoshka
        [short] = await loaded.vectors("hello", dimensions=64)
        length = math.sqrt(sum(value * value for value in whole[:64]))
        assert short == pytest.approx([value / length for value in whole[:64]], abs=1e-4)
        assert dot(short, short) == pytest.approx(1, abs=1e-5)
        with pytest.raises(BadRequest, match="1 to 384"):
            await loaded.vectors("hello", dimensions=WIDTH + 1)


async def test_cancel_stops_the_engine_within_its_inputs(embedder: Path, short_dir: Path) -> None:
    """A big call lets a small one pass; after a cancel it ends at once, and others are answered long before
    the rest would be done.
    """
    texts = ("word " * 500,) * 400  # minutes of work
    async with started(embedder, short_dir) as loaded:
        call = loaded.worker.call(EmbedTask(inputs=texts), "local")
        while not await call.take(120):
            pass
        assert await loaded.vectors("beside")
        assert not call.over.done()
        call.cancel()
        await asyncio.wait_for(call.over, 5)
        async with asyncio.timeout(30):
            assert await asyncio.gather(loaded.vectors("one"), loaded.vectors("two"))
        assert loaded.worker.open_calls == 0


async def test_the_engines_crash_is_told_with_its_last_words(embedder: Path, short_dir: Path) -> None:
    """When the engine is killed, its call fails with how it died, and the worker ends by itself."""
    async with started(embedder, short_dir) as loaded:
        call = loaded.worker.call(EmbedTask(inputs=("word " * 500,) * 200), "local")
        while not await call.take(120):
            pass
        for pid in host.group_members(loaded.worker.pid):
            if pid != loaded.worker.pid:
                os.kill(pid, 9)
        with pytest.raises(WorkerDied, match=r"killed by signal 9 \(SIGKILL\); its last words:"):
            await rest(call)
        assert "SIGKILL" in await asyncio.wait_for(asyncio.shield(loaded.worker.ended), 10)


async def test_unloading_gives_the_memory_back(embedder: Path, short_dir: Path) -> None:
    """After stop the worker's group is gone, and all its memory with it."""
    async with started(embedder, short_dir) as loaded:
        assert host.tree_memory(loaded.worker.pid) > 50 << 20
        await loaded.worker.stop(0.0)
        assert host.tree_memory(loaded.worker.pid) == 0


async def test_a_broken_model_is_refused_for_good_with_the_engines_words(
    embedder: Path, short_dir: Path
) -> None:
    """A truncated file is a permanent LoadFailed that carries the engine's own message."""
    broken = short_dir / "broken.gguf"
    with embedder.open("rb") as file:
        broken.write_bytes(file.read(2 << 20))
    with pytest.raises(LoadFailed, match=r"(?s)its last words:\n.*failed to load") as caught:
        async with started(broken, short_dir):
            pass
    assert caught.value.permanent


async def test_the_engines_output_is_the_log_and_never_what_was_embedded(
    embedder: Path, short_dir: Path
) -> None:
    """The engine's own words can be read in the log; the texts it was given are not among them."""
    async with started(embedder, short_dir) as loaded:
        assert await loaded.vectors("a secret sentence")
        log = "\n".join(line.text for line in loaded.ring.lines())
        assert "model loaded" in log
        assert "secret" not in log


@pytest.mark.parametrize("options", [{}, {"pooling": "rank"}], ids=["by its file", "as configured"])
async def test_a_reranker_scores_documents(short_dir: Path, options: dict[str, Any]) -> None:
    """Each document has one score under its own index, the same in any company; it gives no vectors, and a
    document that is too long is named.
    """
    documents = tuple(f"document {at} about {'cats' if at % 2 else 'stocks'}" for at in range(20))
    async with started(minilm_reranker(), short_dir, **options) as loaded:
        assert loaded.facts.capabilities == ("rerank", "tokenize")
        assert loaded.facts.dimensions is None
        *found, usage = await loaded.ask(RerankTask(query="cats", documents=documents))
        scores = {event.index: event.score for event in found if isinstance(event, Score)}
        assert sorted(scores) == list(range(20))
        assert len(set(scores.values())) > 10
        assert isinstance(usage, Usage)
        assert usage.prompt_tokens > 20 * 6
        [alone, _] = await loaded.ask(RerankTask(query="cats", documents=(documents[17],)))
        assert isinstance(alone, Score)
        assert alone.score == pytest.approx(scores[17], abs=0.05)
        with pytest.raises(BadRequest, match="does not do embed; it does: rerank, tokenize"):
            await loaded.ask(EmbedTask(inputs=("x",)))
        with pytest.raises(BadRequest, match=r"documents\[2\] has 60\d tokens, .* at most 512") as caught:
            await loaded.ask(RerankTask(query="cats", documents=("a", "b", LONG)))
        assert caught.value.param == "documents[2]"


async def test_a_model_without_a_pooling_says_what_to_set(demo_gguf: Path, short_dir: Path) -> None:
    """A language model as it is gives no vectors: it fails to load, with the option that helps; with the
    option it loads and embeds.
    """
    with pytest.raises(LoadFailed, match="set pooling in llama_server_config to mean, cls or last") as caught:
        async with started(demo_gguf, short_dir, n_ctx=512):
            pass
    assert caught.value.permanent
    async with started(demo_gguf, short_dir, n_ctx=512, pooling="last") as loaded:
        assert loaded.facts.dimensions == 576
        [one, other] = await loaded.vectors("a", "b")
        assert dot(one, one) == pytest.approx(1, abs=1e-3)
        assert dot(one, other) < 0.999


async def test_every_model_splits_and_joins_text(demo_gguf: Path, embedder: Path, short_dir: Path) -> None:
    """Tokens join to the text again; with `special` those that frame a prompt are there; an unknown id and
    embedding on a language model are BadRequest.
    """
    async with started(embedder, short_dir) as loaded:
        [split] = await loaded.ask(TokenizeTask(text=SENTENCES[5]))
        assert split == Tokens(tuple(reference.tokens(SENTENCES[5])))
        [bare] = await loaded.ask(TokenizeTask(text=SENTENCES[5], special=False))
        assert bare == Tokens(tuple(reference.tokens(SENTENCES[5])[1:-1]))
    async with started(demo_gguf, short_dir, usecase="generate", n_ctx=512) as loaded:
        assert "tokenize" in loaded.facts.capabilities
        text = "Grüße, 世界! \n  two  spaces"
        [split] = await loaded.ask(TokenizeTask(text=text, special=False))
        assert isinstance(split, Tokens)
        assert await loaded.ask(DetokenizeTask(tokens=split.ids)) == [Text(text)]
        with pytest.raises(BadRequest, match=r"tokens\[1\] is 10000000; this model has 49152 tokens"):
            await loaded.ask(DetokenizeTask(tokens=(1, 10_000_000)))
        with pytest.raises(BadRequest, match="does not do embed; it does: chat, completion"):
            await loaded.ask(EmbedTask(inputs=("x",)))
        chat = ChatTask(messages=(Message(role="user", content="hi"),), sampling=Sampling(max_tokens=2))
        assert await loaded.ask(chat)
