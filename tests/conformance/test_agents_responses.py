"""The OpenAI Agents SDK on the Responses API, over HTTP and over its WebSocket model.

Forms and forced calls are SmolLM2's; the models that call tools by themselves are scripted.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Literal

import openai
import pytest
import pytest_asyncio
from agents import (
    Agent,
    HostedMCPTool,
    MCPToolApprovalFunctionResult,
    MCPToolApprovalRequest,
    ModelSettings,
    OpenAIConversationsSession,
    OpenAIResponsesModel,
    OpenAIResponsesWSModel,
    RunConfig,
    Runner,
    SQLiteSession,
    function_tool,
)
from agents.memory import OpenAIResponsesCompactionSession
from openai.types.responses.tool_param import Mcp

from tests.conformance.python_sdk import LENIENT, OPTIONS
from tests.conformance.questions import Weather
from tests.conformance.responses_daemon import ANSWER, SCRIPTS, SUM, scripted
from tests.harness.daemon import Daemon
from tests.harness.mcp_server import Server, mcp_server
from tests.harness.models import fake, llama

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

QUIET = RunConfig(tracing_disabled=True)
"""Traces would go to OpenAI."""

QUESTION = "What is the weather in Paris?"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon(demo_gguf: Any) -> AsyncIterator[Daemon]:
    """Run a daemon with SmolLM2 and scripted models."""
    names = ("thinker", "caller", "remote", "passer")
    # The SDK compacts with models that have a name of OpenAI's only.
    summing_up = {**fake("summing_up", **SCRIPTS["chatty"]), "aliases": ["gpt-4.1"]}
    async with scripted(*names, more=(llama("plain", demo_gguf), summing_up)) as started:
        yield started


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def sums() -> AsyncIterator[Server]:
    """Run a server whose tools add."""
    async with mcp_server() as started:
        yield started


class Models:
    """The SDK's models over one transport."""

    def __init__(self, client: openai.AsyncOpenAI, kind: type[OpenAIResponsesModel]) -> None:
        self.client = client
        self._kind = kind
        self._made: list[OpenAIResponsesModel] = []

    def agent(self, model: str, *tools: Any, **more: Any) -> Agent[Any]:
        """Return an agent on a model."""
        made = self._kind(model, self.client)
        self._made.append(made)
        return Agent(name="agent", model=made, tools=list(tools), **more)

    async def close(self) -> None:
        """Close what the models have open."""
        for made in self._made:
            if isinstance(made, OpenAIResponsesWSModel):
                await made.close()


@pytest_asyncio.fixture(params=["http", "websocket"], loop_scope="module")
async def models(request: pytest.FixtureRequest, daemon: Daemon) -> AsyncIterator[Models]:
    """Give each transport in turn."""
    kind = OpenAIResponsesModel if request.param == "http" else OpenAIResponsesWSModel
    async with openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", **OPTIONS) as client:
        given = Models(client, kind)
        yield given
        await given.close()


class Tool:
    """A function tool that notes what it was called with."""

    def __init__(self) -> None:
        self.given: list[tuple[str, bool]] = []
        self.tool = function_tool(self.get_weather)

    def get_weather(self, city: Literal["Paris", "Rome"], celsius: bool) -> str:
        """Tell the weather in a city."""
        self.given.append((city, celsius))
        return "sunny"


async def test_a_tool_loop(models: Models) -> None:
    """The agent's function is run for each call, its results are sent with all items, and it answers."""
    tool = Tool()
    result = await Runner.run(models.agent("caller", tool.tool), QUESTION, run_config=QUIET)
    assert result.final_output == ANSWER
    assert tool.given == [("Paris", True)] * 2
    assert len(result.raw_responses) == 2
    usage = result.context_wrapper.usage
    assert (usage.requests, usage.total_tokens) == (2, usage.input_tokens + usage.output_tokens)


async def test_a_streamed_tool_loop(models: Models) -> None:
    """The same as a stream: the answer's pieces come as raw events, after the tool's items."""
    tool = Tool()
    result = Runner.run_streamed(models.agent("caller", tool.tool), QUESTION, run_config=QUIET)
    text, items = "", []
    async for event in result.stream_events():
        if event.type == "raw_response_event" and event.data.type == "response.output_text.delta":
            text += event.data.delta
        elif event.type == "run_item_stream_event":
            items.append(event.name)
    assert text == result.final_output == ANSWER
    assert items.count("tool_called") == items.count("tool_output") == len(tool.given) == 2
    assert items[-1] == "message_output_created"


async def test_a_forced_call_of_a_real_model(models: Models) -> None:
    """SmolLM2 calls the tool that it must, once, with arguments that fit."""
    tool = Tool()
    settings = ModelSettings(tool_choice="required", temperature=0, max_tokens=100, parallel_tool_calls=False)
    agent = models.agent("plain", tool.tool, model_settings=settings, tool_use_behavior="stop_on_first_tool")
    result = await Runner.run(agent, QUESTION, run_config=QUIET)
    [(city, celsius)] = tool.given
    assert city in ("Paris", "Rome")
    assert isinstance(celsius, bool)
    assert result.final_output == "sunny"


async def test_an_output_of_the_agents_own_type(models: Models) -> None:
    """SmolLM2's answer is read as the agent's own type."""
    settings = ModelSettings(temperature=0, max_tokens=100)
    agent = models.agent("plain", model_settings=settings, output_type=Weather)
    result = await Runner.run(agent, QUESTION, run_config=QUIET)
    assert isinstance(result.final_output, Weather)


