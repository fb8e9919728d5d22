"""What models took in earlier runs: measured bytes for each configuration and each kind of device."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from modeld.store.db import Database, Row, Transaction

SHRINK = 4
"""A measurement below what is known moves it down by one part in this many, so that one light run, before a
long prompt say, does not make the next one run out of memory."""

_SELECT = "SELECT ram, vram, load_s, runs, updated FROM footprint WHERE fingerprint = ? AND device = ?"
_REPLACE = (
    "INSERT OR REPLACE INTO footprint (fingerprint, device, ram, vram, load_s, runs, updated) "
    "VALUES (?, ?, ?, ?, ?, ?, ?)"
)


class Learned(msgspec.Struct, frozen=True):
    """What is known of one configuration on one kind of device.

    `ram`, `vram`: bytes. `load_s`: seconds the last load took. `runs`: measurements taken, 0 when all that is
    known comes from running out of memory. `updated`: seconds since the epoch.
    """

    ram: int
    vram: int
    load_s: float
    runs: int
    updated: float


def learned(before: Learned | None, *, ram: int, vram: int, load_s: float, now: float) -> Learned:
    """Return what is known after a measurement: up at once, down slowly."""
    if before is None:
        return Learned(ram, vram, load_s, 1, now)
    return Learned(_settled(before.ram, ram), _settled(before.vram, vram), load_s, before.runs + 1, now)


def raised(before: Learned | None, *, ram: int, vram: int, now: float) -> Learned:
    """Return what is known after the memory ran out: at least these bytes."""
    if before is None:
        return Learned(ram, vram, 0.0, 0, now)
    return Learned(max(before.ram, ram), max(before.vram, vram), before.load_s, before.runs, now)


def _settled(before: int, measured: int) -> int:
    if measured >= before:
        return measured
    # Rounded so that the last bytes are given up too.
    return before - -(-(before - measured) // SHRINK)


class Footprints:
    """The table of learned footprints.

    `fingerprint` is the model's, without replica counts; `device` a device model such as "NVIDIA H200", or
    "host". All methods raise StoreFailed.
    """

    def __init__(self, db: Database) -> None:
        self._db = db

    async def get(self, fingerprint: str, device: str) -> Learned | None:
        """Return what is known, None when it has never run."""
        return _first(await self._db.fetch(_SELECT, (fingerprint, device)))

    async def learn(self, fingerprint: str, device: str, *, ram: int, vram: int, load_s: float) -> Learned:
        """Take in a measurement (bytes, seconds) and return what is known now."""
        async with self._db.write() as transaction:
            before = _first(await transaction.fetch(_SELECT, (fingerprint, device)))
            after = learned(before, ram=ram, vram=vram, load_s=load_s, now=self._db.clock.time())
            return await _put(transaction, fingerprint, device, after)

    async def raise_to(self, fingerprint: str, device: str, *, ram: int, vram: int) -> Learned:
        """Note that it needs at least these bytes, and return what is known now; never lowers."""
        async with self._db.write() as transaction:
            before = _first(await transaction.fetch(_SELECT, (fingerprint, device)))
            after = raised(before, ram=ram, vram=vram, now=self._db.clock.time())
            return await _put(transaction, fingerprint, device, after)


def _first(rows: Sequence[Row]) -> Learned | None:
    return Learned(*rows[0]) if rows else None


async def _put(transaction: Transaction, fingerprint: str, device: str, after: Learned) -> Learned:
    await transaction.execute(_REPLACE, (fingerprint, device, *msgspec.structs.astuple(after)))
    return after
