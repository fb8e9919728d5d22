"""Splitting text into a model's tokens and joining them again: what every llama.cpp model can do."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.errors import BadRequest, EngineError
from modeld.protocol.tasks import DetokenizeTask, Text, TokenizeTask, Tokens
from modeld.worker.loader import Emit
from modeld.worker.loaders.llama_server.client import Client


class _Split(msgspec.Struct):
    tokens: list[int]


class _Joined(msgspec.Struct):
    content: str


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
