"""One response, from its first event to its last: turns of the model, calls of servers' tools in between.

A run is one task and knows nothing of connections. Its events go to an outlet: a stream, a socket, or a log
in the store. Cancelling the task ends the call of the model and those of the tools.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol, TypeVar

import msgspec

from modeld.errors import (
    BadRequest,
    DeadlineExceeded,
    EngineError,
    ModeldError,
    Overloaded,
    StoreFailed,
    UpstreamFailed,
)
from modeld.gateway import keep_alive
from modeld.gateway.envelope import BUG, row_of
from modeld.ids import new_id
from modeld.protocol.tasks import ChatTask, Event, FunctionTool, Message, ToolChoice, Usage
from modeld.responses import turns
from modeld.responses.asking import count_tokens
from modeld.responses.context import Context
from modeld.responses.events import StreamEvent
from modeld.responses.history import Items
from modeld.responses.inputs import Item
from modeld.responses.items import Response
from modeld.responses.mcp.session import CallResult, Toolbox
from modeld.responses.mcp.tools import RemoteTool, choose, expose
from modeld.responses.prepare import Prepared, context_length, read_messages, release
from modeld.responses.request import ENCRYPTED, to_task
from modeld.responses.translator import HeldCall, Translator
from modeld.responses.truncation import fitted
from modeld.store.approvals import digest
from modeld.supervisor.admission import Priority

log = logging.getLogger("modeld.responses")

MOST_TURNS = 10
"""Turns of the model in one response; in the last one it has no servers' tools, so that it answers."""

T = TypeVar("T")


class Outlet(Protocol):
    """Where a run's events go."""

    @property
    def started(self) -> bool:
        """Whether something has been sent, so that a failure must be an event too."""
        ...

    async def send(self, events: Sequence[StreamEvent]) -> None:
        """Send events. Raises ConnectionError when nobody is there any more."""
        ...

    async def idle(self) -> None:
        """Show that the run is alive; nothing has come for as long as keep-alives are apart."""
        ...

    async def keep(self, response: Response, terminal: StreamEvent) -> None:
        """Store the response, before its terminal event is sent. Raises StoreFailed."""
        ...


