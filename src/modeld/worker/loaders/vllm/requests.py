"""From tasks to the bodies that vLLM's serving layer reads. Pure."""

from __future__ import annotations

import hashlib
from typing import Any

from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    FunctionTool,
    ImagePart,
    Message,
    Sampling,
    TextPart,
)
from modeld.worker.tools import Plan

LONGEST_SALT_BYTES = 32
"""Bytes of a cache salt: as many as vLLM recommends, so that nobody guesses another caller's."""


def salt(identity: str, secret: bytes) -> str:
    """Return what keeps one caller's cached prompts from answering another's requests sooner.

    `secret` (at most 64 bytes) is this engine's own: a salt says nothing about the identity.
    """
    return hashlib.blake2b(identity.encode(), key=secret, digest_size=LONGEST_SALT_BYTES).hexdigest()


def sampling(values: Sampling) -> dict[str, Any]:
    """Return the sampling part of a body; what is None is left to the model's generation_config."""
    body: dict[str, Any] = {
        key: value
        for key, value in (
            ("temperature", values.temperature),
            ("top_p", values.top_p),
            ("top_k", values.top_k),
            ("min_p", values.min_p),
            ("seed", values.seed),
            ("frequency_penalty", values.frequency_penalty),
            ("presence_penalty", values.presence_penalty),
            ("repetition_penalty", values.repeat_penalty),
        )
        if value is not None
    }
    if values.stop:
        body["stop"] = list(values.stop)
    if values.logit_bias:
        body["logit_bias"] = dict(values.logit_bias)
    return body


def message(item: Message) -> dict[str, Any]:
    """Return one turn of a conversation."""
    body: dict[str, Any] = {"role": item.role}
    if item.content is None or isinstance(item.content, str):
        body["content"] = item.content
    else:
        body["content"] = [_part(part) for part in item.content]
    if item.name:
        body["name"] = item.name
    if item.reasoning:
        body["reasoning"] = item.reasoning
    if item.tool_call_id:
        body["tool_call_id"] = item.tool_call_id
    if item.tool_calls:
        body["tool_calls"] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}
            for call in item.tool_calls
        ]
    return body


def _part(part: TextPart | ImagePart) -> dict[str, Any]:
    if isinstance(part, TextPart):
        return {"type": "text", "text": part.text}
    return {"type": "image_url", "image_url": {"url": part.url}}


def tool(item: FunctionTool) -> dict[str, Any]:
    """Return a tool."""
    function: dict[str, Any] = {"name": item.name}
    if item.description is not None:
        function["description"] = item.description
    function["parameters"] = item.parameters or {"type": "object", "properties": {}}
    if item.strict is not None:
        function["strict"] = item.strict
    return {"type": "function", "function": function}


def chat(task: ChatTask, planned: Plan, model: str, template_kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the body of a chat request, streamed, as `planned` wants it."""
    body = {**task.engine_options, **sampling(task.sampling), **_streaming(model, task.n)}
    body["messages"] = [message(item) for item in planned.messages]
    kwargs = {**template_kwargs, **task.template_kwargs}
    if task.reasoning_effort is not None:
        body["reasoning_effort"] = task.reasoning_effort
    if task.sampling.max_tokens is not None:
        body["max_completion_tokens"] = task.sampling.max_tokens
    if task.top_logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": task.top_logprobs}
    if planned.native_tools:
        body["tools"] = [tool(item) for item in task.tools]
        if planned.native_calls:
            body["tool_choice"] = _choice(task)
            body["parallel_tool_calls"] = task.parallel_tool_calls
        else:
            # The template shows the tools; what is a call, is for our parser to say, and for that it must
            # see the marks that some models write as special tokens.
            body |= {"tool_choice": "none", "skip_special_tokens": False}
    if planned.schema is not None:
        body["response_format"] = {
            "type": "json_schema",
            "json_schema": {"name": "answer", "schema": planned.schema, "strict": True},
        }
        if task.tools:
            # A template that opens a thought would have the JSON written inside it.
            kwargs.setdefault("enable_thinking", False)
    elif planned.json_object:
        body["response_format"] = {"type": "json_object"}
    if kwargs:
        body["chat_template_kwargs"] = kwargs
    return body


def _choice(task: ChatTask) -> Any:
    if task.tool_choice.mode == "function":
        return {"type": "function", "function": {"name": task.tool_choice.name}}
    return task.tool_choice.mode


def completion(task: CompletionTask, model: str) -> dict[str, Any]:
    """Return the body of a raw completion, streamed."""
    body = {**task.engine_options, **sampling(task.sampling), **_streaming(model, task.n)}
    body["prompt"] = task.prompt if isinstance(task.prompt, str) else list(task.prompt)
    if task.sampling.max_tokens is not None:
        body["max_tokens"] = task.sampling.max_tokens
    if task.echo:
        body["echo"] = True
    if task.suffix is not None:
        body["suffix"] = task.suffix
    if task.top_logprobs is not None:
        body["logprobs"] = task.top_logprobs
    return body


def _streaming(model: str, n: int) -> dict[str, Any]:
    return {"model": model, "n": n, "stream": True, "stream_options": {"include_usage": True}}
