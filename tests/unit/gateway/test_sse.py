from __future__ import annotations

import json

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from modeld.gateway.sse import escape_separators, event


@given(st.text())
def test_an_event_is_one_line_and_says_the_same(text: str) -> None:
    """Whatever the text, no client can take the data for two lines, and it decodes to the same."""
    json_text = msgspec.json.encode({"a": text})
    sse = event(json_text)
    assert len(sse.decode().splitlines()) == 2
    assert json.loads(sse[len(b"data: ") :]) == {"a": text}
    assert json.loads(escape_separators(json_text)) == {"a": text}
