"""`/v1/files` at every gateway: upload, list, look, read, delete. Files are the caller's at all of them."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any
from urllib.parse import quote

import msgspec
from aiohttp import web
from multidict import MultiMapping

from modeld.clock import Clock
from modeld.errors import BadRequest, NotFound, StoreFailed, TooLarge
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.answer import json_answer
from modeld.gateway.decoding import invalid, missing
from modeld.gateway.encoding import dumps
from modeld.ids import new_id
from modeld.jobs import idempotency
from modeld.jobs.files.limits import FileLimits
from modeld.jobs.files.shelf import Part, Shelf, unbroken
from modeld.jobs.files.upload import Upload, check_announced, received
from modeld.store.files import FileAdded, Files, StoredFile
from modeld.store.tokens import Token
from modeld.telemetry.metrics import Metrics

_log = logging.getLogger("modeld.jobs")

PURPOSES = ("assistants", "batch", "fine-tune", "vision", "user_data", "evals")
"""What a file may be uploaded for; here only a batch reads one."""

LEAST_S, MOST_S = 3600, 30 * 86_400
"""For how long a file may ask to be kept, as at OpenAI."""

MOST_LISTED = 10_000
LONGEST_NAME = 255


@dataclass(frozen=True)
class Room:
    """What the handlers need."""

    files: Files
    shelf: Shelf
    limits: FileLimits
    clock: Clock
    metrics: Metrics
    intake: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while a file is stored, so that nobody is told of one that is taken back."""


KEY = web.AppKey("files", Room)
"""Where the application carries it."""


class FileBody(msgspec.Struct):
    """A file as callers see it; `sha256` is beyond OpenAI's."""

    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    sha256: str
    object: str = "file"
    status: str = "processed"
    status_details: str | None = None


def body(file: StoredFile) -> FileBody:
    """Return a file as callers see it."""
    return FileBody(
        id=file.id,
        bytes=file.bytes,
        created_at=int(file.created),
        expires_at=None if file.expires is None else int(file.expires),
        filename=file.filename,
        purpose=file.purpose,
        sha256=file.sha256,
    )


async def create(request: web.Request) -> web.StreamResponse:
    """Take a file in; one that is sent again by its client's own name for it is the file of then."""
    room, settings = request.app[KEY], request.app[routing.KEY].settings
    name = idempotency.name_of(request)
    async with received(request, room.shelf, room.limits.largest, settings.body_stall_timeout) as upload:
        file = _checked(room, upload, request[exchanges.KEY].identity)
        token = None if name is None else Token(name, _digest(upload))
        assert upload.part is not None
        async with room.intake:
            added = await _keep(room, upload.part, file, token)
        if added.held is not None:
            raise TooLarge(
                f"your files have {added.held} bytes, with this one they would have "
                f"{added.held + file.bytes}, and the limit is {room.limits.together} (files.together in the "
                "configuration); delete some",
                code="storage_limit_exceeded",
                param="file",
            )
        if added.conflict:
            raise idempotency.used_before(name)
    return json_answer(body(added.file))


async def _keep(room: Room, part: Part, file: StoredFile, token: Token | None) -> FileAdded:
    """Store a file, unless that changes nothing or is too much. Cancelled, it leaves nothing behind."""
    added = None
    try:
        await unbroken(part.keep, file.id)
        added = await room.files.add(file, room.limits.together, token)
    except BaseException:  # also when the client leaves: it never learns the id
        with suppress(StoreFailed):
            await room.files.delete(file.identity, file.id)
        raise
    finally:
        if added is None or not added.new:
            room.shelf.remove(file.id)
    if added.new:
        room.metrics.files_changed(file.purpose, 1, file.bytes)
    return added


def _digest(upload: Upload) -> bytes:
    """Return what tells an upload from another: all that was sent, but not how the form was written."""
    assert upload.part is not None
    return blake2b(dumps((upload.part.sha256, upload.filename, sorted(upload.fields.items())))).digest()


def _checked(room: Room, upload: Upload, identity: str) -> StoredFile:
    """Return what is stored of an upload. Raises BadRequest."""
    if upload.part is None:
        raise missing("file", "the form has no file")
    purpose = upload.fields.get("purpose")
    if not purpose:
        raise missing("purpose", f"it is one of {', '.join(PURPOSES)}")
    if purpose not in PURPOSES:
        raise invalid("purpose", f"{purpose[:40]!r} is none of {', '.join(PURPOSES)}")
    now = room.clock.time()
    usual = room.limits.keep_s if purpose == "batch" else None
    seconds = _seconds(upload.fields)
    if seconds is None:
        seconds = usual
    name = "".join(character for character in upload.filename if character.isprintable())
    return StoredFile(
        id=new_id("file-"),
        identity=identity,
        purpose=purpose,
        filename=name[-LONGEST_NAME:] or "file",
        bytes=upload.part.size,
        sha256=upload.part.sha256,
        created=now,
        expires=None if seconds is None else now + seconds,
    )


