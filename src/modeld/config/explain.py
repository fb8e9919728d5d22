"""What pydantic found wrong, in plain words and with the key's full name. Values of API keys never show."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_SHOWN = 40
_WANTED = {
    "int": "a whole number",
    "float": "a number",
    "finite": "a finite number",
    "string": "text",
    "bool": "true or false",
    "tuple": "a list",
    "list": "a list",
    "dict": "a mapping (lines of key: value)",
    "model": "a mapping (lines of key: value)",
    "path": "a path",
}
_BOUNDS = {
    "greater_than": ("gt", "more than"),
    "greater_than_equal": ("ge", "at least"),
    "less_than": ("lt", "less than"),
    "less_than_equal": ("le", "at most"),
}


class Finding(NamedTuple):
    """One mistake: the path of the value, whether its key is what is wrong, and the words."""

    path: tuple[str | int, ...]
    at_key: bool
    message: str


def findings(errors: Iterable[ErrorDetails]) -> list[Finding]:
    """Put pydantic's errors into words."""
    return [_finding(error) for error in errors]


def dotted(path: Sequence[str | int]) -> str:
    """Return a path as people write it: models[0].llama_server_config.n_ctx."""
    text = ""
    for step in path:
        text += f"[{step}]" if isinstance(step, int) else f".{step}" if text else str(step)
    return text


def described(value: Any) -> str:
    """Return a value in a few words, e.g. text 'abc', true, a list, nothing."""
    match value:
        case None:
            return "nothing"
        case bool():
            return str(value).lower()
        case int() | float():
            text = repr(value)
            return f"the number {text[:_SHOWN]}{'…' if len(text) > _SHOWN else ''}"
        case str():
            return f"text {value[:_SHOWN] + '…' if len(value) > _SHOWN else value!r}"
        case list() | tuple():
            return "a list"
        case dict():
            return "a mapping"
    return "something else"


def _plain(bound: Any) -> str:
    return f"{bound:g}" if isinstance(bound, float) else str(bound)


def _kind(value: Any) -> str:
    match value:
        case str():
            return "text"
        case bool():
            return "true or false"
        case int() | float():
            return "a number"
    return described(value)


def _finding(error: ErrorDetails) -> Finding:
    path, kind, context = tuple(error["loc"]), error["type"], error.get("ctx") or {}
    # Under api_keys only the kind of a value is told, never the value.
    got = _kind(error["input"]) if "api_keys" in path else described(error["input"])
    if kind == "modeld":
        path += tuple(int(step) if step.isdecimal() else step for step in context["field"].split(".") if step)
        return _named(path, context["message"])
    if kind == "extra_forbidden":
        return _named(path, "unknown key" + _hint(path), at_key=True)
    if kind == "missing":
        return _named(path, "missing" + _meaning(path), at_key=True)
    if kind == "literal_error":
        return _named(path, _choice(context.get("expected", ""), error["input"], got))
    if kind in _BOUNDS:
        bound, words = _BOUNDS[kind]
        return _named(path, f"expected {words} {_plain(context[bound])}, got {got}")
    if kind == "string_too_long":
        length = len(error["input"])
        return _named(path, f"expected at most {context['max_length']} characters, got {length}")
    if kind == "too_short":
        return _named(path, "expected a list that is not empty")
    if kind == "int_from_float":
        return _named(path, f"expected a whole number, got {got}")
    wanted = _WANTED.get(kind.split("_")[0])
    if wanted is None:
        return _named(path, error["msg"])
    fix = "; put it in quotes" if wanted == "text" and isinstance(error["input"], int | float) else ""
    return _named(path, f"expected {wanted}, got {got}{fix}")


def _named(path: tuple[str | int, ...], message: str, *, at_key: bool = False) -> Finding:
    joint = " " if message.startswith(("is ", "belongs ", "cannot ", "follows ")) else ": "
    return Finding(path, at_key, f"{dotted(path)}{joint}{message}" if path else message)


def _choice(expected: str, value: Any, got: str) -> str:
    choices = [choice.strip("'") for choice in expected.replace(" or ", ", ").split(", ")]
    near = difflib.get_close_matches(value, choices, 1) if isinstance(value, str) else []
    return f"expected one of {', '.join(choices)}, got {got}" + (f"; did you mean {near[0]}?" if near else "")


def _hint(path: tuple[str | int, ...]) -> str:
    from modeld.config.outline import section_at, section_of

    section, key = section_at(path[:-1]), str(path[-1])
    if section is None:
        return ""
    near = difflib.get_close_matches(key.lower().replace("-", "_"), section.model_fields, 1, cutoff=0.7)
    if near:
        return f"; did you mean {near[0]}?"
    for name, field in section.model_fields.items():
        below = section_of(field)
        if below is not None and key in below.model_fields:
            return f"; it belongs under {name}"
    named = [step for step in path[:-1] if isinstance(step, str)]
    parent = section_at(named[:-1]) if named else None
    if parent is not None and key in parent.model_fields:
        return "; it belongs one level up" if len(named) > 1 else "; it belongs at the top level"
    return f"; known here: {', '.join(section.model_fields)}" if len(section.model_fields) <= 6 else ""


def _meaning(path: tuple[str | int, ...]) -> str:
    from modeld.config.outline import section_at

    section = section_at(path[:-1])
    field = section.model_fields.get(str(path[-1])) if section else None
    return f": {field.description}" if field and field.description else ""
