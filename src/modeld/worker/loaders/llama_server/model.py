"""A llama.cpp model that serves: start, probe, run calls, stop."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from modeld.errors import BadRequest, EngineError, LoadFailed, ModeldError, WorkerDied
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    CountTask,
    DetokenizeTask,
    Finish,
    Task,
    Text,
    TokenizeTask,
    Usage,
)
from modeld.worker.loader import Emit, Report
from modeld.worker.loaders.llama_server import facts, pictures, tokens, translate
from modeld.worker.loaders.llama_server.client import Client, EngineUsage
from modeld.worker.loaders.llama_server.command import command, model_file, pooling, projector
from modeld.worker.loaders.llama_server.devices import device_of
from modeld.worker.loaders.llama_server.embedding import EmbeddingModel, cannot
from modeld.worker.loaders.llama_server.engine import Engine
from modeld.worker.loaders.llama_server.pooling import check_use
from modeld.worker.tools import ParserFactory, TemplateFacts, plan

SOCKET_NAME = "engine.sock"

CHAT = "/v1/chat/completions"
COMPLETIONS = "/v1/completions"


@dataclass(frozen=True)
class _Request:
    """What the engine is asked, for every choice alike; `prefix` is echoed before the answer.

    `pictures` says where the task has some.
    """

    path: str
    body: dict[str, Any]
    parser: ParserFactory | None = None
    prefix: str = ""
    pictures: tuple[str, ...] = ()


class LlamaModel:
    """One loaded model; see `worker.loader.LoadedModel`."""

    def __init__(
        self,
        engine: Engine,
        client: Client,
        facts: Facts,
        vocabulary: int,
        template: TemplateFacts,
        spec: LoadSpec,
    ) -> None:
        self.facts = facts
        self._vocabulary = vocabulary
        self._engine = engine
        self._client = client
        self._template = template
        self._template_kwargs = spec.template_kwargs
        self._limits = spec.limits

    @property
    def died(self) -> asyncio.Future[str]:
        """Done when the engine's process has ended by itself."""
        return self._engine.died

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Run every choice as a request of its own, then report the usage of all."""
        if isinstance(task, ChatTask):
            request = await self._chat(task)
        elif isinstance(task, CompletionTask):
            request = await self._completion(task)
        elif isinstance(task, TokenizeTask | DetokenizeTask):
            return await tokens.run(self._client, task, self._vocabulary, emit)
        elif isinstance(task, CountTask):
            return await emit(Usage(await self._count(task.chat), 0))
        else:
            raise cannot(task, self.facts)
        if task.n == 1:
            usages = [await self._choice(task, 0, request, emit)]
        else:
            try:
                async with asyncio.TaskGroup() as group:
                    choices = [
                        group.create_task(self._choice(task, index, request, emit)) for index in range(task.n)
                    ]
            except BaseExceptionGroup as failures:
                raise failures.exceptions[0] from None
            usages = [choice.result() for choice in choices]
        first = usages[0][0]
        await emit(
            Usage(
                first.prompt_tokens,
                sum(usage.completion_tokens for usage, _ in usages),
                first.prompt_tokens_details.cached_tokens if first.prompt_tokens_details else 0,
                sum(thoughts for _, thoughts in usages),
            )
        )

    async def close(self) -> None:
        """End the engine."""
        await self._engine.stop()

    async def _completion(self, task: CompletionTask) -> _Request:
        """Prepare a raw completion. Raises BadRequest for what this engine cannot do."""
        body = {"prompt": task.prompt}
        if task.suffix is not None:
            raise BadRequest(
                "this model completes text at its end only; leave suffix out",
                code="unsupported_parameter",
                param="suffix",
            )
        if not task.echo:
            return _Request(COMPLETIONS, body)
        if task.top_logprobs is not None:
            raise BadRequest(
                "this model has no log probabilities for the prompt; ask for echo or for logprobs, not both",
                code="unsupported_parameter",
                param="echo",
            )
        if isinstance(task.prompt, str):
            return _Request(COMPLETIONS, body, prefix=task.prompt)
        answer = await self._client.fetch("POST", "/detokenize", {"tokens": list(task.prompt)})
        return _Request(COMPLETIONS, body, prefix=str(answer["content"]))

    async def _chat(self, task: ChatTask) -> _Request:
        """Prepare a conversation. Raises BadRequest for tools and pictures that can never work."""
        planned = plan(task, self._template)
        seen = pictures.check(task, self.facts, self._limits)
        if seen and planned.native_tools and planned.schema:
            # Pictures go to the chat endpoint only, and that takes no schema beside native tools.
            planned = plan(task, replace(self._template, renders_tools=False))
        body = {
            "messages": [translate.message(item) for item in planned.messages],
            **translate.chat_common(task, self._template_kwargs),
        }
        if planned.native_tools:
            body["tools"] = [translate.tool(item) for item in task.tools]
            body["parallel_tool_calls"] = task.parallel_tool_calls
        if planned.schema is None:
            if planned.json_object:
                body["response_format"] = {"type": "json_object"}
            return _Request(CHAT, body, planned.parser, pictures=seen)
        if not planned.native_tools:
            body["response_format"] = {
                "type": "json_schema",
                "json_schema": {"name": "answer", "schema": planned.schema, "strict": True},
            }
            return _Request(CHAT, body, planned.parser, pictures=seen)
        # The chat endpoint takes tools or a schema, not both: let it render, then constrain the raw prompt.
        # A template that opens a thought would have the JSON written inside it.
        body["chat_template_kwargs"] = {"enable_thinking": False, **body.get("chat_template_kwargs", {})}
        rendered = await self._client.fetch("POST", "/apply-template", body)
        body = {"prompt": rendered["prompt"], "json_schema": planned.schema}
        return _Request(COMPLETIONS, body, planned.parser)

    async def _count(self, task: ChatTask) -> int:
        """Return the `prompt_tokens` that a chat would have. Raises BadRequest as the chat would."""
        request = await self._chat(task)
        if request.path == CHAT:
            body = {**task.engine_options, **request.body}
            return await tokens.count_chat(self._client, body, request.pictures)
        return await tokens.count(self._client, request.body["prompt"])

    async def _choice(
        self, task: ChatTask | CompletionTask, index: int, request: _Request, emit: Emit
    ) -> tuple[EngineUsage, int]:
        """Run one choice to its Finish; return its usage and how many of its tokens were thoughts."""
        parser = request.parser(index) if request.parser is not None else None
        native = translate.NativeCalls(index)
        usage, reason, thoughts = EngineUsage(), "stop", 0
        if request.prefix:
            await emit(Text(request.prefix, index))
        body = {**translate.streaming(task, index), **request.body}
        async with self._client.stream(request.path, body, request.pictures) as chunks:
            async for chunk in chunks:
                for choice in chunk.choices:
                    delta = choice.delta
                    # The engine does not count these tokens; it sends them one by one.
                    thoughts += bool(delta.reasoning_content)
                    if delta.reasoning_content or delta.tool_calls:
                        for event in native.events(delta):
                            await emit(event)
                    text = delta.content or choice.text
                    if text:
                        logprobs = translate.logprobs(choice.logprobs, task.top_logprobs)
                        if parser is None:
                            await emit(Text(text, index, logprobs))
                        else:
                            for event in parser.feed(text, logprobs):
                                await emit(event)
                    if choice.finish_reason is not None:
                        reason = choice.finish_reason
                if chunk.usage is not None:
                    usage = chunk.usage
        if parser is not None:
            for event in parser.finish():
                await emit(event)
            if parser.strayed and not parser.called and reason == "stop":
                raise EngineError(
                    "the engine did not keep to the schema that forces a tool call, and answered in prose"
                )
        called = native.called or (parser is not None and parser.called)
        if reason == "length":
            await emit(Finish("length", index))
        else:
            await emit(Finish("tool_calls" if called else "stop", index))
        return usage, min(thoughts, usage.completion_tokens)


async def start(spec: LoadSpec, report: Report) -> LlamaModel | EmbeddingModel:
    """Start an engine for `spec`, wait until it is ready, and find out what the model can do."""
    if spec.usecase == "embed" and spec.options.get("draft_model"):
        raise LoadFailed(
            "a model for vectors writes nothing to be drafted; leave draft_model out", permanent=True
        )
    model = model_file(spec)
    check_use(model, spec.usecase)
    sock = Path(spec.runtime_dir) / SOCKET_NAME
    argv, name = command(spec, model, sock)
    seeing = projector(spec, model)
    report(f"starting {name}", None)
    engine = await Engine.start(argv, sock, name)
    client = Client(sock)
    try:
        await engine.ready(client.healthy, report, spec.start_timeout_s, model.stat().st_size)
        props = await client.fetch("GET", "/props")
        vocabulary = await tokens.vocabulary_of(client)
        device = await device_of(spec, engine, argv[0])
        if spec.usecase == "embed":
            found = await facts.of_embeddings(client, props, engine, spec, device, pooling(spec, model))
            return EmbeddingModel(engine, client, found, vocabulary)
        if draft := spec.options.get("draft_model"):
            await facts.check_draft(client, draft)
        template = await facts.probe(client)
    except ModeldError as error:
        await engine.stop()
        if isinstance(error, LoadFailed):
            if spec.options.get("mmproj") or seeing is None or "mmproj" not in error.message:
                raise
            raise LoadFailed(
                f"{error.message}\n{seeing} was taken because it lies beside the model; "
                "name the right one as mmproj, or leave it out with mmproj: none",
                permanent=error.permanent,
            ) from error
        if isinstance(error, WorkerDied):
            raise LoadFailed(engine.died.result() if engine.died.done() else str(error)) from error
        raise LoadFailed(f"{name} answers, but not as llama.cpp does: {error}", permanent=True) from error
    except BaseException:
        await engine.stop()
        raise
    found = facts.of_chat(props, template, engine, spec, device, seeing)
    return LlamaModel(engine, client, found, vocabulary, template, spec)
