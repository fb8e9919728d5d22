"""A vLLM model that serves: calls, the engine's death, the end."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

from modeld.errors import BadRequest, WorkerDied
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import (
    ChatTask,
    CompletionTask,
    CountTask,
    DetokenizeTask,
    EmbedTask,
    RerankTask,
    Task,
    Text,
    TokenizeTask,
    Tokens,
    TranscribeTask,
    Usage,
)
from modeld.worker.exits import exit_words
from modeld.worker.loader import Emit
from modeld.worker.loaders.vllm import counting, media, requests
from modeld.worker.loaders.vllm.ask import Asker
from modeld.worker.loaders.vllm.build import Engine
from modeld.worker.loaders.vllm.chunks import Translator
from modeld.worker.loaders.vllm.log import LogTap
from modeld.worker.loaders.vllm.pooling import Pooling, check_tokens
from modeld.worker.loaders.vllm.serving import Serving
from modeld.worker.loaders.vllm.speech import Speech
from modeld.worker.tools import ParserFactory, TemplateFacts, plan

GREEDY = 1e-5
"""Temperatures below are 0 for vLLM."""

STATISTICS_S = 10.0
"""Seconds between two looks of vLLM's at its own throughput, which it logs when there was any."""

CLOSE_S = 1.0
"""Seconds vLLM's processes get to end by themselves."""


EXIT_LOOK_S, EXIT_LOOKS = 0.02, 25
"""Seconds between two looks at how a process ended, and how many: half a second in all."""


