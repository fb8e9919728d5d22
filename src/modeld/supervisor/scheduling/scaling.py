"""How many replicas a model should have: load in, a number and its reason out. Pure."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Scaling:
    """Bounds and rules of the number of replicas; a fixed number has minimum = maximum.

    `initial` replicas at start. `target`: requests (in flight and waiting) one replica should have. The load
    must ask for more for `up_s` seconds on end before a replica is added, for fewer during `down_s` before
    one is taken away. Minimum 0 lets the model go to zero; a request brings it back at once.
    """

    minimum: int = 1
    maximum: int = 1
    initial: int = 1
    target: float = 2.0
    up_s: float = 30.0
    down_s: float = 600.0

    def __post_init__(self) -> None:
        """Raise ValueError for bounds that contradict one another."""
        if not 0 <= self.minimum <= self.maximum:
            raise ValueError(f"replicas cannot be at least {self.minimum} and at most {self.maximum}")
        if self.target <= 0 or self.up_s < 0 or self.down_s < 0:
            raise ValueError("a target must be above zero, and delays not below")

    @property
    def fixed(self) -> bool:
        """Whether the number never changes by itself."""
        return self.minimum == self.maximum


@dataclass(frozen=True)
class Load:
    """The facts. `ongoing`: requests in flight and waiting. `replicas`: the present target number.

    `above_s` / `below_s`: for how many seconds on end the load has asked for more / fewer replicas; None
    when it does not now.
    """

    ongoing: int
    replicas: int
    above_s: float | None = None
    below_s: float | None = None


@dataclass(frozen=True)
class Decision:
    """`replicas` from now on. `wants`: -1, 0 or 1: the direction the load asks for, which its owner times."""

    replicas: int
    wants: int
    reason: str = ""


def decide(scaling: Scaling, load: Load) -> Decision:
    """Return the number of replicas to have: one more or one fewer at a time, and why.

    From zero a request brings one (or the minimum) at once; to zero it goes only when nothing is ongoing. A
    number outside the bounds, after they have changed, comes back into them at once.
    """
    now = load.replicas
    if scaling.fixed:
        return Decision(now, 0)
    if not now:
        if not load.ongoing:
            return Decision(0, 0)
        first = max(scaling.minimum, 1)
        return Decision(first, 1, f"{_requests(load.ongoing)} came while it was at zero replicas")
    bounded = min(max(now, scaling.minimum), scaling.maximum)
    if bounded != now:
        side = "at least" if bounded > now else "at most"
        return Decision(bounded, 1 if bounded > now else -1, f"it has {side} {_replicas(bounded)}")
    asked = min(max(math.ceil(load.ongoing / scaling.target), scaling.minimum), scaling.maximum)
    wants = (asked > now) - (asked < now)
    if wants > 0 and load.above_s is not None and load.above_s >= scaling.up_s:
        return Decision(now + 1, wants, _why(scaling, load, asked, load.above_s))
    if wants < 0 and load.below_s is not None and load.below_s >= scaling.down_s:
        return Decision(now - 1, wants, _why(scaling, load, asked, load.below_s))
    return Decision(now, wants)


def _why(scaling: Scaling, load: Load, asked: int, seconds: float) -> str:
    return (
        f"{_requests(load.ongoing)} ongoing at {scaling.target:g} for each replica asked for "
        f"{_replicas(asked)} in place of {load.replicas} for {seconds:.0f} s"
    )


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count} requests"


def _replicas(count: int) -> str:
    return "1 replica" if count == 1 else f"{count} replicas"
