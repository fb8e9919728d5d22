"""The Python SDK's blocking and asyncio clients behind the same coroutines, so that each test tries both.

Both are strict: a body or a chunk that does not fit the SDK's types raises APIResponseValidationError.
Neither tries again by itself, so that no failure hides behind a second attempt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from operator import attrgetter
from typing import Any, NamedTuple, Self, TypeAlias, TypeVar

import openai
from openai.types import Completion, Model
from openai.types.chat import ChatCompletion, ChatCompletionChunk, ParsedChatCompletion

T = TypeVar("T")

OPTIONS: dict[str, Any] = {"max_retries": 0, "_strict_response_validation": True, "timeout": 600.0}
"""Of both clients; the timeout in seconds."""

LENIENT = {"_strict_response_validation": False}

KEY = "sk-conformance"
"""The key of the daemon that asks for one."""

CHAT = "chat.completions.create"
COMPLETIONS = "completions.create"


class Streamed(NamedTuple):
    """What the stream helper gave: its events, and the answer it put together."""

    events: list[Any]
    final: ParsedChatCompletion[Any]


class _Calls:
    """What both clients offer; only how a call is waited for differs."""

    async def call(self, method: str, **arguments: Any) -> Any:
        raise NotImplementedError

    async def items(self, method: str, *, lenient: bool = False, **arguments: Any) -> list[Any]:
        raise NotImplementedError

    async def chat(self, **body: Any) -> ChatCompletion:
        """Ask for one answer."""
        answer = await self.call(CHAT, **body)
        assert isinstance(answer, ChatCompletion)
        return answer

    async def chunks(self, **body: Any) -> list[ChatCompletionChunk]:
        """Ask for a stream and read it to its end."""
        return await self.items(CHAT, stream=True, **body)

    async def parse(self, **body: Any) -> ParsedChatCompletion[Any]:
        """Ask for one answer as the caller's own types."""
        answer: ParsedChatCompletion[Any] = await self.call("chat.completions.parse", **body)
        return answer

    async def complete(self, **body: Any) -> Completion:
        """Continue a raw prompt."""
        answer = await self.call(COMPLETIONS, **body)
        assert isinstance(answer, Completion)
        return answer

    async def completion_chunks(self, **body: Any) -> list[Completion]:
        """Continue a raw prompt as a stream, read to its end.

        Not strict: the SDK's type has no null for finish_reason, which every chunk but a choice's last has at
        OpenAI too.
        """
        return await self.items(COMPLETIONS, lenient=True, stream=True, **body)

    async def models(self) -> list[Model]:
        """List the models."""
        return await self.items("models.list")


class SyncSdk(_Calls):
    """`openai.OpenAI`, in a thread, so that the daemon's output is read meanwhile."""

    def __init__(self, url: str, api_key: str = "x") -> None:
        self.client = openai.OpenAI(base_url=f"{url}/v1", api_key=api_key, **OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.client.close()

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method by its dotted name."""
        return await asyncio.to_thread(attrgetter(method)(self.client), **arguments)

    async def items(self, method: str, *, lenient: bool = False, **arguments: Any) -> list[Any]:
        """Call a method that gives a stream or pages, and read all of it."""
        client = self.client.copy(_extra_kwargs=LENIENT) if lenient else self.client
        return await _in_thread(lambda: list(attrgetter(method)(client)(**arguments)))

    async def helper(self, **body: Any) -> Streamed:
        """Stream through the SDK's own accumulating helper."""

        def read() -> Streamed:
            with self.client.chat.completions.stream(**body) as stream:
                return Streamed(list(stream), stream.get_final_completion())

        return await _in_thread(read)

    async def headers(self, **body: Any) -> Mapping[str, str]:
        """Read a chat answer or stream to its end and return its headers."""

        def read() -> Mapping[str, str]:
            raw: Any = self.client.chat.completions.with_raw_response.create(**body)
            raw.http_response.read()
            headers: Mapping[str, str] = raw.headers
            return headers

        return await _in_thread(read)

    async def leave(self, **body: Any) -> str:
        """Stream, close after the first chunk, and return the request id."""

        def read() -> str:
            stream = self.client.chat.completions.create(stream=True, **body)
            next(stream)
            stream.close()
            return str(stream.response.headers["x-request-id"])

        return await _in_thread(read)


class AsyncSdk(_Calls):
    """`openai.AsyncOpenAI`."""

    def __init__(self, url: str, api_key: str = "x") -> None:
        self.client = openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=api_key, **OPTIONS)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.client.close()

    async def call(self, method: str, **arguments: Any) -> Any:
        """Call a method by its dotted name."""
        return await attrgetter(method)(self.client)(**arguments)

    async def items(self, method: str, *, lenient: bool = False, **arguments: Any) -> list[Any]:
        """Call a method that gives a stream or pages, and read all of it."""
        client = self.client.copy(_extra_kwargs=LENIENT) if lenient else self.client
        given = attrgetter(method)(client)(**arguments)
        stream = await given if asyncio.iscoroutine(given) else given
        return [item async for item in stream]

    async def helper(self, **body: Any) -> Streamed:
        """Stream through the SDK's own accumulating helper."""
        async with self.client.chat.completions.stream(**body) as stream:
            events = [event async for event in stream]
            return Streamed(events, await stream.get_final_completion())

    async def headers(self, **body: Any) -> Mapping[str, str]:
        """Read a chat answer or stream to its end and return its headers."""
        raw: Any = await self.client.chat.completions.with_raw_response.create(**body)
        await raw.http_response.aread()
        headers: Mapping[str, str] = raw.headers
        return headers

    async def leave(self, **body: Any) -> str:
        """Stream, close after the first chunk, and return the request id."""
        stream = await self.client.chat.completions.create(stream=True, **body)
        await anext(stream)
        await stream.close()
        return str(stream.response.headers["x-request-id"])


Sdk: TypeAlias = SyncSdk | AsyncSdk


async def _in_thread(read: Callable[[], T]) -> T:
    return await asyncio.to_thread(read)
