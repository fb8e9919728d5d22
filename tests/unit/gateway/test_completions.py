from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from modeld.errors import BadRequest, EngineError
from modeld.gateway.families.completions.merge import merged
from modeld.gateway.families.completions.request import read, to_tasks
from modeld.gateway.families.completions.response import CompletionChunks, CompletionCollector
from modeld.gateway.ports import Stream
from modeld.protocol.tasks import CompletionTask, Event, Finish, Text, TokenLogprob, TopLogprob, Usage
from tests.fakes.pool import Answer, FakeStream

USAGE = Usage(prompt_tokens=2, completion_tokens=3, cached_tokens=1)


def _tasks(**fields: Any) -> list[CompletionTask]:
    return to_tasks(read(json.dumps({"model": "tiny", "prompt": "Once", **fields}).encode()))


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("Once", ["Once"]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [(1, 2)]),
        ([[1], [2, 3]], [(1,), (2, 3)]),
        (["a", [2]], ["a", (2,)]),
    ],
)
def test_all_forms_of_prompts(prompt: Any, expected: list[Any]) -> None:
    """Text, texts, token ids and lists of token ids each become one task per prompt, in order."""
    assert [task.prompt for task in _tasks(prompt=prompt)] == expected


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": 3}, "prompt"),
        ({"prompt": [[]]}, "prompt[0]"),
        ({"prompt": ["a", None]}, "prompt[1]"),
        ({"prompt": [1, "a"]}, "prompt[1]"),
        ({"prompt": [1, True]}, "prompt[1]"),
        ({"prompt": [-1]}, "prompt[0]"),
        ({"prompt": [2**80]}, "prompt[0]"),
        ({"prompt": [[1], [2.5]]}, "prompt[1][0]"),
        ({"prompt": ["a"] * 129}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"best_of": 3}, "best_of"),
        ({"logprobs": 21}, "logprobs"),
        ({"logprobs": True}, "logprobs"),
        ({"echo": "yes"}, "echo"),
    ],
    ids=range(16),
)
def test_each_mistake_names_its_parameter(fields: dict[str, Any], param: str) -> None:
    """The error's param is the path of what is wrong."""
    with pytest.raises(BadRequest) as caught:
        _tasks(**fields)
    assert caught.value.param == param


def test_fields_reach_the_task() -> None:
    """What this API has beyond chat arrives, best_of equal to n included."""
    (task,) = _tasks(
        echo=True, suffix="end", logprobs=2, n=2, best_of=2, max_tokens=4, stop=["x"], cache_prompt=True
    )
    assert (task.echo, task.suffix, task.top_logprobs, task.n) == (True, "end", 2, 2)
    assert (task.sampling.max_tokens, task.sampling.stop) == (4, ("x",))
    assert task.engine_options == {"cache_prompt": True}


def _chunks(n: int = 1, top: int | None = None, include_usage: bool = False) -> CompletionChunks:
    return CompletionChunks(
        id="cmpl-1", created=7, model="tiny", n=n, include_usage=include_usage, top_logprobs=top
    )


def test_the_exact_bytes_of_a_plain_stream() -> None:
    """A chunk for each text and one for the finish; byte for byte."""
    head = (
        b'data: {"id":"cmpl-1","object":"text_completion","created":7,"model":"tiny",'
        b'"system_fingerprint":null,"choices":['
    )
    encoder = _chunks(include_usage=True)
    assert encoder.encode([Text("Hi\u2029"), Finish("length"), USAGE]) == [
        head + b'{"index":0,"text":"Hi\\u2029","logprobs":null,"finish_reason":null}],"usage":null}\n\n',
        head + b'{"index":0,"text":"","logprobs":null,"finish_reason":"length"}],"usage":null}\n\n',
    ]
    (last,) = encoder.end()
    assert json.loads(last[6:])["choices"] == []
    assert json.loads(last[6:])["usage"]["total_tokens"] == 5


TOKENS = (
    TokenLogprob("He", -0.1, None, (TopLogprob("He", -0.1), TopLogprob("Yo", -2.0))),
    TokenLogprob("llo", -0.2, None, (TopLogprob("y", -0.05),)),
)


