"""The body of a request for a response, and what it asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import UNSET, Meta

from modeld.gateway.decoding import check_free, decode, invalid, missing, unsupported
from modeld.gateway.families.chat.tools import NAME
from modeld.gateway.sampling import Count, Penalty, Share
from modeld.protocol.tasks import ChatTask, FunctionTool, Message, Sampling, TextFormat, ToolChoice
from modeld.responses.items import Response
from modeld.responses.mcp.servers import public

HOSTED = frozenset(
    {
        "web_search",
        "web_search_preview",
        "file_search",
        "code_interpreter",
        "image_generation",
        "computer",
        "computer_use_preview",
        "local_shell",
        "shell",
        "apply_patch",
        "tool_search",
    }
)
"""Tools that OpenAI hosts or that only its models know; some with a date behind their name."""

Label: TypeAlias = Annotated[str, Meta(max_length=512)]


Metadata: TypeAlias = Annotated[dict[Annotated[str, Meta(max_length=64)], Label], Meta(max_length=16)]
"""OpenAI's bounds: 16 pairs, keys of 64 and values of 512 characters."""


class _TextFormat(msgspec.Struct, tag_field="type", tag="text"):
    pass


class _JsonObject(msgspec.Struct, tag_field="type", tag="json_object"):
    pass


class _JsonSchema(msgspec.Struct, tag_field="type", tag="json_schema"):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    schema: dict[str, Any] | None = None
    strict: bool | None = None
    description: str | None = None


class _TextConfig(msgspec.Struct):
    format: _TextFormat | _JsonObject | _JsonSchema | None = None
    verbosity: Literal["low", "medium", "high"] | None = None


class _Reasoning(msgspec.Struct):
    effort: Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"] | None = None
    summary: Literal["auto", "concise", "detailed"] | None = None
    generate_summary: Literal["auto", "concise", "detailed"] | None = None


class _StreamOptions(msgspec.Struct):
    include_obfuscation: bool | None = None


class _BackgroundOptions(msgspec.Struct):
    completion_window: Literal["soonest", "2h", "8h"] | None = None


class _Conversation(msgspec.Struct):
    id: str


class ResponseRequest(msgspec.Struct, kw_only=True):
    """A body as OpenAI's SDKs send it. Unknown fields are ignored, null is absent.

    `generate` false, on a socket, asks for everything but an answer.
    """

    model: Annotated[str, Meta(min_length=1)]
    input: str | list[dict[str, Any]] | None = None
    instructions: str | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    store: bool | None = None
    background: bool | None = None
    previous_response_id: str | None = None
    conversation: str | _Conversation | None = None
    include: list[str] | None = None
    max_output_tokens: Count | None = None
    max_tool_calls: Annotated[int, Meta(ge=1)] | None = None
    metadata: Metadata | None = None
    parallel_tool_calls: bool | None = None
    prompt_cache_key: Label | None = None
    safety_identifier: Annotated[str, Meta(max_length=128)] | None = None
    user: Label | None = None
    service_tier: Literal["auto", "default", "flex", "scale", "priority", "fast", "ultrafast"] | None = None
    reasoning: _Reasoning | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    presence_penalty: Penalty | None = None
    frequency_penalty: Penalty | None = None
    text: _TextConfig | None = None
    tools: Annotated[list[dict[str, Any]], Meta(max_length=512)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    truncation: Literal["auto", "disabled"] | None = None
    prompt: Any = None
    background_options: _BackgroundOptions | None = None
    generate: bool | None = None
    keep_alive: float | str | None = None


_DECODER = msgspec.json.Decoder(ResponseRequest)


def read(raw: bytes | bytearray) -> ResponseRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DECODER, raw)


def check(request: ResponseRequest) -> None:
    """Refuse what does not fit together, or is not there. Raises BadRequest with `param`."""
    for at, name in enumerate(request.include or ()):
        if name not in INCLUDES:
            raise invalid(f"include[{at}]", f"there is no {name[:60]!r} to include")
    if request.prompt is not None:
        raise unsupported("prompt", "there are no stored prompts here; send instructions and input")
    if request.previous_response_id is not None and request.conversation is not None:
        raise invalid("previous_response_id", "a response continues another one or a conversation, not both")
    window = request.background_options.completion_window if request.background_options else None
    if window in ("2h", "8h") and request.stream:
        raise invalid("stream", f"a response with the completion_window {window} is not streamed; poll it")


