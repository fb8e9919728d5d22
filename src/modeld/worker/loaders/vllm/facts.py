"""What a loaded model is and can do, found out by asking vLLM and by trying."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from modeld.errors import LoadFailed, ModeldError
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import CompletionTask, Event, Sampling
from modeld.worker.loaders.vllm.build import Engine
from modeld.worker.loaders.vllm.model import VllmModel
from modeld.worker.loaders.vllm.processes import memory
from modeld.worker.tools import TemplateFacts

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "modeld_probe_tool", "parameters": {"type": "object", "properties": {}}},
}


async def find(model: VllmModel, engine: Engine, spec: LoadSpec) -> None:
    """Set the model's facts and what its template does. Raises LoadFailed for a model of no use."""
    config = engine.llm.vllm_config
    serving, tasks = model.serving, model.serving.tasks
    able: list[str] = []
    detail = _detail(engine, config)
    if serving.chat is not None and "transcription" not in tasks:
        if await _renders_chats(model, engine, spec.name):
            able += ["chat", "completion", "tools", "json_schema", "logprobs"]
            if engine.reasoning_parser:
                able.append("reasoning")
            if config.model_config.is_multimodal_model:
                able.append("vision")
            detail["tools"] = _tools_words(engine, model.template)
        else:
            able += ["completion", "logprobs"]
    dimensions = None
    if serving.embedding is not None:
        able.append("embed")
        [(_, vector)], _ = await model.pooling.vectors(["modeld"], None, "input")
        dimensions = len(vector) // 4
    if serving.scores is not None:
        able.append("rerank")
    if serving.transcription is not None:
        able += ["transcription", "translation"]
    if not able:
        raise LoadFailed(
            f"vLLM loads this model for {', '.join(tasks) or 'nothing'}, which modeld cannot serve",
            permanent=True,
        )
    able.append("tokenize")
    model.facts = Facts(
        loader="vllm",
        device=_device(config),
        slots=int(config.scheduler_config.max_num_seqs),
        bytes_used=memory(os.getpid()),
        context_length=int(config.model_config.max_model_len),
        capabilities=tuple(able),
        detail=detail,
        dimensions=dimensions,
        matryoshka=dimensions is not None and bool(config.model_config.is_matryoshka),
    )
    if "completion" in able:
        await _warm(model)
        model.facts = msgspec.structs.replace(model.facts, bytes_used=memory(os.getpid()))


def _device(config: Any) -> str:
    from vllm.platforms import current_platform

    kind = str(current_platform.device_type)
    if kind == "cpu":
        return "cpu"
    return f"{kind} x {config.parallel_config.world_size}" if config.parallel_config.world_size > 1 else kind


def _detail(engine: Engine, config: Any) -> dict[str, str]:
    detail = {
        "engine": f"vllm {engine.version}",
        "dtype": str(config.model_config.dtype).removeprefix("torch."),
    }
    blocks, size = config.cache_config.num_gpu_blocks, config.cache_config.block_size
    if blocks and size:
        detail["kv_cache_tokens"] = str(blocks * size)
    detail["prefix_caching"] = "by caller" if config.cache_config.enable_prefix_caching else "off"
    return detail


def _tools_words(engine: Engine, template: TemplateFacts) -> str:
    if engine.tool_parser:
        return f"vLLM's parser {engine.tool_parser}"
    return "rendered by the template" if template.renders_tools else "rendered by modeld"


async def _renders_chats(model: VllmModel, engine: Engine, name: str) -> bool:
    """Say whether there is a chat template; find out what it does with tools and late system messages."""
    if not await _rendered(model, engine, name, [("user", "hello")]):
        return False
    renders = "modeld_probe_tool" in await _rendered(model, engine, name, [("user", "hello")], [_PROBE_TOOL])
    late = await _rendered(
        model,
        engine,
        name,
        [("user", "hello"), ("assistant", "hi"), ("system", "modeld_probe"), ("user", "x")],
    )
    parses = engine.tool_parser is not None
    model.template = TemplateFacts(
        renders_tools=renders or parses,
        late_system="modeld_probe" in late,
        enforces_choice=parses,
        parses_calls=parses,
    )
    return True


async def _rendered(
    model: VllmModel,
    engine: Engine,
    name: str,
    turns: list[tuple[str, str]],
    tools: list[dict[str, Any]] | None = None,
) -> str:
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    body: dict[str, Any] = {
        "model": name,
        "messages": [{"role": role, "content": text} for role, text in turns],
        "max_completion_tokens": 1,
    }
    if tools:
        body |= {"tools": tools, "tool_choice": "none"}
    try:
        request = model.asker.made(ChatCompletionRequest, body, "messages")
        _, inputs = await model.asker.whole(lambda: model.serving.renderer.render_chat(request), "messages")
        return str(engine.llm.renderer.get_tokenizer().decode(list(inputs[0]["prompt_token_ids"])))
    except (ModeldError, KeyError, TypeError, ValueError):
        return ""  # the template refuses this conversation: the answer to the question is no


async def _warm(model: VllmModel) -> None:
    """Generate once, so that what vLLM compiles at its first step does not hold up the first caller."""

    async def drop(event: Event) -> None:
        pass

    await model.run(CompletionTask(prompt="modeld", sampling=Sampling(max_tokens=2)), drop, "modeld")
