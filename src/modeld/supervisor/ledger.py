"""What fits: a ledger of reservations in bytes against a capacity. Pure.

One pool of memory for now (the host's); devices come in as further ledgers of the same kind.
"""

from __future__ import annotations

from dataclasses import dataclass, field

HEADROOM = 0.1
"""Share of the capacity that is never given away: the system and the daemon live there."""

OVERHEAD = 64 << 20
"""Bytes a worker and its engine take beside the weights."""


@dataclass(frozen=True)
class Refusal:
    """It does not fit; `message` names the numbers. `ever`: it would fit if others made room."""

    message: str
    ever: bool


@dataclass(frozen=True)
class Ledger:
    """Bytes promised to each model. Immutable: `with_` and `without` give new ledgers."""

    capacity: int
    held: dict[str, int] = field(default_factory=dict)

    @property
    def usable(self) -> int:
        """Bytes that may be promised at all."""
        return int(self.capacity * (1 - HEADROOM))

    @property
    def free(self) -> int:
        """Bytes not promised yet."""
        return self.usable - sum(self.held.values())

    def refusal(self, name: str, need: int) -> Refusal | None:
        """Return why `need` bytes for `name` do not fit, or None when they do."""
        free = self.free + self.held.get(name, 0)
        if need <= free:
            return None
        if need > self.usable:
            return Refusal(f"needs {gib(need)}, this machine may give {gib(self.usable)} in all", ever=False)
        holders = ", ".join(
            f"{gib(size)} held by {who}" for who, size in sorted(self.held.items()) if who != name
        )
        return Refusal(f"needs {gib(need)}, {gib(free)} free, {holders}", ever=True)

    def with_(self, name: str, size: int) -> Ledger:
        """Return the ledger with `size` bytes promised to `name`, in place of what it had."""
        return Ledger(self.capacity, {**self.held, name: size})

    def without(self, name: str) -> Ledger:
        """Return the ledger with nothing promised to `name`."""
        return Ledger(self.capacity, {who: size for who, size in self.held.items() if who != name})


def footprint(explicit: int | None, file_size: int) -> int:
    """Return the bytes to reserve: the owner's figure, else the file's size and the engine's overhead."""
    return explicit if explicit is not None else file_size + OVERHEAD


def gib(size: int) -> str:
    """Return a size for people."""
    return f"{size / (1 << 30):.1f} GiB"
