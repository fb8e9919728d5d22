"""The image routes over HTTP: forms, links, streams, and what is refused."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import struct
from typing import Any

import pytest
from aiohttp import FormData
from openai import AsyncOpenAI

from modeld.gateway.middleware import SERVER
from modeld.gateway.settings import MediaSettings
from modeld.protocol.messages import Facts, MediaLimits
from modeld.protocol.pictures import look
from modeld.protocol.tasks import Event, ImageTask, Picture, Step, Task, Usage
from tests.component.gateway.served import Serve, Served, post, split
from tests.fakes.pool import Answer, FakePool, model
from tests.harness.pictures import gif, jpeg_head, webp_head

GENERATIONS, EDITS, VARIATIONS = (f"/v1/images/{name}" for name in ("generations", "edits", "variations"))
PAINT = {"model": "paint", "prompt": "a cat"}


def png(width: int = 64, height: int = 64, mark: bytes = b"") -> bytes:
    """Return what begins like a PNG file of that size."""
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + mark


def drawn(_name: str, task: Task) -> list[Answer]:
    """Return the script of what a task asks for, in its size and count."""
    assert isinstance(task, ImageTask)
    size = (task.width or 64, task.height or 64)
    head = {"png": png(*size), "jpeg": jpeg_head(*size), "webp": webp_head("VP8L", *size)}[task.format]
    events: list[Event] = [Step(0.5, "drawing"), Step(1.0, "drawing")]
    events += [Picture(0, head, None, number) for number in range(task.previews)]
    events += [Picture(index, head + b"%d" % index, (task.seed or 0) + index) for index in range(task.n)]
    return [*([event] for event in events), [Usage(4, 20)], None]


def _pool(*capabilities: str) -> FakePool:
    facts = Facts(loader="fake", device="cpu", capabilities=capabilities or ("image", "image_edit"))
    pool = FakePool.of(
        model("paint", usecase="image", facts=facts),
        model("tiny"),
        model("paint", usecase="image", facts=facts, gateway="side"),
    )
    pool.answer = drawn
    return pool


def _sdk(gateway: Served, path: str = "") -> AsyncOpenAI:
    return AsyncOpenAI(
        base_url=f"{gateway.url}{path}/v1", api_key="x", max_retries=0, _strict_response_validation=True
    )


def _task(pool: FakePool) -> ImageTask:
    task = pool.calls[-1].task
    assert isinstance(task, ImageTask)
    return task


@pytest.mark.parametrize("path", ["", "/side"])
async def test_pictures_come_as_base64_in_the_count_asked_for(serve: Serve, path: str) -> None:
    """The stock SDK gets n pictures, their usage, and the same at a named gateway."""
    gateway = await serve(_pool())
    async with _sdk(gateway, path) as client:
        answer = await client.images.generate(
            model="paint", prompt="a cat", n=3, size="256x320", extra_body={"seed": 7, "steps": 4}
        )
    assert answer.data is not None
    assert [base64.b64decode(one.b64_json or "")[-1:] for one in answer.data] == [b"0", b"1", b"2"]
    assert (answer.size, answer.output_format) == ("256x320", "png")
    assert answer.usage is not None
    assert (answer.usage.input_tokens, answer.usage.output_tokens, answer.usage.total_tokens) == (4, 20, 24)
    assert _task(gateway.pool) == ImageTask(prompt="a cat", n=3, width=256, height=320, seed=7, steps=4)


async def test_a_link_leads_to_the_picture_for_its_owner_only(serve: Serve) -> None:
    """`url` answers with an address of this daemon; another key, no key and a made-up name get nothing."""
    gateway = await serve(_pool(), api_keys=("mine", "theirs"))
    mine, theirs = ({"authorization": f"Bearer {key}"} for key in ("mine", "theirs"))
    asked = {**PAINT, "n": 2, "response_format": "url"}
    _, body = await gateway.ask("POST", GENERATIONS, json=asked, headers=mine)
    urls = [one["url"] for one in body["data"]]
    assert all(url.startswith(f"{gateway.url}/v1/images/files/") for url in urls)
    for number, url in enumerate(urls):
        async with gateway.http.get(url, headers=mine) as response:
            assert (response.status, response.content_type) == (200, "image/png")
            assert (await response.read())[-1:] == b"%d" % number
        for headers, status in ((theirs, 404), ({}, 401)):
            async with gateway.http.get(url, headers=headers) as response:
                assert response.status == status
    response, body = await gateway.ask("GET", "/v1/images/files/x", headers=mine)
    assert (response.status, body["error"]["code"]) == (404, "picture_not_found")


@pytest.mark.parametrize("form", ["png", "jpeg", "webp"])
async def test_each_format_is_what_its_content_type_says(serve: Serve, form: str) -> None:
    """The answer names the format asked for, and so does the link's content type."""
    gateway = await serve(_pool())
    fields = {**PAINT, "output_format": form, "response_format": "url", "output_compression": 100}
    _, body = await gateway.ask("POST", GENERATIONS, json=fields)
    assert body["output_format"] == form
    async with gateway.http.get(body["data"][0]["url"]) as response:
        assert response.content_type == f"image/{form}"
        assert look(await response.read()).format == form
    _, body = await gateway.ask("POST", GENERATIONS, json={**PAINT, "output_format": form})
    assert look(base64.b64decode(body["data"][0]["b64_json"])).format == form


