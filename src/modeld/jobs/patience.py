"""Waiting for a store that takes nothing: a full disk may be made room on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import ParamSpec, TypeVar

from modeld.errors import StoreFailed

_log = logging.getLogger("modeld.jobs")

PAUSE_S = 1.0
"""Seconds after which what could not be stored is tried again."""

T = TypeVar("T")
P = ParamSpec("P")


async def insist(act: Callable[P, Awaitable[T]], *args: P.args, **options: P.kwargs) -> T:
    """Do something with the store until it works, and return what it returns."""
    while True:
        try:
            return await act(*args, **options)
        except StoreFailed as failure:
            _log.warning("jobs wait for the store: %s", failure)
            await asyncio.sleep(PAUSE_S)
