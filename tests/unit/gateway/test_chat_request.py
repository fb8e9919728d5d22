from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.gateway.families.chat.request import ChatRequest, read, to_task
from modeld.gateway.settings import MediaSettings
from modeld.protocol.framing import FrameEncoder
from modeld.protocol.messages import Call
from modeld.protocol.tasks import ChatTask, ImagePart, Part, TextPart
from tests.harness.pictures import data_url, gif, jpeg_head, png, png_head

USER = {"role": "user", "content": "hi"}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}}}
PNG = data_url(png(2, 2))


def _task(vision: bool | None = None, **fields: Any) -> ChatTask:
    body = {"model": "tiny", "messages": [USER], **fields}
    return to_task(read(json.dumps(body).encode()), vision=vision)


def _messages(*turns: dict[str, Any], vision: bool | None = None) -> ChatTask:
    return _task(vision=vision, messages=list(turns))


def _refusal(raw: bytes) -> BadRequest:
    with pytest.raises(BadRequest) as caught:
        to_task(read(raw), vision=None)
    return caught.value


NOT_JSON = [
    b"",
    b"{",
    b"\xff\xfe",
    b'{"model":"a","messages":[{"role":"user","content":"\xff"}]}',
    b'{"model":"\\ud800","messages":[]}',
    b'{"model":"\\udc00 ","messages":[]}',
    b'{"model":"a","temperature":NaN}',
    b'{"model":"a","messages":[{"role":"user"}]} {}',
    b'{"model":"a","x":' + b"[" * 100_000,
    b'{"model":"a","chat_template_kwargs":' + b'{"a":' * 100_000,
]


@pytest.mark.parametrize("raw", NOT_JSON, ids=range(len(NOT_JSON)))
def test_what_is_not_json_is_refused_as_such(raw: bytes) -> None:
    """Broken text, lone surrogates, NaN and nesting bombs are invalid_json, never a crash."""
    assert _refusal(raw).code == "invalid_json"


