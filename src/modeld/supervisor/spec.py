"""What the supervisor needs to know of a model; the control room makes it from the configuration."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from modeld.protocol.messages import MediaLimits
from modeld.supervisor.scheduling.scaling import Scaling


class Report(Protocol):
    """Hears how far the fetching of a model is."""

    def __call__(
        self, stage: str, fraction: float | None, done: int | None = None, total: int | None = None, /
    ) -> None:
        """Take a stage in words, how much of it is done (0..1), and of how many bytes, as far as is known."""


Resolve: TypeAlias = Callable[[str, Report], Awaitable[Path]]
"""Turn a model reference into a file or folder on this disk, reporting progress. Raises LoadFailed."""


@dataclass(frozen=True)
class Resources:
    """What the owner said of a model's needs; None where he said nothing.

    `gpus`: a share of one GPU below 1, else so many whole ones; 0 keeps it on the CPU; None leaves it to
    modeld. `ram` and `vram` are bytes, `cores` CPU cores.
    """

    gpus: float | None = None
    ram: int | None = None
    vram: int | None = None
    cores: float = 0.1


@dataclass(frozen=True)
class ModelSpec:
    """One model, as the owner configured it.

    `name` is unique in the pool: the served name, or "gateway/served name" outside the default gateway.
    `reference` is None for a loader that reads no file. `start_timeout_s`: how long a load may go without
    progress. `max_queue` requests may wait, and `max_ongoing` run at once in one replica (None: as many as
    the engine has slots).

    `on_demand`: it is loaded when a request comes; otherwise at start. `keep_alive_s`: seconds without a
    request after which it is unloaded, None for never, 0 at once. `pinned`: never unloaded by modeld itself.
    `priority`: among models that compete for memory the higher goes first and is evicted last.

    `fingerprint` changes exactly when a running worker no longer is what the configuration asks for: it
    covers the model, the loader and the options, and not names, replicas, queues or keep-alive.
    """

    name: str
    usecase: str
    loader: str
    reference: str | None
    options: dict[str, Any] = field(default_factory=dict)
    template_kwargs: dict[str, Any] = field(default_factory=dict)
    resources: Resources = field(default_factory=Resources)
    start_timeout_s: float = 120.0
    max_queue: int = 128
    max_ongoing: int | None = None
    on_demand: bool = False
    keep_alive_s: float | None = None
    pinned: bool = False
    priority: int = 0
    scaling: Scaling = field(default_factory=Scaling)
    gateway: str = ""
    aliases: tuple[str, ...] = ()
    media: MediaLimits = field(default_factory=MediaLimits)
    fingerprint: str = ""

    @property
    def served_name(self) -> str:
        """The name callers use at its gateway."""
        return self.name.removeprefix(f"{self.gateway}/") if self.gateway else self.name
