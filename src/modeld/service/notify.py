"""Telling the service manager how the daemon is, by the sd_notify(3) protocol.

One datagram per message to the socket named in NOTIFY_SOCKET; an address that begins with "@" lies in Linux's
abstract namespace. Without the variable nothing happens, and a manager that is gone is never an error.
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import MutableMapping
from contextlib import suppress

SEND_S = 0.5
"""How long a message may wait for a busy service manager before it is dropped."""


class Notifier:
    """Speaks to the service manager; every method returns at once and raises nothing.

    `watchdog_interval` is how often, in seconds, `watchdog` has to be called (half of what the manager
    allows), or None when it does not watch.
    """

    def __init__(self, address: str | None = None, *, watchdog_interval: float | None = None) -> None:
        self._address = address if address and address[0] in "/@" else None
        self.watchdog_interval = watchdog_interval

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notifier:
        """Read and remove NOTIFY_SOCKET, WATCHDOG_USEC and WATCHDOG_PID, so that no child speaks for us."""
        address = environ.pop("NOTIFY_SOCKET", None)
        usec, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        watched = usec.isdecimal() and int(usec) > 0 and pid in ("", str(os.getpid()))
        return cls(address, watchdog_interval=int(usec) / 2e6 if watched else None)

    def ready(self, status: str = "") -> None:
        """Start-up, or a reload, is complete."""
        self._send("READY=1", status)

    def status(self, text: str) -> None:
        """Show one line in `systemctl status`."""
        self._send("", text)

    def reloading(self) -> None:
        """The configuration is being read again; `ready` follows."""
        # Type=notify-reload wants the moment on the same clock as its own, CLOCK_MONOTONIC, in microseconds.
        self._send(f"RELOADING=1\nMONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self, status: str = "") -> None:
        """Shut-down has begun."""
        self._send("STOPPING=1", status)

    def watchdog(self) -> None:
        """The main loop still turns."""
        self._send("WATCHDOG=1")

    def _send(self, message: str, status: str = "") -> None:
        if self._address is None:
            return
        if status:
            message = f"{message}\nSTATUS={' '.join(status.split())}".lstrip("\n")
        where = "\0" + self._address[1:] if self._address[0] == "@" else self._address
        with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.settimeout(SEND_S)
            channel.sendto(message.encode(), where)