@pytest.mark.parametrize("raw", [b"[]", b"3", b'"x"', b"null"])
def test_a_body_that_is_no_object_is_refused(raw: bytes) -> None:
    """Valid JSON of another type says what was expected."""
    error = _refusal(raw)
    assert (error.code, error.param) == ("invalid_type", None)
    assert "JSON object" in error.message


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"model": None}, "invalid_type", "model"),
    ({"model": [None, None]}, "invalid_type", "model"),
    ({"model": ""}, "invalid_value", "model"),
    ({"messages": None}, "invalid_type", "messages"),
    ({"messages": []}, "invalid_value", "messages"),
    ({"messages": [{}]}, "missing_required_parameter", "messages[0].role"),
    ({"messages": [{"role": "user"}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": []}]}, "missing_required_parameter", "messages[0].content"),
    ({"messages": [{"role": "user", "content": 3}]}, "invalid_type", "messages[0].content"),
    ({"messages": [{"role": "king", "content": ""}]}, "invalid_value", "messages[0].role"),
    ({"messages": [{"role": "function", "content": ""}]}, "unsupported_parameter", "messages[0].role"),
    (
        {"messages": [USER, {"role": "tool", "content": "4"}]},
        "missing_required_parameter",
        "messages[1].tool_call_id",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "video"}]}]},
        "invalid_value",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "input_audio", "input_audio": {}}]}]},
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    (
        {"messages": [{"role": "user", "content": [{"type": "file", "file": {}}]}]},
        "unsupported_parameter",
        "messages[0].content[0].type",
    ),
    (
        {
            "messages": [
                {"role": "user", "content": "x", "tool_calls": [{"id": "1", "function": {"name": "f"}}]}
            ]
        },
        "invalid_value",
        "messages[0].tool_calls",
    ),
    ({"temperature": "hot"}, "invalid_type", "temperature"),
    ({"temperature": True}, "invalid_type", "temperature"),
    ({"temperature": 2.1}, "invalid_value", "temperature"),
    ({"temperature": -1}, "invalid_value", "temperature"),
    ({"top_p": 1.5}, "invalid_value", "top_p"),
    ({"n": 0}, "invalid_value", "n"),
    ({"n": 17}, "invalid_value", "n"),
    ({"max_tokens": 0}, "invalid_value", "max_tokens"),
    ({"max_completion_tokens": -5}, "invalid_value", "max_completion_tokens"),
    ({"max_tokens": 1.5}, "invalid_type", "max_tokens"),
    ({"max_tokens": 2**40}, "invalid_value", "max_tokens"),
    ({"top_logprobs": 5}, "invalid_value", "top_logprobs"),
    ({"logprobs": True, "top_logprobs": 21}, "invalid_value", "top_logprobs"),
    ({"logprobs": 5}, "invalid_type", "logprobs"),
    ({"stop": ""}, "invalid_value", "stop"),
    ({"stop": ["a", ""]}, "invalid_value", "stop[1]"),
    ({"stop": ["a"] * 17}, "invalid_value", "stop"),
    ({"frequency_penalty": 3}, "invalid_value", "frequency_penalty"),
    ({"presence_penalty": -3}, "invalid_value", "presence_penalty"),
    ({"logit_bias": {"5": 101}}, "invalid_value", "logit_bias"),
    ({"logit_bias": {"cat": 1}}, "invalid_value", "logit_bias"),
    ({"seed": 2**63}, "invalid_value", "seed"),
    ({"tools": [{"type": "web_search"}]}, "unsupported_parameter", "tools[0].type"),
    ({"tools": [{"type": "function"}]}, "missing_required_parameter", "tools[0].function"),
    (
        {"tools": [{"type": "function", "function": {}}]},
        "missing_required_parameter",
        "tools[0].function.name",
    ),
    ({"tools": [TOOL, TOOL]}, "invalid_value", "tools[1].function.name"),
    (
        {"tools": [TOOL, {"type": "function", "function": {"name": "a b"}}]},
        "invalid_value",
        "tools[1].function.name",
    ),
    ({"tool_choice": "required"}, "invalid_value", "tool_choice"),
    ({"tools": [TOOL], "tool_choice": "maybe"}, "invalid_value", "tool_choice"),
    (
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "nope"}}},
        "invalid_value",
        "tool_choice.function.name",
    ),
    ({"response_format": {"type": "xml"}}, "invalid_value", "response_format.type"),
    (
        {"response_format": {"type": "json_schema"}},
        "missing_required_parameter",
        "response_format.json_schema",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"schema": {}}}},
        "missing_required_parameter",
        "response_format.json_schema.name",
    ),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "missing_required_parameter",
        "response_format.json_schema.schema",
    ),
    ({"functions": []}, "unsupported_parameter", "functions"),
    ({"function_call": "auto"}, "unsupported_parameter", "function_call"),
    ({"modalities": ["text", "audio"]}, "unsupported_parameter", "modalities"),
    ({"audio": {"voice": "x"}}, "unsupported_parameter", "audio"),
    ({"web_search_options": {}}, "unsupported_parameter", "web_search_options"),
    ({"chat_template_kwargs": {"a": 2**70}}, "invalid_value", "chat_template_kwargs"),
    (
        {"chat_template_kwargs": {"a": json.loads("[" * 100 + "]" * 100)}},
        "invalid_value",
        "chat_template_kwargs",
    ),
    ({"cache_prompt": "yes"}, "invalid_type", "cache_prompt"),
]


@pytest.mark.parametrize(("fields", "code", "param"), REFUSED, ids=range(len(REFUSED)))
def test_each_mistake_names_its_parameter(fields: dict[str, Any], code: str, param: str) -> None:
    """The error's param is the path as OpenAI writes it, and the code tells the kind of mistake."""
    error = _refusal(json.dumps({"model": "tiny", "messages": [USER], **fields}).encode())
    assert (error.code, error.param) == (code, param)
    assert param in error.message