def _seconds(fields: dict[str, str]) -> float | None:
    """Return for how long a form asks to keep its file, None when it does not say. Raises BadRequest."""
    anchor, text = fields.get("expires_after[anchor]"), fields.get("expires_after[seconds]")
    if anchor is None and text is None:
        return None
    if anchor != "created_at":
        raise invalid("expires_after.anchor", "it is created_at")
    if text is None or not (text.isascii() and text.isdigit()) or len(text) > 9:
        raise invalid("expires_after.seconds", "expected a whole number")
    return check_seconds(int(text), "expires_after.seconds")


def check_seconds(seconds: int, param: str) -> float:
    """Return for how long a file is to be kept. Raises BadRequest."""
    if not LEAST_S <= seconds <= MOST_S:
        raise invalid(param, f"expected {LEAST_S} (an hour) to {MOST_S} (30 days), got {seconds}")
    return float(seconds)


async def list_files(request: web.Request) -> web.StreamResponse:
    """List the caller's files: `limit`, `order`, `after`, `purpose`."""
    room, query = request.app[KEY], request.query
    limit, order = number(query, "limit", MOST_LISTED, MOST_LISTED), query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", f"expected asc or desc, got {order[:40]!r}")
    found = await room.files.page(
        request[exchanges.KEY].identity,
        purpose=query.get("purpose"),
        after=query.get("after"),
        limit=limit + 1,
        descending=order == "desc",
    )
    if found is None:
        raise unknown_after(query)
    return json_answer(listed([body(file) for file in found], limit))


def number(query: MultiMapping[str], name: str, usual: int, most: int) -> int:
    """Return a number of a query, from 1 to `most`. Raises BadRequest."""
    text = query.get(name)
    if text is None:
        return usual
    if not (text.isascii() and text.isdigit()) or len(text) > 9 or not 1 <= int(text) <= most:
        raise invalid(name, f"expected 1 to {most}, got {text[:40]!r}")
    return int(text)


def unknown_after(query: MultiMapping[str]) -> BadRequest:
    """Return the error of an `after` that is nothing of the caller's."""
    return BadRequest(f"there is no {query['after'][:100]!r} here", code="invalid_value", param="after")


def listed(entries: list[Any], limit: int) -> dict[str, Any]:
    """Return a page as a list object; one entry more than the limit says that there is more."""
    data = entries[:limit]
    return {
        "object": "list",
        "data": data,
        "first_id": data[0].id if data else None,
        "last_id": data[-1].id if data else None,
        "has_more": len(entries) > limit,
    }


async def retrieve(request: web.Request) -> web.StreamResponse:
    """Say what is known of a file."""
    return json_answer(body(await _found(request)))


async def content(request: web.Request) -> web.StreamResponse:
    """Give what a file holds, or a range of it."""
    room, file = request.app[KEY], await _found(request)
    path = room.shelf.path(file.id)
    if not path.exists():
        _log.error("the content of the file %s is missing: %s", file.id, path)
        raise NotFound(f"the content of the file {file.id} is gone", code="file_content_missing")
    headers = {
        "content-disposition": f"attachment; filename*=UTF-8''{quote(file.filename, safe='')}",
        "content-type": "application/octet-stream",
        "x-content-type-options": "nosniff",
    }
    return web.FileResponse(path, headers=headers)


async def delete(request: web.Request) -> web.StreamResponse:
    """Forget a file. A batch that works on it goes on."""
    room, file = request.app[KEY], await _found(request)
    if await room.files.delete(file.identity, file.id):
        room.metrics.files_changed(file.purpose, -1, -file.bytes)
    room.shelf.remove(file.id)
    return json_answer({"id": file.id, "object": "file", "deleted": True})


async def _found(request: web.Request) -> StoredFile:
    id = request.match_info["id"]
    file = await request.app[KEY].files.get(request[exchanges.KEY].identity, id)
    if file is None:
        raise NotFound(f"No such File object: {id[:100]}", code="file_not_found", param="id")
    return file


async def expect(request: web.Request) -> None:
    """Answer `Expect: 100-continue`, unless the body would be refused anyway; see `gateway.body.expect`."""
    wanted = request.headers.get("expect", "").lower()
    try:
        check_announced(request, request.app[KEY].limits.largest)
    except TooLarge:
        return
    if wanted == "100-continue":
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


def add_routes(app: web.Application, room: Room) -> None:
    """Register the routes."""
    app[KEY] = room
    routing.add_post(app, "/v1/files", create, expect)
    routing.add_get(app, "/v1/files", list_files)
    routing.add_get(app, "/v1/files/{id}", retrieve)
    routing.add_get(app, "/v1/files/{id}/content", content)
    routing.add_delete(app, "/v1/files/{id}", delete)
