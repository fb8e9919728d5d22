"""Pictures in chat requests over HTTP: fetched, counted, refused, and given up when the client leaves."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from modeld.gateway.settings import MediaSettings
from modeld.protocol.framing import FrameEncoder
from modeld.protocol.messages import Call, Facts
from modeld.protocol.tasks import ImagePart, TextPart
from tests.component.gateway.served import Serve, Served, post
from tests.fakes.pool import FakePool, last_chat, model
from tests.harness.pictures import data_url, gif, png, png_head
from tests.harness.web import Site, site

EYES = Facts(loader="fake", device="cpu", capabilities=("chat", "vision"))


def turn(*urls: str) -> list[dict[str, Any]]:
    """Return a conversation whose only turn holds a text and pictures."""
    parts = [{"type": "image_url", "image_url": {"url": url, "detail": "auto"}} for url in urls]
    return [{"role": "user", "content": [{"type": "text", "text": "what?"}, *parts]}]


async def gateway_for(serve: Serve, web: Site, *, room: int = 1 << 20, **media: Any) -> Served:
    """Start a gateway whose model sees, and which may fetch from the site."""
    settings = MediaSettings(**{"fetch": "listed", "fetch_hosts": (web.host,), **media})
    pool = FakePool(models={"eyes": model("eyes", facts=EYES)})
    return await serve(pool, media=settings, max_request_body=room)


async def test_http_urls_become_data_urls(serve: Serve) -> None:
    """Fetched ones stand where their URLs stood, with those that were sent; the engine sees no http URL."""
    cat, dog, cow = png(3, 3), gif(), png(5, 5)
    async with site(cat=cat, dog=dog) as web:
        gateway = await gateway_for(serve, web)
        messages = turn(f"{web.url}/cat", data_url(cow), f"{web.url}/dog")
        response, _ = await gateway.chat(model="eyes", messages=messages)
    assert response.status == 200
    assert last_chat(gateway.pool).messages[0].content == (
        TextPart(text="what?"),
        ImagePart(url=data_url(cat)),
        ImagePart(url=data_url(cow)),
        ImagePart(url=data_url(dog, "image/gif")),
    )


@pytest.mark.parametrize(
    ("path", "code", "words"),
    [
        ("/missing", "image_fetch_failed", "HTTP 404"),
        ("/page", "invalid_image", "web page"),
        ("/empty", "invalid_image", "empty"),
        ("/bomb", "image_too_large", "20000x20000"),
        ("/large", "image_fetch_failed", "over the limit of 4000 bytes"),
    ],
)
async def test_what_is_fetched_is_checked_like_what_is_sent(
    serve: Serve, path: str, code: str, words: str
) -> None:
    """Each is a 400 that names the part, and no call is made."""
    files = {"page": b"<html>no", "empty": b"", "bomb": png_head(20_000, 20_000), "large": bytes(5000)}
    async with site(cat=png(), **files) as web:
        gateway = await gateway_for(serve, web, image_bytes=4000)
        messages = turn(f"{web.url}/cat", web.url + path)
        response, body = await gateway.chat(model="eyes", messages=messages)
    assert (response.status, body["error"]["code"]) == (400, code)
    assert body["error"]["param"] == "messages[0].content[2].image_url.url"
    assert words in body["error"]["message"]
    assert gateway.pool.calls == []


async def test_who_is_not_listed_is_not_asked(serve: Serve) -> None:
    """A private address is 400 under either rule, `none` refuses everything, and nothing arrives there."""
    async with site(cat=png()) as web:
        for media in (
            {"fetch": "public", "fetch_hosts": ()},
            {"fetch": "listed", "fetch_hosts": ("box.lan",)},
            {"fetch": "none"},
        ):
            gateway = await gateway_for(serve, web, **media)
            response, body = await gateway.chat(model="eyes", messages=turn(f"{web.url}/cat"))
            assert (response.status, body["error"]["code"]) == (400, "invalid_image_url")
            assert gateway.pool.calls == []
    assert web.asked == []


async def test_a_blind_model_fetches_nothing(serve: Serve) -> None:
    """What the model does not take is refused before anybody is asked."""
    async with site(cat=png()) as web:
        gateway = await gateway_for(serve, web)
        gateway.pool.models["tiny"] = model("tiny")
        response, body = await gateway.chat(messages=turn(f"{web.url}/cat"))
    assert (response.status, body["error"]["param"]) == (400, "messages[0].content[1].image_url")
    assert web.asked == []


async def test_all_together_must_fit_the_link(serve: Serve) -> None:
    """Body and fetched pictures share max_request_body: a little more is a 400, and what passes fits."""
    picture = png() + bytes(30_000)
    async with site(cat=picture) as web:
        gateway = await gateway_for(serve, web, room=100_000)
        url = f"{web.url}/cat"
        response, body = await gateway.chat(model="eyes", messages=turn(url, url, url))
        assert (response.status, body["error"]["code"]) == (400, "image_fetch_failed")
        assert "max_request_body" in body["error"]["message"]
        response, _ = await gateway.chat(model="eyes", messages=turn(url, url))
        assert response.status == 200
    call = Call(call=1, task=last_chat(gateway.pool), identity="local", window=1)
    assert FrameEncoder(100_000 * 5 // 4).encode(call)


async def test_a_client_that_leaves_ends_its_fetches(serve: Serve) -> None:
    """All of them, which ran side by side."""
    async with site(slow=None) as web:
        gateway = await gateway_for(serve, web)
        _, writer = await gateway.connect()
        url = f"{web.url}/slow"
        writer.write(post(json.dumps({"model": "eyes", "messages": turn(url, url, url)})))
        async with asyncio.timeout(60):
            while web.at_once < 3:
                await web.begun.wait()
                await asyncio.sleep(0.01)
            writer.close()
            await writer.wait_closed()
            await web.gone.wait()
    assert gateway.pool.calls == []