def test_a_missing_model_is_named() -> None:
    """A required parameter that is absent is called missing."""
    error = _refusal(b'{"messages":[{"role":"user","content":"x"}]}')
    assert (error.code, error.param) == ("missing_required_parameter", "model")


def test_null_is_absent() -> None:
    """SDKs send null for what their caller left out; the task is the same as without."""
    names = {
        *ChatRequest.__struct_fields__,
        "user",
        "metadata",
    } - {"model", "messages"}
    assert _task(**dict.fromkeys(names)) == _task()


def test_unknown_fields_are_ignored() -> None:
    """A field from a newer SDK does not break a request."""
    assert _task(metadata={"a": "b"}, store=True, brand_new=[1]) == _task()


def test_sampling_reaches_the_task() -> None:
    """Every sampling parameter arrives under its own name."""
    got = _task(
        max_tokens=5,
        max_completion_tokens=7,
        temperature=0,
        top_p=0.5,
        top_k=40,
        min_p=0.1,
        seed=-1,
        stop="\n",
        frequency_penalty=1,
        presence_penalty=-1,
        repetition_penalty=1.1,
        logit_bias={"15": -100},
        n=2,
    )
    sampling = got.sampling
    assert (sampling.max_tokens, sampling.temperature, sampling.top_p) == (7, 0.0, 0.5)
    assert (sampling.top_k, sampling.min_p, sampling.seed, sampling.stop) == (40, 0.1, -1, ("\n",))
    assert (sampling.frequency_penalty, sampling.presence_penalty) == (1.0, -1.0)
    assert (sampling.repeat_penalty, sampling.logit_bias, got.n) == (1.1, {"15": -100.0}, 2)


def test_engine_options_pass_through_by_list() -> None:
    """Listed options reach the engine as they are; others do not."""
    got = _task(cache_prompt=False, grammar="root ::= x", reasoning_budget_tokens=0, id_slot=3)
    assert got.engine_options == {
        "cache_prompt": False,
        "grammar": "root ::= x",
        "reasoning_budget_tokens": 0,
    }


def test_template_arguments_and_effort_pass_through() -> None:
    """What steers the chat template is handed on."""
    got = _task(chat_template_kwargs={"enable_thinking": False}, reasoning_effort="low")
    assert (got.template_kwargs, got.reasoning_effort) == ({"enable_thinking": False}, "low")


def test_logprobs_count() -> None:
    """No logprobs is None, logprobs alone is 0, top_logprobs is its number."""
    assert _task().top_logprobs is None
    assert _task(logprobs=False).top_logprobs is None
    assert _task(logprobs=True).top_logprobs == 0
    assert _task(logprobs=True, top_logprobs=4).top_logprobs == 4


def test_developer_is_system() -> None:
    """The newer role is the one models know."""
    got = _messages({"role": "developer", "content": "be brief"}, USER)
    assert [turn.role for turn in got.messages] == ["system", "user"]


@pytest.mark.parametrize("content", [{"content": None}, {"content": ""}, {}])
def test_an_assistant_may_have_said_nothing(content: dict[str, Any]) -> None:
    """Assistant turns with null, empty or no content are accepted, with and without tool calls."""
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    got = _messages(
        USER,
        {"role": "assistant", **content, "tool_calls": [call], "reasoning_content": "hm"},
        {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "4"}]},
        {"role": "assistant", **content},
    )
    turn = got.messages[1]
    assert (turn.tool_calls[0].id, turn.tool_calls[0].name, turn.tool_calls[0].arguments) == ("c1", "f", "{}")
    assert turn.reasoning == "hm"
    assert got.messages[2].tool_call_id == "c1"
    assert got.messages[2].content == (TextPart(text="4"),)