class VllmModel:
    """One loaded model; see `worker.loader.LoadedModel`. Made and filled in by `start`."""

    def __init__(
        self, engine: Engine, serving: Serving, spec: LoadSpec, tap: LogTap, thread: ThreadPoolExecutor
    ) -> None:
        self.facts = Facts(loader="vllm", device="")
        self.template = TemplateFacts(renders_tools=False)
        self.asker = Asker(engine.llm)
        self.serving = serving
        self._llm = engine.llm
        self._spec = spec
        self._tap = tap
        self._thread = thread
        self._closing = False
        self._secret = secrets.token_bytes(32)
        self._salted = bool(engine.llm.vllm_config.cache_config.enable_prefix_caching)
        self._vocabulary = int(engine.llm.model_config.get_vocab_size())
        self.pooling = Pooling(serving, self.asker, spec.name, self._vocabulary)
        self._speech = (
            Speech(serving, self.asker, spec.name, spec.limits.audio_seconds)
            if serving.transcription is not None
            else None
        )
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._sentinels: list[int] = []
        self._watch()
        # Lives as long as the model; `close` awaits it.
        quiet = spec.options.get("disable_log_stats")
        self._statistics = None if quiet else asyncio.ensure_future(self._log_statistics())

    @property
    def died(self) -> asyncio.Future[str]:
        """Done when a process of vLLM's has ended by itself."""
        return self._died

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Work one call to its end. Raises BadRequest for what this model does not do."""
        able = self.facts.capabilities
        if self._died.done():
            raise WorkerDied(self._died.result())
        match task:
            case ChatTask() if "chat" in able:
                await self._chat(task, emit, identity)
            case CountTask() if "chat" in able:
                await self._count(task.chat, emit, identity)
            case CompletionTask() if "completion" in able:
                await self._completion(task, emit, identity)
            case EmbedTask() if "embed" in able:
                await self.pooling.embed(task, self.facts, emit)
            case RerankTask() if "rerank" in able:
                await self.pooling.rerank(task, self.facts, emit)
            case TranscribeTask() if self._speech is not None:
                await self._speech.run(task, emit)
            case TokenizeTask() | DetokenizeTask() if "tokenize" in able:
                await self._tokens(task, emit)
            case _:
                raise cannot(task, self.facts)

    async def close(self) -> None:
        """End vLLM's processes, and give standard output back."""
        self._closing = True
        self._unwatch()
        if self._statistics is not None:
            self._statistics.cancel()
            await asyncio.wait({self._statistics})
        self.serving.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self._thread, lambda: self._llm.shutdown(timeout=CLOSE_S))
        finally:
            self._thread.shutdown(wait=False)
            self._tap.close()

    # --- generation -----------------------------------------------------------------------------------------

    async def _chat(self, task: ChatTask, emit: Emit, identity: str) -> None:
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

        body, parser = self._chat_body(task)
        make = partial(self._request, ChatCompletionRequest, body, "messages", identity)
        await self._answer(self.serving.chat.create_chat_completion, make, task, "messages", parser, emit)

    async def _count(self, task: ChatTask, emit: Emit, identity: str) -> None:
        body, _ = self._chat_body(task)
        request = self._request(counting.request_kind(), body, "messages", identity, 1)
        await emit(Usage(await counting.count(self.serving, self.asker, request), 0))

    def _chat_body(self, task: ChatTask) -> tuple[dict[str, Any], ParserFactory | None]:
        """Return the request of a chat, and what reads the answer where vLLM does not."""
        media.check(task, self._spec.limits, sees="vision" in self.facts.capabilities)
        planned = plan(task, self.template)
        body = requests.chat(task, planned, self._spec.name, self._spec.template_kwargs)
        return body, None if planned.native_calls else planned.parser

    async def _completion(self, task: CompletionTask, emit: Emit, identity: str) -> None:
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest

        if not isinstance(task.prompt, str):
            check_tokens(task.prompt, self._vocabulary, "prompt")
        body = requests.completion(task, self._spec.name)
        make = partial(self._request, CompletionRequest, body, "prompt", identity)
        await self._answer(self.serving.completion.create_completion, make, task, "prompt", None, emit)

    def _request(self, kind: Any, body: dict[str, Any], field: str, identity: str, n: int) -> Any:
        body = {**body, "n": n}
        for key in ("max_tokens", "max_completion_tokens"):
            # More than the context holds is no mistake: the answer ends where the context does.
            if body.get(key) is not None:
                body[key] = min(body[key], self.facts.context_length or body[key])
        # Last, so that no option of the request can take another caller's place in the cache.
        body.pop("cache_salt", None)
        if self._salted:
            body["cache_salt"] = requests.salt(identity, self._secret)
        return self.asker.made(kind, body, field)

    async def _answer(
        self,
        create: Any,
        make: Callable[[int], Any],
        task: ChatTask | CompletionTask,
        field: str,
        parser: ParserFactory | None,
        emit: Emit,
    ) -> None:
        """Answer with every choice, then Usage. `make` makes the request for so many choices."""

        async def stream(n: int, first: int) -> Usage:
            translator = Translator(n, task.top_logprobs, parser, first)
            request = make(n)
            async for chunk in self.asker.stream(lambda: create(request), field):
                for event in translator.events(chunk):
                    await emit(event)
            if translator.unfinished():
                raise self.asker.broken("vLLM ended its answer without saying why")
            return translator.usage

        if task.n == 1 or task.sampling.temperature is None or task.sampling.temperature >= GREEDY:
            await emit(await stream(task.n, 0))
            return
        # vLLM refuses several choices where all would be alike; OpenAI does not.
        try:
            async with asyncio.TaskGroup() as group:
                choices = [group.create_task(stream(1, index)) for index in range(task.n)]
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None
        usages = [choice.result() for choice in choices]
        await emit(
            Usage(
                usages[0].prompt_tokens,
                sum(usage.completion_tokens for usage in usages),
                usages[0].cached_tokens,
                sum(usage.reasoning_tokens for usage in usages),
            )
        )

    async def _tokens(self, task: TokenizeTask | DetokenizeTask, emit: Emit) -> None:
        from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeCompletionRequest

        served = self.serving.tokenization
        if isinstance(task, TokenizeTask):
            body = {"model": self._spec.name, "prompt": task.text, "add_special_tokens": task.special}
            asked = self.asker.made(TokenizeCompletionRequest, body, "text")
            answer = await self.asker.whole(lambda: served.create_tokenize(asked, None), "text")
            await emit(Tokens(tuple(answer.tokens)))
            return
        check_tokens(task.tokens, self._vocabulary, "tokens")
        if not task.tokens:
            return await emit(Text(""))
        asked = self.asker.made(
            DetokenizeRequest, {"model": self._spec.name, "tokens": list(task.tokens)}, "tokens"
        )
        answer = await self.asker.whole(lambda: served.create_detokenize(asked, None), "tokens")
        await emit(Text(answer.prompt))

    async def _log_statistics(self) -> None:
        while not self._llm.errored:
            await asyncio.sleep(STATISTICS_S)
            with contextlib.suppress(Exception):  # the engine's end is told elsewhere
                await self._llm.do_log_stats()

    # --- the engine's death ---------------------------------------------------------------------------------

    def _watch(self) -> None:
        """Learn of the end of vLLM's processes from their sentinels, which become readable then."""
        manager = getattr(self._llm.engine_core.resources, "engine_manager", None)
        loop = asyncio.get_running_loop()
        for process in getattr(manager, "processes", ()):
            self._sentinels.append(process.sentinel)
            loop.add_reader(process.sentinel, self._ended, process)

    def _unwatch(self) -> None:
        loop = asyncio.get_running_loop()
        while self._sentinels:
            loop.remove_reader(self._sentinels.pop())

    def _ended(self, process: Any, looks: int = EXIT_LOOKS) -> None:
        self._unwatch()
        if self._closing or self._died.done():
            return
        if process.exitcode is None and looks:
            # A sentinel closes a moment before the system knows how the process ended.
            asyncio.get_running_loop().call_later(EXIT_LOOK_S, self._ended, process, looks - 1)
            return
        self._died.set_result(
            f"vLLM's engine process {exit_words(process.exitcode)}; its last words:\n{self._tap.last_words()}"
        )


def cannot(task: Task, facts: Facts) -> BadRequest:
    """Return the error for a task that a model does not do."""
    kind = type(task).__name__.removesuffix("Task").lower()
    return BadRequest(
        f"this model does not do {kind}; it does: {', '.join(facts.capabilities)}", code="unsupported_task"
    )
