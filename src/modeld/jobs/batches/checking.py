"""The check of a batch before any of it is done: its input, and the model that the input is for."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from modeld.errors import ModeldError
from modeld.gateway import routing
from modeld.gateway.routing import Gateway
from modeld.jobs.batches.lines import USES
from modeld.jobs.batches.records import Mistake, Record
from modeld.jobs.batches.scan import scan
from modeld.jobs.files.shelf import Shelf


@dataclass(frozen=True)
class Checked:
    """What was found. Without `mistakes`, `key` is the pool's key of the model that callers know as `model`.

    `requests`: what the queue holds of each line.
    """

    mistakes: list[Mistake]
    requests: tuple[bytes, ...] = ()
    key: str = ""
    model: str = ""


async def checked(gateway: Gateway, shelf: Shelf, record: Record) -> Checked:
    """Check a batch. Raises OSError when its input cannot be read."""
    batch = record.batch
    if record.refusal is not None:
        return Checked([record.refusal])
    lent, longest = shelf.lent(batch.id), gateway.settings.max_request_body
    try:
        found = await asyncio.to_thread(scan, lent, batch.endpoint, longest, record.sha256)
    except FileNotFoundError:
        return Checked([Mistake("invalid_request", "The input file is gone.")])
    if found.model is None:
        return Checked(found.mistakes)
    try:
        status = routing.find(gateway.pool, record.gateway, found.model)
        if status.usecase != USES[batch.endpoint]:
            raise routing.wrong_use(found.model, status)
    except ModeldError as error:
        wrong = Mistake(error.code, error.message, found.model_line, "body.model")
        return Checked([*found.mistakes, wrong])
    return Checked(found.mistakes, tuple(found.requests), status.name, found.model)
