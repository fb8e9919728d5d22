"""`openai` for Python, strict: pictures in chat, through a real daemon, on a tiny real model that sees."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio

from tests.conformance.python_sdk import AsyncSdk, Sdk, SyncSdk
from tests.harness.daemon import Daemon
from tests.harness.models_vision import LATE, PICTURE_TOKENS, vision_daemon
from tests.harness.pictures import data_url, gif, png, png_head, slope, webp_head
from tests.harness.web import Site, site

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ANSWER = {"max_tokens": 12, "temperature": 0, "extra_body": {"cache_prompt": False}}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def web() -> AsyncIterator[Site]:
    """Serve pictures, and what is none."""
    async with site(
        red=png(), slope=png(pixels=slope), page=b"<html>", bomb=png_head(20_000, 20_000)
    ) as served:
        yield served


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(web: Site) -> AsyncIterator[Daemon]:
    """Run a daemon with a model that sees, and one that does not, which may fetch from the site."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with vision_daemon(Path(folder), web.host) as started:
            yield started


@pytest_asyncio.fixture(params=[SyncSdk, AsyncSdk], ids=["sync", "async"], loop_scope="module")
async def sdk(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Sdk]:
    """Give the Python SDK's two clients in turn."""
    kind: type[SyncSdk] | type[AsyncSdk] = request.param
    async with kind(daemon.url) as client:
        yield client


def asking(*urls: str, model: str = "eyes") -> dict[str, Any]:
    """Return a request with a text and pictures."""
    pictures = [{"type": "image_url", "image_url": {"url": url, "detail": "high"}} for url in urls]
    content = [{"type": "text", "text": "What is it?"}, *pictures]
    return {"model": model, "messages": [{"role": "user", "content": content}], **ANSWER}


async def test_the_answer_depends_on_the_picture_and_not_on_its_way(sdk: Sdk, web: Site) -> None:
    """Sent or fetched, the same picture gives the same answer; another picture another one."""
    sent = await sdk.chat(**asking(data_url(png())))
    fetched = await sdk.chat(**asking(f"{web.url}/red"))
    other = await sdk.chat(**asking(f"{web.url}/slope"))
    text = sent.choices[0].message.content
    assert text
    assert fetched.choices[0].message.content == text
    assert other.choices[0].message.content != text


async def test_usage_counts_pictures(sdk: Sdk) -> None:
    """Each picture adds its tokens to the prompt's."""
    counts = []
    for urls in ((), (data_url(png()),), (data_url(png()), data_url(gif(), "image/png"))):
        usage = (await sdk.chat(**asking(*urls))).usage
        assert usage is not None
        assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
        counts.append(usage.prompt_tokens)
    assert counts[1] - counts[0] == counts[2] - counts[1] > PICTURE_TOKENS


async def test_a_stream_is_the_same_answer(sdk: Sdk, web: Site) -> None:
    """In pieces, with the usage at its end."""
    whole = await sdk.chat(**asking(f"{web.url}/slope"))
    chunks = await sdk.chunks(**asking(f"{web.url}/slope"), stream_options={"include_usage": True})
    pieces = [chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices]
    assert "".join(pieces) == whole.choices[0].message.content
    assert sum(map(bool, pieces)) > 4
    assert chunks[-1].usage == whole.usage


async def test_what_is_wrong_with_a_picture(sdk: Sdk, web: Site) -> None:
    """Each is the SDK's BadRequestError with code and field, and the model goes on."""
    strange = web.url.replace("127.0.0.1", "localhost")
    wrong = {
        strange + "/red": ("invalid_image_url", "no public address"),
        "http://169.254.169.254/latest/meta-data": ("invalid_image_url", "no public address"),
        "http://me:secret@127.0.0.1/": ("invalid_image_url", "password"),
        "file:///etc/passwd": ("invalid_image_url", "data:image"),
        f"{web.url}/none": ("image_fetch_failed", "HTTP 404"),
        f"{web.url}/page": ("invalid_image", "web page"),
        f"{web.url}/bomb": ("image_too_large", "20000x20000"),
        data_url(png_head(20_000, 20_000)): ("image_too_large", "20000x20000"),
        data_url(b""): ("invalid_image", "empty"),
        data_url(webp_head("VP8X", 8, 8)): ("unsupported_image_format", "png, jpeg or gif"),
        data_url(png(90, 90, slope)[:300]): ("invalid_image", "damaged"),
    }
    for url, (code, words) in wrong.items():
        with pytest.raises(openai.BadRequestError, match=words) as caught:
            await sdk.chat(**asking(data_url(png()), url))
        assert caught.value.code == code
        assert str(caught.value.param).startswith("messages")
    assert (await sdk.chat(**asking(data_url(png())))).choices[0].message.content


async def test_a_stream_is_refused_before_it_begins(sdk: Sdk) -> None:
    """What only the engine can see is a true 400 too, with the field."""
    with pytest.raises(openai.BadRequestError, match="damaged") as caught:
        await sdk.chunks(**asking(data_url(png_head(64, 64))))
    assert caught.value.param == "messages[0].content[1].image_url.url"


async def test_a_model_that_is_not_loaded_decides_itself(daemon: Daemon, web: Site) -> None:
    """Nobody knows yet whether it sees: the picture is fetched, the model loaded, and its word is final."""
    seeing, blind = LATE
    async with AsyncSdk(daemon.url) as sdk:
        answer = await sdk.chat(**asking(f"{web.url}/red", model=seeing))
        assert answer.choices[0].message.content
        web.asked.clear()
        with pytest.raises(openai.BadRequestError, match="does not see images") as caught:
            await sdk.chat(**asking(f"{web.url}/red", model=blind))
        assert caught.value.param == "messages[0].content[1].image_url"
        assert web.asked == ["/red"]


async def test_a_model_without_eyes(sdk: Sdk) -> None:
    """It names the part, and takes texts."""
    with pytest.raises(openai.BadRequestError, match="does not see images") as caught:
        await sdk.chat(**asking(data_url(png()), model="blind"))
    assert caught.value.param == "messages[0].content[1].image_url"
    assert (await sdk.chat(**asking(model="blind"))).choices[0].message.content


async def test_grammars(sdk: Sdk) -> None:
    """Beside a picture too; beside tools the field is at fault."""
    asked = asking(data_url(png()))
    extra = {**ANSWER["extra_body"], "grammar": 'root ::= "cat" | "dog"'}  # type: ignore[dict-item]
    answer = await sdk.chat(**{**asked, "extra_body": extra})
    assert answer.choices[0].message.content in ("cat", "dog")
    tool = {"type": "function", "function": {"name": "f"}}
    with pytest.raises(openai.BadRequestError) as caught:
        await sdk.chat(**{**asked, "extra_body": extra}, tools=[tool])
    assert caught.value.param == "grammar"


async def test_the_owner_sees_what_it_sees_with(daemon: Daemon) -> None:
    """`ctl status` has capability and projector."""
    facts = (await daemon.model("eyes"))["facts"]
    assert "vision" in facts["capabilities"]
    assert facts["detail"]["projector"].endswith("mmproj-seer.gguf")
    assert "vision" not in (await daemon.model("blind"))["facts"]["capabilities"]
