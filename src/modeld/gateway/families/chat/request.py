"""The body of a chat request, and the task it asks for."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from modeld.gateway.decoding import check_free, decode, invalid, missing, unsupported
from modeld.gateway.families.chat.messages import MessageBody, to_messages
from modeld.gateway.families.chat.pictures import Album
from modeld.gateway.families.chat.tools import ToolBody, ToolChoiceBody, to_tools
from modeld.gateway.sampling import Count, SamplingFields, engine_options, sampling
from modeld.gateway.settings import MediaSettings
from modeld.protocol.tasks import ChatTask, TextFormat


class _TextFormat(msgspec.Struct, tag="text"):
    pass


class _JsonObject(msgspec.Struct, tag="json_object"):
    schema: dict[str, Any] | None = None


class _Schema(msgspec.Struct):
    name: Annotated[str, Meta(min_length=1, max_length=200)]
    schema: dict[str, Any] | None = None
    strict: bool | None = None


class _JsonSchema(msgspec.Struct, tag="json_schema"):
    json_schema: _Schema


_Format: TypeAlias = _TextFormat | _JsonObject | _JsonSchema


class ChatRequest(SamplingFields, kw_only=True):
    """A body as OpenAI's SDKs send it. Unknown fields are ignored, null is absent."""

    messages: Annotated[list[MessageBody], Meta(min_length=1)]
    max_completion_tokens: Count | None = None
    logprobs: bool | None = None
    top_logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    tools: Annotated[list[ToolBody], Meta(max_length=512)] | None = None
    tool_choice: Literal["none", "auto", "required"] | ToolChoiceBody | None = None
    parallel_tool_calls: bool | None = None
    response_format: _Format | None = None
    reasoning_effort: Annotated[str, Meta(min_length=1, max_length=40)] | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    modalities: list[str] | None = None
    audio: Any = None
    functions: Any = None
    function_call: Any = None
    web_search_options: Any = None


_DEFAULT_MEDIA = MediaSettings()
_DECODER = msgspec.json.Decoder(ChatRequest)


def read(raw: bytes | bytearray) -> ChatRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DECODER, raw)


def to_task(request: ChatRequest, *, vision: bool | None, media: MediaSettings = _DEFAULT_MEDIA) -> ChatTask:
    """Return the task a request asks for. Raises BadRequest with `param`.

    `vision` says whether the model sees pictures; None when that is not known before it is loaded, in which
    case its worker decides. Pictures named by http URLs stand in it as such: `pictures.fetched` fetches them.
    """
    _refuse_unsupported(request)
    if request.top_logprobs is not None and not request.logprobs:
        raise invalid("top_logprobs", "it needs logprobs: true")
    tools, choice = to_tools(request.tools or [], request.tool_choice)
    if request.chat_template_kwargs is not None:
        check_free(request.chat_template_kwargs, "chat_template_kwargs")
    limit = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    return ChatTask(
        messages=to_messages(request.messages, album=None if vision is False else Album(media)),
        sampling=sampling(request, limit),
        n=request.n or 1,
        tools=tools,
        tool_choice=choice,
        parallel_tool_calls=request.parallel_tool_calls is not False,
        format=_format(request.response_format),
        top_logprobs=(request.top_logprobs or 0) if request.logprobs else None,
        reasoning_effort=request.reasoning_effort,
        template_kwargs=request.chat_template_kwargs or {},
        engine_options=engine_options(request),
    )


def _refuse_unsupported(request: ChatRequest) -> None:
    if request.grammar and request.tools:
        raise invalid("grammar", "calls of tools have a form of their own; send a grammar or tools, not both")
    if (
        request.grammar
        and request.response_format is not None
        and _format(request.response_format).kind != "text"
    ):
        raise invalid("grammar", "response_format asks for another form; send one of the two")
    if request.functions is not None:
        raise unsupported("functions", "it was replaced by tools; send tools instead")
    if request.function_call is not None:
        raise unsupported("function_call", "it was replaced by tool_choice; send tool_choice instead")
    if request.audio is not None:
        raise unsupported("audio", "chat answers are text only")
    if any(modality != "text" for modality in request.modalities or ()):
        raise unsupported("modalities", "chat answers are text only")
    if request.web_search_options is not None:
        raise unsupported("web_search_options", "modeld does not search the web")


def _format(body: _Format | None) -> TextFormat:
    match body:
        case _JsonSchema(json_schema=schema):
            if schema.schema is None:
                raise missing("response_format.json_schema.schema", "json_schema needs a JSON Schema")
            check_free(schema.schema, "response_format.json_schema.schema")
            return TextFormat(
                kind="json_schema", name=schema.name, schema=schema.schema, strict=schema.strict
            )
        case _JsonObject(schema=dict() as schema):  # llama.cpp's own way of asking for a schema
            check_free(schema, "response_format.schema")
            return TextFormat(kind="json_schema", name="response", schema=schema)
        case _JsonObject():
            return TextFormat(kind="json_object")
        case _:
            return TextFormat()
