"""The memory a model takes, line by line: the form in which estimates, learned and explicit figures agree."""

from __future__ import annotations

import enum

import msgspec


class Where(enum.StrEnum):
    """The memory a line is about. On a machine without a GPU, and on unified memory, all of it is RAM."""

    GPU = "gpu"
    RAM = "ram"


class Source(enum.StrEnum):
    """Where a footprint comes from."""

    EXPLICIT = "explicit"  # the owner's figure
    LEARNED = "learned"  # measured in an earlier run
    ESTIMATED = "estimated"  # worked out from the model's metadata


class Line(msgspec.Struct, frozen=True):
    """One part of the sum, e.g. ("weights, 24 of 24 layers", 4_431_399_936, Where.GPU); bytes."""

    label: str
    size: int
    where: Where


class Footprint(msgspec.Struct, frozen=True):
    """A model's memory: the sum of its lines. `note` says what the figure rests on, for people."""

    source: Source
    lines: tuple[Line, ...]
    note: str = ""

    def total(self, where: Where) -> int:
        """Return the bytes in one memory."""
        return sum(line.size for line in self.lines if line.where is where)
