"""Demands in bytes, the memory of devices, and who holds it: what placement is asked and answers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field

from modeld.hardware.machine import Kind


@dataclass(frozen=True)
class Demand:
    """What one replica needs. All sizes in bytes.

    `ram`: host memory. `vram`: GPU memory in all, 0 to run on the host alone. `gpus`: so many whole GPUs,
    each taken entirely (then `vram` is only a lower bound on their sum). `share`: that part (0..1) of one
    GPU's total memory, in place of `vram`. `spread`: the engine can split one model over several GPUs, used
    only when no single one could ever hold it. At most one of `gpus` and `share` is set.
    """

    ram: int = 0
    vram: int = 0
    gpus: int = 0
    share: float = 0.0
    spread: bool = False

    @property
    def on_gpu(self) -> bool:
        """Whether it needs a GPU at all."""
        return bool(self.vram or self.gpus or self.share)


@dataclass(frozen=True)
class Space:
    """One device as the scheduler sees it.

    `total`: its memory. `limit`: what models may hold in all when nobody else uses it: total less headroom,
    or the owner's budget when that is smaller (None: as `usable`); a demand over it can never be met.
    `usable`: what models may hold in all now: `limit`, less what other programs use. `others`: what those
    use, in words for a refusal, e.g. "1.9 GiB used by other programs (pid 4312: 1.8 GiB)"; "" when it is
    nothing. `ok` is False for a device that cannot be used now (`message` says why); its holdings stay
    counted.
    """

    id: str
    kind: Kind
    label: str
    total: int
    usable: int
    others: str = ""
    ok: bool = True
    message: str = ""
    limit: int | None = None


class Phase(enum.Enum):
    """How far a replica that holds memory is."""

    LOADING = "loading"  # it may still grow to what it was promised
    SERVING = "serving"
    LEAVING = "leaving"  # told to stop, or stopped and its memory not yet seen free


@dataclass(frozen=True)
class Holding:
    """Memory promised to, or still held by, one replica.

    `replica` is its key, unique in the pool; `model` its model's name. `held` maps device ids to bytes.
    `idle_s`: seconds since its last request ended (0 when in flight). `reload_s`: seconds its last load took.
    `exclusive`: it was promised whole GPUs: nothing else goes on them, however little of them it was measured
    to use.
    """

    replica: str
    model: str
    held: Mapping[str, int]
    phase: Phase = Phase.SERVING
    in_flight: int = 0
    idle_s: float = 0.0
    pinned: bool = False
    priority: int = 0
    reload_s: float = 0.0
    exclusive: bool = False


class Never(enum.Enum):
    """Whether waiting can help a refused claim."""

    NO = "no"  # memory is held by models that are busy or leaving: it will come
    PINNED = "pinned"  # pinned models hold it
    OTHERS = "others"  # other programs hold it
    DEVICE = "device"  # the devices it needs are not usable now
    EVER = "ever"  # this machine cannot hold it at all


@dataclass(frozen=True)
class Refusal:
    """Why a claim gets no memory now; `message` names the numbers and the holders, in one sentence."""

    message: str
    never: Never


@dataclass(frozen=True)
class Found:
    """A place: bytes on each device, and the replicas that must go first (empty when it is free now)."""

    devices: Mapping[str, int]
    victims: frozenset[str] = field(default_factory=frozenset)


def gib(size: int) -> str:
    """Return a size for people: "7.9 GiB", below one GiB "312 MiB"."""
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size / (1 << 20):.0f} MiB"