def test_logprobs_in_completions_shape() -> None:
    """Four parallel lists; offsets go on from chunk to chunk, and the chosen token is always listed."""
    events: list[Event] = [
        Text("He", logprobs=TOKENS[:1]),
        Text("llo", logprobs=TOKENS[1:]),
        Finish("stop"),
    ]
    whole = CompletionCollector(id="c", created=1, model="m", n=1, top_logprobs=2)
    whole.add(events)
    assert json.loads(whole.body())["choices"][0]["logprobs"] == {
        "tokens": ["He", "llo"],
        "token_logprobs": [-0.1, -0.2],
        "top_logprobs": [{"He": -0.1, "Yo": -2.0}, {"y": -0.05, "llo": -0.2}],
        "text_offset": [0, 2],
    }
    streamed = [json.loads(sse[6:])["choices"][0]["logprobs"] for sse in _chunks(top=2).encode(events)]
    assert [part and part["text_offset"] for part in streamed] == [[0], [2], None]


def test_logprobs_of_the_chosen_tokens_only() -> None:
    """logprobs=0 gives the chosen tokens and no alternatives; without logprobs there are none."""
    for top, expected in ((0, None), (None, "no logprobs")):
        whole = CompletionCollector(id="c", created=1, model="m", n=1, top_logprobs=top)
        whole.add([Text("He", logprobs=TOKENS[:1]), Finish("stop")])
        logprobs = json.loads(whole.body())["choices"][0]["logprobs"]
        assert (logprobs["top_logprobs"] if logprobs else "no logprobs") == expected


def test_a_choice_without_a_finish_is_an_error() -> None:
    """An answer that breaks off does not look complete."""
    encoder = _chunks(n=2)
    encoder.encode([Text("a"), Finish("stop")])
    with pytest.raises(EngineError):
        encoder.end()
    whole = CompletionCollector(id="c", created=1, model="m", n=1, top_logprobs=None)
    with pytest.raises(EngineError):
        whole.body()


@asynccontextmanager
async def _opened(stream: FakeStream) -> AsyncIterator[Stream]:
    try:
        yield stream
    finally:
        stream.cancelled = not stream.over
        stream.closed.set()


async def _everything(stream: Stream) -> list[Event]:
    events: list[Event] = []
    while (part := await stream.take(5)) is not None:
        events += part
    return events


def _answer(text: str) -> list[Answer]:
    return [[Text(text), Text(text, 1)], [Finish("stop"), Finish("stop", 1)], [USAGE], None]


async def test_merged_calls_number_choices_prompt_major_and_add_usage() -> None:
    """Choice i of prompt k is k * n + i, and there is one usage, the sum, at the end."""
    streams = [FakeStream(_answer("a")), FakeStream(_answer("b"))]
    async with merged([_opened(stream) for stream in streams], 2) as stream:
        events = await _everything(stream)
    texts = sorted((event.index, event.text) for event in events if isinstance(event, Text))
    assert texts == [(0, "a"), (1, "a"), (2, "b"), (3, "b")]
    assert events[-1] == Usage(prompt_tokens=4, completion_tokens=6, cached_tokens=2)
    assert sum(isinstance(event, Usage) for event in events) == 1


async def test_one_failing_call_ends_all() -> None:
    """The error comes out as itself, and the other call is cancelled."""
    streams = [FakeStream([]), FakeStream([EngineError("broken")])]
    with pytest.raises(EngineError, match="broken"):
        async with merged([_opened(stream) for stream in streams], 1) as stream:
            await _everything(stream)
    assert streams[0].cancelled


async def test_an_error_of_the_reader_comes_out_as_itself() -> None:
    """What the reader raises is not wrapped into a group."""
    stream = FakeStream([])
    with pytest.raises(ConnectionResetError):
        async with merged([_opened(stream)], 1):
            raise ConnectionResetError("left")
    assert stream.cancelled


async def test_nothing_in_time_is_an_empty_list() -> None:
    """A silent call gives [] after the timeout, and loses nothing that comes later."""
    quiet = FakeStream([])
    async with merged([_opened(quiet)], 1) as stream:
        assert await stream.take(0.0) == []
        quiet.feed([Text("late")])
        assert await stream.take(5) == [Text("late")]


async def test_cancelling_the_reader_cancels_every_call() -> None:
    """The reader's task ends as cancelled, with all calls left."""
    streams = [FakeStream([]), FakeStream([])]

    async def read_all() -> None:
        async with merged([_opened(stream) for stream in streams], 1) as stream:
            await _everything(stream)

    task = asyncio.create_task(read_all())
    for stream in streams:
        await stream.waiting.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert [stream.cancelled for stream in streams] == [True, True]
