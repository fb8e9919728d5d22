"""Which models a start begins with: the configuration's, and those added to an earlier life of the daemon."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from modeld.config.diff import Wanted, wanted_models
from modeld.config.load import from_document
from modeld.config.schema import Config
from modeld.control.goal import names_of
from modeld.errors import ModeldError
from modeld.store.effective import StoredModel


def starting_models(
    config: Config, base: Path, stored: Sequence[StoredModel] | None
) -> tuple[tuple[Wanted, ...], list[str]]:
    """Return the models of a start: the configuration's, and those added to an earlier life of the daemon.

    The second part are sentences for the log. A stored model is left out, with a sentence, when it cannot be
    read any more, and when the configuration has taken its name or one of its aliases since.
    """
    own = wanted_models(config, base)
    taken = {name: each.key for each in own for name in names_of(each)}
    keys = {each.key for each in own}
    added: list[Wanted] = []
    notes: list[str] = []
    for entry in stored or ():
        if entry.origin != "added":
            continue
        if entry.key in keys:
            notes.append(f"{entry.key}: the configuration file has a model of this name now; it is used")
            continue
        try:
            back = restored(entry, config)
        except ModeldError as error:
            notes.append(f"{entry.key}, which was added to the running daemon, cannot be restored: {error}")
            continue
        clash = next((name for name in names_of(back) if name in taken), None)
        if clash is not None:
            notes.append(
                f"{entry.key}, which was added to the running daemon, is left out: the name {clash[1]!r} "
                f"stands for the configuration file's model {taken[clash]!r} now"
            )
            continue
        added.append(back)
        notes.append(f"{entry.key}, which was added to the running daemon, is back")
    return (*own, *added), notes


def restored(entry: StoredModel, config: Config) -> Wanted:
    """Return a stored model as it was wanted. Raises ConfigError when this version cannot read it."""
    # Whoever had it stored was allowed to: a fake needs no leave a second time.
    model = from_document({"models": [entry.document]}, Path(entry.base), allow_fake=True).models[0]
    return Wanted(entry.key, entry.gateway, model, entry.base, entry.origin, config.options_for(model))
