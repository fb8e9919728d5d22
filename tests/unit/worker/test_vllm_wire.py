"""Tasks as vLLM's requests, its chunks as events, its failures as errors."""

from __future__ import annotations

import base64
import json
from array import array
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError, ModelUnavailable
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    Finish,
    FunctionTool,
    ImagePart,
    Message,
    Reasoning,
    Sampling,
    Text,
    TextFormat,
    TextPart,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from modeld.worker.exits import exit_words
from modeld.worker.loaders.vllm import media, requests
from modeld.worker.loaders.vllm.chunks import FLOOR, Chunk, Translator, decode
from modeld.worker.loaders.vllm.failures import load_error, request_error
from modeld.worker.loaders.vllm.pooling import check_tokens, vector
from modeld.worker.tools import TemplateFacts, plan

TOOL = FunctionTool(name="f", description="d", parameters={"type": "object", "properties": {}})
HELLO = (Message(role="user", content="hi"),)
PARSES = TemplateFacts(renders_tools=True, enforces_choice=True, parses_calls=True)
RENDERS = TemplateFacts(renders_tools=True, parses_calls=False)
KNOWS_NONE = TemplateFacts(renders_tools=False, parses_calls=False)


def body(task: ChatTask, facts: TemplateFacts = KNOWS_NONE) -> dict[str, Any]:
    """Return the body of a chat request."""
    return requests.chat(task, plan(task, facts), "m", {"k": 1})


def test_sampling_goes_through_under_vllms_names() -> None:
    """Everything set is there, and what is not set is left to the model."""
    sampling = Sampling(
        max_tokens=5,
        temperature=0.0,
        top_p=0.5,
        top_k=3,
        min_p=0.1,
        seed=1,
        stop=("x",),
        frequency_penalty=0.2,
        presence_penalty=0.3,
        repeat_penalty=1.1,
        logit_bias={"7": 1.0},
    )
    found = body(ChatTask(messages=HELLO, sampling=sampling, n=2, top_logprobs=0))
    assert found["max_completion_tokens"] == 5
    assert found["repetition_penalty"] == 1.1
    assert found["logit_bias"] == {"7": 1.0}
    assert (found["logprobs"], found["top_logprobs"], found["n"]) == (True, 0, 2)
    assert found["stop"] == ["x"]
    bare = body(ChatTask(messages=HELLO))
    assert not {"temperature", "logprobs", "max_completion_tokens", "stop", "tools"} & bare.keys()
    assert bare["stream_options"] == {"include_usage": True}


def test_tools_go_to_vllm_where_it_parses_them_and_to_the_template_alone_where_it_does_not() -> None:
    """With a parser the choice is vLLM's; without one the choice is "none" and special tokens are shown."""
    task = ChatTask(messages=HELLO, tools=(TOOL,), tool_choice=ToolChoice(mode="function", name="f"))
    native = body(task, PARSES)
    assert native["tool_choice"] == {"type": "function", "function": {"name": "f"}}
    assert native["tools"][0]["function"]["name"] == "f"
    assert "response_format" not in native
    forced = body(task, RENDERS)
    assert forced["tool_choice"] == "none"
    assert forced["response_format"]["type"] == "json_schema"
    assert forced["chat_template_kwargs"] == {"k": 1, "enable_thinking": False}
    free = body(ChatTask(messages=HELLO, tools=(TOOL,)), RENDERS)
    assert (free["tool_choice"], free["skip_special_tokens"]) == ("none", False)
    told = body(task)
    assert "tools" not in told
    assert told["messages"][0]["role"] == "system"


