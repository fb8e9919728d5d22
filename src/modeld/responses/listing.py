"""Lists of items, a page at a time: `limit`, `order`, `after`, `include`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from multidict import MultiMapping

from modeld.errors import BadRequest
from modeld.gateway.decoding import invalid
from modeld.responses.inputs import Item
from modeld.responses.request import INCLUDES

MOST = 100
USUAL = 20


@dataclass(frozen=True, slots=True)
class Page:
    """Which items of a list are wanted: `limit` of them, behind the item `after`."""

    limit: int = USUAL
    descending: bool = True
    after: str | None = None


def page(query: MultiMapping[str]) -> Page:
    """Read what a query asks for. Raises BadRequest."""
    check_include(query)
    text = query.get("limit", str(USUAL))
    if not text.isascii() or not text.isdigit() or len(text) > 9 or not 1 <= int(text) <= MOST:
        raise invalid("limit", f"expected 1 to {MOST}, got {text[:40]!r}")
    order = query.get("order", "desc")
    if order not in ("asc", "desc"):
        raise invalid("order", f"expected asc or desc, got {order[:40]!r}")
    return Page(int(text), order == "desc", query.get("after"))


def check_include(query: MultiMapping[str]) -> None:
    """Refuse what cannot be included. Raises BadRequest."""
    names = [*query.getall("include[]", []), *query.getall("include", [])]
    for name in names:
        if name not in INCLUDES:
            raise invalid("include", f"there is no {name[:60]!r} to include")


def flag(query: MultiMapping[str], name: str) -> bool:
    """Read a switch. Raises BadRequest."""
    text = query.get(name, "false").lower()
    if text not in ("true", "false", "1", "0"):
        raise invalid(name, f"expected true or false, got {text[:40]!r}")
    return text in ("true", "1")


def listed(items: Sequence[Item], wanted: Page) -> dict[str, Any]:
    """Return a page as a list object. Raises BadRequest for an `after` that is not in the list."""
    ordered = list(reversed(items)) if wanted.descending else list(items)
    if wanted.after is not None:
        at = next((at for at, item in enumerate(ordered) if item.get("id") == wanted.after), None)
        if at is None:
            raise BadRequest(
                f"Item with id '{wanted.after[:100]}' not found.", code="invalid_value", param="after"
            )
        ordered = ordered[at + 1 :]
    data = ordered[: wanted.limit]
    return {
        "object": "list",
        "data": data,
        # No item has no id; null is what neither OpenAI's schema nor its SDK's types have room for.
        "first_id": data[0]["id"] if data else "",
        "last_id": data[-1]["id"] if data else "",
        "has_more": len(ordered) > wanted.limit,
    }
