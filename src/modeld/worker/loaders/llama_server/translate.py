"""Between tasks and llama.cpp's wire: request bodies out, chunks in. Pure."""

from __future__ import annotations

from typing import Any

from modeld.ids import new_id
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    FunctionTool,
    Message,
    Reasoning,
    Sampling,
    Text,
    TextPart,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
)
from modeld.worker.loaders.llama_server.client import Delta, Logprobs
from modeld.worker.loaders.llama_server.client import TopLogprob as WireTop


def sampling(values: Sampling, index: int) -> dict[str, Any]:
    """Return the sampling part of a body for choice `index`; with a seed, each choice has its own."""
    body: dict[str, Any] = {
        key: value
        for key, value in (
            ("max_tokens", values.max_tokens),
            ("temperature", values.temperature),
            ("top_p", values.top_p),
            ("top_k", values.top_k),
            ("min_p", values.min_p),
            ("frequency_penalty", values.frequency_penalty),
            ("presence_penalty", values.presence_penalty),
            ("repeat_penalty", values.repeat_penalty),
        )
        if value is not None
    }
    if values.seed is not None:
        # The engine reads 32 bits, and takes all ones for "random".
        body["seed"] = (values.seed + index) % 0xFFFFFFFF
    if values.stop:
        body["stop"] = list(values.stop)
    if values.logit_bias:
        body["logit_bias"] = [[int(token), bias] for token, bias in values.logit_bias.items()]
    return body


def message(item: Message) -> dict[str, Any]:
    """Return a message as the engine's chat endpoint and `/apply-template` read it."""
    body: dict[str, Any] = {"role": item.role}
    match item.content:
        case None | str():
            body["content"] = item.content
        case parts:
            body["content"] = [
                {"type": "text", "text": part.text}
                if isinstance(part, TextPart)
                else {"type": "image_url", "image_url": {"url": part.url}}
                for part in parts
            ]
    if item.name:
        body["name"] = item.name
    if item.reasoning:
        body["reasoning_content"] = item.reasoning
    if item.tool_call_id:
        body["tool_call_id"] = item.tool_call_id
    if item.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in item.tool_calls
        ]
    return body


def tool(item: FunctionTool) -> dict[str, Any]:
    """Return a tool as the engine reads it."""
    function: dict[str, Any] = {"name": item.name}
    if item.description is not None:
        function["description"] = item.description
    function["parameters"] = item.parameters or {"type": "object", "properties": {}}
    return {"type": "function", "function": function}


def chat_common(task: ChatTask, template_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return what rendering needs beside messages and tools."""
    kwargs = {**template_kwargs, **task.template_kwargs}
    if task.reasoning_effort is not None:
        kwargs.setdefault("reasoning_effort", task.reasoning_effort)
        if task.reasoning_effort == "none":
            kwargs.setdefault("enable_thinking", False)
    return {"chat_template_kwargs": kwargs} if kwargs else {}


def streaming(task: ChatTask | CompletionTask, index: int) -> dict[str, Any]:
    """Return what every streamed body carries: sampling, logprobs, engine options, usage at the end."""
    body = {**task.engine_options, **sampling(task.sampling, index)}
    body |= {"stream": True, "stream_options": {"include_usage": True}}
    if task.top_logprobs is not None:
        if isinstance(task, ChatTask):
            # The engine gives none at all for 0; ask for one and drop it on the way back.
            body |= {"logprobs": True, "top_logprobs": max(task.top_logprobs, 1)}
        else:
            body["logprobs"] = max(task.top_logprobs, 1)
    return body


def logprobs(wire: Logprobs | None, top: int | None) -> tuple[TokenLogprob, ...]:
    """Return the log probabilities of one chunk with at most `top` alternatives; none when not asked for."""
    if wire is None or not wire.content or top is None:
        return ()
    return tuple(
        TokenLogprob(
            entry.token,
            _number(entry),
            tuple(entry.bytes) if entry.bytes is not None else None,
            tuple(
                TopLogprob(
                    other.token, _number(other), tuple(other.bytes) if other.bytes is not None else None
                )
                for other in entry.top_logprobs[:top]
            ),
        )
        for entry in wire.content
    )


def _number(entry: WireTop) -> float:
    # JSON has no minus infinity: the engine writes null; OpenAI's own floor is -9999.
    return entry.logprob if entry.logprob is not None else -9999.0


class NativeCalls:
    """Tool calls the engine parsed itself, as events of choice `index`; fills in ids the engine left out."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._known: dict[int, int] = {}

    @property
    def called(self) -> bool:
        """Whether there was any call."""
        return bool(self._known)

    def events(self, delta: Delta) -> list[Reasoning | Text | ToolCallDelta]:
        """Return the events of one delta's reasoning and tool calls (its text is the caller's)."""
        events: list[Reasoning | Text | ToolCallDelta] = []
        if delta.reasoning_content:
            events.append(Reasoning(delta.reasoning_content, self._index))
        for call in delta.tool_calls or ():
            arguments = call.function.arguments or ""
            if call.index not in self._known:
                number = self._known[call.index] = len(self._known)
                events.append(
                    ToolCallDelta(
                        number, arguments, call.id or new_id("call_"), call.function.name or "", self._index
                    )
                )
            elif arguments:
                events.append(ToolCallDelta(self._known[call.index], arguments, index=self._index))
        return events