class _Function(msgspec.Struct, tag_field="type", tag="function"):
    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None


def functions(bodies: list[dict[str, Any]]) -> tuple[FunctionTool, ...]:
    """Return the function tools of a request; those of the type mcp are read elsewhere.

    Raises BadRequest, naming the hosted ones.
    """
    found: dict[str, FunctionTool] = {}
    for at, body in enumerate(bodies):
        where = f"tools[{at}]"
        kind = str(body.get("type"))
        if kind == "mcp":
            continue
        if kind != "function":
            if kind in HOSTED or kind.startswith(("web_search", "computer")):
                raise unsupported(f"{where}.type", f"{kind} is a tool that OpenAI hosts; send a function")
            if kind == "custom":
                raise unsupported(f"{where}.type", "custom: calls of tools are JSON here; send a function")
            raise invalid(f"{where}.type", f"there is no tool {kind[:60]!r} here")
        try:
            tool = msgspec.convert(body, _Function)
        except msgspec.ValidationError as error:
            raise invalid(where, str(error).replace("`", "")) from None
        if not NAME.fullmatch(tool.name):
            raise invalid(f"{where}.name", "expected 1 to 128 of letters, digits and _ . : / -")
        if tool.name in found:
            raise invalid(f"{where}.name", f"{tool.name!r} is already the name of another tool")
        if tool.parameters is not None:
            check_free(tool.parameters, f"{where}.parameters")
        found[tool.name] = FunctionTool(
            name=tool.name, description=tool.description, parameters=tool.parameters, strict=tool.strict
        )
    return tuple(found.values())


def choice(
    wanted: str | dict[str, Any] | None, known: tuple[FunctionTool, ...], *, remote: bool = False
) -> tuple[tuple[FunctionTool, ...], ToolChoice]:
    """Return the functions that the model is shown and its choice among all tools. Raises BadRequest.

    `remote`: there are tools of MCP servers besides.
    """
    names = {tool.name for tool in known}
    if wanted is None or wanted == "auto":
        return known, ToolChoice()
    if wanted == "none":
        return known, ToolChoice(mode="none")
    if wanted == "required":
        if not known and not remote:
            raise invalid("tool_choice", "it asks for a tool call, but the request has no tools")
        return known, ToolChoice(mode="required")
    if isinstance(wanted, str):
        raise invalid("tool_choice", "expected none, auto, required or an object")
    kind = wanted.get("type")
    if kind == "function":
        _named(wanted.get("name"), names, "tool_choice.name")
        return known, ToolChoice(mode="function", name=wanted["name"])
    if kind == "allowed_tools":
        mode, listed = wanted.get("mode"), wanted.get("tools")
        if mode not in ("auto", "required"):
            raise invalid("tool_choice.mode", "expected auto or required")
        if not isinstance(listed, list) or not listed:
            raise invalid("tool_choice.tools", "it allows no tool")
        allowed = set()
        for at, tool in enumerate(listed):
            if isinstance(tool, dict) and tool.get("type") == "mcp":
                raise unsupported(
                    f"tool_choice.tools[{at}]", "use the mcp tool's own allowed_tools for an MCP server"
                )
            name = tool.get("name") if isinstance(tool, dict) else None
            _named(name, names, f"tool_choice.tools[{at}].name")
            allowed.add(name)
        # A tool that may not be called need not be in the prompt.
        shown = tuple(tool for tool in known if tool.name in allowed)
        return shown, ToolChoice(mode="required" if mode == "required" else "auto")
    if kind == "mcp":
        raise invalid("tool_choice", "an MCP server's tools cannot be forced; use auto")
    if isinstance(kind, str) and kind in HOSTED:
        raise unsupported("tool_choice.type", f"{kind} is a tool that OpenAI hosts")
    raise invalid("tool_choice.type", f"there is no choice {str(kind)[:60]!r}")


def check_shown(request: ResponseRequest) -> None:
    """Refuse what a response would show again and cannot: JSON without bounds in tools or the choice of one.

    Raises BadRequest.
    """
    for at, tool in enumerate(request.tools or ()):
        check_free(tool, f"tools[{at}]")
    check_free(request.tool_choice, "tool_choice")


def _named(name: Any, known: set[str], param: str) -> None:
    if not isinstance(name, str) or name not in known:
        raise invalid(param, f"the request has no tool named {str(name)[:128]!r}")


