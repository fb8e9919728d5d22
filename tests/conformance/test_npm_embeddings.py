"""`openai` for npm against embedding models; npm/embeddings.mjs calls, and what it saw is checked here."""

from __future__ import annotations

import base64
import struct
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import node
from tests.harness import reference_minilm as reference
from tests.harness.daemon import Daemon
from tests.harness.models_minilm import WIDTH, embedding_daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with embedding models, a reranker and a chat model."""
    async with embedding_daemon(demo_gguf) as started:
        yield started


async def test_vectors(daemon: Daemon) -> None:
    """By default (base64, which it decodes), as floats and as base64 the vectors are the reference's."""
    found = await node.seen("embeddings.mjs", daemon.url, "vectors")
    wanted = reference.vector(reference.tokens("A cat sits on the mat."))
    coded = struct.unpack(f"<{WIDTH}f", base64.b64decode(found["coded"]["data"][0]["embedding"]))
    for got in (
        found["standard"]["data"][0]["embedding"],
        found["floats"]["data"][0]["embedding"],
        coded,
    ):
        assert max(abs(a - b) for a, b in zip(got, wanted, strict=True)) < 1e-2
    for answer in found.values():
        assert [each["index"] for each in answer["data"]] == [0, 1, 2]
        assert answer["usage"]["prompt_tokens"] == answer["usage"]["total_tokens"] > 20
    assert {len(each["embedding"]) for each in found["cut"]["data"]} == {64}


async def test_refusals_are_the_sdks_own_errors(daemon: Daemon) -> None:
    """Each refusal is its class, with code, param and request id."""
    found = await node.seen("embeddings.mjs", daemon.url, "errors")
    assert all(error["requestID"].startswith("req_") for error in found.values())
    assert found["model"]["name"] == "NotFoundError"
    for which, param in (("empty", "input"), ("long", "input[1]"), ("dimensions", "dimensions")):
        assert (found[which]["name"], found[which]["param"]) == ("BadRequestError", param)
