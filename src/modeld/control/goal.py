"""What a change leads to: the models there are to be, and the plan. Reads the file of a reload, no more."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from modeld.admin.schemas import Change, ChangePlan, Replacement
from modeld.config.diff import Wanted, changed_settings, diff, wanted_models
from modeld.config.load import from_document, load
from modeld.config.schema import Config
from modeld.errors import ConfigError, UsageError

MOST_NAMED = 20
"""Models that a refusal names at most."""

_AT_ONCE = frozenset({"engines", "allow_fake"})
"""Settings of the file that a reload takes over: they are part of its models."""

_COMMAND_LINE = frozenset({"listen", "state_dir"})
"""Settings that the command line may have decided over the file."""

_FROM_OUTSIDE = frozenset({"models", "gateways", "allow_fake", "api_keys", "cache_dir"}) | _COMMAND_LINE
"""Keys of an added document that need no word: they are used, or not the file's alone to decide."""


@dataclass(frozen=True)
class Present:
    """What there is before a change.

    `config` is the daemon's own configuration, `file` its file (None without one), `filed` the keys of the
    models that the file named when it was last read. `down` are models that are not up, and should be.
    """

    wanted: tuple[Wanted, ...]
    config: Config
    file: Path | None
    filed: frozenset[str]
    down: frozenset[str]


@dataclass(frozen=True)
class Goal:
    """What there is after it. `wakes`: models that stay as they are, and are to come up."""

    wanted: tuple[Wanted, ...]
    plan: ChangePlan
    config: Config
    filed: frozenset[str]
    wakes: tuple[str, ...] = ()


def work_out(change: Change, present: Present, env: Mapping[str, str]) -> Goal:
    """Return what a change leads to. Raises ConfigError or UsageError for one that cannot be."""
    notes: list[str] = []
    config, filed = present.config, present.filed
    match change.kind:
        case "add":
            wanted = _merged(present.wanted, _of_document(change, present, notes))
        case "remove":
            wanted = _without(present.wanted, change.names)
        case "reconcile":
            again = change.document is None
            wanted = present.wanted if again else _of_document(change, present, notes)
        case _:
            wanted, config = _reread(present, env, notes)
            filed = frozenset(each.key for each in wanted if each.origin == "file")
    _check_names(wanted, present.wanted)
    difference = diff(present.wanted, wanted, additive=False)
    wakes: tuple[str, ...] = ()
    if change.kind == "reconcile" and change.document is None:
        wakes = tuple(name for name in difference.unchanged if name in present.down)
        notes += [f"{name} is not up, and is started again" for name in wakes]
    if change.kind != "reload" and present.file is not None:
        changed = {name for name, _ in (*difference.replaces, *difference.updates)}
        notes += _come_back(filed.intersection(difference.removes), filed & changed, present.file)
    plan = ChangePlan(
        difference.adds,
        difference.removes,
        tuple(Replacement(name, keys) for name, keys in difference.replaces),
        tuple(Replacement(name, keys) for name, keys in difference.updates),
        difference.unchanged,
        tuple(notes),
    )
    return Goal(wanted, plan, config, filed, wakes)


def names_of(wanted: Wanted) -> list[tuple[str, str]]:
    """Return what a model is called by: its gateway, and its name or an alias."""
    return [(wanted.gateway, name) for name in (wanted.model.name, *wanted.model.aliases)]


def kept(old: Wanted, wanted: Iterable[Wanted]) -> Wanted:
    """Return what stays of a model whose replacement failed: all but the aliases that others have now."""
    taken = {name for each in wanted if each.key != old.key for name in names_of(each)}
    aliases = tuple(alias for alias in old.model.aliases if (old.gateway, alias) not in taken)
    if aliases == old.model.aliases:
        return old
    return replace(old, model=old.model.model_copy(update={"aliases": aliases}))


def in_words(plan: ChangePlan) -> str:
    """Return a plan's numbers in words."""
    groups = {
        "to add": plan.adds,
        "to remove": plan.removes,
        "to replace": plan.replaces,
        "to update": plan.updates,
        "unchanged": plan.unchanged,
    }
    return ", ".join(f"{len(group)} {words}" for words, group in groups.items() if group) or "no models"


# --- each kind of change ------------------------------------------------------------------------------------


