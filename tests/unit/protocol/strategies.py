"""Every message of the worker link, as hypothesis strategies built from the types themselves."""

from __future__ import annotations

import types
import typing
from typing import Any

import msgspec
from hypothesis import strategies as st

from modeld.protocol import messages as m

TO_WORKER: tuple[type[msgspec.Struct], ...] = typing.get_args(m.ToWorker)
TO_DAEMON: tuple[type[msgspec.Struct], ...] = typing.get_args(m.ToDaemon)

_TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
_INT = st.integers(-(2**63), 2**64 - 1)
_FLOAT = st.floats(allow_nan=False)
_JSON = st.recursive(
    st.none() | st.booleans() | _INT | _FLOAT | _TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_TEXT, inner, max_size=3),
    max_leaves=4,
)


def of_type(kind: Any) -> st.SearchStrategy[Any]:
    """Return a strategy for a type as the protocol's structs use them."""
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(of_type(arg) for arg in args))
    if origin is typing.Literal:
        return st.sampled_from(args)
    if origin is tuple:
        return st.lists(of_type(args[0]), max_size=2).map(tuple)
    if origin is dict:
        return st.dictionaries(of_type(args[0]), of_type(args[1]), max_size=2)
    simple = {str: _TEXT, int: _INT, float: _FLOAT, bool: st.booleans(), type(None): st.none(), Any: _JSON}
    simple[bytes] = st.binary(max_size=20)
    if kind in simple:
        return simple[kind]
    assert issubclass(kind, msgspec.Struct), kind
    return struct(kind)


def struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Return a strategy for a struct: every field by its annotated type."""
    hints = typing.get_type_hints(kind)
    return st.builds(
        kind, **{field.name: of_type(hints[field.name]) for field in msgspec.structs.fields(kind)}
    )


def to_worker() -> st.SearchStrategy[Any]:
    """Return a strategy for any message the daemon sends."""
    return st.one_of(*(struct(kind) for kind in TO_WORKER))


def to_daemon() -> st.SearchStrategy[Any]:
    """Return a strategy for any message a worker sends."""
    return st.one_of(*(struct(kind) for kind in TO_DAEMON))
