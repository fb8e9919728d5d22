"""What a worker can be asked to do, and what it answers with: the engine-neutral shape of inference.

Tasks and events know nothing of HTTP. `/v1/chat/completions` and `/v1/responses` are two encoders over the
same events. All structs are frozen; new fields come last and have defaults, so an older peer can read them.
Events are encoded as arrays because one is sent for every token.
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

import msgspec


class _Task(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    pass


# --- tasks --------------------------------------------------------------------------------------------------


class TextPart(_Task, tag="text", frozen=True, omit_defaults=True, kw_only=True):
    """A piece of text inside a message."""

    text: str


class ImagePart(_Task, tag="image", frozen=True, omit_defaults=True, kw_only=True):
    """A picture as a `data:` URL; anything else has been fetched or refused before it gets here."""

    url: str


Part: TypeAlias = TextPart | ImagePart


class ToolCall(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """A call the model made in an earlier turn; `arguments` is JSON text, as the model wrote it."""

    id: str
    name: str
    arguments: str


class FunctionTool(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """A function the model may call; `parameters` is a JSON Schema object or None for no arguments."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


class Message(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """One turn. The role "developer" has become "system" by the time a message gets here."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str | tuple[Part, ...] | None = None
    name: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    tool_call_id: str | None = None
    reasoning: str | None = None


class ToolChoice(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """Whether the model may, must or must not call; `name` is set exactly when mode is "function"."""

    mode: Literal["auto", "none", "required", "function"] = "auto"
    name: str | None = None


class TextFormat(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """The form of the answer; `schema` is set exactly when kind is "json_schema"."""

    kind: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = None
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class Sampling(_Task, frozen=True, omit_defaults=True, kw_only=True):
    """Sampling parameters; None means "the engine's default"."""

    max_tokens: int | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: int | None = None
    stop: tuple[str, ...] = ()
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repeat_penalty: float | None = None
    logit_bias: dict[str, float] = {}


class ChatTask(_Task, tag="chat", frozen=True, omit_defaults=True, kw_only=True):
    """Continue a conversation.

    `top_logprobs` None: no log probabilities; 0: those of the chosen tokens only; up to 20.
    `engine_options` are passed to the engine as they are (e.g. llama.cpp's `cache_prompt`).
    """

    messages: tuple[Message, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    tools: tuple[FunctionTool, ...] = ()
    tool_choice: ToolChoice = ToolChoice()
    parallel_tool_calls: bool = True
    format: TextFormat = TextFormat()
    top_logprobs: int | None = None
    reasoning_effort: str | None = None
    template_kwargs: dict[str, Any] = {}
    engine_options: dict[str, Any] = {}


class CompletionTask(_Task, tag="completion", frozen=True, omit_defaults=True, kw_only=True):
    """Continue one raw prompt (text, or token ids of this model)."""

    prompt: str | tuple[int, ...]
    sampling: Sampling = Sampling()
    n: int = 1
    echo: bool = False
    suffix: str | None = None
    top_logprobs: int | None = None
    engine_options: dict[str, Any] = {}


Task: TypeAlias = ChatTask | CompletionTask


# --- events -------------------------------------------------------------------------------------------------


class TopLogprob(msgspec.Struct, frozen=True, array_like=True):
    """An alternative token with its natural-log probability."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None


class TokenLogprob(msgspec.Struct, frozen=True, array_like=True):
    """The chosen token with its natural-log probability and the best alternatives, best first."""

    token: str
    logprob: float
    bytes: tuple[int, ...] | None = None
    top: tuple[TopLogprob, ...] = ()


class Text(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """A piece of the answer of choice `index`. Logprobs, when asked for, cover exactly this text."""

    text: str
    index: int = 0
    logprobs: tuple[TokenLogprob, ...] = ()


class Reasoning(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """A piece of the model's thinking."""

    text: str
    index: int = 0


class ToolCallDelta(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """A piece of tool call number `call` (0, 1, …) of choice `index`.

    The first delta of a call carries `id` and `name`; later ones carry only `arguments`, and all of them
    joined are one JSON text. Calls do not interleave.
    """

    call: int
    arguments: str = ""
    id: str | None = None
    name: str | None = None
    index: int = 0


class Finish(msgspec.Struct, frozen=True, array_like=True, tag="f"):
    """Choice `index` is complete; exactly one for each choice."""

    reason: Literal["stop", "length", "tool_calls", "content_filter"]
    index: int = 0


class Usage(msgspec.Struct, frozen=True, array_like=True, tag="u"):
    """Token counts of the whole call, over all choices; the last event of a call, exactly one."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    reasoning_tokens: int = 0


Event: TypeAlias = Text | Reasoning | ToolCallDelta | Finish | Usage
