"""A small web server on loopback, for what modeld fetches."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import web


@dataclass
class Site:
    """Files by path. One whose content is None is never finished: `begun` and `gone` tell of its readers."""

    files: dict[str, bytes | None]
    url: str = ""
    asked: list[str] = field(default_factory=list)
    at_once: int = 0
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    gone: asyncio.Event = field(default_factory=asyncio.Event)
    _open: int = 0

    @property
    def host(self) -> str:
        """Host and port."""
        return self.url.removeprefix("http://")

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Send a file, under a content type that says nothing."""
        self.asked.append(request.path)
        if request.path not in self.files:
            raise web.HTTPNotFound
        content = self.files[request.path]
        if content is not None:
            return web.Response(body=content, content_type="application/octet-stream")
        self._open += 1
        self.at_once = max(self.at_once, self._open)
        self.begun.set()
        response = web.StreamResponse()
        await response.prepare(request)
        try:
            await asyncio.Event().wait()
        finally:
            self._open -= 1
            if not self._open:
                self.gone.set()
        return response


@asynccontextmanager
async def site(**files: bytes | None) -> AsyncIterator[Site]:
    """Serve files: `cat=…` at /cat."""
    served = Site({f"/{name}": content for name, content in files.items()})
    app = web.Application()
    app.router.add_get("/{tail:.*}", served.answer)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    served.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    try:
        yield served
    finally:
        await runner.cleanup()
