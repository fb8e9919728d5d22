"""The room's routes, put into the gateway's application."""

from __future__ import annotations

from aiohttp import web

from modeld.responses import context as contexts
from modeld.responses import conversations, prompts, routes
from modeld.responses.background import Background
from modeld.responses.context import Context
from modeld.responses.websocket import routes as websocket


def add_routes(app: web.Application, context: Context, background: Background) -> None:
    """Register all routes of the room, and what their handlers need."""
    app[contexts.KEY] = context
    app[routes.BACKGROUND] = background
    for family in (routes, prompts, conversations, websocket):
        family.add_routes(app)
