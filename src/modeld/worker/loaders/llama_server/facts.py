"""What a loaded model is and can do, found out by asking the engine and by trying."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modeld.errors import BadRequest, LoadFailed, ModeldError
from modeld.protocol.llama import embedding_batch
from modeld.protocol.messages import Facts, LoadSpec
from modeld.worker.loaders.llama_server.client import Client
from modeld.worker.loaders.llama_server.embedding import embedded
from modeld.worker.loaders.llama_server.engine import Engine, resident_bytes
from modeld.worker.tools import TemplateFacts

_PROBE_TOOL = {
    "type": "function",
    "function": {"name": "modeld_probe_tool", "parameters": {"type": "object", "properties": {}}},
}


async def of_embeddings(
    client: Client, props: dict[str, Any], engine: Engine, spec: LoadSpec, device: str, kind: str | None
) -> Facts:
    """Try the model out: only a vector tells its length. Raises LoadFailed for a model that gives none."""
    reranks = kind == "rank"
    dimensions = None
    if reranks:
        await client.fetch("POST", "/v1/rerank", {"query": "modeld", "documents": ["modeld"]})
    else:
        try:
            [(_, vector)], _ = await embedded(client, ["modeld"])
        except BadRequest as error:
            raise LoadFailed(
                f"the model gives no vectors (pooling: {kind or 'none'}): {error}; if its file does not say "
                "how its tokens' vectors become one, set pooling in llama_server_config to mean, cls or last",
                code="no_pooling",
                permanent=True,
            ) from error
        dimensions = len(vector) // 4
    return Facts(
        loader="llama_server",
        device=device,
        slots=int(props.get("total_slots") or 1),
        bytes_used=resident_bytes(engine.pid),
        context_length=context_of(props),
        capabilities=("rerank" if reranks else "embed", "tokenize"),
        detail={"engine": engine.name, "batch": batch_of(spec), "pooling": kind or "the engine's choice"},
        dimensions=dimensions,
        matryoshka=bool(spec.options.get("matryoshka")) and not reranks,
    )


def context_of(props: dict[str, Any]) -> int | None:
    """Return the tokens that one call may have, as the engine says."""
    settings = props.get("default_generation_settings") or {}
    return int(settings["n_ctx"]) if "n_ctx" in settings else None


def batch_of(spec: LoadSpec) -> str:
    """Return how many tokens of prompts it works on in one batch, in words."""
    size = embedding_batch(spec.options) if spec.usecase == "embed" else spec.options.get("n_batch")
    return f"{size} tokens" if size else "the engine's choice"


def of_chat(
    props: dict[str, Any],
    template: TemplateFacts,
    engine: Engine,
    spec: LoadSpec,
    device: str,
    seeing: Path | None,
) -> Facts:
    """Return the facts of a language model, from the engine's `/props` and what the template can do.

    `seeing` is the projector that it was started with.
    """
    capabilities = ["chat", "completion", "tools", "json_schema", "logprobs", "tokenize"]
    source = str(props.get("chat_template") or "")
    if "<think>" in source or "enable_thinking" in source or "reasoning_content" in source:
        capabilities.append("reasoning")
    if (props.get("modalities") or {}).get("vision"):
        capabilities.append("vision")
    detail = {
        "engine": engine.name,
        "batch": batch_of(spec),
        "tools": "rendered by the template" if template.renders_tools else "rendered by modeld",
    }
    if seeing is not None:
        detail["projector"] = str(seeing)
    if adapters := spec.options.get("lora"):
        detail["lora"] = ", ".join(f"{each['path']} × {each['scale']:g}" for each in adapters)
    if draft := spec.options.get("draft_model"):
        detail["draft"] = str(draft)
    return Facts(
        loader="llama_server",
        device=device,
        slots=int(props.get("total_slots") or 1),
        bytes_used=resident_bytes(engine.pid),
        context_length=context_of(props),
        capabilities=tuple(capabilities),
        detail=detail,
    )


async def check_draft(client: Client, draft: str) -> None:
    """See that the engine really drafts: one whose words are others it leaves out without a word.

    Raises LoadFailed.
    """
    try:
        slots = await client.fetch("GET", "/slots")
    except ModeldError:
        return  # switched off in extra_args; then nobody can say
    if any(slot.get("speculative") is False for slot in slots):
        raise LoadFailed(
            f"the engine does not draft with {draft}: the draft model must have the vocabulary of the model; "
            "take one of the same family, or leave draft_model out",
            code="draft_refused",
            permanent=True,
        )


async def probe(client: Client) -> TemplateFacts:
    """Render small conversations to see what the chat template does with tools and late system messages."""
    renders_tools = "modeld_probe_tool" in await _rendered(client, [("user", "hello")], [_PROBE_TOOL])
    late = await _rendered(
        client, [("user", "hello"), ("assistant", "hi"), ("system", "modeld_probe"), ("user", "x")]
    )
    return TemplateFacts(renders_tools=renders_tools, late_system="modeld_probe" in late)


async def _rendered(
    client: Client, turns: list[tuple[str, str]], tools: list[dict[str, Any]] | None = None
) -> str:
    body: dict[str, Any] = {"messages": [{"role": role, "content": text} for role, text in turns]}
    if tools:
        body["tools"] = tools
    try:
        return str((await client.fetch("POST", "/apply-template", body))["prompt"])
    except ModeldError:
        return ""  # the template refuses this conversation: the answer to the question is no
