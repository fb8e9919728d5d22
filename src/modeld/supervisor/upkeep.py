"""When a model has been idle for long enough, and how many replicas its load asks for: the timing of both.

The rules are `scaling`'s and the configuration's; here is the memory between two looks. No clock: `now` is an
argument, in monotonic seconds.
"""

from __future__ import annotations

import math

from modeld.supervisor.scheduling import scaling
from modeld.supervisor.spec import ModelSpec


class Upkeep:
    """What one model's idling and scaling depend on."""

    def __init__(self, now: float) -> None:
        self.used_at = now
        """When its last request ended, or when it came up."""
        self.keep_alive_s: float | None = None
        """What the latest request said of its keep-alive (infinity: never), None when none did."""
        self._above_since: float | None = None
        self._below_since: float | None = None

    def idle_unload_at(self, spec: ModelSpec) -> float | None:
        """Return when a model that is up and idle is to be unloaded; None for never.

        Precedence: a pin, then the latest request that said so, then the model's setting, which is the
        configuration's where the model says nothing.
        """
        keep = spec.keep_alive_s if self.keep_alive_s is None else self.keep_alive_s
        return None if keep is None or keep == math.inf or spec.pinned else self.used_at + keep

    def idle_words(self, now: float) -> str:
        """Say why an idle model goes."""
        idle_s = now - self.used_at
        if idle_s < 1:
            return "its last request has ended, and its keep_alive is 0"
        return f"no request for {idle_s:.0f} s"

    def scale(
        self, rules: scaling.Scaling, *, ongoing: int, replicas: int, now: float
    ) -> tuple[scaling.Decision, float | None]:
        """Return the decision of this moment, and when the next one is due (None: when the load changes)."""
        load = scaling.Load(
            ongoing,
            replicas,
            None if self._above_since is None else now - self._above_since,
            None if self._below_since is None else now - self._below_since,
        )
        decision = scaling.decide(rules, load)
        self._above_since = _since(self._above_since, decision.wants > 0, now)
        self._below_since = _since(self._below_since, decision.wants < 0, now)
        if decision.replicas != replicas:
            self._above_since = self._below_since = None
            return decision, now
        if self._above_since is not None:
            return decision, self._above_since + rules.up_s
        if self._below_since is not None:
            return decision, self._below_since + rules.down_s
        return decision, None


def _since(before: float | None, holds: bool, now: float) -> float | None:
    if not holds:
        return None
    return now if before is None else before
