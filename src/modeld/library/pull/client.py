"""Pulling a model, for the daemon: a program of its own does it, and tells how far it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from modeld.errors import LoadFailed
from modeld.library import child
from modeld.library.pull import record
from modeld.library.pull.record import Pulled
from modeld.library.pull.transfer import Limits
from modeld.library.refs import HubRef


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a pull is: bytes of the whole model, and of how many when that is known.

    `stage`: "waiting" (for another pull of the repository), "listing", "downloading", "checking" (what had
    arrived before), "retrying" (`why` says what went wrong). `file` is the one it is at.
    """

    stage: str
    done: int
    total: int | None
    file: str | None = None
    why: str | None = None


Hear: TypeAlias = Callable[[Progress], None]


async def pull(
    cache: Path,
    ref: HubRef,
    hear: Hear,
    *,
    prefer: Sequence[str] = (),
    refresh: bool = False,
    limits: Limits | None = None,
) -> Pulled:
    """Have a model on this disk, below `cache`; `hear` gets the progress.

    Nothing is asked of the network for what is here, but with `refresh`. `prefer`: see `choose.choose`.
    Cancelling stops the program; what has arrived stays for the next pull. Raises LoadFailed, permanent when
    trying again is pointless, with a sentence for people.
    """
    if not refresh and (here := record.find(cache, ref.repo, ref.glob)):
        return here
    limits = limits or Limits()
    options = {"repo": ref.repo, "cache": str(cache), "stall": f"{limits.stall}", "tries": f"{limits.tries}"}
    options |= {"pause": f"{limits.pause}", "prefer": ",".join(prefer), "refresh": "yes" if refresh else ""}
    if ref.glob is not None:
        options["glob"] = ref.glob

    await child.run(
        "modeld.library.pull",
        options,
        f"pulling {ref}",
        lambda told: hear(
            Progress(told["stage"], told["done"], told["total"], told.get("file"), told.get("why"))
        ),
    )
    pulled = record.find(cache, ref.repo, ref.glob)
    if pulled is None:
        raise LoadFailed(f"{ref} was pulled, but is not in {cache} any more; pull it again")
    return pulled
