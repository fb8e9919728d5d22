"""`/v1/conversations` and their items, at every gateway: histories that are named, and stay until deleted."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from aiohttp import web
from msgspec import Meta

from modeld.errors import NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import routing
from modeld.gateway.answer import json_answer
from modeld.gateway.body import expect, read_json
from modeld.gateway.decoding import decode, invalid
from modeld.ids import Identity, new_id
from modeld.responses import context as contexts
from modeld.responses import inputs, listing
from modeld.responses.context import Context
from modeld.responses.history import Items, check_duplicates
from modeld.responses.request import Metadata
from modeld.store.conversations import Conversation

MOST_ITEMS = 20
"""Items in one request, as at OpenAI."""

RawItems: TypeAlias = Annotated[list[dict[str, Any]], Meta(max_length=MOST_ITEMS)]


class _Create(msgspec.Struct):
    items: RawItems | None = None
    metadata: Metadata | None = None


class _Update(msgspec.Struct):
    metadata: Metadata | None


class _Add(msgspec.Struct):
    items: Annotated[RawItems, Meta(min_length=1)]


_CREATE = msgspec.json.Decoder(_Create)
_UPDATE = msgspec.json.Decoder(_Update)
_ADD = msgspec.json.Decoder(_Add)


async def create(request: web.Request) -> web.StreamResponse:
    """Begin a conversation, with items or without."""
    context, identity = _who(request)
    body = decode(_CREATE, await read_json(request, context.settings) or b"{}")
    items = _items(body.items or [], ())
    now = context.clock.time()
    made = await context.conversations.create(identity, new_id("conv_"), body.metadata or {}, items, now)
    return _shown(made)


async def fetch(request: web.Request) -> web.StreamResponse:
    """Return a conversation."""
    context, identity = _who(request)
    id = request.match_info["id"]
    return _shown(_there(await context.conversations.get(identity, id), id))


async def update(request: web.Request) -> web.StreamResponse:
    """Replace a conversation's metadata."""
    context, identity = _who(request)
    id = request.match_info["id"]
    body = decode(_UPDATE, await read_json(request, context.settings))
    return _shown(_there(await context.conversations.update(identity, id, body.metadata or {}), id))


async def delete(request: web.Request) -> web.StreamResponse:
    """Delete a conversation; responses that were made in it stay."""
    context, identity = _who(request)
    id = request.match_info["id"]
    if not await context.conversations.delete(identity, id):
        raise _not_found(id)
    return json_answer({"id": id, "object": "conversation.deleted", "deleted": True})


async def list_items(request: web.Request) -> web.StreamResponse:
    """List a conversation's items."""
    context, identity = _who(request)
    id = request.match_info["id"]
    page = listing.page(request.query)
    return json_answer(listing.listed(await _all(context, identity, id), page))


async def add_items(request: web.Request) -> web.StreamResponse:
    """Add items to the end of a conversation, and list those."""
    context, identity = _who(request)
    id = request.match_info["id"]
    listing.check_include(request.query)
    body = decode(_ADD, await read_json(request, context.settings))
    items = _items(body.items, await _all(context, identity, id))
    if not await context.conversations.add(identity, id, items):
        raise _not_found(id)
    return json_answer(listing.listed(items, listing.Page(MOST_ITEMS, descending=False)))


async def fetch_item(request: web.Request) -> web.StreamResponse:
    """Return one item."""
    context, identity = _who(request)
    id, item_id = request.match_info["id"], request.match_info["item"]
    listing.check_include(request.query)
    _there(await context.conversations.get(identity, id), id)
    item = await context.conversations.item(identity, id, item_id)
    if item is None:
        raise _no_item(item_id)
    return json_answer(item)


async def delete_item(request: web.Request) -> web.StreamResponse:
    """Take one item out of a conversation, and return the conversation."""
    context, identity = _who(request)
    id, item_id = request.match_info["id"], request.match_info["item"]
    found = _there(await context.conversations.get(identity, id), id)
    if not await context.conversations.remove(identity, id, item_id):
        raise _no_item(item_id)
    return _shown(found)


def _who(request: web.Request) -> tuple[Context, Identity]:
    context = request.app[contexts.KEY]
    routing.gateway_name(request, context.pool)
    return context, request[exchanges.KEY].identity


def _items(raw: list[dict[str, Any]], before: Items) -> Items:
    items = tuple(inputs.kept(raw, new_id, "items"))
    for at, item in enumerate(items):
        if item["type"] == "item_reference":
            raise invalid(f"items[{at}].type", "a conversation holds items, not references to them")
    check_duplicates(before, items, "items")
    return items


async def _all(context: Context, identity: Identity, id: str) -> Items:
    items = await context.conversations.items(identity, id)
    if items is None:
        raise _not_found(id)
    return items


def _there(found: Conversation | None, id: str) -> Conversation:
    if found is None:
        raise _not_found(id)
    return found


def _not_found(id: str) -> NotFound:
    return NotFound(
        f"Conversation with id '{id[:100]}' not found.",
        code="conversation_not_found",
        param="conversation_id",
    )


def _no_item(id: str) -> NotFound:
    return NotFound(f"Item with id '{id[:100]}' not found.", code="item_not_found", param="item_id")


def _shown(found: Conversation) -> web.Response:
    return json_answer(
        {
            "id": found.id,
            "object": "conversation",
            "metadata": found.metadata,
            "created_at": int(found.created),
        }
    )


def add_routes(app: web.Application) -> None:
    """Register these routes."""
    routing.add_post(app, "/v1/conversations", create, expect)
    routing.add_get(app, "/v1/conversations/{id}", fetch)
    routing.add_post(app, "/v1/conversations/{id}", update, expect)
    routing.add_delete(app, "/v1/conversations/{id}", delete)
    routing.add_get(app, "/v1/conversations/{id}/items", list_items)
    routing.add_post(app, "/v1/conversations/{id}/items", add_items, expect)
    routing.add_get(app, "/v1/conversations/{id}/items/{item}", fetch_item)
    routing.add_delete(app, "/v1/conversations/{id}/items/{item}", delete_item)
