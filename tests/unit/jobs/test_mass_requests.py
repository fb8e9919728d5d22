from __future__ import annotations

import base64
import json
from typing import Any

import pytest

from modeld.errors import BadRequest
from modeld.gateway.settings import MediaSettings
from modeld.jobs.kinds import request_of
from modeld.jobs.mass.requests import KIND_OF, Method, Submission
from modeld.protocol.tasks import ChatTask, EmbedTask, ImagePart, Sampling, Task, TextPart, TokenizeTask

USER = {"role": "user", "content": "hi"}
PIXEL = base64.b64encode(
    bytes.fromhex(
        "89504e470d0a1a0a0000000d4948445200000001000000010802000000907753de0000000c49444154789c63f8cfc000"
        "000301010018dd8db00000000049454e44ae426082"
    )
).decode()


def tasks(method: Method, vision: bool | None = True, **body: Any) -> list[Task]:
    """Return what a body asks for."""
    submission = Submission(method, json.dumps({"model": "m", **body}).encode())
    assert submission.model == "m"
    return list(submission.tasks(vision=vision, media=MediaSettings()))


def chat(**body: Any) -> ChatTask:
    """Return the one task of a chat."""
    [task] = tasks("Chat", **{"messages": [USER], **body})
    assert isinstance(task, ChatTask)
    return task


def refusal(method: Method, vision: bool | None = True, **body: Any) -> BadRequest:
    """Return the error of a body that must be refused."""
    with pytest.raises(BadRequest) as caught:
        tasks(method, vision, **body)
    return caught.value


NUMBERS = {
    "max_tokens": 0,
    "temperature": 0,
    "top_p": 0,
    "top_k": 0,
    "seed": 0,
    "min_p": 0,
    "frequency_penalty": 0,
    "presence_penalty": 0,
}


def test_an_explicit_zero_is_a_zero() -> None:
    """Each parameter that is 0 in the body is 0 for the engine, and survives being stored."""
    task = chat(sampling=NUMBERS)
    stored = json.loads(request_of(task))
    for name in NUMBERS:
        assert getattr(task.sampling, name) == 0
        assert stored["sampling"][name] == 0


def test_what_is_absent_or_null_is_the_engines_own() -> None:
    """Nothing is made up."""
    assert chat().sampling == chat(sampling=dict.fromkeys(NUMBERS)).sampling == Sampling()


def test_thinking_comes_from_the_sampling_or_else_from_the_config() -> None:
    """The one that is nearer to the request goes first."""
    assert chat(config={"thinking": True}).template_kwargs == {"enable_thinking": True}
    assert chat(config={"thinking": True}, sampling={"enable_thinking": False}).template_kwargs == {
        "enable_thinking": False
    }
    assert chat().template_kwargs == {}


def test_parts_become_text_and_pictures() -> None:
    """Pictures come as base64 beside their type, which the content may correct."""
    parts = [{"type": "text", "text": "what?"}, {"type": "image", "data": PIXEL, "mime_type": "image/jpeg"}]
    [message] = chat(messages=[{"role": "user", "parts": parts}]).messages
    assert isinstance(message.content, tuple)
    assert message.content == (
        TextPart(text="what?"),
        ImagePart(url=f"data:image/png;base64,{PIXEL}"),
    )


def test_a_batch_is_an_item_for_each_in_order() -> None:
    """Chats and texts alike."""
    items = [
        {"messages": [{"role": "user", "content": str(at)}], "sampling": {"seed": at}} for at in range(5)
    ]
    found = tasks("BatchChat", items=items)
    assert [task.sampling.seed for task in found if isinstance(task, ChatTask)] == list(range(5))
    assert tasks("BatchEmbed", inputs=["a", "b"]) == [EmbedTask(inputs=("a",)), EmbedTask(inputs=("b",))]
    assert tasks("Embed", input="a") == [EmbedTask(inputs=("a",))]
    assert tasks("Tokenize", text="a") == [TokenizeTask(text="a")]


