from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from modeld.supervisor.placement import OVERHEAD, Ledger, footprint, gib

GIB = 1 << 30
names = st.sampled_from(["a", "b", "c", "d"])
sizes = st.integers(0, 20 * GIB)


def _numbers(message: str) -> list[str]:
    return re.findall(r"[\d.]+ GiB", message)


class Placing(RuleBasedStateMachine):
    """Models come and go in any order, each only when the ledger does not refuse it."""

    @initialize(capacity=st.integers(0, 64 * GIB))
    def begin(self, capacity: int) -> None:
        self.ledger = Ledger(capacity)
        self.model: dict[str, int] = {}

    @rule(name=names, need=sizes)
    def reserve(self, name: str, need: int) -> None:
        others = sum(size for who, size in self.model.items() if who != name)
        refusal = self.ledger.refusal(name, need)
        if refusal is None:
            assert others + need <= self.ledger.usable
            self.ledger = self.ledger.with_(name, need)
            self.model[name] = need
        else:
            assert others + need > self.ledger.usable
            assert refusal.ever == (need <= self.ledger.usable)
            expected = [gib(need), gib(self.ledger.usable - others)]
            expected += [gib(size) for who, size in sorted(self.model.items()) if who != name]
            assert _numbers(refusal.message) == (
                expected if refusal.ever else [gib(need), gib(self.ledger.usable)]
            )

    @rule(name=names)
    def release(self, name: str) -> None:
        freed = self.model.pop(name, 0)
        before = self.ledger.free
        self.ledger = self.ledger.without(name)
        assert self.ledger.free == before + freed

    @invariant()
    def never_more_than_usable(self) -> None:
        assert 0 <= self.ledger.free <= self.ledger.usable <= self.ledger.capacity
        assert self.ledger.held == self.model


TestPlacing = Placing.TestCase


@given(names, sizes, sizes, st.integers(0, 64 * GIB))
def test_ledgers_are_values(name: str, size: int, other: int, capacity: int) -> None:
    """Promising and taking back give new ledgers; the old one stays as it was."""
    ledger = Ledger(capacity, {"z": other})
    changed = ledger.with_(name, size)
    assert ledger.held == {"z": other}
    assert changed.without(name) == ledger


def test_the_owners_figure_goes_before_the_estimate() -> None:
    """An explicit footprint is taken as it is, also 0; without one: the file and the engine's overhead."""
    assert footprint(0, 5 * GIB) == 0
    assert footprint(3 * GIB, 5 * GIB) == 3 * GIB
    assert footprint(None, 5 * GIB) == 5 * GIB + OVERHEAD
