"""The forms in which models write tool calls, each a reader over a `Source`.

Every reader gives what it finds to a `CallSink` and raises `Unexpected` where the text is not its form. Only
tools of the request count. Read today: `<tool_call>{json}</tool_call>` (Hermes, Qwen 2.5 and 3),
`<tool_call><function=f><parameter=k>v</parameter></function></tool_call>` (Qwen3-Coder),
`<function=f>{json}</function>` (Llama 3 prompts), `[TOOL_CALLS][{json}]` and `[TOOL_CALLS]f[ARGS]{json}`
(Mistral), `<|python_tag|>{json}; {json}` (Llama 3.1), and an answer that is nothing but JSON, fenced or not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from modeld.worker.tools.calls import CallSink
from modeld.worker.tools.source import (
    Reading,
    Source,
    Unexpected,
    read_any,
    read_literal,
    read_run,
    read_space,
    read_string,
    read_value,
)
from modeld.worker.tools.values import dumps, loads, typed

ENVELOPE = "tool_calls"
"""The key that holds the array of calls where the whole answer is one JSON object."""

MARKERS = ("<tool_call>", "<function=", "[TOOL_CALLS]", "<|python_tag|>")
_SIDE_KEYS = frozenset({"id", "type", "index"})
_KEYS = _SIDE_KEYS | {"name", "function", "arguments", "parameters"}
_FENCE_WORD = re.compile(r"[a-z_]*")
_VALUE_RUN = re.compile(r"[^<]*")


class Formats:
    """The readers, over one source, for one set of tools (name → JSON Schema of its arguments or None)."""

    def __init__(
        self,
        source: Source,
        sink: CallSink,
        tools: Mapping[str, dict[str, Any] | None],
        envelope: str = ENVELOPE,
    ) -> None:
        self._source = source
        self._sink = sink
        self._tools = tools
        self._envelope = envelope
        self.decided = False

    # --- entrances ------------------------------------------------------------------------------------------

    def marked(self) -> Reading[None]:
        """A call that begins with one of MARKERS."""
        source, sink = self._source, self._sink
        marker = yield from read_any(source, MARKERS)
        if marker == "<tool_call>":
            if (yield from read_space(source)) == "<":
                yield from read_literal(source, "<function=")
                yield from self._function()
            else:
                yield from self._json_calls(at_once=True)
            yield from self._optional("</tool_call>")
        elif marker == "<function=":
            yield from self._function()
        elif marker == "<|python_tag|>":
            yield from self._json_calls(at_once=True)
        elif marker == "[TOOL_CALLS]":
            if (yield from read_space(source)) in ("[", "{"):
                yield from self._json_calls(at_once=True)
            else:
                name = yield from self._name(("[ARGS]", "{"))
                yield from read_space(source)
                yield from self._arguments(name)
                sink.restart()
        else:
            raise Unexpected

    def whole(self) -> Reading[None]:
        """An answer that is nothing but calls in JSON, fenced or not. Released at its end only."""
        source = self._source
        fenced = (yield from read_space(source)) == "`"
        if fenced:
            yield from read_literal(source, "```")
            yield from read_run(source, _FENCE_WORD)
        yield from read_space(source)
        start = source.at
        try:
            yield from self._envelope_start()
        except Unexpected:
            if source.exhausted:
                raise
            source.rewind(start)
            yield from self._json_calls(at_once=False)
        else:
            yield from self._array(at_once=False)
            yield from read_space(source)
            yield from read_literal(source, "}")
        if fenced and (yield from read_space(source)):
            yield from read_literal(source, "```")
        if (yield from read_space(source)):
            raise Unexpected

    def constrained(self) -> Reading[None]:
        """`{"tool_calls": [...]}` as the engine was made to write it; `decided` is set behind the key."""
        source = self._source
        yield from read_space(source)
        yield from self._envelope_start()
        self.decided = True
        yield from self._array(at_once=True)
        yield from read_space(source)
        yield from read_literal(source, "}")
        self._sink.mark()

    # --- JSON -----------------------------------------------------------------------------------------------

    def _envelope_start(self) -> Reading[None]:
        source = self._source
        yield from read_literal(source, "{")
        yield from read_space(source)
        yield from read_literal(source, json.dumps(self._envelope))
        yield from read_space(source)
        yield from read_literal(source, ":")
        yield from read_space(source)

    def _json_calls(self, *, at_once: bool) -> Reading[None]:
        """An array of calls, or calls one after the other, with or without ";" between them."""
        source, sink = self._source, self._sink
        if (yield from read_space(source)) == "[":
            yield from self._array(at_once=at_once)
            return
        while True:
            yield from self._call()
            if at_once:
                sink.restart()
            behind = source.at
            if (yield from read_space(source)) == ";":
                source.at += 1
            if (yield from read_space(source)) != "{":
                source.rewind(behind)
                return

    def _array(self, *, at_once: bool) -> Reading[None]:
        source, sink = self._source, self._sink
        yield from read_literal(source, "[")
        while True:
            yield from read_space(source)
            yield from self._call()
            if at_once:
                sink.restart()
            if (yield from read_space(source)) != ",":
                break
            source.at += 1
        yield from read_literal(source, "]")
        sink.mark()

    def _call(self, *, nested: bool = False) -> Reading[None]:
        """One object with a name and arguments, keys in any order; OpenAI's own nested form too."""
        source, sink = self._source, self._sink
        name: str | None = None
        arguments: str | None = None
        given = False
        yield from read_literal(source, "{")
        while True:
            yield from read_space(source)
            key = yield from self._string()
            if key not in _KEYS:
                raise Unexpected
            yield from read_space(source)
            yield from read_literal(source, ":")
            char = yield from read_space(source)
            if key == "function" and char == "{" and name is None and not nested:
                yield from self._call(nested=True)
                name, given = "", True
            elif key in ("name", "function") and name is None:
                name = yield from self._string()
                if name not in self._tools:
                    raise Unexpected
            elif key in ("arguments", "parameters") and not given:
                given = True
                if name and char == "{":
                    yield from self._arguments(name)
                else:
                    arguments = yield from self._buffered_arguments(char)
            elif key in _SIDE_KEYS:
                yield from read_value(source)
            else:
                raise Unexpected
            if (yield from read_space(source)) != ",":
                break
            source.at += 1
        if name is None:
            raise Unexpected
        yield from read_literal(source, "}")
        if name and (arguments is not None or not given):
            sink.add(name, arguments or "{}")
        sink.mark()

    def _arguments(self, name: str) -> Reading[None]:
        source, sink = self._source, self._sink
        if (yield from source.peek()) != "{":
            raise Unexpected
        sink.open(name)
        yield from read_value(source)
        sink.close()

    def _buffered_arguments(self, char: str) -> Reading[str]:
        """Arguments that cannot be streamed: before the name, as null, or as JSON inside a string."""
        source = self._source
        start = source.at
        if char == '"':
            text = yield from self._string()
            value = loads(text or "{}")
            if not isinstance(value, dict):
                raise Unexpected
            return dumps(value)
        if char == "n":
            yield from read_literal(source, "null")
            return "{}"
        if char != "{":
            raise Unexpected
        yield from read_value(source)
        return source.cut_json(start, source.at)

    def _string(self) -> Reading[str]:
        source = self._source
        start = source.at
        yield from read_string(source)
        value: str = json.loads(source.cut_json(start, source.at))
        return value

    # --- tags -----------------------------------------------------------------------------------------------

    def _function(self) -> Reading[None]:
        """What follows `<function=`: a name, ">", then JSON or parameter tags, then perhaps the end tag."""
        source, sink = self._source, self._sink
        name = yield from self._name((">",))
        yield from read_literal(source, ">")
        if (yield from read_space(source)) == "{":
            yield from self._arguments(name)
            sink.restart()
            yield from self._optional("</function>")
            return
        values: dict[str, Any] = {}
        while True:
            yield from read_space(source)
            tag = yield from read_any(source, ("<parameter=", "</function>"))
            if tag is None:
                raise Unexpected
            if tag == "</function>":
                break
            key, text = yield from self._parameter()
            values[key] = typed(text, self._tools[name], key)
        sink.add(name, dumps(values))
        sink.restart()

    def _parameter(self) -> Reading[tuple[str, str]]:
        source = self._source
        start = source.at
        while (yield from source.peek()) not in (">", "\n", ""):
            source.at += 1
        key = source.cut(start, source.at)
        yield from read_literal(source, ">")
        start = source.at
        while True:
            yield from read_run(source, _VALUE_RUN)
            end = source.at
            if (yield from read_any(source, ("</parameter>",))):
                return key, source.cut(start, end)
            if not (yield from source.peek()):
                raise Unexpected
            source.at += 1

    def _name(self, followers: tuple[str, ...]) -> Reading[str]:
        """Take the name of a tool up to one of `followers`, which stays; except "[ARGS]", which goes too."""
        source = self._source
        start = source.at
        while True:
            char = yield from source.peek()
            name = source.cut(start, source.at)
            if char and any(follower.startswith(char) for follower in followers) and name in self._tools:
                if char == "[":
                    yield from read_literal(source, "[ARGS]")
                return name
            if not char or not any(tool.startswith(name + char) for tool in self._tools):
                raise Unexpected
            source.at += 1

    def _optional(self, literal: str) -> Reading[None]:
        """Take white space and `literal` if they stand here; models forget end tags."""
        source = self._source
        start = source.at
        yield from read_space(source)
        if (yield from read_any(source, (literal,))):
            self._sink.mark()
        else:
            source.rewind(start)
