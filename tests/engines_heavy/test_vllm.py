"""The vllm loader on real models: the contract, what it does beyond it, and all of it through the daemon."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import shutil
import sys
import tempfile
from array import array
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import openai
import pytest
import pytest_asyncio

from modeld.errors import BadRequest
from modeld.protocol.messages import LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    DetokenizeTask,
    EmbedTask,
    Event,
    Finish,
    FunctionTool,
    ImagePart,
    Message,
    Sampling,
    Text,
    TextFormat,
    TextPart,
    TokenizeTask,
    Tokens,
    ToolCall,
    ToolCallDelta,
    ToolChoice,
    Usage,
)
from tests.harness import reference_minilm
from tests.harness.daemon import Daemon, running
from tests.harness.loaded import Loaded
from tests.harness.loader_contract import MIB, Case, LoaderContract
from tests.harness.models_vllm import minilm_folder, smollm2

pytestmark = pytest.mark.engine

CONTEXT = 8192
OPTIONS: dict[str, Any] = {
    "enforce_eager": True,
    "max_model_len": CONTEXT,
    "max_num_seqs": 2,
    "kv_cache_memory_bytes": 512 * MIB,
}
QUESTION = (Message(role="user", content="What is the capital of France?"),)
WEATHER = FunctionTool(
    name="get_weather",
    description="Get the weather of a city.",
    parameters={
        "type": "object",
        "properties": {"city": {"type": "string", "enum": ["Paris", "London"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
)
CITY = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}


def chat(*messages: Message, **fields: Any) -> ChatTask:
    """Return a task at temperature 0, of the one question unless there are messages."""
    sampling = {"temperature": 0.0, "max_tokens": 24, **fields.pop("sampling", {})}
    return ChatTask(messages=messages or QUESTION, sampling=Sampling(**sampling), **fields)


def text(events: list[Event], index: int = 0) -> str:
    """Return a choice's text."""
    return "".join(event.text for event in events if isinstance(event, Text) and event.index == index)


def reasons(events: list[Event]) -> list[str]:
    """Return how the choices ended, in their order."""
    ends = sorted((event.index, event.reason) for event in events if isinstance(event, Finish))
    return [reason for _, reason in ends]


def calls(events: list[Event]) -> list[tuple[str, Any]]:
    """Return name and arguments of the tool calls."""
    found: dict[int, list[str]] = {}
    names: dict[int, str] = {}
    for event in events:
        if isinstance(event, ToolCallDelta):
            found.setdefault(event.call, []).append(event.arguments)
            if event.name:
                names[event.call] = event.name
    return [(names[call], json.loads("".join(parts))) for call, parts in found.items()]