def test_images_go_to_models_that_see() -> None:
    """A data: URL becomes an image part when the model sees, or when that is not known yet."""
    turn = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "low"}}]}
    for vision in (True, None):
        assert _messages(turn, vision=vision).messages[0].content == (ImagePart(url=PNG),)
    with pytest.raises(BadRequest) as caught:
        _messages(turn, vision=False)
    assert caught.value.param == "messages[0].content[0].image_url"


def _picture(url: str, media: MediaSettings | None = None, times: int = 1) -> list[Part]:
    turn = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}] * times}
    body = json.dumps({"model": "tiny", "messages": [USER, turn]}).encode()
    content = to_task(read(body), vision=True, media=media or MediaSettings()).messages[1].content
    assert isinstance(content, tuple)
    return list(content)


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("file:///etc/passwd", "invalid_image_url", "expected data:image"),
        ("data:,x", "invalid_image_url", "expected data:image"),
        ("data:image/png,abc", "invalid_image_url", "expected data:image"),
        ("data:image/png;base64,a b=", "invalid_image_url", "not base64"),
        ("data:image/png;base64,abc\u00e9", "invalid_image_url", "not base64"),
        ("data:image/png;base64,", "invalid_image", "empty"),
        (data_url(png())[:-1], "invalid_image_url", "not base64"),
        (data_url(png())[:-8] + "=" + data_url(png())[-7:], "invalid_image_url", "not base64"),
        (data_url(png()).replace("R", "-"), "invalid_image_url", "not base64"),
        (data_url(b"<html><body>"), "invalid_image", "web page"),
        (data_url(b"GIF89a"), "invalid_image", "ends in the middle"),
        (data_url(png_head(20_000, 20_000)), "image_too_large", "20000x20000: 400000000 pixels"),
        (data_url(jpeg_head(5000, 10)), "image_too_large", "a side of 5000 pixels, the limit is 4096"),
    ],
)
def test_what_is_no_picture_is_refused(url: str, code: str, words: str) -> None:
    """By its content, before it is unpacked; the part is named."""
    with pytest.raises(BadRequest, match=words) as caught:
        _picture(url)
    assert (caught.value.code, caught.value.param) == (code, "messages[1].content[0].image_url.url")


def test_the_content_says_what_a_picture_is() -> None:
    """Whatever type was declared, the engine is told the true one."""
    for declared in ("image/png", "image/x-whatever;a=b", "text/html", ""):
        assert _picture(data_url(gif(), declared)) == [ImagePart(url=data_url(gif(), "image/gif"))]


def test_pictures_have_limits() -> None:
    """Their number in one request and the bytes of each, counted before they are decoded."""
    size = len(png())
    assert len(_picture(data_url(png()), MediaSettings(images=3, image_bytes=size), times=3)) == 3
    with pytest.raises(BadRequest, match=rf"has {size} bytes, the limit is {size - 1}") as caught:
        _picture(data_url(png()), MediaSettings(image_bytes=size - 1))
    assert caught.value.code == "image_too_large"
    with pytest.raises(BadRequest, match="picture 4 of this request, the limit is 3") as caught:
        _picture("https://example.com/a.png", MediaSettings(images=3), times=4)
    assert (caught.value.code, caught.value.param) == (
        "too_many_images",
        "messages[1].content[3].image_url.url",
    )


@given(st.text(max_size=40) | st.binary(max_size=60).map(data_url))
def test_any_url_is_a_picture_or_a_bad_request(url: str) -> None:
    """No other exception, whatever stands there."""
    try:
        [part] = _picture(url)
    except BadRequest:
        return
    assert isinstance(part, ImagePart)


def test_a_grammar_stands_alone() -> None:
    """Beside tools or another form of the answer one of the two would be dropped in silence."""
    assert _task(grammar="root ::= x").engine_options == {"grammar": "root ::= x"}
    assert _task(grammar="root ::= x", response_format={"type": "text"}, tools=[]).engine_options
    for more in ({"tools": [TOOL]}, {"response_format": {"type": "json_object"}}):
        with pytest.raises(BadRequest, match="grammar") as caught:
            _task(grammar="root ::= x", **more)
        assert caught.value.param == "grammar"


