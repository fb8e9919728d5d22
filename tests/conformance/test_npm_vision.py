"""`openai` for npm: pictures in chat, on a tiny real model that sees; npm/vision.mjs makes the calls."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from tests.conformance import node
from tests.harness.daemon import Daemon
from tests.harness.models_vision import PICTURE_TOKENS, vision_daemon
from tests.harness.pictures import data_url, png, png_head, slope
from tests.harness.web import Site, site

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web() -> AsyncIterator[Site]:
    """Serve two pictures."""
    async with site(red=png(), slope=png(pixels=slope)) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(web: Site) -> AsyncIterator[Daemon]:
    """Run a daemon with a model that sees, which may fetch from the site."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with vision_daemon(Path(folder), web.host) as started:
            yield started


async def test_answers(daemon: Daemon, web: Site) -> None:
    """Sent and fetched pictures give the same answer, another one another; usage counts them."""
    urls = (data_url(png()), f"{web.url}/red", f"{web.url}/slope")
    sent, fetched, other = await node.seen("vision.mjs", daemon.url, "answers", *urls)
    assert sent == fetched
    assert sent["text"] != other["text"]
    assert sent["usage"]["prompt_tokens"] == other["usage"]["prompt_tokens"] > PICTURE_TOKENS


async def test_streams(daemon: Daemon, web: Site) -> None:
    """The pieces of a stream join to the same answer."""
    url = f"{web.url}/red"
    [whole] = await node.seen("vision.mjs", daemon.url, "answers", url)
    pieces = await node.seen("vision.mjs", daemon.url, "stream", url)
    assert "".join(pieces) == whole["text"]
    assert len(pieces) > 4


async def test_refusals(daemon: Daemon, web: Site) -> None:
    """Each raises the SDK's own error, with code, field and request id."""
    wrong = {
        web.url.replace("127.0.0.1", "localhost") + "/red": "invalid_image_url",
        f"{web.url}/none": "image_fetch_failed",
        data_url(png_head(20_000, 20_000)): "image_too_large",
        data_url(b"<html>"): "invalid_image",
    }
    found = await node.seen("vision.mjs", daemon.url, "refusals", *wrong)
    for error, code in zip(found, wrong.values(), strict=True):
        assert (error["name"], error["status"], error["code"]) == ("BadRequestError", 400, code)
        assert error["param"] == "messages[0].content[1].image_url.url"
        assert error["requestID"].startswith("req_")
