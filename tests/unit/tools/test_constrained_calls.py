"""Answers that a schema holds to calls, or to calls or the caller's own JSON."""

from __future__ import annotations

import json

import pytest

from modeld.protocol.tasks import Text, TokenLogprob, ToolCallDelta
from modeld.worker.tools.parser import CallParser, Mode

from .answers import TOOLS, parse

ARGUMENTS = '{"city": "Paris",\n "days": [1, {"a": null}]}'
CALL = f'{{"name": "get_weather", "arguments": {ARGUMENTS}}}'
WEATHER_CALL = ("get_weather", ARGUMENTS)
BOTH = pytest.mark.parametrize("mode", [Mode.CALLS, Mode.UNION])


@BOTH
@pytest.mark.parametrize(
    "answer",
    [
        f'{{"tool_calls": [{CALL}]}}',
        f' {{\n "tool_calls"\n:\n[\n{CALL}\n]\n}}\n',
        f'{{"tool_calls": [{{"arguments": {ARGUMENTS}, "name": "get_weather"}}]}}',
        f'{{"tool_calls": [{CALL}',
        f'{{"tool_calls": [{CALL}, ',
        f'{{"tool_calls": [{CALL}, {{"name": "get_w',
    ],
)
def test_calls_in_the_envelope(mode: Mode, answer: str) -> None:
    """Calls come out of the envelope, whatever its white space; a cut in it leaves no scraps as text."""
    assert parse(CallParser(mode, TOOLS), [answer]) == [WEATHER_CALL]


@BOTH
def test_several_calls_in_the_envelope(mode: Mode) -> None:
    """Each element of the array is a call."""
    second = '{"name": "get.time", "arguments": {}}'
    answer = f'{{"tool_calls": [{CALL}, {second}]}}'
    assert parse(CallParser(mode, TOOLS), [answer]) == [WEATHER_CALL, ("get.time", "{}")]


@BOTH
def test_an_answer_cut_off_before_its_first_name_is_empty(mode: Mode) -> None:
    """The envelope is modeld's own; a piece of it is no answer. finish_reason "length" tells the rest."""
    parser = CallParser(mode, TOOLS)
    assert parse(parser, ['{"tool_calls": [{"na']) == []


@BOTH
def test_arguments_stream_from_their_first_character(mode: Mode) -> None:
    """A constrained call cannot go wrong, so nothing is held back behind its name."""
    parser = CallParser(mode, TOOLS, index=2)
    assert parser.feed('{"tool_calls": [{"name": "get_weather", "arguments":') == []
    head, first = parser.feed(' {"ci')
    assert isinstance(head, ToolCallDelta)
    assert (head.call, head.name, head.arguments, head.index) == (0, "get_weather", "", 2)
    assert first == ToolCallDelta(0, '{"ci', index=2)
    assert parser.feed('ty": "\\u00') == [ToolCallDelta(0, 'ty": "\\u00', index=2)]
    assert parser.feed('e9"}') == [ToolCallDelta(0, 'e9"}', index=2)]
    assert parser.feed("}]}") == []
    assert parser.finish() == []


@pytest.mark.parametrize(
    "answer",
    [
        json.dumps({"answer": f"<tool_call>{CALL}</tool_call>"}),
        json.dumps({"tool": CALL}),
        json.dumps({"tool_calls": "none"}),
        '{"tool_calls": []}',
        '{"tool_calls": [{"name": "unknown", "arguments": {}}]}',
        " [1, 2]\n",
        '"text"',
        '{"to',
        "",
    ],
)
def test_the_callers_own_json_is_passed_on_unread(answer: str) -> None:
    """In a union, an answer that does not begin with the envelope's key is text."""
    assert parse(CallParser(Mode.UNION, TOOLS), [answer]) == ([answer] if answer else [])


def test_the_branch_is_decided_by_the_first_key() -> None:
    """The caller's JSON is held back only while it may be the envelope."""
    parser = CallParser(Mode.UNION, TOOLS)
    assert parser.feed('{"to') == []
    assert parser.feed("t") == [Text('{"tot')]
    assert parser.feed('al": 1') == [Text('al": 1')]


def test_another_envelope() -> None:
    """With an own key, the usual key is the caller's."""
    parser = CallParser(Mode.UNION, TOOLS, envelope="tool_calls_")
    assert parse(parser, [f'{{"tool_calls_": [{CALL}]}}']) == [WEATHER_CALL]
    own = f'{{"tool_calls": [{CALL}]}}'
    assert parse(CallParser(Mode.UNION, TOOLS, envelope="tool_calls_"), [own]) == [own]


def test_an_engine_that_ignores_the_schema_is_parsed_freely() -> None:
    """Where a call was required and the engine wrote its own format, the call still comes out."""
    parser = CallParser(Mode.CALLS, TOOLS)
    assert parse(parser, [f"Sure.\n<tool_call>{CALL}</tool_call>"]) == ["Sure.", WEATHER_CALL]
    assert parser.strayed
    parser = CallParser(Mode.CALLS, TOOLS)
    assert parse(parser, ["Only words <tool_call>{"]) == ["Only words <tool_call>{"]
    assert parser.strayed


@BOTH
@pytest.mark.parametrize("answer", [f'{{"tool_calls": [{CALL}]}}', '{"tool_calls": [{"na', '{"to', ""])
def test_a_complete_or_a_short_answer_has_not_strayed(mode: Mode, answer: str) -> None:
    """Straying means that the engine wrote something else, not that it wrote too little."""
    parser = CallParser(mode, TOOLS)
    parse(parser, [answer])
    assert not parser.strayed


def test_a_plain_answer_passes_through() -> None:
    """Without tools every piece is passed on at once, as it is."""
    parser = CallParser(index=1)
    assert parser.feed(f"<tool_call>{CALL}") == [Text(f"<tool_call>{CALL}", 1)]
    assert parser.feed("") == []
    assert parser.finish() == []
    assert not parser.called


def test_logprobs_travel_with_the_text_they_belong_to() -> None:
    """Those of text held back come with it; those of calls, and of white space swallowed, do not."""

    def piece(text: str) -> tuple[str, tuple[TokenLogprob, ...]]:
        return text, (TokenLogprob(text, -0.5),)

    parser = CallParser(Mode.FREE, TOOLS)
    events: list[Text | ToolCallDelta] = []
    call = f'<tool_call>{{"name": "get_weather", "arguments": {ARGUMENTS}}}</tool_call>'
    for text in ["a", " <", "b>", " ", *call, "\n", "c"]:
        events += parser.feed(*piece(text))
    events += parser.finish()
    texts = [event for event in events if isinstance(event, Text)]
    assert "".join(event.text for event in texts) == "a <b>c"
    assert [token.token for event in texts for token in event.logprobs] == ["a", " <", "b>", "c"]