def _of_document(change: Change, present: Present, notes: list[str]) -> tuple[Wanted, ...]:
    if change.document is None:
        raise UsageError("nothing to add: the change has no document")
    if not os.path.isabs(change.base):
        raise UsageError(f"base: expected the absolute path of a folder, got {change.base!r}")
    config = from_document(change.document, Path(change.base), allow_fake=present.config.allow_fake)
    unused = [
        name
        for name in Config.model_fields
        if name in config.model_fields_set - _FROM_OUTSIDE
        and getattr(config, name) != getattr(present.config, name)
    ]
    if unused:
        notes.append(
            f"{', '.join(unused)}: settings outside the models are not taken over; the daemon's own hold"
        )
    own = {each.key: each for each in present.wanted if each.origin == "file"}
    found = []
    for key, gateway, model in config.keyed_models():
        # The daemon's own settings of engines hold, as they do for its own file's models.
        one = Wanted(key, gateway, model, change.base, "added", present.config.options_for(model))
        mine = own.get(key)
        found.append(one if mine is None or not diff([mine], [one], additive=False).empty else mine)
    if change.kind == "add" and not found:
        raise UsageError("nothing to add: the file names no models")
    return tuple(found)


def _merged(present: Sequence[Wanted], added: Sequence[Wanted]) -> tuple[Wanted, ...]:
    """Return the present models with `added` in place of those of their names, or at the end."""
    new = {each.key: each for each in added}
    return (*(new.pop(each.key, each) for each in present), *new.values())


def _without(present: Sequence[Wanted], names: Collection[str]) -> tuple[Wanted, ...]:
    there = [each.key for each in present]
    unknown = [name for name in names if name not in there]
    if unknown or not names:
        known = ", ".join(there[:MOST_NAMED]) or "none"
        if len(there) > MOST_NAMED:
            known += f" and {len(there) - MOST_NAMED} more"
        what = f"no model is named {' or '.join(map(repr, unknown))}" if unknown else "no model is given"
        raise UsageError(f"{what}; there are: {known}")
    return tuple(each for each in present if each.key not in names)


def _reread(present: Present, env: Mapping[str, str], notes: list[str]) -> tuple[tuple[Wanted, ...], Config]:
    """Return the file's models and those that were added, and the configuration under which they run."""
    file = present.file
    if file is None:
        raise UsageError("there is nothing to reload: the daemon was started without a configuration file")
    loaded = load(file, env)
    notes += loaded.warnings
    later = [
        name
        for name in changed_settings(present.config, loaded.config)
        if name not in _AT_ONCE and (name not in _COMMAND_LINE or name in loaded.config.model_fields_set)
    ]
    notes += [_later(name, file) for name in later if name in _COMMAND_LINE]
    settings = [name for name in later if name not in _COMMAND_LINE]
    if settings:
        plural = len(settings) > 1
        notes.append(
            f"{', '.join(settings)}: changed, and {'take' if plural else 'takes'} effect at the next start"
        )
    config = present.config.model_copy(update={name: getattr(loaded.config, name) for name in _AT_ONCE})
    own = wanted_models(loaded.config, loaded.base)
    keys = {each.key for each in own}
    added = []
    for each in present.wanted:
        if each.origin == "file":
            continue
        if each.key in keys:
            notes.append(f"{each.key} was added to the running daemon; the file has a model of this name")
        else:
            added.append(replace(each, options=config.options_for(each.model)))
    return (*own, *added), config


def _later(name: str, file: Path) -> str:
    return (
        f"{name}: the daemon runs with another than {file} has; the file's counts at the next start, unless "
        "the command line decides"
    )


# --- rules --------------------------------------------------------------------------------------------------


def _check_names(wanted: Sequence[Wanted], present: Sequence[Wanted]) -> None:
    """Raise ConfigError when a name or an alias would stand for two models of one gateway."""
    names: dict[tuple[str, str], Wanted] = {}
    for each in wanted:
        for name in names_of(each):
            other = names.setdefault(name, each)
            if other is not each:
                raise ConfigError(
                    f"the name {name[1]!r} would stand for two models, {_told(other, present)} and "
                    f"{_told(each, present)}; "
                    "names and aliases are unique within a gateway"
                )


def _told(wanted: Wanted, present: Sequence[Wanted]) -> str:
    before = wanted.origin == "added" and any(each.key == wanted.key for each in present)
    origin = ", which was added to the running daemon" if before else ""
    return f"{wanted.key!r}{origin}"


def _come_back(removed: Collection[str], changed: Collection[str], file: Path) -> list[str]:
    """Say what the daemon's own file makes of a change, later."""
    notes = []
    if removed:
        them, come = ("it", "comes") if len(removed) == 1 else ("them", "come")
        they = "it" if len(removed) == 1 else "they"
        notes.append(
            f"{', '.join(sorted(removed))}: if {file} still names {them}, {they} {come} back at the next "
            "start or reload"
        )
    if changed:
        them = "it" if len(changed) == 1 else "them"
        notes.append(
            f"{', '.join(sorted(changed))}: what {file} says of {them} holds again from the next start or "
            "reload on"
        )
    return notes
