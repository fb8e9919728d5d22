"""Having a model read a prompt before there is anything to answer, so that the answer comes sooner."""

from __future__ import annotations

import asyncio
import logging

import msgspec

from modeld.errors import BadRequest, DeadlineExceeded
from modeld.gateway import keep_alive
from modeld.protocol.tasks import Usage
from modeld.responses.context import Context
from modeld.responses.prepare import Prepared, task_of
from modeld.supervisor.admission import Priority

log = logging.getLogger("modeld.responses")

NOTHING = Usage(prompt_tokens=0, completion_tokens=0)


async def read_prompt(context: Context, prepared: Prepared, priority: Priority) -> Usage:
    """Load the model if need be and have it read the prompt; return what that took. Raises ModeldError.

    The engine is asked for one token, which nobody sees: none of them can read without answering. A prompt
    that an engine refuses as it stands may be the beginning of one that it takes: many chat templates want a
    user's turn. So that is no failure, unless the prompt is too long.
    """
    if not prepared.messages:
        return NOTHING
    limit = context.settings.request_timeout
    try:
        async with asyncio.timeout(limit):
            return await _read(context, prepared, priority)
    except TimeoutError:
        raise DeadlineExceeded(
            f"the request took longer than request_timeout, {limit:g} s", code="request_timeout"
        ) from None
    except BadRequest as refusal:
        if refusal.code == "context_length_exceeded" and prepared.request.truncation != "auto":
            raise BadRequest(refusal.message, code=refusal.code, param="input") from None
        log.debug("a prompt is not read ahead: %s", refusal, extra={"response": prepared.response.id})
        return NOTHING


async def _read(context: Context, prepared: Prepared, priority: Priority) -> Usage:
    task = task_of(prepared, prepared.messages)
    task = msgspec.structs.replace(task, sampling=msgspec.structs.replace(task.sampling, max_tokens=1))
    opening = context.pool.open(
        prepared.model.name,
        task,
        prepared.identity,
        priority=priority,
        keep_alive=keep_alive.seconds(prepared.request.keep_alive),
    )
    used = NOTHING
    async with opening as stream:
        while (events := await stream.take(context.settings.keepalive_interval)) is not None:
            for event in events:
                if isinstance(event, Usage):
                    used = event
    return used
