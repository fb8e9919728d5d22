"""`openai` for Python: a refusal is the SDK's own exception, with everything it knows how to read."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from tests.conformance.python_sdk import KEY, AsyncSdk, Sdk, SyncSdk
from tests.conformance.questions import user
from tests.harness.daemon import Daemon

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

HELLO = {"model": "plain", "messages": user("Hello"), "max_tokens": 1}
CLIENTS = pytest.mark.parametrize("kind", [SyncSdk, AsyncSdk], ids=["sync", "async"])


async def refused(sdk: Sdk, kind: type[openai.APIStatusError], **body: Any) -> openai.APIStatusError:
    """Ask for an answer that is refused, plain and streamed, and return the plain refusal."""
    with pytest.raises(kind) as plain:
        await sdk.chat(**body)
    with pytest.raises(kind) as streamed:
        await sdk.chunks(**body)
    for error in (plain.value, streamed.value):
        assert (error.request_id or "").startswith("req_")
    assert plain.value.message == streamed.value.message
    assert (plain.value.code, plain.value.param) == (streamed.value.code, streamed.value.param)
    return plain.value


async def test_an_unknown_model_is_not_found(sdk: Sdk) -> None:
    """NotFoundError with model_not_found, on chat, completions and models.retrieve."""
    error = await refused(sdk, openai.NotFoundError, **{**HELLO, "model": "nope"})
    assert error.code == "model_not_found"
    assert error.type == "invalid_request_error"
    assert "nope" in error.message
    for method, arguments in (
        ("completions.create", {"model": "nope", "prompt": "Hi"}),
        ("models.retrieve", {"model": "nope"}),
    ):
        with pytest.raises(openai.NotFoundError) as caught:
            await sdk.call(method, **arguments)
        assert caught.value.code == "model_not_found"


@pytest.mark.parametrize(
    ("param", "value"),
    [("temperature", 9), ("top_p", -1), ("max_tokens", 0), ("n", 0), ("top_logprobs", 50)],
)
async def test_a_value_out_of_range_is_named(sdk: Sdk, param: str, value: object) -> None:
    """BadRequestError names the parameter."""
    error = await refused(sdk, openai.BadRequestError, **{**HELLO, param: value})
    assert error.param == param
    assert error.type == "invalid_request_error"


async def test_a_prompt_over_the_context_has_its_own_code(sdk: Sdk) -> None:
    """BadRequestError with context_length_exceeded, before a stream begins."""
    error = await refused(sdk, openai.BadRequestError, **{**HELLO, "messages": user("sheep " * 4000)})
    assert error.code == "context_length_exceeded"
    assert "2048" in error.message


@CLIENTS
async def test_a_wrong_key_is_an_authentication_error(
    locked: Daemon, kind: type[SyncSdk] | type[AsyncSdk]
) -> None:
    """With keys configured, a wrong key is AuthenticationError on every call, and the right one is served."""
    async with kind(locked.url, "sk-wrong") as wrong:
        error = await refused(wrong, openai.AuthenticationError, **{**HELLO, "model": "scripted"})
        assert error.code == "invalid_api_key"
        assert "sk-wrong" not in error.message
        with pytest.raises(openai.AuthenticationError):
            await wrong.models()
    async with kind(locked.url, KEY) as right:
        assert [model.id for model in await right.models()] == ["scripted"]
        assert (await right.chat(**{**HELLO, "model": "scripted"})).choices
