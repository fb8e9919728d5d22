"""An upload, from a form straight to the disk: no more of it is in memory than a piece."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import HttpProcessingError

from modeld.errors import BadRequest, TooLarge, UnsupportedMedia
from modeld.jobs.files.shelf import Part, Shelf, failed, unbroken

PIECE = 1 << 20
"""Bytes that are gathered before a thread writes them."""

MOST_PARTS = 20
LONGEST_FIELD = 4096

FORM = 1 << 20
"""Bytes of a body beside the file in it."""


@dataclass
class Upload:
    """A form with one file. `filename` is the client's word."""

    part: Part | None = None
    filename: str = ""
    fields: dict[str, str] = field(default_factory=dict)


def check_announced(request: web.BaseRequest, largest: int) -> None:
    """Refuse a body by its Content-Length. Raises TooLarge."""
    announced = request.content_length
    if announced is not None and announced > largest + FORM:
        raise _too_large(f"the body is {announced} bytes", largest)


@asynccontextmanager
async def received(
    request: web.Request, shelf: Shelf, largest: int, stall_timeout: float
) -> AsyncIterator[Upload]:
    """Read the whole form; what is not kept by the end of the block is gone.

    Raises UnsupportedMedia, TooLarge, BadRequest for a form that cannot be read, StoreFailed.
    """
    if request.content_type.lower() != "multipart/form-data":
        sent = request.headers.get("content-type")
        what = f"the content type is {sent[:100]!r}" if sent else "the request has no content type"
        raise UnsupportedMedia(f"{what}; this route takes a form with a file: multipart/form-data")
    check_announced(request, largest)
    upload = Upload()
    try:
        await _read(request, upload, shelf, largest, stall_timeout)
        yield upload
    except OSError as error:
        if isinstance(error, ConnectionError):
            raise
        raise failed(error) from error
    finally:
        if upload.part is not None:
            upload.part.drop()


async def _read(
    request: web.Request, upload: Upload, shelf: Shelf, largest: int, stall_timeout: float
) -> None:
    try:
        reader = await request.multipart()
        for _ in range(MOST_PARTS):
            async with asyncio.timeout(stall_timeout):
                part = await reader.next()
            if part is None:
                return
            if not isinstance(part, BodyPartReader):
                raise BadRequest("the form has a form inside, which is not read here", code="invalid_body")
            if part.filename is not None:
                await _take_file(part, upload, shelf, largest, stall_timeout)
            else:
                await _take_field(part, upload, stall_timeout)
    except TimeoutError:
        raise BadRequest(f"no byte of the body came for {stall_timeout:g} s", code="body_timeout") from None
    except (web.RequestPayloadError, HttpProcessingError, ValueError, AssertionError, LookupError) as error:
        words = " ".join(str(error).split())[:200] or "it breaks off"
        raise BadRequest(f"the form cannot be read: {words}", code="invalid_body") from None
    raise BadRequest(f"the form has more than {MOST_PARTS} parts", code="invalid_body")


async def _take_file(
    part: BodyPartReader, upload: Upload, shelf: Shelf, largest: int, stall_timeout: float
) -> None:
    if upload.part is not None or part.name != "file":
        raise BadRequest("the form takes one file, in the field 'file'", code="invalid_value", param="file")
    upload.part, upload.filename = shelf.begin(), part.filename or ""
    pieces, gathered = list[bytes](), 0
    while True:
        async with asyncio.timeout(stall_timeout):
            piece = await part.read_chunk(1 << 16)
        pieces.append(piece)
        gathered += len(piece)
        if upload.part.size + gathered > largest:
            raise _too_large(f"the file has more than {largest} bytes", largest)
        if gathered >= PIECE or not piece:
            await unbroken(upload.part.write, b"".join(pieces))
            pieces, gathered = [], 0
        if not piece:
            return


async def _take_field(part: BodyPartReader, upload: Upload, stall_timeout: float) -> None:
    name, data = (part.name or "")[:100], bytearray()
    while True:
        async with asyncio.timeout(stall_timeout):
            piece = await part.read_chunk(1 << 13)
        if not piece:
            break
        data += piece
        if len(data) > LONGEST_FIELD:
            raise TooLarge(
                f"the form's field {name[:40]!r} is longer than {LONGEST_FIELD} bytes", param=name[:40]
            )
    upload.fields[name] = data.decode()  # UnicodeDecodeError is a ValueError


def _too_large(what: str, largest: int) -> TooLarge:
    return TooLarge(
        f"{what}, the limit of a file is {largest} bytes (files.largest in the configuration)",
        code="file_too_large",
        param="file",
    )
