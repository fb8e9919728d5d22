"""Pictures on the real llama.cpp, with a tiny model of made-up numbers that sees."""

from __future__ import annotations

import io
import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import av
import numpy as np
import pytest
import pytest_asyncio

from modeld.errors import BadRequest, LoadFailed
from modeld.protocol.tasks import (
    ChatTask,
    CountTask,
    Event,
    Finish,
    FunctionTool,
    ImagePart,
    Message,
    Part,
    Sampling,
    Text,
    TextFormat,
    TextPart,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from tests.harness.loaded import Loaded, loaded
from tests.harness.models_vision import (
    PICTURE_TOKENS,
    projector,
    seer,
    seer_with_projector,
    wrong_projector,
)
from tests.harness.pictures import data_url, gif, jpeg_head, png, png_head, slope, webp_head

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

OPTIONS: dict[str, Any] = {"n_ctx": 1024, "threads": 1}
LOADER = ("llama_server", "generate")
TEMPLATE = (
    "{% if tools %}{{ tools | tojson }}\n{% endif %}{% for m in messages %}<|turn|>{{ m.role }}\n"
    "{{ m.content }}<|done|>\n{% endfor %}{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)
"""Renders tools, and knows no thinking."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def eyes(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Loaded]:
    """Give a model whose projector lies beside it, with a template that renders tools."""
    folder = Path(os.path.realpath(tmp_path_factory.mktemp("v")))
    short = Path("/tmp") / f"md{os.getpid()}v"
    short.symlink_to(folder)
    try:
        options = {**OPTIONS, "chat_template": TEMPLATE}
        async with loaded(short, seer_with_projector(), *LOADER, **options) as model:
            yield model
    finally:
        short.unlink()


def chat(*parts: str | bytes, tokens: int = 12, **more: Any) -> ChatTask:
    """Return a conversation of one turn; bytes are pictures."""
    content: tuple[Part, ...] = tuple(
        TextPart(text=part) if isinstance(part, str) else ImagePart(url=data_url(part)) for part in parts
    )
    return ChatTask(
        messages=(Message(role="user", content=content),),
        sampling=Sampling(max_tokens=tokens, temperature=0.0),
        engine_options={"cache_prompt": False},
        **more,
    )


def text(events: list[Event]) -> str:
    """Return the answer's text."""
    return "".join(event.text for event in events if isinstance(event, Text))


def prompt_tokens(events: list[Event]) -> int:
    """Return what the engine counted of the question."""
    usage = events[-1]
    assert isinstance(usage, Usage)
    return usage.prompt_tokens


def coded(container: str, codec: str, pixels: str) -> bytes:
    """Return a small picture in a format that takes a coder."""
    file = io.BytesIO()
    array = np.zeros((64, 64, 3), np.uint8)
    array[:, :, 0] = np.arange(64) * 4
    with av.open(file, "w", format=container) as output:
        stream: Any = output.add_stream(codec, rate=1)
        stream.width, stream.height, stream.pix_fmt = 64, 64, pixels
        frame = av.VideoFrame.from_ndarray(array, format="rgb24").reformat(format=pixels)
        for packet in (*stream.encode(frame), *stream.encode(None)):
            output.mux(packet)
    return file.getvalue()


async def test_the_answer_depends_on_the_picture(eyes: Loaded) -> None:
    """At temperature 0 the same picture gives the same answer, another one another; it comes in pieces."""
    red, again = [await eyes.ask(chat("What is it?", png())) for _ in range(2)]
    other = await eyes.ask(chat("What is it?", png(pixels=slope)))
    assert text(red) == text(again)
    assert text(red) != text(other)
    assert len(text(red)) == len(text(other)) == 12
    assert sum(isinstance(event, Text) for event in red) > 4
    assert [type(event) for event in red[-2:]] == [Finish, Usage]


async def test_pictures_count_as_tokens(eyes: Loaded) -> None:
    """Each adds those that the projector makes of it, whatever its size, and what frames them."""
    none, one, two, large = [
        prompt_tokens(await eyes.ask(chat("x", *pictures)))
        for pictures in ((), (png(),), (png(), png(3, 5)), (png(300, 200, slope),))
    ]
    assert one - none > PICTURE_TOKENS
    assert two - one == one - none
    assert large == one


async def test_pictures_are_counted_without_an_answer(eyes: Loaded) -> None:
    """The count of a chat with pictures is what the engine reads, also with tools and a forced form."""
    form = TextFormat(kind="json_schema", name="f", schema={"type": "object", "properties": {}})
    tool = FunctionTool(name="look")
    for more in ({}, {"tools": (tool,)}, {"format": form}, {"tools": (tool,), "format": form}):
        task = chat("What is it?", png(), png(3, 5), tokens=1, **more)
        assert await eyes.ask(CountTask(chat=task)) == [Usage(prompt_tokens(await eyes.ask(task)), 0)]
    with pytest.raises(BadRequest, match="picture"):
        await eyes.ask(CountTask(chat=chat("What is it?", b"no picture")))


@pytest.mark.parametrize(
    "picture",
    [gif(), coded("mjpeg", "mjpeg", "yuvj420p"), coded("gif", "gif", "rgb8"), png(1, 1)],
    ids=["gif", "jpeg", "large gif", "tiny png"],
)
async def test_formats_that_the_engine_reads(eyes: Loaded, picture: bytes) -> None:
    """Each that is let through to it is one that it has a decoder for."""
    assert len(text(await eyes.ask(chat("What is it?", picture)))) == 12


@pytest.mark.parametrize(
    ("picture", "code", "words"),
    [
        (png(300, 200, slope)[:400], "invalid_image", "damaged"),
        (png_head(64, 64), "invalid_image", "damaged"),
        (jpeg_head(64, 64), "invalid_image", "damaged"),
        (png_head(64, 64) + b"#EXTM3U\nfile:///etc/passwd\n", "invalid_image", "damaged"),
        (b"", "invalid_image", "empty"),
        (b"<!DOCTYPE html>", "invalid_image", "web page"),
        (png_head(20_000, 20_000), "image_too_large", "20000x20000"),
        (coded("webp", "libwebp", "yuv420p"), "unsupported_image_format", "send png, jpeg or gif"),
        (webp_head("VP8X", 10, 10), "unsupported_image_format", "webp"),
    ],
    ids=["cut", "head", "jpeg head", "playlist", "empty", "page", "bomb", "webp", "webp head"],
)
async def test_a_bad_picture_is_its_senders_fault(
    eyes: Loaded, picture: bytes, code: str, words: str
) -> None:
    """It is a BadRequest, and the model goes on."""
    with pytest.raises(BadRequest, match=words) as caught:
        await eyes.ask(chat("What is it?", png(), picture))
    assert caught.value.code == code
    assert text(await eyes.ask(chat("What is it?", png())))


async def test_the_only_picture_is_the_damaged_one(eyes: Loaded) -> None:
    """Of one picture it is known which; every choice of several asks for the same."""
    for task in (chat("What?", png_head(64, 64)), chat("What?", png_head(64, 64), n=2)):
        with pytest.raises(BadRequest) as caught:
            await eyes.ask(task)
        assert caught.value.param == "messages[0].content[1].image_url.url"
    assert text(await eyes.ask(chat("What?", png(), n=2)))


async def test_no_program_is_started_on_a_picture(short_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the engine takes for no picture it would hand to the ffprobe on PATH."""
    ran, program = short_dir / "ran", short_dir / "ffprobe"
    program.write_text(f"#!/bin/sh\ntouch {ran}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(short_dir), prepend=os.pathsep)
    async with loaded(short_dir, seer_with_projector(), *LOADER, **OPTIONS) as model:
        with pytest.raises(BadRequest, match="damaged"):
            await model.ask(chat("What is it?", png_head(64, 64)))
    assert not ran.exists()


async def test_what_is_no_data_url_never_reaches_the_engine(eyes: Loaded) -> None:
    """The engine would fetch it by itself."""
    parts = (ImagePart(url="http://127.0.0.1:9/x.png"),)
    with pytest.raises(BadRequest, match="not a data: URL"):
        await eyes.ask(ChatTask(messages=(Message(role="user", content=parts),)))


async def test_pictures_beside_schemas_and_tools(eyes: Loaded) -> None:
    """A forced form and a forced call hold with pictures too."""
    schema = {"type": "object", "properties": {"a": {"enum": ["x", "y"]}}, "required": ["a"]}
    form = TextFormat(kind="json_schema", name="a", schema={**schema, "additionalProperties": False})
    told = text(await eyes.ask(chat("What is it?", png(), tokens=200, format=form)))
    assert "".join(told.split()) in ('{"a":"x"}', '{"a":"y"}')
    tool = FunctionTool(
        name="name_it",
        parameters={
            "type": "object",
            "properties": {"what": {"enum": ["cat", "dog"]}},
            "required": ["what"],
            "additionalProperties": False,
        },
    )
    choice = ToolChoice(mode="function", name="name_it")
    events = await eyes.ask(chat("What is it?", png(), tokens=400, tools=(tool,), tool_choice=choice))
    calls = [event for event in events if isinstance(event, ToolCallDelta)]
    assert calls[0].name == "name_it"
    assert prompt_tokens(events) > PICTURE_TOKENS


async def test_the_facts_tell_of_the_projector(eyes: Loaded) -> None:
    """It sees, and with what is shown to the owner."""
    assert "vision" in eyes.facts.capabilities
    assert eyes.facts.detail["projector"] == str(seer_with_projector().with_name("mmproj-seer.gguf"))


async def test_a_projector_can_be_named_or_left_out(short_dir: Path) -> None:
    """Named, it is taken from elsewhere; `none` leaves one that lies beside the model; without, no eyes."""
    async with loaded(short_dir, seer(), *LOADER, **OPTIONS, mmproj=str(projector())) as model:
        assert "vision" in model.facts.capabilities
        assert text(await model.ask(chat("What is it?", png())))
    blind: tuple[tuple[Path, dict[str, Any]], ...] = (
        (seer_with_projector(), {"mmproj": "none"}),
        (seer(), {}),
    )
    for path, options in blind:
        async with loaded(short_dir, path, *LOADER, **{**OPTIONS, **options}) as model:
            assert "vision" not in model.facts.capabilities
            assert "projector" not in model.facts.detail
            with pytest.raises(BadRequest, match="does not see images") as caught:
                await model.ask(chat("What is it?", png()))
            assert caught.value.param == "messages[0].content[1].image_url"
            assert text(await model.ask(chat("What is it?")))


async def test_one_beside_the_model_that_does_not_fit_says_the_way_out(short_dir: Path) -> None:
    """Nobody named it, so the words tell where it came from."""
    model = short_dir / "m.gguf"
    model.symlink_to(seer())
    (short_dir / "mmproj-f16.gguf").symlink_to(wrong_projector())
    with pytest.raises(LoadFailed, match=r"(?s)mismatch.*mmproj-f16.gguf was taken.*mmproj: none") as caught:
        async with loaded(short_dir, model, *LOADER, **OPTIONS):
            pass
    assert caught.value.permanent


@pytest.mark.parametrize("kind", ["wrong", "missing", "no projector"])
async def test_a_projector_that_does_not_fit_fails_the_load(short_dir: Path, kind: str) -> None:
    """For good, with the engine's own words."""
    file, words = {
        "wrong": (wrong_projector(), r"mismatch between text model \(n_embd = 64\) and mmproj"),
        "missing": (short_dir / "mmproj-none.gguf", "No such file"),
        "no projector": (seer(), "failed to load multimodal model"),
    }[kind]
    with pytest.raises(LoadFailed, match=f"(?s)its last words:.*{words}") as caught:
        async with loaded(short_dir, seer(), *LOADER, **OPTIONS, mmproj=str(file)):
            pass
    assert caught.value.permanent
