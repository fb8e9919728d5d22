"""Splitting text into a model's tokens, joining them again, and counting those of a prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from modeld.errors import BadRequest, EngineError
from modeld.protocol.tasks import DetokenizeTask, Text, TokenizeTask, Tokens
from modeld.worker.loader import Emit
from modeld.worker.loaders.llama_server.client import Client


class _Split(msgspec.Struct):
    tokens: list[int]


class _Joined(msgspec.Struct):
    content: str


class _Rendered(msgspec.Struct):
    prompt: str


class _Count(msgspec.Struct):
    input_tokens: int


async def run(client: Client, task: TokenizeTask | DetokenizeTask, vocabulary: int, emit: Emit) -> None:
    """Answer with Tokens or with Text. Raises BadRequest for an id outside of `vocabulary`, EngineError."""
    if isinstance(task, TokenizeTask):
        # A text without a character has only the tokens that begin and end it.
        body = {"content": task.text, "add_special": task.special}
        await emit(Tokens(tuple((await client.ask("/tokenize", body, _Split)).tokens)))
    else:
        check(task.tokens, vocabulary, "tokens")
        answer = await client.ask("/detokenize", {"tokens": task.tokens}, _Joined)
        await emit(Text(answer.content))


async def count_chat(client: Client, body: dict[str, Any], pictures: Sequence[str]) -> int:
    """Return the length of the prompt that the chat endpoint makes of a body, in tokens; `pictures` as there.

    Raises BadRequest for what the template refuses, EngineError.
    """
    if not pictures:
        return await count(client, (await client.ask("/apply-template", body, _Rendered)).prompt)
    try:
        # Only the engine knows how many tokens it makes of a picture. Older ones cannot be asked.
        answer = await client.ask("/v1/chat/completions/input_tokens", body, _Count)
    except BadRequest as error:
        if error.code != "engine_refused" or "not found" not in error.message.lower():
            raise
        raise BadRequest(
            "this engine does not say how many tokens a picture has; leave it out, or install a newer engine",
            code="unsupported_parameter",
            param=pictures[0],
        ) from None
    return answer.input_tokens


async def count(client: Client, prompt: str) -> int:
    """Return the length of a rendered prompt in tokens. Raises EngineError."""
    # As the engine itself does it: marks such as <|im_start|> are one token, and the model's own first and
    # last ones come on top.
    body = {"content": prompt, "add_special": True, "parse_special": True}
    return len((await client.ask("/tokenize", body, _Split)).tokens)


def check(ids: Sequence[int], vocabulary: int, param: str) -> None:
    """Refuse ids that the model has no token for. Raises BadRequest."""
    for at, token in enumerate(ids):
        if not 0 <= token < vocabulary:
            raise BadRequest(
                f"{param}[{at}] is {token}; this model has {vocabulary} tokens, numbered from 0",
                code="invalid_token",
                param=f"{param}[{at}]",
            )


async def vocabulary_of(client: Client) -> int:
    """Return how many tokens the model has. Raises EngineError when the engine does not say."""
    found = await client.fetch("GET", "/v1/models")
    try:
        return int(found["data"][0]["meta"]["n_vocab"])
    except (KeyError, IndexError, TypeError, ValueError):
        raise EngineError("the engine does not tell how many tokens its model has") from None
