"""Values as models write them: almost JSON, or bare text in a tag."""

from __future__ import annotations

import json
from typing import Any


def typed(text: str, parameters: dict[str, Any] | None, key: str) -> Any:
    """Read a parameter tag's text by the type its schema declares; what does not fit stays a string."""
    text = text.removeprefix("\n").removesuffix("\n")
    properties = (parameters or {}).get("properties")
    schema = properties.get(key) if isinstance(properties, dict) else None
    kind = schema.get("type") if isinstance(schema, dict) else None
    if kind == "string":
        return text
    if kind == "boolean" and text.strip().lower() in ("true", "false"):
        return text.strip().lower() == "true"
    value = loads(text)
    return text if value is None and text.strip() != "null" else value


def loads(text: str) -> Any:
    """Read JSON a model wrote, raw control characters in strings included; None when it is none."""
    try:
        return json.loads(text, strict=False, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return None


def _refuse(word: str) -> None:
    raise ValueError(f"{word} is not JSON")


def dumps(value: Any) -> str:
    """Write JSON, readable where UTF-8 can carry it (half a surrogate pair is only possible as an escape)."""
    text = json.dumps(value, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        return json.dumps(value)
    return text
