"""Reading a request's body within limits that no header can talk us out of."""

from __future__ import annotations

import asyncio

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError

from modeld.errors import BadRequest, TooLarge, UnsupportedMedia
from modeld.gateway import routing
from modeld.gateway.settings import GatewaySettings


def check_announced(request: web.BaseRequest, limit: int) -> None:
    """Refuse a body by its Content-Length before reading any of it. Raises TooLarge."""
    announced = request.content_length
    if announced is not None and announced > limit:
        raise _too_large(f"{announced} bytes", limit)


def check_json(request: web.Request) -> None:
    """Refuse a body that does not call itself JSON: any web page can send such. Raises UnsupportedMedia."""
    kind = request.content_type.lower()
    if kind == "application/json" or (kind.startswith("application/") and kind.endswith("+json")):
        return
    sent = request.headers.get("content-type")
    what = f"the content type is {sent[:100]!r}" if sent else "the request has no content type"
    raise UnsupportedMedia(f"{what}; send the header 'content-type: application/json'")


async def expect(request: web.Request) -> None:
    """Answer `Expect: 100-continue`, unless the body would be refused anyway: then the handler's refusal is
    the answer, and the client need not send the body. Other expectations are ignored.
    """
    wanted = request.headers.get("expect", "").lower()
    announced = request.content_length
    limit = request.app[routing.KEY].settings.max_request_body
    if wanted == "100-continue" and (announced is None or announced <= limit):
        await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        request.writer.output_size = 0  # the answer itself has not begun


async def read_json(request: web.Request, settings: GatewaySettings) -> bytes:
    """Return the whole JSON body. Raises UnsupportedMedia, TooLarge; BadRequest for one that breaks off."""
    check_json(request)
    limit = settings.max_request_body
    check_announced(request, limit)
    pieces: list[bytes] = []
    size = 0
    content = request.content
    try:
        while True:
            if content.is_eof():  # the usual case: all of it came with the headers
                piece = content.read_nowait()
            else:
                async with asyncio.timeout(settings.body_stall_timeout):
                    piece = await content.readany()
            if not piece:
                break
            size += len(piece)
            if size > limit:  # counts what came, decompressed: chunked and gzip bodies announce nothing
                raise _too_large(f"more than {limit} bytes", limit)
            pieces.append(piece)
    except TimeoutError:
        raise BadRequest(
            f"no byte of the body came for {settings.body_stall_timeout:g} s", code="body_timeout"
        ) from None
    except (web.RequestPayloadError, HttpProcessingError) as error:
        raise BadRequest(f"the body cannot be read: {error}", code="invalid_body") from None
    return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _too_large(size: str, limit: int) -> TooLarge:
    return TooLarge(
        f"the body is {size}, the limit is {limit}; max_request_body in the configuration sets it"
    )
