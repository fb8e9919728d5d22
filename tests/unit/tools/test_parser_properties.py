"""What holds for every answer and every way an engine may cut it."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.worker.tools.calls import PATIENCE
from modeld.worker.tools.parser import CallParser, Mode

from .answers import TOOLS, parse

MODES = st.sampled_from([Mode.FREE, Mode.CALLS, Mode.UNION])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)
NAMES = st.sampled_from([*TOOLS, "unknown"])


@st.composite
def jsons(draw: st.DrawFn, value: Any) -> str:
    """JSON text in one of the ways to write it: escaped or not, on one line or many."""
    return json.dumps(
        value,
        ensure_ascii=draw(st.booleans()),
        indent=draw(st.sampled_from([None, 1])),
        separators=draw(st.sampled_from([(",", ":"), (", ", ": ")])),
    )


CALLS = st.builds(lambda name, arguments: {"name": name, "arguments": arguments}, NAMES, OBJECTS).flatmap(
    jsons
)
PIECES = st.one_of(
    st.text(max_size=8),
    st.sampled_from(
        ["<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", "<|python_tag|>", "```json", "```"]
    ),
    st.sampled_from(["<function=", "get_weather", ">", "</function>", "<parameter=city>", "</parameter>"]),
    st.sampled_from(
        [*'{}[],:;"\\ \n<>', "\\u00", '"name"', '"arguments"', '{"tool_calls": ', '{"name": "get_weather", ']
    ),
    st.just('{"city": "' + "x" * PATIENCE + '"}'),
    CALLS,
    CALLS.map(lambda call: f"<tool_call>\n{call}\n</tool_call>"),
    CALLS.map(lambda call: f'{{"tool_calls": [{call}]}}'),
    CALLS.flatmap(lambda call: st.integers(0, len(call)).map(lambda end: call[:end])),
)
ANSWERS = st.lists(PIECES, max_size=8).map("".join)


def cut(text: str, cuts: list[int]) -> list[str]:
    """Cut a text at these places."""
    edges = sorted({0, len(text), *(at % (len(text) + 1) for at in cuts)})
    return [text[start:end] for start, end in pairwise(edges)]


@given(MODES, ANSWERS, st.lists(st.integers(0, 10_000)), st.sampled_from([None, 1]))
def test_cutting_changes_nothing(mode: Mode, answer: str, cuts: list[int], limit: int | None) -> None:
    """Any cuts, also one at every character, give the same texts and calls as one piece."""

    def parser() -> CallParser:
        return CallParser(mode, TOOLS, limit=limit)

    whole = parse(parser(), [answer])
    assert parse(parser(), cut(answer, cuts)) == whole
    assert parse(parser(), answer) == whole


@settings(max_examples=60)
@given(MODES, ANSWERS)
def test_text_comes_out_in_order_and_at_most_once(mode: Mode, answer: str) -> None:
    """Texts are pieces of the answer in their order; without a call they are the answer."""
    found = parse(CallParser(mode, TOOLS), [answer])
    at = 0
    for item in found:
        if isinstance(item, str):
            at = answer.index(item, at) + len(item)
    if not any(isinstance(item, tuple) for item in found) and '"tool_calls"' not in answer:
        assert "".join(item for item in found if isinstance(item, str)) == answer


@given(st.text(), st.lists(st.integers(0, 1000)))
def test_text_without_calls_is_untouched(answer: str, cuts: list[int]) -> None:
    """Random text comes out byte for byte."""
    assert "".join(map(str, parse(CallParser(Mode.FREE, TOOLS), cut(answer, cuts)))) == answer


@settings(max_examples=60)
@given(st.lists(OBJECTS.flatmap(jsons), min_size=1, max_size=3), st.lists(st.integers(0, 10_000)), st.data())
def test_arguments_come_out_as_they_went_in(
    arguments: list[str], cuts: list[int], data: st.DataObject
) -> None:
    """In every format that carries JSON, arguments are the model's own bytes, and equal JSON."""
    calls = [f'{{"name": "get_weather", "arguments": {text}}}' for text in arguments]
    answer = data.draw(
        st.sampled_from(
            [
                "".join(f"<tool_call>\n{call}\n</tool_call>\n" for call in calls),
                "".join(f"<function=get_weather>{text}</function>" for text in arguments),
                f"[TOOL_CALLS][{', '.join(calls)}]",
                f"<|python_tag|>{'; '.join(calls)}",
                f"[{','.join(calls)}]",
                f'{{"tool_calls": [{", ".join(calls)}]}}',
            ]
        )
    )
    mode = Mode.CALLS if answer.startswith('{"tool_calls"') else Mode.FREE
    found = parse(CallParser(mode, TOOLS), cut(answer, cuts))
    assert found == [("get_weather", text) for text in arguments]
    assert [json.loads(item[1]) for item in found] == [json.loads(text) for text in arguments]


@given(OBJECTS.flatmap(jsons), st.integers(1, 200))
def test_a_cut_off_answer_gives_a_beginning_of_the_arguments(arguments: str, missing: int) -> None:
    """Whatever the engine's limit leaves of a constrained call is passed on as it is."""
    answer = f'{{"tool_calls": [{{"name": "get_weather", "arguments": {arguments}}}]}}'
    found = parse(CallParser(Mode.CALLS, TOOLS), [answer[:-missing]])
    head = answer[: answer.index(arguments)]
    left = answer[:-missing][len(head) :][: len(arguments)]
    if left:
        assert found == [("get_weather", left)]
    else:
        assert all(isinstance(item, str) for item in found)
