"""What every loader owes, whatever its engine: one suite, which each passes with a model of its own.

A test module derives a class from `LoaderContract` for each loader and gives it a `case`. One worker serves
all tests of a class that leave it whole, since some engines take half a minute to load; the tests that end
it come last.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest
import pytest_asyncio

from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.tasks import (
    ChatTask,
    CountTask,
    Event,
    FunctionTool,
    Message,
    Sampling,
    Task,
    TextFormat,
    ToolCall,
    ToolChoice,
    Usage,
)
from tests.harness.loaded import Loaded, loaded, rest

CANCEL_S = 30.0
"""Seconds in which a cancelled call is over, also on a busy machine; every `long` task takes far longer."""

ENOUGH_S = 90.0
"""Seconds in which short tasks are answered, also on a busy machine; every `long` task takes far longer."""

MIB = 1024**2


BRIEF = Message(role="system", content="Be brief.")
ASK = Message(role="user", content="What is <|im_start|> the weather in Paris, and why? ☂")
CALL = Message(
    role="assistant", tool_calls=(ToolCall(id="call_1", name="weather", arguments='{"city": "Paris"}'),)
)
RESULT = Message(role="tool", tool_call_id="call_1", content="It rains.")
WEATHER = FunctionTool(
    name="weather",
    description="Get the weather of a city.",
    parameters={"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
)
FORM = TextFormat(
    kind="json_schema",
    name="form",
    schema={"type": "object", "properties": {"sky": {"type": "string"}}, "required": ["sky"]},
)

CHATS: tuple[ChatTask, ...] = tuple(
    ChatTask(messages=messages, sampling=Sampling(max_tokens=1, temperature=0.0), **fields)
    for messages, fields in (
        ((ASK,), {}),
        ((BRIEF, ASK), {}),
        ((BRIEF, ASK, Message(role="assistant", content="Rain."), ASK), {}),
        ((ASK,), {"tools": (WEATHER,)}),
        ((BRIEF, ASK, CALL, RESULT), {"tools": (WEATHER,)}),
        ((BRIEF, ASK, CALL, RESULT), {}),
        ((ASK,), {"tools": (WEATHER,), "tool_choice": ToolChoice(mode="none")}),
        ((ASK,), {"tools": (WEATHER,), "tool_choice": ToolChoice(mode="function", name="weather")}),
        ((ASK,), {"tools": (WEATHER,), "format": FORM}),
        ((ASK,), {"format": FORM}),
        ((ASK,), {"reasoning_effort": "none"}),
    )
)
"""Conversations of every form that a prompt can take, to be counted."""


@dataclass(frozen=True)
class Case:
    """One loader with a model of its own, and the tasks it is tried with.

    `model` builds the model's files and returns their path. `short` is answered in seconds, with `pieces`
    events or more before its Usage, the last of them of the type `ends`; `long` would take minutes in every
    slot, and sends a first event soon. `bad` is a task of the right kind that cannot be done, and `foreign`
    one of a kind that this model does not do. `broken` makes, in an empty folder, what must fail to load for
    good, with `words` (a regular expression) in the reason. `log` stands in the worker's log once it has
    answered. `memory` in bytes is the least a loaded worker takes.
    """

    loader: str
    usecase: str
    model: Callable[[], Path]
    options: Mapping[str, Any]
    capabilities: frozenset[str]
    short: Task
    ends: type[Event]
    long: Task
    bad: Task
    foreign: Task
    broken: Callable[[Path, Path], tuple[Path, Mapping[str, Any]]]
    words: str
    log: str
    pieces: int = 2
    slots: int = 1
    memory: int = 40 * MIB

    def loaded(self, folder: Path) -> AbstractAsyncContextManager[Loaded]:
        """Load the model in a worker of its own."""
        return loaded(folder, self.model(), self.loader, self.usecase, **self.options)


@pytest.mark.asyncio(loop_scope="class")
class LoaderContract:
    """The suite."""

    case: ClassVar[Case]

    @pytest_asyncio.fixture(scope="class", loop_scope="class")
    @classmethod
    async def it(cls) -> AsyncIterator[Loaded]:
        """Give the worker that all tests share."""
        with tempfile.TemporaryDirectory(prefix="md") as folder:
            async with cls.case.loaded(Path(folder)) as one:
                yield one

    async def test_it_loads_with_progress_and_tells_the_truth_about_itself(self, it: Loaded) -> None:
        """Loading reports stages and growing fractions; the facts name loader, memory and abilities."""
        fractions = [fraction for _, fraction in it.stages if fraction is not None]
        assert it.stages
        assert all(stage for stage, _ in it.stages)
        assert fractions == sorted(fractions)
        assert all(0 <= fraction <= 1 for fraction in fractions)
        assert it.facts.loader == self.case.loader
        assert it.facts.device
        assert it.facts.slots == self.case.slots
        assert it.facts.detail["engine"]
        assert set(it.facts.capabilities) == self.case.capabilities
        measured = host.tree_memory(it.worker.pid)
        assert measured >= self.case.memory
        assert it.facts.bytes_used >= self.case.memory / 2

    async def test_it_serves_piece_by_piece_and_ends_with_its_usage(self, it: Loaded) -> None:
        """A call's events are pieces of the answer, its end, and exactly one Usage."""
        events = await it.ask(self.case.short)
        assert [type(event) for event in events].count(Usage) == 1
        assert [type(event) for event in events[-2:]] == [self.case.ends, Usage]
        assert len(events) > self.case.pieces

    async def test_two_calls_at_once_are_both_answered(self, it: Loaded) -> None:
        """Neither is lost, mixed up with the other or refused, however few slots there are."""
        first, second = await asyncio.gather(*(it.ask(self.case.short) for _ in range(2)))
        for events in (first, second):
            assert [type(event) for event in events[-2:]] == [self.case.ends, Usage]
        assert it.worker.open_calls == 0

    async def test_cancel_frees_the_engine_within_a_step(self, it: Loaded) -> None:
        """A cancelled call ends at once, and its slot serves the next call long before it would have ended.

        All slots are taken by long calls that are then cancelled: had the engine gone on with any, the short
        ones would wait for it.
        """
        calls = [await it.begun(self.case.long) for _ in range(self.case.slots if self.case.slots < 9 else 2)]
        for call in calls:
            call.cancel()
        for call in calls:
            await asyncio.wait_for(call.over, CANCEL_S)
        async with asyncio.timeout(ENOUGH_S):
            await asyncio.gather(*(it.ask(self.case.short) for _ in calls))
        assert it.worker.open_calls == 0

    async def test_a_call_that_waits_can_be_cancelled_too(self, it: Loaded) -> None:
        """A call that leaves before its turn ends at once, and the one that is served goes on."""
        served = await it.begun(self.case.long)
        waiting = it.worker.call(self.case.short, "local")
        waiting.cancel()
        await asyncio.wait_for(waiting.over, CANCEL_S)
        assert not served.over.done()
        served.cancel()
        await asyncio.wait_for(served.over, CANCEL_S)

    async def test_a_bad_task_is_the_callers_fault_and_harms_nobody(self, it: Loaded) -> None:
        """What cannot be done, or is another model's work, is BadRequest; calls beside it are answered."""
        beside = asyncio.ensure_future(it.ask(self.case.short))
        with pytest.raises(BadRequest) as caught:
            await it.ask(self.case.bad)
        assert caught.value.code != "unsupported_task"
        with pytest.raises(BadRequest, match="does not") as caught:
            await it.ask(self.case.foreign)
        assert caught.value.code == "unsupported_task"
        assert (await beside)[-1:]
        assert await it.ask(self.case.short)

    async def test_a_counted_chat_has_as_many_tokens_as_the_engine_then_reads(self, it: Loaded) -> None:
        """The count is the `prompt_tokens` of the same chat, whatever its form, and is no answer itself.

        It is told also of a chat that is too long. What does not chat does not count.
        """
        if "chat" not in self.case.capabilities:
            with pytest.raises(BadRequest) as caught:
                await it.ask(CountTask(chat=CHATS[0]))
            assert caught.value.code == "unsupported_task"
            return
        for chat in CHATS:
            usage = (await it.ask(chat))[-1]
            assert isinstance(usage, Usage)
            assert await it.ask(CountTask(chat=chat)) == [Usage(usage.prompt_tokens, 0)], chat
        context = it.facts.context_length
        assert context
        endless = ChatTask(messages=(Message(role="user", content="word " * context),))
        [counted] = await it.ask(CountTask(chat=endless))
        assert isinstance(counted, Usage)
        assert counted.prompt_tokens >= context
        longer = ChatTask(messages=(BRIEF, *endless.messages, ASK))
        with pytest.raises(BadRequest) as caught:
            await it.ask(longer)
        assert caught.value.code == "context_length_exceeded"

    async def test_the_engines_output_is_the_log_and_never_the_protocol(self, it: Loaded) -> None:
        """What the engine writes, to whichever of its outputs, stands in the log, and calls go on."""
        assert await it.ask(self.case.short)
        await it.logged(self.case.log)

    async def test_a_broken_model_is_refused_for_good_with_the_engines_words(self) -> None:
        """What can never load is a permanent LoadFailed that says why, and nothing is left of the try."""
        case = self.case
        with tempfile.TemporaryDirectory(prefix="md") as name:
            folder, place = Path(name) / "w", Path(name) / "m"
            folder.mkdir()
            place.mkdir()
            path, options = case.broken(case.model(), place)
            with pytest.raises(LoadFailed, match=case.words) as caught:
                async with loaded(folder, path, case.loader, case.usecase, **{**case.options, **options}):
                    pass
        assert caught.value.permanent

    async def test_a_crash_costs_the_open_calls_and_is_told(self) -> None:
        """When the engine is killed, its call fails with how it died, and the worker ends by itself."""
        with tempfile.TemporaryDirectory(prefix="md") as folder:
            async with self.case.loaded(Path(folder)) as it:
                call = await it.begun(self.case.long)
                pid = it.worker.pid
                engines = [each for each in host.group_members(pid) if each != pid] or [pid]
                for each in engines:
                    os.kill(each, 9)
                with pytest.raises(WorkerDied, match="SIGKILL"):
                    await rest(call)
                assert "SIGKILL" in await asyncio.wait_for(asyncio.shield(it.worker.ended), CANCEL_S)

    async def test_unloading_gives_the_memory_back(self, it: Loaded) -> None:
        """After stop, in the middle of a call, the worker's whole group is gone, and its memory with it."""
        call = await it.begun(self.case.long)
        pid = it.worker.pid
        assert host.tree_memory(pid) >= self.case.memory
        await it.worker.stop(0.0)
        assert call.over.done()
        assert host.tree_memory(pid) == 0
        assert host.group_members(pid) == []