async def test_a_chain(models: Models) -> None:
    """Runs go on from a response's id: only what is new is sent, in a run's own turns as well."""
    tool = Tool()
    agent = models.agent("caller", tool.tool)
    first = await Runner.run(agent, QUESTION, auto_previous_response_id=True, run_config=QUIET)
    second = await Runner.run(
        agent, "And now?", previous_response_id=first.last_response_id, run_config=QUIET
    )
    assert first.final_output == second.final_output == ANSWER
    assert len(tool.given) == 4
    lengths = [response.usage.input_tokens for response in (*first.raw_responses, *second.raw_responses)]
    assert lengths == sorted(set(lengths))


async def test_a_conversation(models: Models) -> None:
    """Runs go on in a conversation of the server's, and a session reads and writes one."""
    agent = models.agent("caller", Tool().tool)
    conversation = await models.client.conversations.create()
    for _ in range(2):
        result = await Runner.run(agent, QUESTION, conversation_id=conversation.id, run_config=QUIET)
        assert result.final_output == ANSWER
    kinds = [item.type async for item in models.client.conversations.items.list(conversation.id, order="asc")]
    once = ["message", "reasoning", *["function_call"] * 2, *["function_call_output"] * 2, "message"]
    assert kinds == once * 2


async def test_a_session(models: Models) -> None:
    """A session that is kept in a conversation gives its items to the next run."""
    agent = models.agent("thinker")
    session = OpenAIConversationsSession(openai_client=models.client)
    lengths = []
    for _ in range(2):
        result = await Runner.run(agent, QUESTION, session=session, run_config=QUIET)
        assert result.final_output == ANSWER
        lengths.append(result.raw_responses[-1].usage.input_tokens)
    assert lengths[0] < lengths[1]
    assert len(await session.get_items()) == 6
    await session.clear_session()


@pytest.mark.parametrize("mode", ["input", "previous_response_id"])
async def test_a_session_that_is_compacted(
    models: Models, mode: Literal["input", "previous_response_id"]
) -> None:
    """A session whose items are compacted after each run goes on from what is left: the user's words, and an
    item that the server can read.
    """
    lenient = models.client.copy(_extra_kwargs=LENIENT)  # as for compaction elsewhere
    session = OpenAIResponsesCompactionSession(
        "session",
        SQLiteSession("session"),
        client=lenient,
        model="gpt-4.1",
        compaction_mode=mode,
        should_trigger_compaction=lambda context: True,
    )
    agent = models.agent("thinker")
    for _ in range(2):
        result = await Runner.run(agent, QUESTION, session=session, run_config=QUIET)
        assert result.final_output == ANSWER
    kinds = [item.get("type") for item in await session.get_items()]
    assert kinds == ["message", "message", "compaction"]


def hosted(server: Server, approval: Literal["always", "never"]) -> Mcp:
    """Return the tools of a server."""
    return {
        "type": "mcp",
        "server_label": "sums",
        "server_url": server.url,
        "require_approval": approval,
    }


async def test_tools_of_a_server(models: Models, sums: Server) -> None:
    """A server's tools are called without the agent's help."""
    tool = HostedMCPTool(tool_config=hosted(sums, "never"))
    result = await Runner.run(models.agent("remote", tool), "Add one and two.", run_config=QUIET)
    assert result.final_output == SUM
    [response] = result.raw_responses
    assert [item.type for item in response.output] == ["mcp_list_tools", "mcp_call", "message"]


@pytest.mark.parametrize("approve", [True, False])
@pytest.mark.parametrize("chained", [True, False])
async def test_tools_that_need_approval(models: Models, sums: Server, approve: bool, chained: bool) -> None:
    """The agent is asked before a call, once; what it denies is not run, and the model goes on."""
    asked = []

    def decide(request: MCPToolApprovalRequest) -> MCPToolApprovalFunctionResult:
        asked.append(request.data.name)
        return {"approve": approve} if approve else {"approve": False, "reason": "not today"}

    tool = HostedMCPTool(tool_config=hosted(sums, "always"), on_approval_request=decide)
    agent = models.agent("remote", tool)
    result = await Runner.run(agent, "Add one and two.", auto_previous_response_id=chained, run_config=QUIET)
    assert result.final_output == SUM
    assert asked == ["add"]
    outputs = [
        item.output for each in result.raw_responses for item in each.output if item.type == "mcp_call"
    ]
    assert outputs == (["3"] if approve else [])


@pytest.mark.parametrize("approve", [True, False])
async def test_a_run_that_is_interrupted_for_approval(models: Models, sums: Server, approve: bool) -> None:
    """Without a function that decides, a run stops, is decided on, and resumed; so is a streamed one."""
    agent = models.agent("remote", HostedMCPTool(tool_config=hosted(sums, "always")))
    stopped = await Runner.run(agent, "Add one and two.", run_config=QUIET)
    [interruption] = stopped.interruptions
    assert interruption.name == "add"
    state = stopped.to_state()
    if approve:
        state.approve(interruption)
    else:
        state.reject(interruption)
    result = Runner.run_streamed(agent, state, run_config=QUIET)
    kinds = [event.type async for event in result.stream_events()]
    assert "raw_response_event" in kinds
    assert result.final_output == SUM
    calls = [item for each in result.raw_responses for item in each.output if item.type == "mcp_call"]
    assert [call.output for call in calls] == (["3"] if approve else [])


async def test_handing_over(models: Models) -> None:
    """An agent hands over to another by a call, which the other answers after."""
    second = models.agent("caller", Tool().tool)
    second.name = "forecaster"
    first = models.agent("passer", handoffs=[second])
    result = await Runner.run(first, QUESTION, run_config=QUIET)
    assert result.last_agent is second
    assert result.final_output == ANSWER


async def test_failures_are_the_sdks_own(models: Models) -> None:
    """A model that there is none of is an error that says so, over either transport."""
    with pytest.raises(Exception, match="nope"):
        await Runner.run(models.agent("nope"), "x", run_config=QUIET)
