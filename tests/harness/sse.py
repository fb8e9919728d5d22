"""Reading a stream as raw as it comes: payloads, whether it said [DONE], and an in-band error."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp


@dataclass
class Answer:
    """What a stream held."""

    status: int = 0
    chunks: list[dict[str, Any]] = field(default_factory=list)
    done: bool = False
    comments: int = 0
    error: dict[str, Any] | None = None

    @property
    def text(self) -> str:
        """The content of choice 0."""
        return "".join(
            choice["delta"].get("content") or ""
            for chunk in self.chunks
            for choice in chunk["choices"]
            if choice["index"] == 0
        )


class Reader:
    """Reads one response's stream, as far as a test wants."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.answer = Answer(response.status)
        self.close = response.close
        self._content = response.content
        self._rest = b""

    async def until_text(self) -> Answer:
        """Read until the first text has come."""
        while not self.answer.text:
            self._take(await self._content.readany())
        return self.answer

    async def until_more(self, than: int = 0) -> Answer:
        """Read until the text is longer than so many characters."""
        while len(self.answer.text) <= than:
            self._take(await self._content.readany())
        return self.answer

    async def until_comments(self, count: int) -> Answer:
        """Read until so many comments have come."""
        while self.answer.comments < count:
            self._take(await self._content.readany())
        return self.answer

    async def to_end(self) -> Answer:
        """Read what is left; the stream must not end in the middle of an event."""
        async for data in self._content.iter_any():
            self._take(data)
        assert not self._rest, self._rest
        return self.answer

    def _take(self, data: bytes) -> None:
        *parts, self._rest = (self._rest + data).split(b"\n\n")
        for part in parts:
            take(part, self.answer)


def take(part: bytes, answer: Answer) -> None:
    """Take one event."""
    if part.startswith(b":"):
        answer.comments += 1
    elif part == b"data: [DONE]":
        answer.done = True
    else:
        assert part.startswith(b"data: "), part
        payload = json.loads(part[6:])
        if "error" in payload:
            answer.error = payload["error"]
        else:
            answer.chunks.append(payload)


def _asked(model: str, prompt: str, more: dict[str, Any]) -> dict[str, Any]:
    return {"model": model, "messages": [{"role": "user", "content": prompt}], "stream": True, **more}


@asynccontextmanager
async def opened(
    session: aiohttp.ClientSession, url: str, model: str, prompt: str = "Tell me a story", **more: Any
) -> AsyncIterator[Reader]:
    """Open a chat stream; leaving the context closes its connection, as a client does that goes away."""
    async with session.post(f"{url}/v1/chat/completions", json=_asked(model, prompt, more)) as response:
        try:
            yield Reader(response)
        finally:
            response.close()


async def chat(
    session: aiohttp.ClientSession, url: str, model: str, prompt: str = "Tell me a story", **more: Any
) -> Answer:
    """Stream a chat request to its end."""
    body = _asked(model, prompt, more)
    async with session.post(f"{url}/v1/chat/completions", json=body) as response:
        if response.status != 200:
            return Answer(response.status, error=(await response.json())["error"])
        return await Reader(response).to_end()
