"""The stock Python SDK against embedding models on the real engine; what it has no call for, by HTTP.

It is strict wherever vectors are asked for as floats. When told no format it asks for base64, decodes that
itself, and its strict check, which comes before, refuses any base64 answer: those calls are not strict.
"""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio
from openai.types import CreateEmbeddingResponse

from tests.conformance.python_sdk import LENIENT, AsyncSdk, Sdk, SyncSdk
from tests.harness import curl
from tests.harness import reference_minilm as reference
from tests.harness.daemon import Daemon
from tests.harness.models_minilm import WIDTH, embedding_daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

TEXTS = ["A cat sits on the mat.", "A kitten rests on a rug.", "Stocks fell by three percent."]
CREATE = "embeddings.create"
FLOAT: dict[str, Any] = {"encoding_format": "float"}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with embedding models, a reranker and a chat model."""
    async with embedding_daemon(demo_gguf) as started:
        yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


async def post(daemon: Daemon, path: str, **body: Any) -> tuple[int, Any]:
    """Post JSON; return the status and the decoded answer."""
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{daemon.url}/v1/{path}", json=body) as response,
    ):
        return response.status, await response.json()


async def by_default(sdk: Sdk, **body: Any) -> CreateEmbeddingResponse:
    """Embed with no format named."""
    client = sdk.client.copy(_extra_kwargs=LENIENT)
    if isinstance(client, openai.OpenAI):
        return await asyncio.to_thread(client.embeddings.create, **body)
    return await client.embeddings.create(**body)


def dot(one: Sequence[float], other: Sequence[float]) -> float:
    """Return the cosine of two vectors of length 1."""
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_vectors_equal_the_reference(sdk: Sdk) -> None:
    """As the SDK asks by default (base64), the vectors are the original model's within 1e-2, in order."""
    answer = await by_default(sdk, model="vec", input=TEXTS)
    assert [each.index for each in answer.data] == [0, 1, 2]
    ids = [reference.tokens(text) for text in TEXTS]
    for each, wanted in zip(answer.data, map(reference.vector, ids), strict=True):
        assert max(abs(a - b) for a, b in zip(each.embedding, wanted, strict=True)) < 1e-2
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == sum(map(len, ids))
    cat, kitten, stocks = (each.embedding for each in answer.data)
    assert dot(cat, kitten) > dot(cat, stocks) + 0.3


async def test_base64_equals_float(sdk: Sdk, daemon: Daemon) -> None:
    """Both formats hold the same values, and float is what a request that names none gets."""
    floats = await sdk.call(CREATE, model="vec", input=TEXTS[0], **FLOAT)
    assert isinstance(floats, CreateEmbeddingResponse)
    status, coded = await post(daemon, "embeddings", model="vec", input=TEXTS[0], encoding_format="base64")
    assert status == 200
    values = struct.unpack(f"<{WIDTH}f", base64.b64decode(coded["data"][0]["embedding"]))
    assert floats.data[0].embedding == pytest.approx(values, abs=1e-6)
    _, plain = await post(daemon, "embeddings", model="vec", input=TEXTS[0])
    assert plain["data"][0]["embedding"] == pytest.approx(values, abs=1e-6)


async def test_token_ids_are_the_same_input(sdk: Sdk) -> None:
    """A list of ids, and lists of them, give the vectors of their texts; an alias is a model's name too."""
    ids = [reference.tokens(text) for text in TEXTS]
    by_text = await sdk.call(CREATE, model="vec", input=TEXTS, **FLOAT)
    by_ids = await sdk.call(CREATE, model="text-embedding-3-small", input=ids, **FLOAT)
    one = await sdk.call(CREATE, model="vec", input=ids[0], **FLOAT)
    assert by_ids.model == "text-embedding-3-small"
    for each, other in zip(by_text.data, by_ids.data, strict=True):
        assert dot(each.embedding, other.embedding) > 0.9999
    assert dot(one.data[0].embedding, by_text.data[0].embedding) > 0.9999


async def test_600_inputs_in_order(daemon: Daemon) -> None:
    """A big batch is split and joined: every index is in its place, usage counts all."""
    texts = [f"n {at % 50}" for at in range(600)]
    async with AsyncSdk(daemon.url) as sdk:
        answer = await sdk.call(CREATE, model="vec", input=texts, **FLOAT)
    assert [each.index for each in answer.data] == list(range(600))
    vectors = [each.embedding for each in answer.data]
    for at in range(0, 600, 37):
        near = [dot(vectors[at], other) for other in vectors[:50]]
        assert near.index(max(near)) == at % 50
    assert answer.usage.prompt_tokens == sum(len(reference.tokens(text)) for text in texts)


