"""From a request body to checked values: JSON errors as OpenAI tells them, with `param` and `code`."""

from __future__ import annotations

import re
from typing import Any, NoReturn, TypeVar

import msgspec

from modeld.errors import BadRequest

MAX_DEPTH = 64
"""Deepest nesting of free-form values (JSON Schemas, template arguments); more is no honest request."""

INT_RANGE = (-(2**63), 2**64 - 1)
"""Integers that fit the worker link's encoding."""

T = TypeVar("T")

_PATH = re.compile(r" - at .*`\$([^`]*)`$")
_MISSING = re.compile(r"Object missing required field `([^`]*)`")
_TYPES = re.compile(r"Expected `([^`]*)`, got `([^`]*)`")


def decode(decoder: msgspec.json.Decoder[T], raw: bytes | bytearray) -> T:
    """Decode a body. Raises BadRequest for anything that is not JSON of the decoder's type."""
    try:
        return decoder.decode(raw)
    except msgspec.ValidationError as error:
        _explain(str(error))
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the body's JSON is nested too deeply", code="invalid_json") from None


def _explain(message: str) -> NoReturn:
    """Turn a sentence such as "Expected `str`, got `int` - at `$.messages[0].role`" into a BadRequest."""
    where = _PATH.search(message)
    what = message[: where.start()] if where else message
    param = where[1].lstrip(".").replace("[...]", "") if where else ""
    if missing := _MISSING.fullmatch(what):
        param = f"{param}.{missing[1]}" if param else missing[1]
        raise BadRequest(
            f"missing required parameter: '{param}'", code="missing_required_parameter", param=param
        ) from None
    types = _TYPES.fullmatch(what)
    if not param:
        got = f", got {types[2]}" if types else ""
        raise BadRequest(f"the body must be a JSON object{got}", code="invalid_type") from None
    if types:
        text = f"invalid type for '{param}': expected {types[1]}, got {types[2]}"
        raise BadRequest(text, code="invalid_type", param=param) from None
    reason = what.replace("`", "")
    reason = reason[:1].lower() + reason[1:]
    raise BadRequest(f"invalid value for '{param}': {reason}", code="invalid_value", param=param) from None


def invalid(param: str, reason: str) -> BadRequest:
    """Return the error for a value of the right type that cannot be used."""
    return BadRequest(f"invalid value for '{param}': {reason}", code="invalid_value", param=param)


def missing(param: str, reason: str) -> BadRequest:
    """Return the error for a value that this request needs and does not have."""
    return BadRequest(
        f"missing required parameter '{param}': {reason}", code="missing_required_parameter", param=param
    )


def unsupported(param: str, reason: str) -> BadRequest:
    """Return the error for something OpenAI has and modeld has not."""
    return BadRequest(f"'{param}' is not supported: {reason}", code="unsupported_parameter", param=param)


def check_free(value: Any, param: str) -> None:
    """Refuse free-form JSON that could not travel on the worker link: too deep, or integers too large."""
    level, depth = [value], 0
    while level:
        depth += 1
        if depth > MAX_DEPTH:
            raise invalid(param, f"it is nested deeper than {MAX_DEPTH} levels")
        below: list[Any] = []
        for item in level:
            if isinstance(item, dict):
                below.extend(item.values())
            elif isinstance(item, list):
                below.extend(item)
            elif isinstance(item, int) and not INT_RANGE[0] <= item <= INT_RANGE[1]:
                raise invalid(param, "it holds an integer of more than 64 bits")
        level = below
