"""What a request for a response is refused for: always with the same status, code and name of a field."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.component.responses.served_http import Api, error_of, serving
from tests.fakes.pool import FakePool, model

FUNCTION = {"type": "function", "name": "f", "parameters": {"type": "object"}}
MCP = {"type": "mcp", "server_label": "s", "server_url": "http://127.0.0.1:9/mcp"}


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[Api]:
    """Serve one chat model, and one for vectors."""
    async with serving(tmp_path, FakePool.of(model("tiny"), model("vectors", usecase="embed"))) as api:
        yield api


def deep(levels: int) -> Any:
    """Return JSON that is nested too deeply to be honest."""
    value: Any = 1
    for _ in range(levels):
        value = {"x": value}
    return value


TYPES: list[tuple[dict[str, Any], str]] = [
    ({"model": 5}, "model"),
    ({"model": [None, None]}, "model"),
    ({"input": 5}, "input"),
    ({"input": ["text"]}, "input"),
    ({"instructions": ["x"]}, "instructions"),
    ({"stream": "yes"}, "stream"),
    ({"store": 1}, "store"),
    ({"background": "yes"}, "background"),
    ({"previous_response_id": 7}, "previous_response_id"),
    ({"conversation": 7}, "conversation"),
    ({"include": "message.output_text.logprobs"}, "include"),
    ({"max_output_tokens": "many"}, "max_output_tokens"),
    ({"max_tool_calls": 1.5}, "max_tool_calls"),
    ({"metadata": ["x"]}, "metadata"),
    ({"metadata": {"k": 5}}, "metadata"),
    ({"parallel_tool_calls": "no"}, "parallel_tool_calls"),
    ({"temperature": "hot"}, "temperature"),
    ({"tools": {}}, "tools"),
    ({"tools": [5]}, "tools"),
    ({"tool_choice": 5}, "tool_choice"),
    ({"text": "json"}, "text"),
    ({"reasoning": "high"}, "reasoning"),
    ({"user": 5}, "user"),
    ({"prompt_cache_key": 5}, "prompt_cache_key"),
]


@pytest.mark.parametrize(("fields", "param"), TYPES, ids=lambda value: str(value)[:40])
async def test_a_field_of_another_type(api: Api, fields: dict[str, Any], param: str) -> None:
    """400 invalid_type that names the field, whatever it holds instead."""
    body = {"model": "tiny", "input": "hi", **fields}
    status, answer = await api.ask("POST", "responses", body)
    error = error_of(answer)
    assert (status, error["type"], error["code"]) == (400, "invalid_request_error", "invalid_type")
    assert error["param"].startswith(param)


VALUES: list[tuple[dict[str, Any], str]] = [
    ({"model": ""}, "model"),
    ({"max_output_tokens": 0}, "max_output_tokens"),
    ({"max_output_tokens": -1}, "max_output_tokens"),
    ({"max_tool_calls": 0}, "max_tool_calls"),
    ({"metadata": {f"k{number}": "" for number in range(17)}}, "metadata"),
    ({"metadata": {"k" * 65: ""}}, "metadata"),
    ({"metadata": {"k": "v" * 513}}, "metadata"),
    ({"prompt_cache_key": "k" * 513}, "prompt_cache_key"),
    ({"safety_identifier": "k" * 129}, "safety_identifier"),
    ({"service_tier": "golden"}, "service_tier"),
    ({"temperature": 2.1}, "temperature"),
    ({"temperature": -0.1}, "temperature"),
    ({"top_p": 1.5}, "top_p"),
    ({"presence_penalty": 3}, "presence_penalty"),
    ({"frequency_penalty": -3}, "frequency_penalty"),
    ({"top_logprobs": 21}, "top_logprobs"),
    ({"truncation": "middle"}, "truncation"),
    ({"reasoning": {"summary": "long"}}, "reasoning.summary"),
    ({"text": {"verbosity": "chatty"}}, "text.verbosity"),
    ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
    ({"text": {"format": {"type": "json_schema", "name": ""}}}, "text.format.name"),
    ({"include": ["everything"]}, "include[0]"),
    ({"include": ["message.output_text.logprobs", "x"]}, "include[1]"),
    ({"tools": [FUNCTION] * 513}, "tools"),
    ({"tools": [{"type": "plumber"}]}, "tools[0].type"),
    ({"tools": [{}]}, "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "tools[0]"),
    ({"tools": [{**FUNCTION, "name": "no spaces here"}]}, "tools[0].name"),
    ({"tools": [{**FUNCTION, "name": ""}]}, "tools[0].name"),
    ({"tools": [FUNCTION, FUNCTION]}, "tools[1].name"),
    ({"tools": [{**FUNCTION, "parameters": deep(70)}]}, "tools[0].parameters"),
    ({"tools": [{**FUNCTION, "parameters": {"maximum": 2**70}}]}, "tools[0].parameters"),
    ({"tool_choice": "sometimes"}, "tool_choice"),
    ({"tool_choice": "required"}, "tool_choice"),
    ({"tool_choice": {"type": "function", "name": "g"}, "tools": [FUNCTION]}, "tool_choice.name"),
    ({"tool_choice": {"type": "function", "name": ["f"]}, "tools": [FUNCTION]}, "tool_choice.name"),
    ({"tool_choice": {"type": "mcp", "server_label": "s"}, "tools": [MCP]}, "tool_choice"),
    ({"tool_choice": {"type": "dice"}}, "tool_choice.type"),
    ({"tool_choice": {"type": ["dice"]}}, "tool_choice.type"),
    ({"tool_choice": {}}, "tool_choice.type"),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": []}, "tools": [FUNCTION]},
        "tool_choice.tools",
    ),
    (
        {"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": [FUNCTION]}, "tools": [FUNCTION]},
        "tool_choice.mode",
    ),
    (
        {
            "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [FUNCTION, {"name": "g"}]},
            "tools": [FUNCTION],
        },
        "tool_choice.tools[1].name",
    ),
    ({"stream": True, "background_options": {"completion_window": "2h"}}, "stream"),
    ({"background_options": {"completion_window": "1h"}}, "background_options.completion_window"),
    ({"previous_response_id": "resp_x", "conversation": "conv_x"}, "previous_response_id"),
    ({"input": [{"type": "poem"}]}, "input[0].type"),
    ({"input": [{"type": "message", "role": "tool", "content": "x"}]}, "input[0].role"),
    ({"input": [{"role": "user", "content": 5}]}, "input[0].content"),
    ({"input": [{"role": "user"}]}, "input[0].content"),
    ({"input": [{"role": "user", "content": [{"type": "smell"}]}]}, "input[0].content[0].type"),
    ({"input": [{"role": "user", "content": "x", "id": "i" * 513}]}, "input[0].id"),
    ({"input": [{"type": "function_call_output", "call_id": "c", "output": "x"}]}, "input"),
    ({"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}, "input[0]"),
    ({"input": [{"type": "item_reference", "id": "msg_unknown"}]}, "input[0].id"),
    ({"input": [{"id": "msg_unknown"}]}, "input[0].id"),
    ({"input": [{"role": "user", "content": "x", "id": "a"}] * 2}, "input[1].id"),
    ({"input": [{"type": "compaction", "encrypted_content": "AAAA"}]}, "input[0].encrypted_content"),
    ({"input": [{"type": "reasoning", "encrypted_content": "AAAA"}]}, "input[0].encrypted_content"),
    ({"input": [{"role": "user", "content": "x", "more": deep(70)}]}, "input[0]"),
    ({"input": [{"role": "user", "content": "x", "more": 2**70}]}, "input[0]"),
]


@pytest.mark.parametrize(("fields", "param"), VALUES, ids=lambda value: str(value)[:60])
async def test_a_value_that_cannot_be_used(api: Api, fields: dict[str, Any], param: str) -> None:
    """400 invalid_value that names the field; nothing is asked of a model, nothing is stored."""
    status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi", **fields})
    error = error_of(answer)
    assert (status, error["type"]) == (400, "invalid_request_error"), error
    assert error["code"] in ("invalid_value", "missing_required_parameter")
    assert error["param"] == param, error
    assert not api.pool.calls
    assert await api.rows("response") == await api.rows("item") == 0


UNSUPPORTED: list[tuple[dict[str, Any], str, str]] = [
    *(
        ({"tools": [{"type": kind}]}, "tools[0].type", kind)
        for kind in (
            "web_search",
            "web_search_preview_2025_03_11",
            "file_search",
            "code_interpreter",
            "image_generation",
            "computer_use_preview",
            "local_shell",
            "apply_patch",
            "custom",
        )
    ),
    ({"tools": [FUNCTION], "tool_choice": {"type": "web_search"}}, "tool_choice.type", "web_search"),
    ({"prompt": {"id": "pmpt_1"}}, "prompt", "stored prompts"),
    ({"input": [{"role": "user", "content": [{"type": "input_file"}]}]}, "input[0].content[0].type", "file"),
    (
        {"input": [{"role": "user", "content": [{"type": "input_image", "file_id": "file-1"}]}]},
        "input[0].content[0].file_id",
        "image_url",
    ),
    ({"tools": [{**MCP, "connector_id": "connector_gmail"}]}, "tools[0].connector_id", "server_url"),
]


@pytest.mark.parametrize(("fields", "param", "words"), UNSUPPORTED, ids=lambda value: str(value)[:60])
async def test_what_openai_has_and_modeld_has_not(
    api: Api, fields: dict[str, Any], param: str, words: str
) -> None:
    """400 unsupported_parameter, in words that name it or what to send instead."""
    status, answer = await api.ask("POST", "responses", {"model": "tiny", "input": "hi", **fields})
    error = error_of(answer)
    assert (status, error["code"], error["param"]) == (400, "unsupported_parameter", param), error
    assert words in error["message"]


async def test_a_refusal_is_the_same_in_every_mode(api: Api) -> None:
    """What is refused as a whole is refused with the same words as a stream and in the background."""
    unknown = await api.refused(404, model="nobody")
    assert (unknown["code"], unknown["param"]) == ("model_not_found", "model")
    wrong = await api.refused(model="vectors")
    assert (wrong["code"], wrong["param"]) == ("unsupported_task", "model")
    empty = await api.refused(input=[])
    assert (empty["code"], empty["param"]) == ("missing_required_parameter", "input")
    none = await api.refused(input=None)
    assert none["code"] == "missing_required_parameter"
    missing = await api.refused(previous_response_id="resp_nobody")
    assert missing["message"] == "Previous response with id 'resp_nobody' not found."
    assert (missing["code"], missing["param"]) == ("previous_response_not_found", "previous_response_id")
    nowhere = await api.refused(404, conversation="conv_nobody")
    assert (nowhere["code"], nowhere["param"]) == ("conversation_not_found", "conversation")
    schema = await api.refused(text={"format": {"type": "json_schema", "name": "x"}})
    assert (schema["code"], schema["param"]) == ("missing_required_parameter", "text.format.schema")
    assert not api.pool.calls
    assert await api.rows("response") == await api.rows("run") == 0


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"null", b"7", b'"text"', b"\xff\xfe"])
async def test_a_body_that_is_no_object(api: Api, raw: bytes) -> None:
    """400 in the envelope, for what is no JSON as for what is another kind of JSON."""
    headers = {"content-type": "application/json"}
    async with api.http.post(f"{api.url}/v1/responses", data=raw, headers=headers) as response:
        assert response.status == 400
        assert error_of(await response.json())["code"] in ("invalid_json", "invalid_type")


async def test_what_is_echoed_is_checked_too(api: Api) -> None:
    """What tools and tool_choice hold besides, which a response shows again, is bounded as all free JSON."""
    for fields, param in (
        ({"tools": [{**FUNCTION, "extra": deep(70)}]}, "tools[0]"),
        (
            {"tools": [FUNCTION], "tool_choice": {"type": "function", "name": "f", "x": deep(70)}},
            "tool_choice",
        ),
        ({"tools": [{**MCP, "require_approval": {"never": {"read_only": True}, "x": deep(70)}}]}, "tools[0]"),
    ):
        error = await api.refused(**fields)
        assert (error["code"], error["param"]) == ("invalid_value", param)
