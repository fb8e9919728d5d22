"""What a request builds on: items of an earlier response, of a conversation, or of a socket's memory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Protocol, TypeAlias

from modeld.errors import BadRequest, NotFound
from modeld.ids import Identity
from modeld.responses.context import Context
from modeld.responses.inputs import Item
from modeld.responses.request import ResponseRequest
from modeld.store.responses import Origin

Items: TypeAlias = tuple[Item, ...]

UNFINISHED = ("queued", "in_progress")


class Memory(Protocol):
    """Responses that only a connection remembers."""

    def recall(self, id: str) -> Items | None:
        """Return all items up to a response's last, None when it is not remembered."""
        ...


async def earlier(
    context: Context, request: ResponseRequest, identity: Identity, memory: Memory | None
) -> tuple[Items, Origin]:
    """Return the items before a request's own, and where its own will be appended.

    Raises BadRequest for a response, NotFound for a conversation that is not there.
    """
    previous = request.previous_response_id
    if previous is not None:
        remembered = memory.recall(previous) if memory is not None else None
        if remembered is not None:
            return remembered, Origin(previous=previous)
        found = await context.responses.history(identity, previous)
        if found is None:
            raise previous_not_found(previous)
        if found.status in UNFINISHED:
            raise BadRequest(
                f"Previous response '{previous[:100]}' is still {found.status}; wait for its end.",
                code="previous_response_in_progress",
                param="previous_response_id",
            )
        return found.items, Origin(previous=previous)
    if request.conversation is not None:
        id = request.conversation if isinstance(request.conversation, str) else request.conversation.id
        items = await context.conversations.items(identity, id)
        if items is None:
            raise NotFound(
                f"Conversation with id '{id[:100]}' not found.",
                code="conversation_not_found",
                param="conversation",
            )
        return items, Origin(conversation=id)
    return (), Origin()


def previous_not_found(id: str) -> BadRequest:
    """Return the error for a response to continue that is not there, or is somebody else's."""
    return BadRequest(
        f"Previous response with id '{id[:100]}' not found.",
        code="previous_response_not_found",
        param="previous_response_id",
    )


async def resolved(context: Context, identity: Identity, before: Items, given: Sequence[Item]) -> Items:
    """Return a request's items with what they refer to in its place. Raises BadRequest.

    An item that is in the chain already, or twice in the request, is refused: the model would read it twice.
    """
    wanted = {item["id"] for item in given if item["type"] == "item_reference"}
    known = {item["id"]: item for item in given if item["type"] != "item_reference"}
    missing = [id for id in wanted if id not in known]
    found: Mapping[str, Item] = await context.responses.find_items(identity, missing) if missing else {}
    items: list[Item] = []
    for at, item in enumerate(given):
        if item["type"] == "item_reference":
            if item["id"] not in found:
                raise BadRequest(
                    f"Item with id '{str(item['id'])[:100]}' not found.",
                    code="invalid_value",
                    param=f"input[{at}].id",
                )
            item = found[item["id"]]
        items.append(item)
    check_duplicates(before, items, "input")
    return tuple(items)


def check_duplicates(before: Iterable[Item], items: Iterable[Item], param: str) -> None:
    """Refuse an item that is there already, or twice. Raises BadRequest."""
    seen = {item["id"] for item in before}
    for at, item in enumerate(items):
        if item["id"] in seen:
            raise BadRequest(
                f"Duplicate item found with id {str(item['id'])[:100]}. "
                "Remove duplicate items from your input and try again.",
                code="invalid_value",
                param=f"{param}[{at}].id",
            )
        seen.add(item["id"])