def test_tool_choices() -> None:
    """Each way of writing tool_choice becomes its mode."""
    other = {"type": "function", "function": {"name": "other"}}
    assert _task(tools=[TOOL]).tool_choice.mode == "auto"
    assert _task(tools=[TOOL], tool_choice="none").tool_choice.mode == "none"
    assert _task(tools=[TOOL], tool_choice="required").tool_choice.mode == "required"
    named = _task(tools=[TOOL, other], tool_choice={"type": "function", "function": {"name": "other"}})
    assert (named.tool_choice.mode, named.tool_choice.name, len(named.tools)) == ("function", "other", 2)
    allowed = {"mode": "required", "tools": [{"type": "function", "function": {"name": "other"}}]}
    some = _task(tools=[TOOL, other], tool_choice={"type": "allowed_tools", "allowed_tools": allowed})
    assert (some.tool_choice.mode, [tool.name for tool in some.tools]) == ("required", ["other"])


def test_parallel_tool_calls_default_to_true() -> None:
    """Only an explicit false turns them off."""
    assert _task(tools=[TOOL]).parallel_tool_calls
    assert not _task(tools=[TOOL], parallel_tool_calls=False).parallel_tool_calls


def test_formats_also_together_with_tools() -> None:
    """A JSON Schema and tools may be asked for at once."""
    schema = {"type": "object"}
    wanted = {"type": "json_schema", "json_schema": {"name": "out", "schema": schema, "strict": True}}
    got = _task(response_format=wanted, tools=[TOOL])
    assert (got.format.kind, got.format.name, got.format.schema, got.format.strict) == (
        "json_schema",
        "out",
        schema,
        True,
    )
    assert len(got.tools) == 1
    assert _task(response_format={"type": "json_object"}).format.kind == "json_object"
    assert _task(response_format={"type": "json_object", "schema": schema}).format.schema == schema
    assert _task(response_format={"type": "text"}).format.kind == "text"


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3),
    max_leaves=12,
)
FIELDS = [
    "model messages stream stream_options temperature n stop tools tool_choice response_format logprobs seed",
    "top_logprobs logit_bias max_tokens chat_template_kwargs reasoning_effort samplers cache_prompt",
]
PARTS = st.one_of(
    JSON,
    st.fixed_dictionaries(
        {"type": st.sampled_from(["text", "image_url", "file"]), "text": st.text(max_size=5)}
    ),
)
TURN = st.fixed_dictionaries(
    {"role": st.sampled_from(["system", "developer", "user", "assistant", "tool", "x"])},
    optional={
        "content": st.text(max_size=5) | st.none() | st.lists(PARTS, max_size=2),
        "tool_call_id": st.text(max_size=3),
        "tool_calls": JSON,
        "name": JSON,
    },
)
BODY = st.fixed_dictionaries(
    {"model": st.just("tiny") | JSON, "messages": st.lists(TURN, max_size=3) | JSON},
    optional=dict.fromkeys(" ".join(FIELDS).split()[2:], JSON)
    | {"chat_template_kwargs": st.dictionaries(st.text(max_size=3), JSON)},
)


def _task_or_refusal(raw: bytes) -> None:
    try:
        made = to_task(read(raw), vision=None)
    except BadRequest:
        return
    FrameEncoder().encode(Call(call=1, task=made, identity="local", window=1))


@given(BODY | JSON)
def test_any_json_is_a_task_or_a_bad_request(body: Any) -> None:
    """Whatever JSON comes in, the outcome is a task that fits the worker link, or BadRequest."""
    _task_or_refusal(json.dumps(body).encode())


@given(st.binary(max_size=60))
def test_any_bytes_are_a_task_or_a_bad_request(raw: bytes) -> None:
    """Bytes that are no JSON at all never escape as another exception."""
    _task_or_refusal(raw)
