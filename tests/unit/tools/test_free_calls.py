"""Calls and text in an answer that nothing constrains."""

from __future__ import annotations

import json

import pytest

from modeld.worker.tools.calls import HOLD_LIMIT, PATIENCE
from modeld.worker.tools.parser import CallParser, Mode

from .answers import TOOLS, Summary, parse

ARGUMENTS = '{"city": "Par\\"is", "days": 2}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
WEATHER_CALL = ("get_weather", ARGUMENTS)


def free(text: str, limit: int | None = None) -> Summary:
    """Parse an unconstrained answer that comes in one piece."""
    return parse(CallParser(Mode.FREE, TOOLS, limit=limit), [text])


@pytest.mark.parametrize(
    "answer",
    [
        f"<tool_call>\n{CALL}\n</tool_call>",
        f"<tool_call>{CALL}",
        f"  <tool_call>{CALL}</tool_call>\n\n",
        f'<tool_call>{{"arguments": {ARGUMENTS}, "name": "get_weather"}}</tool_call>',
        f'<tool_call>{{"name": "get_weather", "parameters": {ARGUMENTS}}}</tool_call>',
        f'<tool_call>{{"id": "x", "name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>',
        f"<tool_call>[{CALL}]</tool_call>",
        f"<function=get_weather>{ARGUMENTS}</function>",
        f"<function=get_weather>\n{ARGUMENTS}",
        f"<tool_call>\n<function=get_weather>\n{ARGUMENTS}\n</function>\n</tool_call>",
        f"[TOOL_CALLS][{CALL}]",
        f"[TOOL_CALLS] {CALL}",
        f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}",
        f"[TOOL_CALLS]get_weather{ARGUMENTS}",
        f"<|python_tag|>{CALL}",
        CALL,
        f" \n{CALL}\n",
        f"[{CALL}]",
        f"```json\n{CALL}\n```",
        f"```\n[{CALL}]\n```\n",
        f'{{"type": "function", "function": {CALL}}}',
        f'{{"type": "function", "function": "get_weather", "parameters": {ARGUMENTS}}}',
        f'{{"tool_calls": [{CALL}]}}',
        f"[{CALL}",
    ],
)
def test_every_common_form_is_one_call(answer: str) -> None:
    """Each way models write a call yields that call, its arguments byte for byte, and no text."""
    assert free(answer) == [WEATHER_CALL]


@pytest.mark.parametrize(
    "answer",
    [
        f"<tool_call>{CALL}</tool_call><tool_call>{CALL}</tool_call>",
        f"<tool_call>\n{CALL}\n</tool_call>\n\n<tool_call>\n{CALL}\n</tool_call>\n",
        f"<tool_call>\n{CALL}\n{CALL}\n</tool_call>",
        f"[TOOL_CALLS][{CALL}, {CALL}]",
        f"[TOOL_CALLS]get_weather{ARGUMENTS}[TOOL_CALLS]get_weather{ARGUMENTS}",
        f"<|python_tag|>{CALL}; {CALL}",
        f"[{CALL},{CALL}]",
        f"{CALL}\n{CALL}",
        f"{CALL}; {CALL}",
    ],
)
def test_parallel_calls_are_numbered(answer: str) -> None:
    """Several calls come out one after the other."""
    assert free(answer) == [WEATHER_CALL, WEATHER_CALL]


