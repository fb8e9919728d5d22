"""CUDA_VISIBLE_DEVICES, read as CUDA reads it.

The rules are those of the CUDA programming guide: entries are numbers or UUIDs, a UUID may be cut short while
it still names one GPU, and the first entry that names none ends the list ("-1" is the usual way to say so).
"""

from __future__ import annotations

import re
from collections.abc import Sequence

VARIABLE = "CUDA_VISIBLE_DEVICES"

_MOST_DIGITS = 9


def visible(value: str, uuids: Sequence[str]) -> tuple[frozenset[int], str]:
    """Return which of the GPUs may be used, as positions in `uuids`, and a sentence about what is wrong.

    `uuids` are those of all GPUs in PCI bus order. The sentence is "" when every entry names a GPU or the
    list is ended on purpose and is not empty; it says why when no GPU is left.
    """
    chosen: set[int] = set()
    if not value.strip():
        return frozenset(), f"{VARIABLE} is set and empty, which hides every GPU; unset it to use them"
    for entry in value.split(","):
        position, problem = _entry(entry.strip(), uuids)
        if problem:
            return frozenset(chosen), f"{VARIABLE}={value}: {problem}"
        if position is None:
            break
        chosen.add(position)
    if not chosen:
        return frozenset(), f"{VARIABLE}={value} hides every GPU; unset it to use them"
    return frozenset(chosen), ""


def _entry(entry: str, uuids: Sequence[str]) -> tuple[int | None, str]:
    """Return the position an entry names, or None for the end of the list; else what is wrong with it."""
    there = f"this machine has {_count(len(uuids))}"
    if re.fullmatch(r"-[0-9]+", entry):
        return None, ""
    if re.fullmatch(r"[0-9]+", entry):
        if len(entry) <= _MOST_DIGITS and int(entry) < len(uuids):
            return int(entry), ""
        return None, f"there is no GPU {entry}: {there}, counted from 0 in PCI bus order"
    if entry.upper().startswith("MIG-"):
        return None, f"{entry} is a part of a GPU (MIG); modeld uses whole GPUs only"
    if not entry.upper().startswith("GPU-"):
        return None, f"{entry!r} is neither a number nor a GPU's UUID (nvidia-smi -L shows them)"
    found = [at for at, uuid in enumerate(uuids) if uuid.lower().startswith(entry.lower())]
    if len(found) == 1:
        return found[0], ""
    if found:
        return None, f"{entry} is the beginning of {len(found)} UUIDs; write more of it"
    return None, f"no GPU has the UUID {entry}: {there} (nvidia-smi -L shows them)"


def _count(number: int) -> str:
    return f"{number or 'no'} GPU{'' if number == 1 else 's'}"