async def test_dimensions(sdk: Sdk) -> None:
    """Where the model allows, vectors are cut to length 1 again; elsewhere another length is refused."""
    whole = (await sdk.call(CREATE, model="cut", input="x", **FLOAT)).data[0].embedding
    short = (await sdk.call(CREATE, model="cut", input="x", dimensions=100, **FLOAT)).data[0].embedding
    length = math.sqrt(sum(value * value for value in whole[:100]))
    assert short == pytest.approx([value / length for value in whole[:100]], abs=1e-4)
    assert (
        len((await sdk.call(CREATE, model="vec", input="x", dimensions=WIDTH, **FLOAT)).data[0].embedding)
        == WIDTH
    )
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(CREATE, model="vec", input="x", dimensions=100, **FLOAT)
    assert (caught.value.code, caught.value.param) == ("unsupported_dimensions", "dimensions")


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ("", "input", "invalid_value"),
        ([], "input", "invalid_value"),
        (["a", ""], "input[1]", "invalid_value"),
        ([[101, 10**6]], "input[0][1]", "invalid_token"),
        (["a", "word " * 600, "b"], "input[1]", "context_length_exceeded"),
    ],
    ids=["empty", "empty list", "empty in list", "no token", "too long"],
)
async def test_bad_input_is_a_400_with_its_place(sdk: Sdk, given: Any, param: str, code: str) -> None:
    """Nothing of the caller's making is a 5xx, and the model serves on."""
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.call(CREATE, model="vec", input=given, **FLOAT)
    assert (caught.value.param, caught.value.code) == (param, code)
    assert (await sdk.call(CREATE, model="vec", input="x", **FLOAT)).data


async def test_wrong_uses_are_refused(sdk: Sdk, daemon: Daemon) -> None:
    """Chat on an embedding model, embeddings on a chat model or a reranker, reranking on an embedding model:
    each is a 400 that says what the model does.
    """
    with pytest.raises(openai.BadRequestError, match="embed") as caught:
        await sdk.chat(model="vec", messages=[{"role": "user", "content": "x"}])
    assert caught.value.code == "unsupported_task"
    with pytest.raises(openai.BadRequestError, match="/v1/chat/completions"):
        await sdk.call(CREATE, model="plain", input="x", **FLOAT)
    with pytest.raises(openai.BadRequestError, match="it does: rerank, tokenize"):
        await sdk.call(CREATE, model="rank", input="x", **FLOAT)
    status, answer = await post(daemon, "rerank", model="vec", query="a", documents=["b"])
    assert (status, answer["error"]["code"]) == (400, "unsupported_task")
    with pytest.raises(openai.NotFoundError):
        await sdk.call(CREATE, model="nope", input="x", **FLOAT)


async def test_rerank(daemon: Daemon) -> None:
    """Results descend, each score is its own document's, and only so many come back as asked for."""
    documents = ["cats purr", {"text": "markets fell"}, "bread needs time", "dogs bark"]
    body = {"model": "rank", "query": "pets", "documents": documents}
    status, answer = await post(daemon, "rerank", **body, return_documents=True)
    assert status == 200
    scores = [each["relevance_score"] for each in answer["results"]]
    assert scores == sorted(scores, reverse=True)
    assert sorted(each["index"] for each in answer["results"]) == [0, 1, 2, 3]
    texts = ["cats purr", "markets fell", "bread needs time", "dogs bark"]
    assert all(each["document"]["text"] == texts[each["index"]] for each in answer["results"])
    assert answer["usage"]["prompt_tokens"] > 12
    _, best = await post(daemon, "rerank", **body, top_n=1)
    assert [each["index"] for each in best["results"]] == [answer["results"][0]["index"]]
    _, alone = await post(daemon, "rerank", **{**body, "documents": [texts[best["results"][0]["index"]]]})
    assert alone["results"][0]["relevance_score"] == pytest.approx(scores[0], abs=0.05)


async def test_tokens(daemon: Daemon) -> None:
    """Text goes to ids and back on both kinds of model; an id that there is none of is a 400."""
    _, split = await post(daemon, "tokenize", model="vec", text=TEXTS[0])
    assert split == {"tokens": reference.tokens(TEXTS[0]), "count": len(reference.tokens(TEXTS[0]))}
    _, split = await post(daemon, "tokenize", model="plain", prompt="Grüße, 世界!", add_special=False)
    _, joined = await post(daemon, "detokenize", model="plain", tokens=split["tokens"])
    assert joined == {"text": "Grüße, 世界!", "content": "Grüße, 世界!"}
    status, answer = await post(daemon, "detokenize", model="plain", tokens=[1, 10**7])
    assert (status, answer["error"]["param"]) == (400, "tokens[1]")


