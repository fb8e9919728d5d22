"""A model hub on this machine that speaks the hub's protocol, and misbehaves as it is told."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

from aiohttp import web

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass
class Fault:
    """What goes wrong with one request.

    status: answer that instead. cut / hold: send the body up to this byte, then end the connection / wait for
    `Hub.go`. flip: one byte is another. range: "ignored" (200 and all of it), "refused" (416), "other" (a
    206 of another part). more: bytes that come after the last one.
    """

    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    hold: int | None = None
    flip: int | None = None
    range: Literal["ignored", "refused", "other"] | None = None
    more: bytes = b""


@dataclass
class Asked:
    """A request as it came."""

    method: str
    path: str
    range: str | None
    authorization: str | None
    elsewhere: bool
    """Whether it came to the other origin, where redirects lead."""


class Hub:
    """Repositories by name, their files by theirs; `faults` are used up one for each request of a path."""

    def __init__(self, commit: str = COMMIT) -> None:
        self.commit = commit
        self.repos: dict[str, dict[str, bytes]] = {}
        self.faults: dict[str, deque[Fault]] = {}
        """By a file's name, or "listing"."""
        self.always: dict[str, Fault] = {}
        """Likewise, for each request for which there is none in `faults`."""
        self.tokens: dict[str, str] = {}
        """Repositories that only this token may read."""
        self.gated: set[str] = set()
        self.bare = False
        """Whether the listing tells neither sizes nor checksums, as some mirrors' do."""
        self.redirect = False
        """Whether files lie at another origin."""
        self.asked: list[Asked] = []
        self.holding = asyncio.Event()
        """Set when a request has come to the byte where it is held."""
        self.go = asyncio.Event()
        self.address = ""
        self._elsewhere = ""

    def fail(self, name: str, *faults: Fault) -> None:
        """Have the next requests of a file, or of "listing", go wrong in turn."""
        self.faults.setdefault(name, deque()).extend(faults)

    def gets(self, name: str) -> list[Asked]:
        """Return the requests for the bytes of a file that were answered with bytes or an error."""
        there = [each for each in self.asked if each.method == "GET" and each.path.endswith(f"/{name}")]
        return [each for each in there if each.elsewhere == self.redirect]

    # --- the protocol ---------------------------------------------------------------------------------------

    async def _listing(self, request: web.Request) -> web.StreamResponse:
        fault = self._seen(request, "listing")
        if fault.status:
            return web.Response(status=fault.status, headers=fault.headers)
        if fault.hold is not None:
            await self._held()
        repo = f"{request.match_info['org']}/{request.match_info['name']}"
        if refused := self._refused(request, repo):
            return refused
        siblings: list[dict[str, Any]] = []
        for name, body in self.repos[repo].items():
            entry: dict[str, Any] = {"rfilename": name}
            if not self.bare:
                entry |= {"size": len(body), "blobId": git_sha1(body)}
                if _large(name):
                    entry["lfs"] = {"sha256": sha256(body), "size": len(body), "pointerSize": 130}
            siblings.append(entry)
        return web.json_response({"id": repo, "modelId": repo, "sha": self.commit, "siblings": siblings})

    async def _file(self, request: web.Request) -> web.StreamResponse:
        repo = f"{request.match_info['org']}/{request.match_info['name']}"
        name = request.match_info["file"]
        elsewhere = request.host == self._elsewhere.removeprefix("http://")
        moves = self.redirect and not elsewhere
        fault = Fault() if moves or request.method == "HEAD" else None
        fault = self._seen(request, name, fault)
        if fault.status:
            return web.Response(status=fault.status, headers=fault.headers)
        if not elsewhere and (refused := self._refused(request, repo)):
            return refused
        body = self.repos[repo].get(name)
        if body is None:
            return web.Response(status=404, headers={"X-Error-Code": "EntryNotFound"})
        etag = sha256(body) if _large(name) else git_sha1(body)
        headers = {"X-Repo-Commit": self.commit, "Accept-Ranges": "bytes", "ETag": f'"{etag}"'}
        headers |= {"X-Linked-Etag": f'"{etag}"', "X-Linked-Size": str(len(body))}
        if moves:
            headers |= {"ETag": '"of-the-pointer"', "Location": f"{self._elsewhere}{request.path}"}
            return web.Response(status=302, headers=headers)
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(body))})
        return await self._bytes(request, body, fault, headers)

    async def _bytes(
        self, request: web.Request, body: bytes, fault: Fault, headers: dict[str, str]
    ) -> web.StreamResponse:
        asked = re.fullmatch(r"bytes=(\d+)-", request.headers.get("Range", ""))
        start, status = 0, 200
        if asked and fault.range != "ignored":
            start, status = int(asked[1]), 206
            if fault.range == "refused" or start >= len(body):
                return web.Response(status=416, headers={"Content-Range": f"bytes */{len(body)}"})
            if fault.range == "other":
                start = 0
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{len(body)}"
        sent = bytearray(body)
        if fault.flip is not None:
            sent[fault.flip] ^= 1
        answer = web.StreamResponse(status=status, headers=headers)
        answer.content_length = len(body) - start + len(fault.more)
        await answer.prepare(request)
        stop = fault.cut if fault.cut is not None else fault.hold
        if stop is not None:
            await answer.write(bytes(sent[start : max(start, stop)]))
            if fault.cut is not None:
                assert request.transport is not None
                request.transport.close()
                return answer
            await self._held()
            start = max(start, stop)
        await answer.write(bytes(sent[start:]) + fault.more)
        await answer.write_eof()
        return answer

    async def _held(self) -> None:
        self.holding.set()
        await self.go.wait()

    def _seen(self, request: web.Request, name: str, fault: Fault | None = None) -> Fault:
        headers = request.headers
        elsewhere = request.host == self._elsewhere.removeprefix("http://")
        self.asked.append(
            Asked(request.method, request.path, headers.get("Range"), headers.get("Authorization"), elsewhere)
        )
        if fault is not None:
            return fault
        waiting = self.faults.get(name)
        return waiting.popleft() if waiting else self.always.get(name, Fault())

    def _refused(self, request: web.Request, repo: str) -> web.Response | None:
        if repo not in self.repos:
            # As the hub does it: who is not known is not told what there is.
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        token = self.tokens.get(repo)
        if token is not None and request.headers.get("Authorization") != f"Bearer {token}":
            return web.Response(status=401, headers={"X-Error-Code": "RepoNotFound"})
        if repo in self.gated:
            return web.Response(status=403, headers={"X-Error-Code": "GatedRepo"})
        return None


@asynccontextmanager
async def serving(hub: Hub) -> AsyncIterator[Hub]:
    """Serve it at `hub.address`, and the files of redirects at another port, until the block ends."""
    app = web.Application()
    for path in ("/api/models/{org}/{name}", "/api/models/{org}/{name}/revision/{revision}"):
        app.router.add_get(path, hub._listing)
    app.router.add_route("*", "/{org}/{name}/resolve/{revision}/{file:.+}", hub._file)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        addresses = []
        for _ in range(2):
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            addresses.append(site.name)
        hub.address, hub._elsewhere = addresses
        yield hub
    finally:
        hub.go.set()
        await runner.cleanup()


def sha256(body: bytes) -> str:
    """Return the checksum of large files."""
    return hashlib.sha256(body).hexdigest()


def git_sha1(body: bytes) -> str:
    """Return the checksum of small files: that of git's blob."""
    return hashlib.sha1(b"blob %d\0" % len(body) + body, usedforsecurity=False).hexdigest()


def _large(name: str) -> bool:
    return name.endswith((".gguf", ".safetensors", ".bin"))