@pytest.mark.parametrize("path", [EDITS, VARIATIONS])
@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "invalid_image"),
        (b"<html><body>no</body></html>", "invalid_image"),
        (b"\0" * 1000, "invalid_image"),
        (gif(), "invalid_image"),
        (png(20_000, 20_000), "image_too_large"),
        (png(128, 64), "image_too_large"),
    ],
)
async def test_a_picture_of_no_use_is_refused_before_any_work(
    serve: Serve, path: str, data: bytes, code: str
) -> None:
    """The limits are the configured ones; the answer names picture and code, and no model is called."""
    limits = MediaLimits(image_pixels=64 * 64)
    gateway = await serve(_pool(), media=MediaSettings(limits=limits))
    form = FormData({"model": "paint"} | ({"prompt": "x"} if path == EDITS else {}))
    form.add_field("image", data, filename="a.png", content_type="image/png")
    response, body = await gateway.ask("POST", path, data=form)
    assert (response.status, body["error"]["code"], body["error"]["param"]) == (400, code, "image")
    assert gateway.pool.calls == []


async def test_an_edit_carries_picture_and_mask(serve: Serve) -> None:
    """The SDK's forms arrive whole, with one picture named `image` or `image[]`."""
    gateway = await serve(_pool())
    async with _sdk(gateway) as client:
        images: list[bytes | list[bytes]] = [png(mark=b"photo"), [png(mark=b"photo")]]
        for image in images:
            await client.images.edit(
                model="paint",
                prompt="a cat",
                image=image,
                mask=png(mark=b"mask"),
                n=2,
                extra_body={"strength": 0.5},
            )
            assert _task(gateway.pool) == ImageTask(
                prompt="a cat", n=2, image=png(mark=b"photo"), mask=png(mark=b"mask"), strength=0.5
            )
        with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI has none of its own any more
            answer = await client.images.create_variation(image=png(), model="paint", size="256x256")
    assert answer.data
    assert _task(gateway.pool) == ImageTask(image=png(), width=256, height=256)


async def test_a_stream_brings_progress_previews_and_the_picture(serve: Serve) -> None:
    """The SDK reads previews, then the finished picture with its usage; steps reach the wire as comments."""
    gateway = await serve(_pool())
    async with _sdk(gateway) as client:
        kinds: list[tuple[str, int | None]] = []
        stream = await client.images.generate(model="paint", prompt="a cat", stream=True, partial_images=2)
        async for event in stream:
            kinds.append((event.type, getattr(event, "partial_image_index", None)))
    partial = "image_generation.partial_image"
    assert kinds == [(partial, 0), (partial, 1), ("image_generation.completed", None)]
    form = FormData({"model": "paint", "prompt": "x", "stream": "true"})
    form.add_field("image", png(), filename="a.png")
    async with gateway.http.post(gateway.url + EDITS, data=form) as response:
        raw = await response.text()
    assert ": 50%\n\n" in raw
    assert "event: image_edit.completed\n" in raw