def test_formats_and_messages() -> None:
    """Schemas, objects, parts, calls and thoughts have vLLM's shape."""
    shaped = ChatTask(messages=HELLO, format=TextFormat(kind="json_schema", schema={"type": "object"}))
    assert body(shaped)["response_format"]["json_schema"]["schema"]["type"] == "object"
    assert "enable_thinking" not in body(shaped)["chat_template_kwargs"]
    assert body(ChatTask(messages=HELLO, format=TextFormat(kind="json_object")))["response_format"] == {
        "type": "json_object"
    }
    assert requests.message(Message(role="user", content=(TextPart(text="a"), ImagePart(url="data:,")))) == {
        "role": "user",
        "content": [
            {"type": "text", "text": "a"},
            {"type": "image_url", "image_url": {"url": "data:,"}},
        ],
    }
    turn = requests.message(
        Message(role="assistant", reasoning="hm", tool_calls=(ToolCall(id="c", name="f", arguments="{}"),))
    )
    assert turn["reasoning"] == "hm"
    assert turn["tool_calls"][0]["function"] == {"name": "f", "arguments": "{}"}


def test_completions() -> None:
    """Ids stay ids; echo, suffix and log probabilities are asked for only when wanted."""
    found = requests.completion(CompletionTask(prompt=(1, 2), echo=True, suffix="x", top_logprobs=2), "m")
    assert (found["prompt"], found["echo"], found["suffix"], found["logprobs"]) == ([1, 2], True, "x", 2)
    assert (
        not {"echo", "suffix", "logprobs", "max_tokens"}
        & requests.completion(CompletionTask(prompt="a"), "m").keys()
    )


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_salt_is_one_callers_and_one_engines(one: str, other: str) -> None:
    """Callers differ by salt exactly as by identity; another engine salts otherwise."""
    assert (requests.salt(one, b"s") == requests.salt(other, b"s")) == (one == other)
    assert requests.salt(one, b"s") != requests.salt(one, b"t")
    assert one == "" or len(one) < 8 or one not in requests.salt(one, b"s")


# --- chunks -------------------------------------------------------------------------------------------------


def chunk(**fields: Any) -> Chunk:
    """Return a chunk as vLLM streams it."""
    found = decode("data: " + json.dumps(fields) + "\n\n")
    assert found is not None
    return found


def delta(index: int = 0, finish: str | None = None, **fields: Any) -> Chunk:
    """Return a chunk with one choice."""
    return chunk(choices=[{"index": index, "delta": fields, "finish_reason": finish}])


def test_a_stream_becomes_events() -> None:
    """Thoughts, text, calls with their ids, one end for each choice, then the usage."""
    translator = Translator(2, None)
    call = {"index": 0, "id": "c1", "type": "function", "function": {"name": "f", "arguments": ""}}
    events = [
        *translator.events(delta(role="assistant", content="")),
        *translator.events(delta(reasoning="hm")),
        *translator.events(delta(content="yes")),
        *translator.events(delta(1, tool_calls=[{"index": 0, "function": {"arguments": ""}}])),
        *translator.events(delta(1, tool_calls=[call])),
        *translator.events(delta(1, tool_calls=[{"index": 0, "function": {"arguments": "{}"}}])),
        *translator.events(delta(0, "stop")),
    ]
    assert translator.unfinished()
    events += translator.events(delta(1, "stop"))
    assert not translator.unfinished()
    assert events == [
        Reasoning("hm"),
        Text("yes"),
        ToolCallDelta(0, "", "c1", "f", 1),
        ToolCallDelta(0, "{}", index=1),
        Finish("stop"),
        Finish("tool_calls", 1),
    ]
    usage = {
        "prompt_tokens": 9,
        "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 4},
        "completion_tokens_details": {"reasoning_tokens": 2},
    }
    assert translator.events(chunk(choices=[], usage=usage)) == []
    assert translator.usage == Usage(9, 5, 4, 2)


def test_a_choice_of_many_keeps_its_number() -> None:
    """A request for one choice of several gives events of that choice."""
    assert Translator(1, None, first=3).events(delta(content="a", finish="length")) == [
        Text("a", 3),
        Finish("length", 3),
    ]


