from __future__ import annotations

from typing import cast

from modeld.daemon import Running, _show
from modeld.supervisor.pool import Pool


async def test_a_closed_pipe_on_standard_output_does_not_stop_the_daemon() -> None:
    """A front end whose reader left ends by itself; the daemon, which runs beside it, is not told."""
    shown = []

    async def front_end(running: Running) -> None:
        shown.append(running.address)
        raise BrokenPipeError("nobody reads")

    await _show(front_end, Running("http://127.0.0.1:1", False, cast(Pool, None)))
    assert shown == ["http://127.0.0.1:1"]
