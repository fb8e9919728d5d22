"""Forms with files (multipart/form-data), read within the body's limits. Parts may come in any order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from typing import NamedTuple

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from modeld.errors import BadRequest, TooLarge, UnsupportedMedia
from modeld.gateway.body import check_announced
from modeld.gateway.settings import GatewaySettings

MOST_PARTS = 200
"""Parts in one form."""

LONGEST_FIELD = 1 << 20
"""Bytes of one part that is no file."""

_PIECE = 1 << 16


class Upload(NamedTuple):
    """A file of a form. Its name and type are the client's word."""

    filename: str
    content_type: str
    data: bytes


@dataclass
class Form:
    """A form's parts by name; a name's brackets at the end (`image[]`) are dropped."""

    fields: dict[str, list[str]] = field(default_factory=dict)
    files: dict[str, list[Upload]] = field(default_factory=dict)

    def text(self, name: str) -> str | None:
        """Return a field's last value, None when it is not there or empty."""
        values = self.fields.get(name)
        return (values[-1] if values else "") or None


async def read_form(request: web.Request, settings: GatewaySettings) -> Form:
    """Read the whole form. Raises UnsupportedMedia, TooLarge; BadRequest for one that cannot be read."""
    if request.content_type.lower() != "multipart/form-data":
        sent = request.headers.get("content-type")
        what = f"the content type is {sent[:100]!r}" if sent else "the request has no content type"
        raise UnsupportedMedia(f"{what}; this route takes a form with a file: multipart/form-data")
    limit = settings.max_request_body
    check_announced(request, limit)
    form, budget = Form(), _Budget(limit)
    try:
        reader = await request.multipart()
        for _ in range(MOST_PARTS):
            async with asyncio.timeout(settings.body_stall_timeout):
                part = await reader.next()
            if part is None:
                return form
            await _take(part, form, budget, settings.body_stall_timeout)
    except TimeoutError:
        raise BadRequest(
            f"no byte of the body came for {settings.body_stall_timeout:g} s", code="body_timeout"
        ) from None
    except (web.RequestPayloadError, HttpProcessingError, ValueError, AssertionError, LookupError) as error:
        words = " ".join(str(error).split())[:200] or "it breaks off"
        raise BadRequest(f"the form cannot be read: {words}", code="invalid_body") from None
    raise BadRequest(f"the form has more than {MOST_PARTS} parts", code="invalid_body")


class _Budget:
    """Counts what came: a chunked body announces nothing."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def spend(self, size: int) -> None:
        self._left -= size
        if self._left < 0:
            raise TooLarge(
                f"the body is more than {self._limit} bytes, the limit is {self._limit}; "
                "max_request_body in the configuration sets it"
            )


async def _take(
    part: MultipartReader | BodyPartReader, form: Form, budget: _Budget, stall_timeout: float
) -> None:
    if isinstance(part, MultipartReader):
        raise BadRequest("the form has a form inside, which is not read here", code="invalid_body")
    name = (part.name or "").removesuffix("[]")
    pieces, size = [], 0
    async for piece in _pieces(part, stall_timeout):
        budget.spend(len(piece))
        size += len(piece)
        if part.filename is None and size > LONGEST_FIELD:
            raise TooLarge(
                f"the form's field {name[:40]!r} is longer than {LONGEST_FIELD} bytes", param=name[:40]
            )
        pieces.append(piece)
    data = b"".join(pieces)
    if part.filename is not None:
        kind = part.headers.get("content-type", "application/octet-stream")
        form.files.setdefault(name, []).append(Upload(part.filename, kind, data))
        return
    try:
        text = data.decode()
    except UnicodeDecodeError:
        raise BadRequest(
            f"the form's field {name[:40]!r} is not UTF-8 text", code="invalid_body", param=name[:40]
        ) from None
    form.fields.setdefault(name, []).append(text)


async def _pieces(part: BodyPartReader, stall_timeout: float) -> AsyncIterator[bytes]:
    while True:
        async with asyncio.timeout(stall_timeout):
            piece = await part.read_chunk(_PIECE)
        if not piece:
            return
        yield piece