@pytest.mark.parametrize(
    ("config", "param"),
    [
        ({"context_size": -1}, "config.context_size"),
        ({"batch_size": -3}, "config.batch_size"),
        ({"gpu_layers": -2}, "config.gpu_layers"),
        ({"flash_attn": "x"}, "config.flash_attn"),
        ({"cache_type": "q5"}, "config.cache_type"),
        ({"vram_headroom_pct": 0}, "config.vram_headroom_pct"),
        ({"vram_headroom_pct": 101}, "config.vram_headroom_pct"),
    ],
)
def test_nonsense_in_the_config_is_refused(config: dict[str, Any], param: str) -> None:
    """Although nothing is done by it."""
    with pytest.raises(BadRequest) as caught:
        chat(config=config)
    assert caught.value.param == param


def test_a_penalty_that_no_engine_takes_is_refused() -> None:
    """A 0 of what divides; other zeros are zeros."""
    with pytest.raises(BadRequest) as caught:
        chat(sampling={"repeat_penalty": 0})
    assert caught.value.param == "sampling.repeat_penalty"


def test_all_of_the_config_is_taken() -> None:
    """What there says how to load a model is the owner's business here, and no reason to refuse."""
    config = {
        "context_size": 4096,
        "batch_size": 512,
        "gpu_layers": -1,
        "flash_attn": True,
        "threads": 4,
        "max_concurrent": 2,
        "thinking": False,
        "mmproj_filename": "mmproj.gguf",
        "chat_template": "chatml",
        "cache_type": "q8_0",
        "vram_headroom_pct": 90,
    }
    assert chat(config=config).messages


@pytest.mark.parametrize(
    ("method", "body", "param"),
    [
        ("Chat", {}, "messages"),
        ("Chat", {"messages": []}, "messages"),
        ("Chat", {"messages": [{"role": "tool", "content": "x"}]}, "messages[0].role"),
        ("Chat", {"messages": [{"role": "user"}]}, "messages[0].content"),
        (
            "Chat",
            {"messages": [{"role": "user", "content": "x", "parts": [{"type": "text"}]}]},
            "messages[0].parts",
        ),
        ("Chat", {"messages": [{"role": "user", "parts": [{"type": "text"}]}]}, "messages[0].parts[0].text"),
        ("Chat", {"messages": [{"role": "user", "parts": [{"type": "audio"}]}]}, "messages[0].parts[0].type"),
        ("Chat", {"messages": [{"role": "user", "parts": [{"type": "image"}]}]}, "messages[0].parts[0].data"),
        (
            "Chat",
            {"messages": [{"role": "user", "parts": [{"type": "image", "data": "aGk="}]}]},
            "messages[0].parts[0].data",
        ),
        (
            "Chat",
            {"messages": [{"role": "system", "parts": [{"type": "image", "data": PIXEL}]}]},
            "messages[0].parts[0].type",
        ),
        ("Chat", {"messages": [USER], "sampling": {"temperature": -1}}, "sampling.temperature"),
        ("Chat", {"messages": [USER], "sampling": {"stop": [""]}}, "sampling.stop"),
        ("BatchChat", {"items": []}, "items"),
        (
            "BatchChat",
            {"items": [{"messages": [USER]}, {"messages": [{"role": "user"}]}]},
            "items[1].messages[0].content",
        ),
        ("Embed", {"input": ""}, "input"),
        ("BatchEmbed", {"inputs": ["a", ""]}, "inputs[1]"),
        ("Tokenize", {}, "text"),
    ],
)
def test_what_cannot_be_done_is_refused_at_once(method: Method, body: dict[str, Any], param: str) -> None:
    """With the place of the mistake."""
    assert refusal(method, **body).param == param


def test_pictures_are_refused_for_a_model_that_does_not_see() -> None:
    """Before anything is stored."""
    parts = [{"type": "image", "data": PIXEL}]
    error = refusal("Chat", False, messages=[{"role": "user", "parts": parts}])
    assert "does not see images" in error.message


@pytest.mark.parametrize("method", list(KIND_OF))
def test_no_body_is_a_traceback(method: Method) -> None:
    """What is not JSON, or not an object, or nested without end, is the caller's mistake."""
    for raw in (b"", b"x", b"[]", b"[" * 100_000, b'{"model": 1}', b'{"model": ""}', b"\xff"):
        with pytest.raises(BadRequest):
            Submission(method, raw)
