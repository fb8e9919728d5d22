"""Reading multipart/form-data: text fields and picture files, within the body's limits."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from modeld.errors import BadRequest, TooLarge, UnsupportedMedia
from modeld.gateway.body import check_announced
from modeld.gateway.decoding import invalid
from modeld.gateway.settings import GatewaySettings

MAX_PARTS = 64
MAX_TEXT = 256 * 1024
"""Bytes of one text field."""

_PIECE = 1 << 16
_PLAIN = ("", "binary", "8bit", "7bit")


@dataclass(slots=True)
class Form:
    """A form's fields; names come without the `[]` that marks repeated ones."""

    fields: dict[str, str] = field(default_factory=dict)
    files: dict[str, list[bytes]] = field(default_factory=dict)


async def read_form(request: web.Request, settings: GatewaySettings, files: Collection[str]) -> Form:
    """Read a whole form; the parts named in `files` are files, all others text.

    Raises UnsupportedMedia, TooLarge, and BadRequest for what is no form, breaks off or stalls.
    """
    if request.content_type.lower() != "multipart/form-data":
        sent = request.headers.get("content-type", "nothing")
        raise UnsupportedMedia(f"the content type is {sent[:100]!r}; this route reads multipart/form-data")
    limit = settings.max_request_body
    check_announced(request, limit)
    try:
        return await _Reading(settings, files).run(MultipartReader(request.headers, request.content))
    except TimeoutError:
        raise BadRequest(
            f"no byte of the body came for {settings.body_stall_timeout:g} s", code="body_timeout"
        ) from None
    except (ValueError, EOFError, web.RequestPayloadError, HttpProcessingError) as error:
        words = " ".join(str(error).split())[:200] or type(error).__name__
        raise BadRequest(f"the form cannot be read: {words}", code="invalid_body") from None


class _Reading:
    def __init__(self, settings: GatewaySettings, files: Collection[str]) -> None:
        self._limit, self._stall = settings.max_request_body, settings.body_stall_timeout
        self._files = files
        self._size = 0

    async def run(self, reader: MultipartReader) -> Form:
        form = Form()
        for _ in range(MAX_PARTS + 1):
            async with asyncio.timeout(self._stall):
                part = await reader.next()
            if part is None:
                return form
            if not isinstance(part, BodyPartReader) or not part.name:
                raise BadRequest("a part of the form has no name of its own", code="invalid_body")
            await self._part(form, part, part.name.removesuffix("[]"))
        raise BadRequest(f"the form has more than {MAX_PARTS} parts", code="invalid_body")

    async def _part(self, form: Form, part: BodyPartReader, name: str) -> None:
        for header in ("content-transfer-encoding", "content-encoding"):
            if (coding := part.headers.get(header, "").lower()) not in _PLAIN:
                raise invalid(name[:100], f"its {header} is {coding[:40]!r}; send it as it is")
        is_file = name in self._files
        data = await self._read(part, name, None if is_file else MAX_TEXT)
        if is_file:
            form.files.setdefault(name, []).append(data)
        elif name in form.fields:
            raise invalid(name[:100], "it is there twice")
        else:
            form.fields[name] = data.decode()

    async def _read(self, part: BodyPartReader, name: str, most: int | None) -> bytes:
        data = bytearray()
        while True:
            async with asyncio.timeout(self._stall):
                piece = await part.read_chunk(_PIECE)
            if not piece:
                return bytes(data)
            data += piece
            self._size += len(piece)
            if self._size > self._limit:
                raise TooLarge(
                    f"the body is more than {self._limit} bytes, which is the limit; "
                    "max_request_body in the configuration sets it"
                )
            if most is not None and len(data) > most:
                raise invalid(name[:100], f"text of more than {most} bytes")
