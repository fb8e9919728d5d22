"""What to ask the engine for, and how to read its answer, so that tools are never dropped in silence.

An engine cannot be trusted with tools: many chat templates show the model none, and few engines hold a model
to a tool choice. But every engine holds it to a JSON Schema. So:

=================== ========================== =====================================================
choice              template renders tools     template knows none
=================== ========================== =====================================================
none, or no tools   plain                      plain; past calls and results as text
auto                native                     tools in the system message, calls parsed from text
auto with a format  schema: calls or format    the same, tools in the system message
required, function  schema: calls              the same, tools in the system message
=================== ========================== =====================================================

An engine that enforces choices by itself (`enforces_choice`) is asked natively for the last row too. Where
the template renders tools but the engine does not parse calls (`parses_calls` False), we parse its text.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from modeld.protocol.tasks import ChatTask, FunctionTool, Message
from modeld.worker.tools import prompt
from modeld.worker.tools.checks import check_tools
from modeld.worker.tools.formats import ENVELOPE
from modeld.worker.tools.messages import prepare
from modeld.worker.tools.parser import CallParser, Mode
from modeld.worker.tools.schemas import MAX_CALLS, answer_schema, calls_schema, envelope_for, union_schema


@dataclass(frozen=True, slots=True)
class TemplateFacts:
    """What is known of a model's chat template and of its engine.

    `renders_tools`: tools given to the template reach the prompt. `late_system`: a system message may stand
    anywhere. `enforces_choice`: the engine itself holds the model to "required" and to a named function.
    `parses_calls`: the engine turns the model's native calls into tool calls.
    """

    renders_tools: bool
    late_system: bool = True
    enforces_choice: bool = False
    parses_calls: bool = True


class ParserFactory(Protocol):
    """Makes a fresh parser for each choice."""

    def __call__(self, index: int = 0) -> CallParser:
        """Return a parser whose events belong to choice `index`."""
        ...


@dataclass(frozen=True, slots=True)
class Plan:
    """One chat request as the engine gets it.

    `messages` are to be rendered. `native_tools`: give `tools` to the template. `native_calls`: the engine
    parses calls itself and gets the task's tool_choice and parallel_tool_calls; the parser passes text on.
    `schema` constrains the whole answer; else `json_object` asks for any JSON object. `parser` makes one
    `CallParser` per choice.
    """

    messages: tuple[Message, ...]
    native_tools: bool
    native_calls: bool
    schema: dict[str, Any] | None
    json_object: bool
    parser: ParserFactory


def plan(task: ChatTask, facts: TemplateFacts) -> Plan:
    """Decide how to serve a chat task. Raises BadRequest, with `param`, for what can never work."""
    check_tools(task)
    choice, form = task.tool_choice, task.format
    renders = facts.renders_tools

    def conversation(*lines: str) -> tuple[Message, ...]:
        extra = "\n\n".join(line for line in lines if line)
        return prepare(task.messages, tools_as_text=not renders, late_system=facts.late_system, extra=extra)

    if not task.tools or choice.mode == "none":
        return Plan(
            messages=conversation(),
            native_tools=False,
            native_calls=False,
            schema=answer_schema(form.schema) if form.kind == "json_schema" else None,
            json_object=form.kind == "json_object",
            parser=_factory(Mode.PLAIN),
        )

    enforced = choice.mode != "auto"
    native = renders and facts.parses_calls and (facts.enforces_choice if enforced else form.kind == "text")
    if native:
        return Plan(conversation(), True, True, None, False, _factory(Mode.PLAIN))

    tools = [tool for tool in task.tools if choice.mode != "function" or tool.name == choice.name]
    single = choice.mode == "function" or not task.parallel_tool_calls
    listed = "" if renders else prompt.tool_list(tools)
    most = 1 if single else MAX_CALLS
    if enforced:
        messages = conversation(listed, prompt.enforced_rule(ENVELOPE))
        schema = calls_schema(tools, most=most)
        return Plan(messages, renders, False, schema, False, _factory(Mode.CALLS, tools, single))
    if form.kind == "text":
        messages = conversation(listed, "" if renders else prompt.free_rule(parallel=not single))
        return Plan(messages, renders, False, None, False, _factory(Mode.FREE, tools, single))
    envelope = envelope_for(form.schema)
    messages = conversation(listed, prompt.union_rule(envelope))
    schema = union_schema(tools, most=most, envelope=envelope, answer=form.schema)
    return Plan(messages, renders, False, schema, False, _factory(Mode.UNION, tools, single, envelope))


def _factory(
    mode: Mode, tools: Sequence[FunctionTool] = (), single: bool = False, envelope: str = ENVELOPE
) -> ParserFactory:
    schemas = {tool.name: tool.parameters for tool in tools}

    def parser(index: int = 0) -> CallParser:
        return CallParser(mode, schemas, index=index, limit=1 if single else None, envelope=envelope)

    return parser