@pytest.mark.parametrize("kind", [SyncSdk, AsyncSdk], ids=["sync", "async"])
async def test_the_sdk_at_the_prefix_of_mass(daemon: Daemon, kind: type[SyncSdk] | type[AsyncSdk]) -> None:
    """Models, a chat, a stream, vectors and an error, by the address that MASS has for OpenAI's clients."""
    messages = [{"role": "user", "content": "Say hi."}]
    chat: dict[str, Any] = {"model": "plain", "messages": messages, "max_tokens": 8, "temperature": 0}
    async with kind(f"{daemon.url}/mass.llama-cpp") as sdk, AsyncSdk(daemon.url) as own:
        assert [each.id for each in await sdk.models()] == [each.id for each in await own.models()]
        assert (await sdk.call("models.retrieve", model="plain")).id == "plain"
        whole = await sdk.chat(**chat)
        assert whole.choices[0].message.content
        assert whole.usage is not None
        assert 1 <= whole.usage.completion_tokens <= 8
        pieces = await sdk.chunks(**chat, stream_options={"include_usage": True})
        assert "".join(piece.choices[0].delta.content or "" for piece in pieces if piece.choices)
        assert pieces[-1].usage is not None
        vectors = await sdk.call(CREATE, model="vec", input=TEXTS[:1], **FLOAT)
        wanted = reference.vector(reference.tokens(TEXTS[0]))
        assert dot(vectors.data[0].embedding, wanted) == pytest.approx(1.0, abs=1e-2)
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.chat(**{**chat, "model": "none"})
        assert caught.value.code == "model_not_found"


@curl.needed
async def test_jobs_by_hand_with_real_models(daemon: Daemon, demo_gguf: Path) -> None:
    """MASS's five methods with curl, what is known of a model, and a refusal."""
    prefix = f"{daemon.url}/mass.llama-cpp.v1"

    async def done(method: str, **body: Any) -> Any:
        taken = await curl.curl(f"{prefix}/{method}", data=body)
        assert taken.status == 200, taken
        told = {"status": ""}
        while told["status"] not in ("done", "error"):
            told = (await curl.curl(f"{prefix}/Jobs/{taken.json['job_id']}?wait=1")).json
        assert told["status"] == "done", told
        return told["result"]

    messages = [{"role": "user", "content": "Say hi."}]
    sampling = {"max_tokens": 8, "temperature": 0}
    chat = await done("Chat", model="plain", messages=messages, sampling=sampling)
    assert chat["message"]["role"] == "assistant"
    assert chat["message"]["content"]
    assert 1 <= chat["usage"]["completion_tokens"] <= 8
    items = [{"messages": messages, "sampling": {"max_tokens": most}} for most in (1, 3)]
    batch = await done("BatchChat", model="plain", items=items)
    assert [1 <= each["usage"]["completion_tokens"] <= 3 for each in batch["responses"]] == [True, True]
    assert batch["responses"][0]["usage"]["completion_tokens"] == 1
    one = await done("Embed", model="vec", input=TEXTS[0])
    wanted = reference.vector(reference.tokens(TEXTS[0]))
    assert max(abs(a - b) for a, b in zip(one["embedding"], wanted, strict=True)) < 1e-2
    many = await done("BatchEmbed", model="vec", inputs=TEXTS)
    assert [each["index"] for each in many["embeddings"]] == [0, 1, 2]
    assert dot(many["embeddings"][0]["embedding"], one["embedding"]) == pytest.approx(1.0, abs=1e-3)
    assert (await done("Tokenize", model="vec", text=TEXTS[0]))["tokens"] == reference.tokens(TEXTS[0])
    detail = (await curl.curl(f"{prefix}/Models/Detail?id=plain")).json
    assert detail["size_bytes"] == demo_gguf.stat().st_size
    assert detail["metadata"]
    refused = await curl.curl(f"{prefix}/Embed", data={"model": "plain", "input": "x"})
    assert (refused.status, set(refused.json)) == (400, {"error"})


async def test_leaving_stops_the_engine(daemon: Daemon) -> None:
    """A client that leaves in the middle of a big batch frees the model at once."""
    texts = ["word " * 500] * 300  # minutes of work
    asking = asyncio.ensure_future(post(daemon, "embeddings", model="cut", input=texts))
    await daemon.until_status("cut", lambda status: status["in_flight"] > 0)
    asking.cancel()
    await asyncio.wait({asking})
    assert asking.cancelled()
    await daemon.until_idle("cut", within=60.0)
    async with asyncio.timeout(60):
        status, _ = await post(daemon, "embeddings", model="cut", input="x")
    assert status == 200


async def test_usage_is_in_the_metrics(sdk: Sdk, daemon: Daemon) -> None:
    """Tokens that were read for vectors are counted like those of chat."""
    name = 'modeld_prompt_tokens_total{model="vec"}'
    before = (await daemon.metrics()).get(name, 0.0)
    answer = await sdk.call(CREATE, model="vec", input=TEXTS, **FLOAT)
    await daemon.until_idle("vec")
    assert (await daemon.metrics())[name] - before == answer.usage.prompt_tokens
