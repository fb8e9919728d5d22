"""What the models of the pool are by their files, for the gateway and for MASS's routes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from modeld.library.about import properties
from modeld.library.entry import Entry
from modeld.library.known import KnownFiles
from modeld.library.pull.watch import Pulls, Watch
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import Status


class ModelFiles:
    """Goes from models to their references, and from those to what is known of the files."""

    def __init__(
        self, specs: Callable[[], Mapping[str, ModelSpec]], known: KnownFiles, pulls: Pulls | None = None
    ) -> None:
        """`specs` gives the models there are at this moment, by name."""
        self._pulls = pulls or Pulls()
        self._specs = specs
        self._known = known

    async def of(self, models: Sequence[Status]) -> dict[str, Entry]:
        """Return what is known, by name; a model without files, or whose files are not here, is left out."""
        specs = self._specs()
        references = {
            model.name: spec.reference
            for model in models
            if (spec := specs.get(model.name)) is not None and spec.reference is not None
        }
        known = await self._known.of(references.values())
        return {name: known[reference] for name, reference in references.items() if reference in known}

    async def properties(self, model: Status) -> dict[str, Any]:
        """Return a model's properties as MASS lists them, {} when nothing is known."""
        entry = (await self.of((model,))).get(model.name)
        if entry is None or entry.metadata is None or entry.about is None:
            return {}
        return properties(entry.metadata, entry.about)

    @contextmanager
    def watch(self, model: Status) -> Iterator[Watch | None]:
        """Watch the pull of a model's files; None when they are not being pulled."""
        spec = self._specs().get(model.name)
        with self._pulls.watch(spec.reference if spec is not None and spec.reference else "") as watch:
            yield watch