class Run:
    """One response on its way."""

    def __init__(
        self,
        context: Context,
        prepared: Prepared,
        outlet: Outlet,
        priority: Priority,
        *,
        queued: bool = False,
        before_tools: Callable[[], Awaitable[None]] | None = None,
    ) -> None:
        """`queued`: the first events, created and queued, are sent by who made this run.

        `before_tools` is awaited before servers' tools are called: what they do cannot be undone. What it
        raises ends the run.
        """
        self.prepared = prepared
        self.first_event: float | None = None
        self.events = 0
        self._context = context
        self._outlet = outlet
        self._priority = priority
        self._queued = queued
        self._before_tools = before_tools
        self._begun = False
        self._pending: list[StreamEvent] = []
        self._calls = 0
        self._tools: dict[str, RemoteTool] = {}
        self._asked: list[tuple[str, bytes]] = []
        self._silent_since = self.started = context.clock.monotonic()
        request, identity = prepared.request, prepared.identity

        def seal(thought: str) -> str:
            return context.seal.seal("reasoning", thought, identity)

        self.translator = Translator(
            prepared.response,
            new_id,
            summarised=bool(
                request.reasoning and (request.reasoning.summary or request.reasoning.generate_summary)
            ),
            seal=seal if ENCRYPTED in (request.include or ()) else None,
            remote=self._tools,
        )

    @property
    def response(self) -> Response:
        """The response after the last event."""
        return self.translator.response

    @property
    def usage(self) -> Usage | None:
        """Tokens so far."""
        used = self.response.usage
        if used is None:
            return None
        return Usage(
            used.input_tokens,
            used.output_tokens,
            used.input_tokens_details.cached_tokens,
            used.output_tokens_details.reasoning_tokens,
        )

    async def go(self) -> Response:
        """Run it to its end, and return the response.

        Raises ModeldError as long as the outlet has not started; after that a failure is the response's end.
        ConnectionError of the outlet, and cancellation, pass through.
        """
        try:
            return await self._go()
        finally:
            await release(self._context, self.prepared)

    async def _go(self) -> Response:
        try:
            await self._work()
            await self._send(self.translator.settle())
        except ConnectionError:
            raise
        except Exception as error:
            if not self._outlet.started:
                raise
            await self._fail(error)
            return self.response
        terminal = self.translator.finish(self._now())
        try:
            await self._keep(terminal)
        except StoreFailed as failure:
            if not self._outlet.started:
                raise
            await self._give_up(failure)
        else:
            await self._send([terminal])
        return self.response

    # --- turns ----------------------------------------------------------------------------------------------

    async def _work(self) -> None:
        if not self.prepared.servers:
            await self._turn(self._task(self.prepared.messages, first=True))
            self._finished()
            return
        async with Toolbox(self.prepared.servers, self._context.mcp, self._context.mcp_limits) as toolbox:
            await self._list(toolbox)
            await self._run_approved(toolbox)
            for number in range(1, MOST_TURNS + 1):
                remote = number < MOST_TURNS and self._calls_left != 0
                messages = (*self.prepared.messages, *self._own_turns())
                await self._turn(self._task(messages, first=number == 1, remote=remote))
                self._finished()
                await self._send(self.translator.settle())
                held = self.translator.take_held()
                if not held:
                    return
                await self._send(self.translator.turn())
                if not await self._serve(toolbox, held):
                    return

    def _task(self, messages: tuple[Message, ...], *, first: bool, remote: bool = False) -> ChatTask:
        """Return the task of a turn. Only the first is bound by the choice: a forced call is made once."""
        tools: tuple[FunctionTool, ...] = self.prepared.shown
        if remote:
            tools += tuple(
                FunctionTool(name=name, description=tool.description, parameters=tool.schema)
                for name, tool in self._tools.items()
            )
        choice = self.prepared.choice if first or self.prepared.choice.mode == "none" else ToolChoice()
        return to_task(self.prepared.request, messages, tools, choice)

    async def _turn(self, task: ChatTask) -> None:
        try:
            await self._ask(task)
        except BadRequest as refusal:
            if refusal.code != "context_length_exceeded":
                raise
            if self.prepared.request.truncation != "auto":
                raise _of_input(refusal) from None
            shorter = await self._shortened(task, refusal)
            try:
                await self._ask(shorter)
            except BadRequest as again:
                raise _of_input(again) from None

    async def _ask(self, task: ChatTask) -> None:
        while True:
            try:
                await self._ask_once(task)
                return
            except Overloaded as full:
                if not self._queued:
                    raise
                # Nobody waits for this one: it comes back when the queue may be shorter.
                await asyncio.sleep(full.retry_after)

    async def _ask_once(self, task: ChatTask) -> None:
        context, interval = self._context, self._context.settings.keepalive_interval
        opening = context.pool.open(
            self.prepared.model.name,
            task,
            self.prepared.identity,
            priority=self._priority,
            keep_alive=keep_alive.seconds(self.prepared.request.keep_alive),
        )
        async with opening as stream:
            while True:
                left = max(self._silent_since + interval - context.clock.monotonic(), 0.0)
                events = await stream.take(self._patience(left))
                if events is None:
                    return
                if events:
                    await self._feed(events)
                else:
                    await self._idle()

    async def _feed(self, events: list[Event]) -> None:
        if self.first_event is None:
            self.first_event = self._context.clock.monotonic()
        self._open()
        await self._send(self.translator.feed(events))

    def _finished(self) -> None:
        if self.translator.reason is None:
            raise EngineError(
                "the engine ended the call without finishing its answer", code="incomplete_answer"
            )

    def _own_turns(self) -> tuple[Message, ...]:
        """Return the turns of what this response has brought so far."""
        return turns.messages(
            (), as_items(self.response), None, album=None, unseal=None, exposed=self._exposed_name
        )

    async def _shortened(self, task: ChatTask, refusal: BadRequest) -> ChatTask:
        """Return the task with a prompt that fits: the oldest items are left out. Raises BadRequest."""
        prepared, context = self.prepared, self._context
        length, most = context_length(context, prepared), prepared.request.max_output_tokens
        if length is None:
            raise _of_input(refusal)

        async def with_items(before: Items, given: Items) -> ChatTask:
            messages = await read_messages(context, prepared, before, given)
            return msgspec.structs.replace(task, messages=(*messages, *self._own_turns()))

        async def count(items: Sequence[Item]) -> int:
            return await count_tokens(context, prepared, await with_items(tuple(items), ()), self._priority)

        before, given = await fitted(prepared.before, prepared.given, count, length, most)
        prepared.messages = await read_messages(context, prepared, before, given)
        return msgspec.structs.replace(task, messages=(*prepared.messages, *self._own_turns()))

    # --- tools of servers -----------------------------------------------------------------------------------

    @property
    def _calls_left(self) -> int:
        most = self.prepared.request.max_tool_calls
        return -1 if most is None else most - self._calls

    async def _list(self, toolbox: Toolbox) -> None:
        """Learn what tools there are: from the chain if it knows, else from the server."""
        listed: list[RemoteTool] = []
        for server in self.prepared.servers:
            known = _listed_before(self.prepared, server.label)
            if known is None:
                known = await self._ask_for_tools(toolbox, server.label)
            listed += choose(server, known)
        taken = {tool.name for tool in self.prepared.shown}
        self._tools.update((tool.exposed, tool) for tool in expose(listed, taken))

    async def _ask_for_tools(self, toolbox: Toolbox, label: str) -> list[dict[str, Any]]:
        self._open()
        await self._send(self.translator.list_begin(label))
        try:
            tools = await self._patiently(toolbox.list(label))
        except UpstreamFailed as failure:
            await self._send(self.translator.list_end([], failure.message))
            raise
        await self._send(self.translator.list_end(tools))
        return tools

    async def _run_approved(self, toolbox: Toolbox) -> None:
        calls = [
            (answer.label, answer.name, answer.arguments, answer.request) for answer in self.prepared.approved
        ]
        if calls:
            await self._about_to_call()
            self.prepared.claimed = ()  # from here on they are used up, whatever comes of it
        await self._run(toolbox, calls)

    async def _serve(self, toolbox: Toolbox, held: Sequence[HeldCall]) -> bool:
        """Run the calls of a turn, or ask for approval. Returns whether the model is to go on."""
        calls: list[tuple[str, str, str, str | None]] = []
        asked: list[tuple[RemoteTool, str]] = []
        for call in held:
            tool = self._tools[call.name]
            if tool.needs_approval:
                asked.append((tool, call.arguments))
            elif self._calls_left != 0 and (self._calls_left < 0 or len(calls) < self._calls_left):
                calls.append((tool.label, tool.name, call.arguments, None))
        if calls:
            await self._about_to_call()
        await self._run(toolbox, calls)
        for tool, arguments in asked:
            await self._send(self.translator.approval(tool.label, tool.name, arguments))
            item = self.response.output[-1]
            self._asked.append((item.id, digest(tool.label, tool.name, arguments)))
        return not asked and not self.translator.calls

    async def _about_to_call(self) -> None:
        if self._before_tools is not None:
            await self._before_tools()

    async def _run(self, toolbox: Toolbox, calls: Sequence[tuple[str, str, str, str | None]]) -> None:
        """Run calls at the same time, and tell of them one after the other."""
        if not calls:
            return
        self._open()
        self._calls += len(calls)
        try:
            async with asyncio.TaskGroup() as group:
                running = [
                    group.create_task(toolbox.call(label, name, arguments))
                    for label, name, arguments, _ in calls
                ]
                for (label, name, arguments, request), task in zip(calls, running, strict=True):
                    await self._send(self.translator.call_begin(label, name, arguments, request))
                    result: CallResult = await self._patiently(task)
                    self._context.metrics.mcp_called(
                        self.prepared.model.name, "ok" if result.error is None else "failed"
                    )
                    await self._send(self.translator.call_end(result.output, result.error))
        except ExceptionGroup as group_of_one:
            # The time is over, or the reader gone: no call raises anything itself.
            raise group_of_one.exceptions[0] from None

    def _exposed_name(self, label: str, name: str) -> str:
        for exposed, tool in self._tools.items():
            if (tool.label, tool.name) == (label, name):
                return exposed
        return name

    # --- sending --------------------------------------------------------------------------------------------

    def _open(self) -> None:
        """Make the first events, once; they leave with those that come next, or when nothing comes."""
        if not self._begun:
            self._begun = True
            self._pending = self.translator.progress() if self._queued else self.translator.begin()

    async def _send(self, events: Sequence[StreamEvent]) -> None:
        if self._pending:
            events, self._pending = [*self._pending, *events], []
        if events:
            self.events += len(events)
            await self._outlet.send(events)
            self._silent_since = self._context.clock.monotonic()

    async def _idle(self) -> None:
        """Show life where nothing has come for long; what nobody waits for stays queued in silence."""
        if self._context.clock.monotonic() - self._silent_since < self._context.settings.keepalive_interval:
            return
        self._silent_since = self._context.clock.monotonic()
        if not self._queued:
            self._open()
        if self._pending:
            await self._send([])
        else:
            await self._outlet.idle()

    async def _patiently(self, work: Awaitable[T]) -> T:
        """Wait for work, with signs of life; cancelled, it cancels the work."""
        task = asyncio.ensure_future(work)
        interval = self._context.settings.keepalive_interval
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=self._patience(interval))
                if not task.done():
                    await self._idle()
        except BaseException:
            task.cancel()
            await asyncio.wait({task})
            raise
        return task.result()

    def _patience(self, timeout: float) -> float:
        """Return for how long to wait: no longer than the request may still take."""
        limit = self._context.settings.request_timeout
        if limit is None or self._queued:
            return timeout
        left = self.started + limit - self._context.clock.monotonic()
        if left <= 0:
            raise DeadlineExceeded(
                f"the request took longer than request_timeout, {limit:g} s", code="request_timeout"
            )
        return min(timeout, left)

    # --- ends -----------------------------------------------------------------------------------------------

    async def _keep(self, terminal: StreamEvent) -> None:
        prepared = self.prepared
        if self._asked:
            expires = self._context.expires(self._now(), store=True)
            await self._context.approvals.ask(prepared.identity, self._asked, expires)
        await self._outlet.keep(self.response, terminal)
        prepared.claimed = ()

    async def _fail(self, error: Exception) -> None:
        """End as failed: an event that says why, and the terminal one, which is stored if possible."""
        self._open()
        row = row_of(error)
        if row is BUG or not isinstance(error, ModeldError):
            log.error("bug in a response", exc_info=error, extra={"response": self.response.id})
            error = ModeldError(f"modeld failed to answer; its log has the reason under {self.response.id}")
        told = self.translator.error(error.code, error.message, error.param, row.type)
        [terminal] = self.translator.fail(code_of(error), error.message, self._now())
        await self._send(told)
        try:
            await self._outlet.keep(self.response, terminal)
        except StoreFailed as failure:
            log.warning("a failed response is not stored: %s", failure, extra={"response": self.response.id})
        await self._send([terminal])

    async def _give_up(self, failure: StoreFailed) -> None:
        """End as failed a response that is complete and cannot be stored: what is not stored is not sent."""
        log.error("a response cannot be stored: %s", failure, extra={"response": self.response.id})
        await self._send(self.translator.fail(code_of(failure), failure.message, self._now()))

    def _now(self) -> int:
        # A clock that is set back meanwhile does not end a response before its beginning.
        return max(int(self._context.clock.time()), self.response.created_at)


def code_of(error: ModeldError) -> str:
    """Return the code of a failed response: one of OpenAI's closed list."""
    if isinstance(error, BadRequest):
        return "invalid_prompt"
    return "rate_limit_exceeded" if isinstance(error, Overloaded) else "server_error"


def as_items(response: Response) -> tuple[Item, ...]:
    """Return a response's output as items are kept."""
    return tuple(msgspec.to_builtins(item) for item in response.output)


def _of_input(refusal: BadRequest) -> BadRequest:
    """Return the engine's refusal of a prompt in the words of this API."""
    if refusal.code != "context_length_exceeded":
        return refusal
    return BadRequest(refusal.message, code=refusal.code, param="input")


def _listed_before(prepared: Prepared, label: str) -> list[dict[str, Any]] | None:
    """Return a server's tools as the chain has them, None when it was not listed yet."""
    for item in reversed((*prepared.before, *prepared.given)):
        if item["type"] == "mcp_list_tools" and item.get("server_label") == label and not item.get("error"):
            return list(item["tools"])
    return None
