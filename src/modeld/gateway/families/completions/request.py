"""The body of a completions request, and the tasks it asks for: one for each prompt."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import Meta

from modeld.gateway.decoding import decode, invalid, unsupported
from modeld.gateway.sampling import SamplingFields, engine_options, sampling
from modeld.protocol.tasks import CompletionTask

MAX_CHOICES = 128
"""Prompts times `n` in one request."""

MAX_TOKEN_ID = 2**31 - 1


class CompletionRequest(SamplingFields, kw_only=True):
    """A body as OpenAI's SDKs send it. Unknown fields are ignored, null is absent."""

    prompt: str | list[Any]  # text, texts, token ids, or lists of token ids
    best_of: Annotated[int, Meta(ge=1, le=20)] | None = None
    echo: bool | None = None
    logprobs: Annotated[int, Meta(ge=0, le=20)] | None = None
    suffix: str | None = None


_DECODER = msgspec.json.Decoder(CompletionRequest)


def read(raw: bytes | bytearray) -> CompletionRequest:
    """Decode a body. Raises BadRequest."""
    return decode(_DECODER, raw)


def to_tasks(request: CompletionRequest) -> list[CompletionTask]:
    """Return one task for each prompt, in order. Raises BadRequest with `param`."""
    n = request.n or 1
    if request.best_of is not None and request.best_of != n:
        raise unsupported("best_of", "it can only be equal to n")
    prompts = _prompts(request.prompt)
    if len(prompts) * n > MAX_CHOICES:
        raise invalid("prompt", f"{len(prompts)} prompts times n={n} are over {MAX_CHOICES} choices")
    params, options = sampling(request, request.max_tokens), engine_options(request)
    return [
        CompletionTask(
            prompt=prompt,
            sampling=params,
            n=n,
            echo=bool(request.echo),
            suffix=request.suffix,
            top_logprobs=request.logprobs,
            engine_options=options,
        )
        for prompt in prompts
    ]


def _prompts(prompt: str | list[Any]) -> list[str | tuple[int, ...]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise invalid("prompt", "it is an empty list")
    if isinstance(prompt[0], int):
        return [_token_ids(prompt, "prompt")]
    prompts: list[str | tuple[int, ...]] = []
    for at, item in enumerate(prompt):
        if isinstance(item, str):
            prompts.append(item)
        elif isinstance(item, list) and item:
            prompts.append(_token_ids(item, f"prompt[{at}]"))
        else:
            raise invalid(f"prompt[{at}]", "expected text or a list of token ids")
    return prompts


def _token_ids(items: list[Any], where: str) -> tuple[int, ...]:
    for at, item in enumerate(items):
        if type(item) is not int or not 0 <= item <= MAX_TOKEN_ID:
            raise invalid(f"{where}[{at}]", "expected a token id")
    return tuple(items)
