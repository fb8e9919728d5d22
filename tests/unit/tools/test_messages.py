"""Conversations as strict templates, and templates that know no tools, can take them."""

from __future__ import annotations

import json

from modeld.protocol.tasks import ImagePart, Message, TextPart, ToolCall
from modeld.worker.tools.messages import prepare

PICTURE = ImagePart(url="data:image/png;base64,")


def ready(*messages: Message, blind: bool = True, late: bool = True, extra: str = "") -> list[Message]:
    """Prepare these messages, by default for a blind template."""
    return list(prepare(messages, tools_as_text=blind, late_system=late, extra=extra))


def call(arguments: str) -> ToolCall:
    """Return a past call of `f`."""
    return ToolCall(id="1", name="f", arguments=arguments)


def test_text_parts_become_a_string() -> None:
    """Parts that are all text are joined by lines; a picture keeps the parts."""
    parts = (TextPart(text="a"), TextPart(text="b"))
    assert ready(Message(role="user", content=parts)) == [Message(role="user", content="a\nb")]
    mixed = Message(role="user", content=(*parts, PICTURE))
    assert ready(mixed) == [mixed]


def test_missing_content_is_an_empty_string() -> None:
    """None stays None only beside calls that the template renders itself."""
    assert ready(Message(role="assistant")) == [Message(role="assistant", content="")]
    assert ready(Message(role="assistant", content=())) == [Message(role="assistant", content="")]
    native = Message(role="assistant", tool_calls=(call("{}"),))
    assert ready(native, blind=False) == [native]


def test_calls_become_text_for_a_blind_template() -> None:
    """Past calls read as the model would have written them, after what it said."""
    [message] = ready(
        Message(role="assistant", content="Let me look.", tool_calls=(call('{"x": 1}'), call("")))
    )
    assert message.tool_calls == ()
    assert message.content == (
        'Let me look.\n<tool_call>\n{"name": "f", "arguments": {"x": 1}}\n</tool_call>\n'
        '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'
    )


def test_arguments_that_are_no_json_stay_readable() -> None:
    """A broken call of an earlier turn does not break the JSON around it."""
    [message] = ready(Message(role="assistant", tool_calls=(call('{"x": '),)))
    assert isinstance(message.content, str)
    body = message.content.removeprefix("<tool_call>").removesuffix("</tool_call>")
    assert json.loads(body) == {"name": "f", "arguments": '{"x":'}


def test_neighbouring_results_share_one_user_message() -> None:
    """Results come in the user's name; others between them part them."""
    result = [
        Message(role="tool", content="1", tool_call_id="a"),
        Message(role="tool", content=(TextPart(text="2"),), tool_call_id="b"),
        Message(role="user", content="And?"),
        Message(role="tool", tool_call_id="c"),
    ]
    assert ready(*result) == [
        Message(
            role="user",
            content="<tool_response>\n1\n</tool_response>\n<tool_response>\n2\n</tool_response>",
        ),
        Message(role="user", content="And?"),
        Message(role="user", content="<tool_response>\n\n</tool_response>"),
    ]
    assert ready(result[0], blind=False) == [result[0]]


def test_a_picture_in_a_result_is_kept() -> None:
    """Results with pictures keep their parts, also when merged."""
    first = Message(role="tool", content="1")
    second = Message(role="tool", content=(PICTURE,))
    [message] = ready(first, second)
    assert isinstance(message.content, tuple)
    assert PICTURE in message.content
    text = "".join(part.text for part in message.content if isinstance(part, TextPart))
    assert text.count("<tool_response>") == text.count("</tool_response>") == 2
    assert "1" in text


def test_system_messages_go_to_the_front_of_a_strict_template() -> None:
    """All of them, in order, with blank lines between; only where the template wants it."""
    messages = [
        Message(role="user", content="Hi"),
        Message(role="system", content="One."),
        Message(role="assistant", content="Hello"),
        Message(role="system", content="Two."),
    ]
    assert ready(*messages) == messages
    assert ready(*messages, late=False) == [
        Message(role="system", content="One.\n\nTwo."),
        messages[0],
        messages[2],
    ]
    assert ready(messages[0], late=False) == [messages[0]]


def test_extra_joins_the_first_system_message_or_becomes_it() -> None:
    """What modeld has to say never makes a second system message."""
    user = Message(role="user", content="Hi")
    system = Message(role="system", content="One.")
    assert ready(user, extra="X") == [Message(role="system", content="X"), user]
    assert ready(system, user, extra="X") == [Message(role="system", content="One.\n\nX"), user]
    assert ready(user, system, late=False, extra="X") == [Message(role="system", content="One.\n\nX"), user]
    assert ready(user, system, extra="X") == [Message(role="system", content="X"), user, system]
