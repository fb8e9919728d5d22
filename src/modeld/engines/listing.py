"""Where each engine is: what `modeld engines list` shows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

import msgspec

from modeld.engines.pins import RECIPES, Variant
from modeld.engines.place import Place
from modeld.protocol.capabilities import Capability


class Engine(msgspec.Struct, frozen=True):
    """One engine. `where` is the environment that workers use: `named` by the configuration, the daemon's
    `own`, or the one that modeld has made (`managed`); `missing`: none has it. `python` is its interpreter,
    "" for the daemon's own. `variant` and `size` (bytes) are known of managed ones only. `fix` is the command
    that would bring it, `note` what else there is to know.
    """

    name: str
    where: Literal["named", "own", "managed", "missing"]
    detail: str
    python: str = ""
    variant: str = ""
    size: int = 0
    fix: str = ""
    note: str = ""


class Engines(msgspec.Struct, frozen=True):
    """The document of `modeld engines list --json`."""

    engines: tuple[Engine, ...]


def engines(place: Place, found: Mapping[str, Capability], named: Mapping[str, str]) -> tuple[Engine, ...]:
    """Return every engine that modeld knows, by name. `named` are the configuration's interpreters."""
    return tuple(_engine(name, place, found[name], name in named) for name in sorted(RECIPES))


def _engine(name: str, place: Place, found: Capability, is_named: bool) -> Engine:
    managed, about = place.python(name), place.installed(name)
    uses_managed = managed is not None and found.python == managed
    if not found.available:
        return Engine(name, "missing", found.detail, found.python, fix=found.fix)
    if not uses_managed or is_named:
        other = "the interpreter that the configuration names" if is_named else "the daemon's own"
        note = f"the environment that modeld has made is not used, {other} is" if managed else ""
        return Engine(name, "named" if is_named else "own", found.detail, found.python, note=note)
    if about is None:
        return Engine(name, "managed", found.detail, found.python)
    return Engine(
        name,
        "managed",
        found.detail,
        found.python,
        about.variant,
        about.size,
        note="" if _is_current(name, about.variant, about.packages) else _AGAIN.format(name),
    )


_AGAIN = "this version of modeld knows other versions of its packages; to get them: modeld engines install {}"


def _is_current(name: str, variant: str, packages: tuple[str, ...]) -> bool:
    recipe = RECIPES[name].get(Variant(variant)) if variant in [*map(str, Variant)] else None
    return recipe is not None and recipe.packages == packages
