"""Questions to a model beside the answer itself: how long a prompt is, what a conversation is in short."""

from __future__ import annotations

from modeld.errors import EngineError
from modeld.protocol.tasks import ChatTask, CountTask, Event, Task, Usage
from modeld.responses.context import Context
from modeld.responses.prepare import Prepared
from modeld.supervisor.admission import Priority

WAIT_S = 60.0
"""Seconds of one wait for the engine; the queue's own limits end it."""


async def count_tokens(context: Context, prepared: Prepared, task: ChatTask, priority: Priority) -> int:
    """Return how many tokens the prompt of a task has, by the engine. Raises ModeldError."""
    for event in await ask(context, prepared, CountTask(chat=task), priority):
        if isinstance(event, Usage):
            return event.prompt_tokens
    raise EngineError("the engine did not say how many tokens the prompt has", code="incomplete_answer")


async def ask(context: Context, prepared: Prepared, task: Task, priority: Priority) -> list[Event]:
    """Return all that a model answers to a task. Raises ModeldError."""
    answer: list[Event] = []
    async with context.pool.open(prepared.model.name, task, prepared.identity, priority=priority) as stream:
        while (events := await stream.take(WAIT_S)) is not None:
            answer += events
    return answer
