"""The Unix socket of the admin application: bound so that nobody but its owner can ever open it."""

from __future__ import annotations

import os
import socket
import stat
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from aiohttp import web

from modeld.errors import StartupError

SHUTDOWN_S = 1.0
"""How long a handler may take to end when the socket closes; streams are told to end first."""


@asynccontextmanager
async def serve_admin(app: web.Application, socket_path: Path) -> AsyncIterator[None]:
    """Serve `app` on `socket_path` (mode 0600) until the block ends; the socket is gone afterwards.

    The caller holds the instance lock of the state directory: only that makes a socket found there stale, so
    that it may be removed. Raises StartupError when the path cannot be bound.
    """
    listener = bind_private(socket_path)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=SHUTDOWN_S, access_log=None)
    inode = socket_path.stat().st_ino
    try:
        await runner.setup()
        await web.SockSite(runner, listener).start()
        yield
    finally:
        await runner.cleanup()
        listener.close()
        with suppress(FileNotFoundError):  # somebody may have tidied up
            if socket_path.stat().st_ino == inode:
                socket_path.unlink()


def bind_private(path: Path) -> socket.socket:
    """Return a listening-ready Unix socket bound to `path`, never reachable by anybody but its owner."""
    _remove_stale(path)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    # The mode comes from the umask at bind(); a chmod afterwards would leave a moment of wider access.
    before = os.umask(0o177)
    try:
        listener.bind(str(path))
    except OSError as error:
        listener.close()
        size = len(os.fsencode(path))
        raise StartupError(
            f"cannot listen on the admin socket {path} ({size} bytes): {error.strerror or error}; "
            "a shorter --state-dir helps when the path is over 100 bytes"
        ) from error
    finally:
        os.umask(before)
    listener.setblocking(False)
    return listener


def _remove_stale(path: Path) -> None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return  # nothing there; any other trouble shows at bind()
    if not stat.S_ISSOCK(mode):
        raise StartupError(f"{path} is in the way of the admin socket and is not a socket; move it away")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except OSError:
            path.unlink(missing_ok=True)
            return
    raise StartupError(f"something answers on the admin socket {path}: is another modeld running?")
