"""The shape of the schema as facts: which keys stand where. For suggestions and for the reference."""

from __future__ import annotations

import types
import typing
from collections.abc import Iterator, Sequence

from pydantic.fields import FieldInfo

from modeld.config.schema import Config
from modeld.config.values import Section


def members(annotation: object) -> Iterator[object]:
    """Give the types an annotation is made of, without Annotated, None and the `...` of tuples."""
    origin = typing.get_origin(annotation)
    if origin is typing.Annotated:
        yield from members(typing.get_args(annotation)[0])
    elif origin in (typing.Union, types.UnionType, tuple):
        for argument in typing.get_args(annotation):
            if argument not in (type(None), Ellipsis):
                yield from members(argument)
    else:
        yield annotation


def section_of(field: FieldInfo) -> type[Section] | None:
    """Return the section a field holds, or holds a list of; None for plain values."""
    for member in members(field.annotation):
        if isinstance(member, type) and issubclass(member, Section):
            return member
    return None


def is_list(field: FieldInfo) -> bool:
    """Return whether the field is written as a list."""
    pending: list[object] = [field.annotation]
    while pending:
        annotation = pending.pop()
        if typing.get_origin(annotation) is tuple:
            return True
        pending += [part for part in typing.get_args(annotation) if typing.get_origin(annotation) is not dict]
    return False


def section_at(path: Sequence[str | int]) -> type[Section] | None:
    """Return the section at a path such as ("models", 0, "llama_server_config"); None if none is there."""
    section: type[Section] | None = Config
    for step in path:
        if isinstance(step, int):
            continue
        field = section.model_fields.get(step) if section else None
        section = section_of(field) if field else None
    return section
