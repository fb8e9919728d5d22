"""How long the prompt of a chat is: rendered as vLLM renders the chat itself, and then counted."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

from modeld.worker.loaders.vllm.ask import Asker
from modeld.worker.loaders.vllm.serving import Serving


async def count(serving: Serving, asker: Asker, request: Any) -> int:
    """Return the prompt's tokens, those of pictures among them. Raises ModeldError as the chat would.

    `request` is of the kind that `request_kind` gives.
    """

    async def render() -> Any:
        # vLLM notes which pictures its engine has been sent, and these never are.
        return await serving.renderer.render_chat(request, skip_mm_cache=True)

    _, prompts = await asker.whole(render, "messages")
    return sum(len(prompt["prompt_token_ids"]) for prompt in prompts)


@functools.cache
def request_kind() -> Any:
    """Return vLLM's chat request without its limit: what is too long is to be counted as well."""
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest

    class CountedRequest(ChatCompletionRequest):  # type: ignore[misc, unused-ignore]
        def build_tok_params(self, model_config: Any) -> Any:
            params = super().build_tok_params(model_config)
            return dataclasses.replace(params, max_total_tokens=None, max_output_tokens=0)

    return CountedRequest
