"""What changes between two sets of models, and which changes need a new worker. Pure; reads no disk."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from modeld.config.model import OPTION_BLOCKS, Model
from modeld.config.schema import Config, Engines

RESTART = frozenset(
    {"model", "loader", "usecase", "num_gpus", "python", "chat_template_kwargs", *OPTION_BLOCKS.values()}
)
"""Keys of a model that its worker was started with: another value needs another worker."""

IN_PLACE = frozenset(
    {
        "aliases",
        "load",
        "keep_alive",
        "pin",
        "priority",
        "num_cpus",
        "num_replicas",
        "autoscaling_config",
        "max_ongoing_requests",
        "ram",
        "vram",
        "start_timeout",
    }
)
"""Keys that the daemon alone acts on: a running worker stays. `name` is part of a model's key."""

_FINGERPRINT_DIGITS = 16
_ENGINE_KEYS = {loader: tuple(type(section).model_fields) for loader, section in Engines()}
_MODEL_SETTINGS = frozenset({"models", "gateways", "engines"})


@dataclass(frozen=True)
class Wanted:
    """One model that should be there.

    `key` is unique, `gateway` its slug ("" for the default one). Relative paths in the model's reference are
    taken from the folder `base`. `origin`: whether the daemon's own file names it or a change added it.
    `options` are what the worker gets: `Config.options_for`.
    """

    key: str
    gateway: str
    model: Model
    base: str
    origin: Literal["file", "added"]
    options: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """The `fingerprint` of this model's worker."""
        model = self.model
        return fingerprint(
            model.loader,
            model.model,
            model.usecase,
            self.options,
            model.chat_template_kwargs,
            model.gpus,
            self.base,
        )


@dataclass(frozen=True)
class Difference:
    """The keys of models, each in exactly one of the five, each sorted.

    `replaces` need a new worker, `updates` keep theirs; both come with the configuration keys that differ,
    e.g. "llama_server_config.n_ctx". Models that a change leaves alone count as unchanged.
    """

    adds: tuple[str, ...] = ()
    removes: tuple[str, ...] = ()
    replaces: tuple[tuple[str, tuple[str, ...]], ...] = ()
    updates: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unchanged: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        """Whether there is nothing to do."""
        return not (self.adds or self.removes or self.replaces or self.updates)


def wanted_models(
    config: Config, base: Path, origin: Literal["file", "added"] = "file"
) -> tuple[Wanted, ...]:
    """Return the models of a configuration whose relative paths are taken from `base`."""
    return tuple(
        Wanted(key, gateway, model, str(base), origin, config.options_for(model))
        for key, gateway, model in config.keyed_models()
    )


def fingerprint(
    loader: str,
    model: str,
    usecase: str,
    options: Mapping[str, Any],
    template_kwargs: Mapping[str, Any],
    num_gpus: float | None,
    base: str,
) -> str:
    """Return 16 hexadecimal digits that change exactly when another worker is needed.

    The order of keys has no part in it; `base` only where the reference is a relative path.
    """
    facts = [loader, _anchored(model, base), usecase, dict(options), dict(template_kwargs), num_gpus]
    return hashlib.sha256(_canonical(facts).encode()).hexdigest()[:_FINGERPRINT_DIGITS]


def diff(current: Iterable[Wanted], wanted: Iterable[Wanted], *, additive: bool) -> Difference:
    """Return what brings `current` to `wanted`; `additive` removes nothing.

    `outcome` is what is there afterwards. Raises ValueError for a key that is there twice on one side.
    """
    before, after = _by_key(current), _by_key(wanted)
    gone = sorted(before.keys() - after.keys())
    replaces, updates, unchanged = [], [], list(gone) if additive else []
    for key in before.keys() & after.keys():
        old, new = before[key], after[key]
        changed = _changed(old, new)
        if old.fingerprint != new.fingerprint:
            replaces.append((key, changed))
        elif changed:
            updates.append((key, changed))
        else:
            unchanged.append(key)
    return Difference(
        adds=tuple(sorted(after.keys() - before.keys())),
        removes=() if additive else tuple(gone),
        replaces=tuple(sorted(replaces)),
        updates=tuple(sorted(updates)),
        unchanged=tuple(sorted(unchanged)),
    )


def outcome(current: Sequence[Wanted], wanted: Sequence[Wanted], *, additive: bool) -> tuple[Wanted, ...]:
    """Return the models there are once the difference is applied: `wanted`, after what `additive` keeps."""
    named = {entry.key for entry in wanted}
    kept = [entry for entry in current if entry.key not in named] if additive else []
    return (*kept, *wanted)


def changed_settings(old: Config, new: Config) -> tuple[str, ...]:
    """Return the top-level keys that differ and take effect at the next start only.

    `models`, `gateways` and `engines` are not among them: a change of the models carries them out.
    """
    return tuple(
        name
        for name in Config.model_fields
        if name not in _MODEL_SETTINGS and getattr(old, name) != getattr(new, name)
    )


def _by_key(entries: Iterable[Wanted]) -> dict[str, Wanted]:
    found: dict[str, Wanted] = {}
    for entry in entries:
        if entry.key in found:
            raise ValueError(f"the model {entry.key!r} is there twice")
        found[entry.key] = entry
    return found


def _changed(old: Wanted, new: Wanted) -> tuple[str, ...]:
    """Return the keys that differ, in the schema's order; those of `engines` last."""
    before, after = _values(old), _values(new)
    changed = [*_differing(before, after)]
    if old.gateway != new.gateway:
        changed.insert(0, "gateway")
    loader = new.model.loader
    if loader == old.model.loader and loader in _ENGINE_KEYS:
        block = OPTION_BLOCKS.get(loader, "")
        own = {"python": before["python"], **(before.get(block) or {})}
        others = {"python": after["python"], **(after.get(block) or {})}
        changed += (
            f"engines.{loader}.{key}"
            for key in _ENGINE_KEYS[loader]
            if old.options.get(key) != new.options.get(key) and own.get(key) == others.get(key)
        )
    return tuple(changed)


def _values(entry: Wanted) -> dict[str, Any]:
    """Return the model as compared: defaults filled in, a reference to a relative path made absolute."""
    model = entry.model
    values = model.model_dump(mode="json", exclude={"name", *OPTION_BLOCKS.values()})
    values["model"] = _anchored(model.model, entry.base)
    if model.block is not None:
        values[OPTION_BLOCKS[model.loader]] = model.block.model_dump(mode="json")
    return values


def _differing(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for key in dict.fromkeys((*old, *new)):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from _differing(before, after, f"{prefix}{key}.")
        elif (key in old) != (key in new) or not _same(before, after):
            yield prefix + key


def _same(before: Any, after: Any) -> bool:
    """Compare as JSON does, where true, 1 and 1.0 are three values."""
    if isinstance(before, list) and isinstance(after, list):
        return _canonical(before) == _canonical(after)
    return type(before) is type(after) and bool(before == after)


def _anchored(reference: str, base: str) -> str:
    """Return a reference that is a relative path as an absolute one, any other as it stands."""
    head = reference.partition(":")[0]
    is_path = reference.startswith(("./", "../")) or reference in (".", "..")
    # A file beside the configuration; "org/x.gguf:…" is a repository.
    is_file = reference.endswith(".gguf") and head == reference and not reference.startswith(("/", "~"))
    return os.path.normpath(os.path.join(base, reference)) if is_path or is_file else reference


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