def torn(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Make a model whose weights end too early."""
    broken = folder / "broken"
    shutil.copytree(model, broken)
    weights = broken / "model.safetensors"
    with weights.open("r+b") as file:
        file.truncate(1_000_000)
    return broken, {}


class Chats:
    """What a chat model does beyond the contract; in the contract's worker, since a load takes its time."""

    async def test_it_answers_and_says_where_it_runs(self, it: Loaded) -> None:
        """The answer is Paris; device, context, cache and version are told."""
        events = await it.ask(chat())
        assert "Paris" in text(events)
        assert reasons(events) == ["stop"]
        usage = events[-1]
        assert isinstance(usage, Usage)
        assert (usage.prompt_tokens, usage.reasoning_tokens) == (37, 0)
        assert (it.facts.device, it.facts.context_length) == ("cpu", CONTEXT)
        assert it.facts.detail["engine"].startswith("vllm ")
        assert it.facts.detail["dtype"] == "bfloat16"
        assert int(it.facts.detail["kv_cache_tokens"]) >= CONTEXT

    async def test_log_probabilities_cover_the_text(self, it: Loaded) -> None:
        """None asked, none given; 0 gives the chosen ones only; 2 gives two alternatives, best first."""
        for top in (None, 0, 2):
            events = await it.ask(chat(top_logprobs=top))
            entries = [one for event in events if isinstance(event, Text) for one in event.logprobs]
            if top is None:
                assert entries == []
                continue
            assert "".join(entry.token for entry in entries) == text(events)
            assert all(entry.logprob <= 0 and len(entry.top) == top for entry in entries)
            for entry in entries:
                values = [other.logprob for other in entry.top]
                assert values == sorted(values, reverse=True)

    async def test_choices_are_several_also_where_all_are_alike(self, it: Loaded) -> None:
        """Each choice ends once; with a seed they differ and come again; at temperature 0 they are equal."""
        same = await it.ask(chat(n=2))
        assert reasons(same) == ["stop", "stop"]
        assert text(same, 0) == text(same, 1) != ""
        warm = chat(n=2, sampling={"temperature": 1.0, "seed": 7, "max_tokens": 12})
        first, again = await it.ask(warm), await it.ask(warm)
        assert text(first, 0) != text(first, 1)
        assert [text(first, at) for at in (0, 1)] == [text(again, at) for at in (0, 1)]

    async def test_stop_bias_and_limits_are_kept(self, it: Loaded) -> None:
        """A stop string ends the answer before itself; a bias decides; a limit is "length"."""
        stopped = await it.ask(chat(sampling={"stop": (" France",)}))
        assert (text(stopped), reasons(stopped)) == ("The capital of", ["stop"])
        short = await it.ask(chat(sampling={"max_tokens": 2}))
        assert reasons(short) == ["length"]
        biased = await it.ask(chat(sampling={"logit_bias": {"28": 100.0}, "max_tokens": 3}))
        assert text(biased) == ",,,"
        assert reasons(await it.ask(chat(sampling={"max_tokens": 10 * CONTEXT}))) == ["stop"]

    async def test_a_schema_is_kept(self, it: Loaded) -> None:
        """json_schema gives what fits the schema, json_object an object."""
        form = TextFormat(kind="json_schema", name="city", schema=CITY)
        assert json.loads(text(await it.ask(chat(format=form, sampling={"max_tokens": 60})))) == {
            "city": "Paris"
        }
        events = await it.ask(chat(format=TextFormat(kind="json_object"), sampling={"max_tokens": 200}))
        if reasons(events) == ["stop"]:
            assert isinstance(json.loads(text(events)), dict)
        assert text(events).lstrip().startswith("{")

    async def test_tools_are_called_by_a_model_that_knows_none(self, it: Loaded) -> None:
        """Required and named choices give calls with fitting arguments; a history with calls is taken."""
        question = Message(role="user", content="What is the weather in Paris?")
        limit = {"max_tokens": 120}
        for choice in (ToolChoice(mode="required"), ToolChoice(mode="function", name="get_weather")):
            task = chat(
                question, tools=(WEATHER,), tool_choice=choice, parallel_tool_calls=False, sampling=limit
            )
            events = await it.ask(task)
            assert [(name, sorted(found)) for name, found in calls(events)] == [("get_weather", ["city"])]
            assert reasons(events) == ["tool_calls"]
        history = (
            question,
            Message(role="assistant", tool_calls=(ToolCall(id="c", name="get_weather", arguments="{}"),)),
            Message(role="tool", content="sunny", tool_call_id="c"),
        )
        for mode in ("auto", "none"):
            events = await it.ask(chat(*history, tools=(WEATHER,), tool_choice=ToolChoice(mode=mode)))
            assert len(reasons(events)) == 1

    async def test_raw_completions(self, it: Loaded) -> None:
        """Text and token ids are continued alike; echo gives the prompt back, with probabilities if asked."""
        prompt = "The capital of France is"
        sampling = Sampling(temperature=0.0, max_tokens=4)
        events = await it.ask(CompletionTask(prompt=prompt, sampling=sampling))
        assert text(events).startswith(" Paris")
        [tokens] = [one for one in await it.ask(TokenizeTask(text=prompt)) if isinstance(one, Tokens)]
        assert text(await it.ask(CompletionTask(prompt=tokens.ids, sampling=sampling))) == text(events)
        assert text(await it.ask(DetokenizeTask(tokens=tokens.ids))) == prompt
        echoed = await it.ask(CompletionTask(prompt=prompt, sampling=sampling, echo=True, top_logprobs=1))
        assert text(echoed) == prompt + text(events)
        entries = [one for event in echoed if isinstance(event, Text) for one in event.logprobs]
        assert len(entries) == len(tokens.ids) + 4
        assert entries[0].top == ()

    async def test_a_callers_prompts_are_cached_for_that_caller_alone(self, it: Loaded) -> None:
        """The same long prompt is cached for who sent it before, and for nobody else."""
        long = chat(Message(role="user", content="tell me about the sea " * 80), sampling={"max_tokens": 1})

        async def cached(identity: str) -> int:
            call = it.worker.call(long, identity)
            events: list[Event] = []
            while (batch := await call.take(240)) is not None:
                events += batch
            assert isinstance(events[-1], Usage)
            return events[-1].cached_tokens

        assert await cached("ann") == 0
        assert await cached("ann") > 0
        assert await cached("bob") == 0

    @pytest.mark.parametrize(
        ("task", "code", "param"),
        [
            (chat(Message(role="user", content="word " * 9000)), "context_length_exceeded", "messages"),
            (CompletionTask(prompt="word " * 9000), "context_length_exceeded", "prompt"),
            (CompletionTask(prompt=(1, 999_999)), "invalid_token", "prompt[1]"),
            (CompletionTask(prompt="a", suffix="b"), "engine_refused", "suffix"),
            (DetokenizeTask(tokens=(-1,)), "invalid_token", "tokens[0]"),
            (chat(sampling={"temperature": -3.0}), "engine_refused", "temperature"),
            (chat(sampling={"logit_bias": {"999999": 1.0}}), "engine_refused", "logit_bias"),
            (
                chat(format=TextFormat(kind="json_schema", schema={"type": "array", "items": 7})),
                None,
                "response_format",
            ),
            (
                chat(Message(role="user", content=(TextPart(text="see"), ImagePart(url="data:,x")))),
                "unsupported_content",
                "messages[0].content[1]",
            ),
        ],
    )
    async def test_what_cannot_be_done_is_the_callers_fault(
        self, it: Loaded, task: Any, code: str | None, param: str
    ) -> None:
        """Every wrong request is a BadRequest with its place, and the worker lives."""
        with pytest.raises(BadRequest) as caught:
            await it.ask(task)
        assert caught.value.param is not None
        assert caught.value.param.split(".")[0] == param.split(".")[0]
        assert code is None or caught.value.code == code
        assert it.worker.alive

    async def test_prompts_stay_out_of_the_log(self, it: Loaded) -> None:
        """Neither what was asked nor what went wrong with it is in what vLLM wrote."""
        secret = "zanzibar-marmalade"
        await it.ask(chat(Message(role="user", content=f"Say {secret}."), sampling={"max_tokens": 2}))
        with pytest.raises(BadRequest):
            await it.ask(chat(Message(role="user", content=f"{secret} " * 5000)))
        await it.ask(chat(sampling={"max_tokens": 1}))
        assert secret not in it.log


class TestVllm(LoaderContract, Chats):
    """vLLM on a chat model."""

    case = Case(
        loader="vllm",
        usecase="generate",
        model=smollm2,
        options=OPTIONS,
        capabilities=frozenset({"chat", "completion", "tools", "json_schema", "logprobs", "tokenize"}),
        short=chat(),
        ends=Finish,
        long=chat(sampling={"max_tokens": CONTEXT}, engine_options={"ignore_eos": True}),
        bad=chat(sampling={"top_p": 3.0}),
        foreign=EmbedTask(inputs=("a",)),
        broken=torn,
        words="vLLM cannot load the model: .*(safetensors|Safetensor)",
        log="Loading weights took",
        slots=2,
        memory=300 * MIB,
    )


async def test_a_load_that_cannot_work_says_why(tmp_path: Path) -> None:
    """No configuration, none that can be read, an unknown architecture, too long a context, a wrong value:
    each is permanent, in vLLM's own words.
    """

    def model(name: str, config: str | None) -> str:
        folder = tmp_path / name
        folder.mkdir()
        for file in smollm2().iterdir():
            if file.name != "config.json":
                (folder / file.name).symlink_to(file)
        if config is not None:
            (folder / "config.json").write_text(config)
        return str(folder)

    known = (smollm2() / "config.json").read_text()
    alien = json.dumps({**json.loads(known), "architectures": ["NobodyForCausalLM"], "model_type": "nobody"})
    cases: list[tuple[str, dict[str, Any], str]] = [
        (model("none", None), {}, "has no config.json"),
        (model("torn", "{"), {}, "not a valid JSON file"),
        (model("alien", alien), {}, "nobody"),
        (str(smollm2()), {"max_model_len": 100_000}, "max_model_len (100000) is greater"),
        (str(smollm2()), {"dtype": "float17"}, "dtype"),
        (str(smollm2()), {"tool_call_parser": "nobody"}, "hermes"),
        (str(smollm2()), {"task": "dance"}, "embed"),
        (str(smollm2()), {"no_such_option": 1}, "no_such_option"),
    ]
    specs = [
        LoadSpec("m", "vllm", "generate", path, str(tmp_path), {**OPTIONS, **options})
        for path, options, _ in cases
    ]

    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "tests.harness.loads"),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    said, _ = await process.communicate(msgspec.json.encode(specs))
    outcomes = json.loads(said.splitlines()[-1])
    for (_, _, words), outcome in zip(cases, outcomes, strict=True):
        permanent, message = outcome
        assert permanent, message
        assert words in message


