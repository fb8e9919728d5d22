"""An answer in one JSON body."""

from __future__ import annotations

from aiohttp import web

from modeld.gateway.encoding import dumps


def json_answer(value: object) -> web.Response:
    """Return a value (plain data or a struct) as the body of a 200."""
    return web.Response(body=dumps(value), content_type="application/json")
