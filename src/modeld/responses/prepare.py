"""From a request to all that its run needs: everything that can be refused is refused here.

Nothing is generated and no server is asked yet, so that a refusal is a plain answer with a true status, on a
stream, on a socket and in the background alike.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from modeld.errors import StoreFailed
from modeld.gateway import routing
from modeld.gateway.decoding import missing
from modeld.gateway.families.chat import pictures
from modeld.gateway.families.chat.pictures import Album
from modeld.ids import Identity, new_id
from modeld.protocol.tasks import ChatTask, FunctionTool, Message, ToolChoice
from modeld.responses import history, inputs, turns
from modeld.responses.approvals import Answer, answers, check_verdicts
from modeld.responses.context import Context
from modeld.responses.history import Items, Memory
from modeld.responses.items import Response
from modeld.responses.mcp.servers import McpServer, read_servers
from modeld.responses.request import (
    ResponseRequest,
    check,
    check_shown,
    choice,
    functions,
    response,
    text_format,
    to_task,
)
from modeld.store.responses import Origin
from modeld.supervisor.states import Status

log = logging.getLogger("modeld.responses")


@dataclass(slots=True)
class Prepared:
    """A request that can be run. `messages` are the turns of `before` and `given`, pictures and all."""

    request: ResponseRequest
    identity: Identity
    gateway: str
    model: Status
    response: Response
    created: float
    before: Items
    given: Items
    origin: Origin
    messages: tuple[Message, ...]
    shown: tuple[FunctionTool, ...]
    choice: ToolChoice
    servers: tuple[McpServer, ...]
    approved: tuple[Answer, ...]
    claimed: tuple[str, ...] = ()
    """The approval requests that are answered by this one, for or against."""

    @property
    def stored(self) -> bool:
        """Whether the response can be fetched later."""
        return self.response.store or self.response.background


async def prepare(
    context: Context,
    request: ResponseRequest,
    *,
    identity: Identity,
    gateway: str,
    room: int | None = None,
    memory: Memory | None = None,
    dry: bool = False,
    empty: bool = False,
) -> Prepared:
    """Return what a request needs to be run. Raises ModeldError.

    `gateway` names the models that are there. `room`: bytes that fetched pictures may take, None for as many
    as a body may have. Approvals are claimed last of all: who is refused has used up none, nor has a
    `dry` run. `empty`: there need not be anything to answer.
    """
    check(request)
    status = routing.find(context.pool, gateway, request.model)
    if status.usecase != "generate":
        raise routing.wrong_use(request.model, status)
    given = tuple(inputs.kept([] if request.input is None else request.input, new_id))
    before, origin = await history.earlier(context, request, identity, memory)
    given = await history.resolved(context, identity, before, given)
    own = functions(request.tools or [])
    servers = read_servers(request.tools or [], context.mcp_policy)
    shown, chosen = choice(request.tool_choice, own, remote=bool(servers))
    check_shown(request)
    text_format(request.text)
    answered = answers(before, given, {server.label for server in servers})
    created = context.clock.time()
    prepared = Prepared(
        request=request,
        identity=identity,
        gateway=gateway,
        model=status,
        response=response(request, new_id("resp_"), int(created)),
        created=created,
        before=before,
        given=given,
        origin=origin,
        messages=(),
        shown=shown,
        choice=chosen,
        servers=servers,
        approved=tuple(answer for answer in answered if answer.approve),
    )
    prepared.messages = await read_messages(context, prepared, before, given, room)
    if not prepared.messages and not prepared.approved and not empty:
        raise missing("input", "there is nothing to answer")
    if answered and not dry:
        check_verdicts(await context.approvals.claim(identity, [answer.call for answer in answered]))
        prepared.claimed = tuple(answer.request for answer in answered)
    return prepared


async def release(context: Context, prepared: Prepared) -> None:
    """Let the answers of a request be given again, because nothing was done with them."""
    claimed, prepared.claimed = prepared.claimed, ()
    if claimed:
        try:
            await context.approvals.release(prepared.identity, claimed)
        except StoreFailed as failure:
            log.warning("answers to approval requests stay used up: %s", failure)


async def read_messages(
    context: Context, prepared: Prepared, before: Items, given: Items, room: int | None = None
) -> tuple[Message, ...]:
    """Return the turns of items, their pictures fetched. Raises BadRequest."""
    media = context.settings.media

    def unseal(kind: str, sealed: str) -> str:
        return context.seal.open(kind, sealed, prepared.identity)

    messages = turns.messages(
        before,
        given,
        prepared.request.instructions,
        album=None if routing.sees(prepared.model) is False else Album(media),
        unseal=unseal,
        exposed=lambda label, name: name,
    )
    if not messages:
        return ()
    task = await pictures.fetched(
        ChatTask(messages=messages),
        context.pictures,
        media,
        context.settings.max_request_body if room is None else room,
        lambda message, part: "input",
    )
    return task.messages


def task_of(prepared: Prepared, messages: tuple[Message, ...]) -> ChatTask:
    """Return the task of a first turn with these messages, without tools of servers."""
    return to_task(prepared.request, messages, prepared.shown, prepared.choice)


def context_length(context: Context, prepared: Prepared) -> int | None:
    """Return how many tokens the model holds, None when that is not known, as before it is loaded."""
    now = context.pool.find(prepared.gateway, prepared.request.model) or prepared.model
    return now.facts.context_length if now.facts is not None else None