def test_our_parser_reads_where_vllm_has_none() -> None:
    """A call in the text comes out as a call, and the answer ends with it."""
    task = ChatTask(messages=HELLO, tools=(TOOL,))
    translator = Translator(1, None, plan(task, KNOWS_NONE).parser)
    events = translator.events(delta(content='<tool_call>{"name": "f", "arguments": {}}</tool_call>'))
    events += translator.events(delta(finish="stop"))
    [call] = [event for event in events if isinstance(event, ToolCallDelta) and event.name]
    assert call.name == "f"
    assert events[-1] == Finish("tool_calls")


def test_a_schema_that_was_not_kept_is_the_engines_failure() -> None:
    """A call that had to come and did not is no answer; nor is one that vLLM gave up."""
    task = ChatTask(messages=HELLO, tools=(TOOL,), tool_choice=ToolChoice(mode="required"))
    translator = Translator(1, None, plan(task, KNOWS_NONE).parser)
    translator.events(delta(content="no"))
    with pytest.raises(EngineError, match="prose"):
        translator.events(delta(finish="stop"))
    with pytest.raises(EngineError, match="abort"):
        Translator(1, None).events(delta(finish="abort"))
    with pytest.raises(EngineError, match="choice 1 of 1"):
        Translator(1, None).events(delta(1, content="x"))


def test_log_probabilities_of_both_endpoints() -> None:
    """Chat's entries and the completions' columns become the same; what has no number has OpenAI's floor."""
    entry = {"token": "a", "logprob": -1.0, "bytes": [97], "top_logprobs": [{"token": "b", "logprob": None}]}
    wire = {"index": 0, "delta": {"content": "a"}, "logprobs": {"content": [entry]}}
    [event] = Translator(1, 1).events(chunk(choices=[wire]))
    assert isinstance(event, Text)
    assert event.logprobs[0].top[0].logprob == FLOOR
    assert event.logprobs[0].bytes == (97,)
    columns = {
        "tokens": ["The", " end"],
        "token_logprobs": [None, -0.5],
        "top_logprobs": [None, {" end": -0.5, " sea": -0.25}],
    }
    [event] = Translator(1, 1).events(chunk(choices=[{"index": 0, "text": "The end", "logprobs": columns}]))
    assert isinstance(event, Text)
    assert [(one.token, one.logprob, len(one.top)) for one in event.logprobs] == [
        ("The", 0.0, 0),
        (" end", -0.5, 1),
    ]
    assert event.logprobs[1].top[0].token == " sea"
    [plain] = Translator(1, None).events(chunk(choices=[wire]))
    assert plain == Text("a")


def test_the_token_that_ends_an_answer_is_not_in_it() -> None:
    """It has a log probability, but no text that this could cover."""
    entries = [{"token": ".", "logprob": -1.0}, {"token": "<|im_end|>", "logprob": -0.1}]
    for text, left in ((".", 1), ("", 0)):
        wire = {"delta": {"content": text}, "logprobs": {"content": entries[-1 - left :]}}
        events = Translator(1, 0).events(chunk(choices=[{**wire, "finish_reason": "stop"}]))
        found = [one.token for event in events if isinstance(event, Text) for one in event.logprobs]
        assert found == ["."][:left]
        assert events[-1] == Finish("stop")


@pytest.mark.parametrize("line", ["data: [DONE]\n\n", ": ping\n\n", ""])
def test_what_is_no_data_is_no_chunk(line: str) -> None:
    """The end and comments carry nothing."""
    assert decode(line) is None


def test_a_chunk_that_is_none_is_the_engines_failure() -> None:
    """Half a line is not passed over."""
    with pytest.raises(EngineError, match="cannot be read"):
        decode('data: {"choices": ')


