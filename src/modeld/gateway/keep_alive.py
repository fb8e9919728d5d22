"""The `keep_alive` field of a request: for how long its model stays loaded after it."""

from __future__ import annotations

from pydantic_core import PydanticCustomError

from modeld.config.values import parse_duration
from modeld.gateway.decoding import invalid


def seconds(value: float | str | None) -> float | None:
    """Return the time in seconds, `math.inf` for never (-1 or "never"), None for a field that was left out.

    It is written as in the configuration. Raises BadRequest with the param `keep_alive`.
    """
    if value is None:
        return None
    try:
        return parse_duration(value)
    except PydanticCustomError as error:
        raise invalid("keep_alive", error.message()) from None
