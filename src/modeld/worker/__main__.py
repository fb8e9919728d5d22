"""`python -m modeld.worker --fd N --parent PID`: started by the supervisor, never by hand."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import socket
import sys

from modeld.worker.lifeline import die_with


def main() -> int:
    """Run one worker to its end and return its exit code."""
    parser = argparse.ArgumentParser(prog="modeld.worker", description="A model's worker; started by modeld.")
    parser.add_argument("--fd", type=int, required=True, help="the inherited socket")
    parser.add_argument("--parent", type=int, required=True, help="the daemon's pid")
    args = parser.parse_args()
    die_with(args.parent)
    os.set_inheritable(args.fd, False)
    # The terminal's Ctrl-C is the daemon's business; it stops us by message.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]  # it is a TextIOWrapper here

    from modeld.worker.serve import serve

    sock = socket.socket(fileno=args.fd)
    try:
        import uvloop
    except ImportError:  # an engine's own interpreter need not have it
        return asyncio.run(serve(sock))
    return uvloop.run(serve(sock))


if __name__ == "__main__":
    sys.exit(main())