@pytest.mark.parametrize(
    "answer",
    [
        "",
        " ",
        "Plain words.\n",
        "a < b, <b>bold</b>, [1] and {x}\n\n",
        "<tool_call>",
        "<tool_call>no JSON</tool_call>",
        "<tool_call>{'name': 'get_weather'}</tool_call>",
        '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": Paris}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "Paris",}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": ["Paris"]}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"city": "\\x"}}</tool_call>',
        '<tool_call>{"name": "get_weather", "arguments": {"n": 01}}</tool_call>',
        '<tool_call>{"name": "get_weather", "description": "Get the weather"}</tool_call>',
        '<tool_call>{"name": "get_we',
        "<function=unknown>{}</function>",
        "<function=get_weather>Paris</function>",
        "<function=get_weather><parameter=city>Par",
        "[TOOL_CALLS][]",
        "[TOOL_CALLS]unknown{}",
        '<|python_tag|>brave_search.call(query="x")',
        f"{CALL} is how I would call it.",
        f"As an example: {CALL}",
        f"```json\n{CALL}\n``` is an example",
        '{"answer": 42}',
        '{"name": "Anna", "age": 5}',
        "[1, 2, 3]",
        "```python\nprint(1)\n```",
        '{"function": {"function": {"name": "get_weather"}}}',
        '{"tool_calls": "none"}',
        '{"tool_calls": []}',
    ],
)
def test_what_is_no_call_is_text_byte_for_byte(answer: str) -> None:
    """Nothing is lost and nothing doubled where a form is broken off, malformed or names no tool."""
    assert free(answer) == ([answer] if answer else [])


def test_text_around_calls_stays_and_white_space_goes() -> None:
    """Text before and after a call is passed on without the white space next to the call."""
    answer = f"Let me  look.\n\n<tool_call>\n{CALL}\n</tool_call>\n\nDone. \n"
    assert free(answer) == ["Let me  look.", WEATHER_CALL, "Done. \n"]


def test_a_broken_call_does_not_hide_a_good_one() -> None:
    """After a form that failed, the very next character may begin a call."""
    broken = "<tool_call>{oops}</tool_call>"
    assert free(f"{broken}\n<tool_call>{CALL}</tool_call>") == [broken, WEATHER_CALL]
    assert free(f"<<tool_call>{CALL}</tool_call>") == ["<", WEATHER_CALL]
    assert free(f"<tool_call><tool_call>{CALL}</tool_call>") == ["<tool_call>", WEATHER_CALL]


def test_parameter_tags_become_typed_json() -> None:
    """XML-style parameters are read by the type the schema declares: strings stay, others are JSON."""
    tools = {
        "f": {
            "type": "object",
            "properties": {
                "text": {"type": "string"},
                "count": {"type": "integer"},
                "flag": {"type": "boolean"},
                "list": {"type": "array"},
            },
        }
    }
    answer = (
        "<tool_call>\n<function=f>\n<parameter=text>\n12 <b>\nend\n</parameter>"
        "\n<parameter=count>\n3\n</parameter>"
        '\n<parameter=flag>True</parameter><parameter=list>["\\ud83d\\ude00", 1]</parameter>'
        "\n<parameter=other>free words</parameter>\n</function>\n</tool_call>"
    )
    [call] = parse(CallParser(Mode.FREE, tools), [answer])
    assert call[0] == "f"
    assert json.loads(call[1]) == {
        "text": "12 <b>\nend",
        "count": 3,
        "flag": True,
        "list": ["😀", 1],
        "other": "free words",
    }


@pytest.mark.parametrize(
    "answer",
    [
        '<tool_call>{"name": "get.time"}</tool_call>',
        '<tool_call>{"name": "get.time", "arguments": null}</tool_call>',
        '<tool_call>{"name": "get.time", "arguments": ""}</tool_call>',
        "<function=get.time></function>",
        '{"name": "get.time"}',
    ],
)
def test_missing_arguments_are_an_empty_object(answer: str) -> None:
    """The joined arguments are JSON also where the model wrote none."""
    assert free(answer) == [("get.time", "{}")]


def test_arguments_as_a_json_string_are_unwrapped() -> None:
    """Models that imitate the API write the arguments as a string; clients get the object."""
    answer = json.dumps({"name": "get_weather", "arguments": '{"city": "Köln\n"}'})
    assert free(answer) == [("get_weather", '{"city": "Köln\\n"}')]


def test_raw_line_breaks_inside_strings_are_escaped() -> None:
    """A control character JSON forbids becomes its escape, so that the arguments parse."""
    answer = '<tool_call>{"name": "get_weather",\n "arguments": {\n"city": "a\n\tb"}}</tool_call>'
    assert free(answer) == [("get_weather", '{\n"city": "a\\n\\tb"}')]


