"""How many replicas a model should have: load in, a number and its reason out. Pure."""

from __future__ import annotations

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
    """Return the number of replicas to have."""
    raise NotImplementedError