def text_format(config: _TextConfig | None) -> TextFormat:
    """Return the form of the answer. Raises BadRequest."""
    match config.format if config is not None else None:
        case _JsonSchema() as wanted:
            if wanted.schema is None:
                raise missing("text.format.schema", "json_schema needs a JSON Schema")
            check_free(wanted.schema, "text.format.schema")
            return TextFormat(
                kind="json_schema", name=wanted.name, schema=wanted.schema, strict=wanted.strict
            )
        case _JsonObject():
            return TextFormat(kind="json_object")
        case _:
            return TextFormat()


LOGPROBS = "message.output_text.logprobs"
ENCRYPTED = "reasoning.encrypted_content"
INCLUDES = frozenset(
    {
        LOGPROBS,
        ENCRYPTED,
        "message.input_image.image_url",
        "file_search_call.results",
        "web_search_call.results",
        "web_search_call.action.sources",
        "computer_call_output.output.image_url",
        "code_interpreter_call.outputs",
    }
)
"""What `include` may name; of tools that are not there, nothing is included."""


def to_task(
    request: ResponseRequest,
    messages: tuple[Message, ...],
    tools: tuple[FunctionTool, ...],
    choice: ToolChoice,
) -> ChatTask:
    """Return the task of one turn: its messages, and the tools that the model is shown in it."""
    wants = LOGPROBS in (request.include or ()) or request.top_logprobs is not None
    return ChatTask(
        messages=messages,
        sampling=Sampling(
            max_tokens=request.max_output_tokens,
            temperature=request.temperature,
            top_p=request.top_p,
            presence_penalty=request.presence_penalty,
            frequency_penalty=request.frequency_penalty,
        ),
        tools=tools,
        tool_choice=choice if tools else ToolChoice(),
        parallel_tool_calls=request.parallel_tool_calls is not False,
        format=text_format(request.text),
        top_logprobs=(request.top_logprobs or 0) if wants else None,
        reasoning_effort=request.reasoning.effort if request.reasoning is not None else None,
    )


def response(request: ResponseRequest, id: str, created: int) -> Response:
    """Return the response to a request as it is before any work: what was asked for, and the defaults."""
    wanted = request.text.format if request.text is not None else None
    text: dict[str, Any] = {"format": {"type": "text"}}
    if wanted is not None:
        text["format"] = {
            key: value for key, value in msgspec.to_builtins(wanted).items() if value is not None
        }
    if request.text is not None and request.text.verbosity is not None:
        text["verbosity"] = request.text.verbosity
    reasoning = None
    if request.reasoning is not None:
        asked = request.reasoning
        reasoning = {"effort": asked.effort, "summary": asked.summary or asked.generate_summary}
    conversation = request.conversation
    return Response(
        id=id,
        created_at=created,
        model=request.model,
        status="in_progress",
        background=bool(request.background),
        instructions=request.instructions,
        max_output_tokens=request.max_output_tokens,
        max_tool_calls=request.max_tool_calls,
        metadata=request.metadata or {},
        parallel_tool_calls=request.parallel_tool_calls is not False,
        previous_response_id=request.previous_response_id,
        conversation=UNSET
        if conversation is None
        else {"id": conversation if isinstance(conversation, str) else conversation.id},
        prompt_cache_key=request.prompt_cache_key,
        reasoning=reasoning,
        safety_identifier=request.safety_identifier,
        service_tier="auto" if request.service_tier in (None, "auto") else "default",
        store=stored(request),
        temperature=1.0 if request.temperature is None else request.temperature,
        top_p=1.0 if request.top_p is None else request.top_p,
        presence_penalty=request.presence_penalty or 0.0,
        frequency_penalty=request.frequency_penalty or 0.0,
        text=text,
        tool_choice=request.tool_choice or "auto",
        tools=[_echoed(tool) for tool in request.tools or ()],
        top_logprobs=request.top_logprobs or 0,
        truncation=request.truncation or "disabled",
        user=UNSET if request.user is None else request.user,
    )


def stored(request: ResponseRequest) -> bool:
    """Say whether a response is kept for long; one in the background is only when that is asked for."""
    return bool(request.store) if request.background else request.store is not False


def _echoed(tool: dict[str, Any]) -> dict[str, Any]:
    """Return a tool as responses show it: a function with all its keys, no secret of an MCP server."""
    if tool.get("type") == "mcp":
        return public(tool)
    return {"description": None, "parameters": None, "strict": None, **tool}