def test_an_answer_cut_off_inside_the_arguments_is_a_call_as_far_as_it_goes() -> None:
    """At the limit of tokens, what there is of the arguments is passed on."""
    assert free(f"<tool_call>{CALL[:-8]}") == [("get_weather", ARGUMENTS[:-7])]


def test_only_one_call_where_parallel_calls_are_off() -> None:
    """Further calls are dropped, since the caller forbade them; words around them are not."""
    call = f"<tool_call>{CALL}</tool_call>"
    assert free(f"One {call} two.\n{call}", limit=1) == ["One", WEATHER_CALL, "two."]
    assert free(f"{call}{call} three", limit=1) == [WEATHER_CALL, "three"]
    assert free(f"[{CALL}, {CALL}]", limit=1) == [WEATHER_CALL]


def test_text_goes_out_as_soon_as_it_can_be_no_call() -> None:
    """Held back is only what may still become a call."""
    parser = CallParser(Mode.FREE, TOOLS)
    out = []
    for piece in ["Hel", "lo <", "to", "ast>", " \n", "[TOOL", "BOX]", "<function=get_", "x", "{"]:
        out.append("".join(event.text for event in parser.feed(piece)))  # type: ignore[union-attr]
    assert out == ["Hel", "lo", "", " <toast>", "", "", " \n[TOOLBOX]", "", "<function=get_x", "{"]


@pytest.mark.parametrize("beginning", ['{"answer"', '["', "```python\np", '{"name": "Anna"', "Hello"])
def test_an_answer_of_other_json_is_not_held_to_its_end(beginning: str) -> None:
    """A whole-answer call is given up at the first key, name or word that fits none."""
    parser = CallParser(Mode.FREE, TOOLS)
    assert "".join(event.text for event in parser.feed(beginning)) == beginning  # type: ignore[union-attr]


def test_long_arguments_stream_before_they_end() -> None:
    """Past PATIENCE characters a call is no longer held back to see whether it is well formed."""
    parser = CallParser(Mode.FREE, TOOLS)
    head = '<tool_call>{"name": "get_weather", "arguments": {"city": "'
    first = parser.feed(head + "x" * PATIENCE)
    assert first
    second = parser.feed("y" * 10)
    assert [event.arguments for event in second] == ["y" * 10]  # type: ignore[union-attr]
    assert parser.called
    rest = parser.feed('"}}</tool_call>') + parser.finish()
    assert [event.arguments for event in rest] == ['"}']  # type: ignore[union-attr]


def test_a_call_that_goes_wrong_after_it_streamed_loses_nothing() -> None:
    """What follows the break is text: every character is in the arguments or in the text, once."""
    value = '{"city": "' + "x" * PATIENCE + '"'
    found = free(f'<tool_call>{{"name": "get_weather", "arguments": {value} oops')
    assert found == [("get_weather", value + " "), "oops"]


def test_something_held_too_long_is_text() -> None:
    """Memory is bounded: arguments before a name that never comes are given up."""
    answer = '<tool_call>{"arguments": {"x": "' + "y" * HOLD_LIMIT
    parser = CallParser(Mode.FREE, TOOLS)
    assert "".join(event.text for event in parser.feed(answer)) == answer  # type: ignore[union-attr]
    assert parser.finish() == []


def test_deep_nesting_is_no_error() -> None:
    """Depth costs no recursion."""
    deep = "[" * 5000
    assert free(deep) == [deep]
    value = '{"city": ' + deep + "]" * 5000 + "}"
    assert free(f'<tool_call>{{"name": "get_weather", "arguments": {value}}}</tool_call>') == [
        ("get_weather", value)
    ]
    answer = f'<tool_call>{{"name": "get_weather", "arguments": {json.dumps(deep)}}}</tool_call>'
    assert free(answer) == [answer]