async def test_a_long_silence_is_kept_alive_and_leaving_cancels(serve: Serve) -> None:
    """While nothing is drawn the stream gets comments; a client that leaves frees the engine."""
    pool = _pool()
    pool.answer = lambda _name, _task: [[Step(0.1)]]
    gateway = await serve(pool, keepalive_interval=0.01)
    reader, writer = await gateway.connect()
    writer.write(post(json.dumps({**PAINT, "stream": True}), GENERATIONS))
    await reader.readuntil(b": keep-alive\n\n")
    writer.close()
    await asyncio.wait_for(pool.streams[0].closed.wait(), 60)
    assert pool.streams[0].cancelled
    await writer.wait_closed()


async def test_another_kind_of_model_is_refused_with_what_it_is_for(serve: Serve) -> None:
    """A chat model draws nothing; a model that draws from words only takes no picture."""
    gateway = await serve(_pool("image"))
    response, body = await gateway.ask("POST", GENERATIONS, json={**PAINT, "model": "tiny"})
    assert (response.status, body["error"]["param"]) == (400, "model")
    assert "/v1/chat/completions" in body["error"]["message"]
    form = FormData({"model": "paint", "prompt": "x"})
    form.add_field("image", png(), filename="a.png")
    response, body = await gateway.ask("POST", EDITS, data=form)
    assert (response.status, body["error"]["code"]) == (400, "unsupported_task")
    assert "its capabilities: image)" in body["error"]["message"]
    assert gateway.pool.calls == []


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"size": "999x1"}, "size"),
        ({"n": 11}, "n"),
        ({"output_format": "gif"}, "output_format"),
        ({"size": "4096x4104"}, "size"),
        ({"bogus": 1}, "bogus"),
    ],
)
async def test_a_bad_field_is_refused_before_any_work(
    serve: Serve, fields: dict[str, Any], param: str
) -> None:
    """A 400 names the field, and no model is called."""
    gateway = await serve(_pool())
    response, body = await gateway.ask("POST", GENERATIONS, json={**PAINT, **fields})
    assert (response.status, body["error"]["param"]) == (400, param)
    assert gateway.pool.calls == []


def _form(*parts: bytes, boundary: bytes = b"b") -> bytes:
    return (
        b"".join(b"--" + boundary + b"\r\n" + part + b"\r\n" for part in parts) + b"--" + boundary + b"--\r\n"
    )


def _part(name: str, value: bytes, more: str = "") -> bytes:
    return f'Content-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + value


MODEL = _part("model", b"paint")
FILE = '; filename="a.png"'


@pytest.mark.parametrize(
    ("body", "status", "word"),
    [
        (b"", 400, "form"),
        (b"no form at all", 400, "form"),
        (_form(MODEL)[:-8], 400, ""),
        (_form(MODEL, _part("prompt", b"x")), 400, "'image'"),
        (_form(MODEL, MODEL), 400, "2 times"),
        (_form(MODEL, _part("prompt", b"x"), _part("image", b"", FILE)), 400, "empty"),
        (_form(MODEL, _part("prompt", b"\xff")), 400, "UTF-8"),
        (_form(b"Content-Type: text/plain\r\n\r\nx"), 400, ""),
        (_form(*[_part(f"x{number}", b"") for number in range(300)]), 400, "200 parts"),
        (_form(MODEL, _part("prompt", b"x" * 300_000), _part("image", png(), FILE)), 400, "32000"),
        (_form(MODEL, _part("image", b"x" * 1_100_000, FILE)), 413, "1000000"),
    ],
)
async def test_a_broken_form_is_the_caller_s_fault(serve: Serve, body: bytes, status: int, word: str) -> None:
    """No form is a server error, however it is broken; the answer says what is wrong, and serving goes on."""
    gateway = await serve(_pool(), max_request_body=1_000_000)
    headers = {"content-type": "multipart/form-data; boundary=b"}
    response, answer = await gateway.ask("POST", EDITS, data=io.BytesIO(body), headers=headers)
    assert response.status == status
    assert word in answer["error"]["message"]
    assert gateway.pool.calls == []
    assert (await gateway.ask("POST", GENERATIONS, json=PAINT))[0].status == 200


async def test_json_for_a_form_is_refused(serve: Serve) -> None:
    """The content type decides, with 415."""
    gateway = await serve(_pool())
    response, _ = await gateway.ask("POST", EDITS, json=PAINT)
    assert response.status == 415
    status, headers, _ = split(await gateway.raw(post("{}", VARIATIONS)))
    assert (status, headers["server"]) == (415, SERVER)