# --- failures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "status", "param", "kind", "code", "place"),
    [
        (
            "This model's maximum context length is 8 tokens. However, your prompt contains at least 9 input "
            "tokens, which exceeds (parameter=input_tokens, value=9)",
            400,
            "input_tokens",
            BadRequest,
            "context_length_exceeded",
            "messages",
        ),
        ("top_p must be in (0, 1]", 400, "top_p", BadRequest, "engine_refused", "top_p"),
        ("Grammar error: no (parameter=x)", 400, None, BadRequest, "invalid_json_schema", "response_format"),
        ("jinja says no", 400, None, BadRequest, "template_error", "messages"),
        ("busy", 503, None, ModelUnavailable, "model_unavailable", None),
        ("boom", 500, None, EngineError, "engine_error", None),
    ],
)
def test_a_refusal_is_whose_fault_it_is(
    message: str, status: int, param: str | None, kind: type[Exception], code: str, place: str | None
) -> None:
    """The caller's are BadRequest with the place, vLLM's own are its own; vLLM's asides are cut off."""
    error = request_error(message, status, param, "messages")
    assert isinstance(error, kind)
    assert (error.code, error.param) == (code, place)
    assert "parameter=" not in error.message


def test_too_long_names_both_numbers() -> None:
    """How much there is and how much fits, and that the count may be a lower bound."""
    words = "maximum context length is 8 tokens. However, your prompt contains {} input tokens, which"
    exact = request_error(words.format(9), 400, None, "prompt")
    assert str(exact).startswith("the request has 9 tokens, the model's context holds 8;")
    assert "at least 9" in str(request_error(words.format("at least 9"), 400, None, "prompt"))


@pytest.mark.parametrize(
    ("words", "said", "permanent"),
    [
        ("ValueError: bad option", None, True),
        ("RuntimeError: Engine core initialization failed", "SafetensorError: torn", True),
        ("RuntimeError: Engine core initialization failed", "OutOfMemoryError: CUDA out of memory.", False),
        ("x", "ValueError: Free memory on device (1/80 GiB) is less than desired", False),
    ],
)
def test_a_load_that_lacked_memory_may_be_tried_again(words: str, said: str | None, permanent: bool) -> None:
    """Memory comes back; torn files and wrong options do not mend."""
    error = load_error(words, said)
    assert error.permanent is permanent
    assert (said or words) in str(error)


def test_an_end_is_told_in_words() -> None:
    """Signals have names, also ones without."""
    assert exit_words(-9) == "was killed by signal 9 (SIGKILL)"
    assert exit_words(1) == "exited with code 1"
    assert exit_words(None) == "has ended"
    assert "signal 33" in exit_words(-33)


# --- vectors, tokens, pictures ------------------------------------------------------------------------------


def test_a_vector_is_whole_and_of_numbers() -> None:
    """Base64 of float32 goes through; rubbish, nothing and not-a-number are the engine's failure."""
    good = array("f", [1.0, -2.0]).tobytes()
    assert vector(base64.b64encode(good).decode()) == good
    for bad in (
        "",
        "!",
        base64.b64encode(b"abc").decode(),
        base64.b64encode(array("f", [float("nan")])).decode(),
    ):
        with pytest.raises(EngineError):
            vector(bad)


def test_tokens_outside_of_the_vocabulary_are_refused() -> None:
    """The place and the number of tokens are told."""
    check_tokens((0, 9), 10, "p")
    for wrong in (-1, 10):
        with pytest.raises(BadRequest, match=r"p\[1\] is .*10 tokens"):
            check_tokens((0, wrong), 10, "p")


def picture(url: str) -> ChatTask:
    """Return a task with a picture."""
    return ChatTask(messages=(Message(role="user", content=(TextPart(text="?"), ImagePart(url=url))),))


def test_pictures_are_only_for_models_that_see_and_are_never_fetched() -> None:
    """A blind model's caller is told so; another address than data: is refused, as is broken base64."""
    with pytest.raises(BadRequest, match="vision") as caught:
        media.check(picture("data:,"), MediaLimits(), sees=False)
    assert caught.value.param == "messages[0].content[1]"
    for url in ("http://127.0.0.1/x.png", "file:///etc/passwd", "data:image/png;base64", "data:;base64,?"):
        with pytest.raises(BadRequest) as caught:
            media.check(picture(url), MediaLimits(), sees=True)
        assert caught.value.code == "invalid_image"
    media.check(ChatTask(messages=HELLO), MediaLimits(), sees=False)
    assert media.content_of("data:text/plain,a%20b", "p") == b"a b"