# --- through the daemon -------------------------------------------------------------------------------------


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with a chat and an embedding model, run under this interpreter by its path."""
    models = [
        {
            "name": "chat",
            "model": str(smollm2()),
            "usecase": "generate",
            "loader": "vllm",
            "vllm_engine_kwargs": {**OPTIONS, "max_model_len": 2048, "kv_cache_memory_bytes": "512MiB"},
        },
        {
            "name": "vec",
            "model": str(minilm_folder()),
            "usecase": "embed",
            "loader": "vllm",
            "vllm_engine_kwargs": {"enforce_eager": True, "max_num_seqs": 4},
        },
    ]
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        config = {"models": models, "engines": {"vllm": {"python": sys.executable}}}
        async with running(Path(folder), config) as one:
            for model in models:
                status = await one.until(str(model["name"]), "ready", "failed", within=400)
                assert status["state"] == "ready", status
            yield one


@pytest.mark.asyncio(loop_scope="module")
async def test_the_openai_sdk_gets_all_of_it_through_the_daemon(daemon: Daemon) -> None:
    """A stream, a call that must be made, a schema, vectors equal to the reference, ranks and refusals."""
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="none", max_retries=0) as client:
        question: Any = [{"role": "user", "content": "What is the capital of France?"}]
        stream = await client.chat.completions.create(
            model="chat", messages=question, temperature=0, max_tokens=20, stream=True
        )
        pieces = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
        assert "Paris" in "".join(pieces)
        assert len([piece for piece in pieces if piece]) > 1

        weather: Any = {
            "type": "function",
            "function": {"name": WEATHER.name, "parameters": WEATHER.parameters},
        }
        called = await client.chat.completions.create(
            model="chat",
            messages=[{"role": "user", "content": "Weather in Paris?"}],
            tools=[weather],
            tool_choice="required",
            parallel_tool_calls=False,
            temperature=0,
            max_tokens=120,
        )
        [call] = called.choices[0].message.tool_calls or []
        assert call.type == "function"
        assert json.loads(call.function.arguments)["city"] in ("Paris", "London")
        assert called.choices[0].finish_reason == "tool_calls"

        form: Any = {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}
        shaped = await client.chat.completions.create(
            model="chat", messages=question, response_format=form, temperature=0, max_tokens=60
        )
        assert json.loads(shaped.choices[0].message.content or "") == {"city": "Paris"}

        sentence = "The quick brown fox jumps over the lazy dog."
        ids = reference_minilm.tokens(sentence)
        answer = await client.embeddings.create(
            model="vec", input=[sentence, "stocks fell"], encoding_format="float"
        )
        wanted = reference_minilm.vector(ids)
        assert max(abs(a - b) for a, b in zip(answer.data[0].embedding, wanted, strict=True)) < 1e-2
        assert math.isclose(sum(x * x for x in answer.data[1].embedding), 1, rel_tol=1e-2)
        raw = await client.embeddings.create(model="vec", input=ids, encoding_format="base64")
        coded: Any = raw.data[0].embedding
        assert len(array("f", base64.b64decode(coded))) == 384
        for fields in ({"input": "x", "dimensions": 10}, {"input": ["a", "word " * 700]}):
            with pytest.raises(openai.BadRequestError) as refused:
                await client.embeddings.create(model="vec", **fields)
            assert refused.value.param in ("dimensions", "input[1]")
        with pytest.raises(openai.APIStatusError) as other:
            await client.chat.completions.create(model="vec", messages=question)
        assert other.value.status_code in (400, 404)
        ranked = await client.post(
            "/rerank",
            body={"model": "vec", "query": "cats", "documents": ["stocks fell", "a kitten sleeps"]},
            cast_to=dict[str, Any],
        )
        assert ranked["results"][0]["index"] == 1
