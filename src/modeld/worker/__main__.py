"""`python -m modeld.worker --fd N --parent PID`: started by the supervisor, never by hand.

`python -m modeld.worker --capabilities` prints which loaders can work here, and is for anybody.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sys


def main() -> int:
    """Run one worker to its end and return its exit code."""
    parser = argparse.ArgumentParser(prog="modeld.worker", description="A model's worker; started by modeld.")
    parser.add_argument("--fd", type=int, help="the inherited socket")
    parser.add_argument("--parent", type=int, help="the daemon's pid")
    parser.add_argument("--capabilities", action="store_true", help="print which loaders can work, and exit")
    parser.add_argument("--binary", help="with --capabilities: the llama-server that is configured")
    args = parser.parse_args()
    if args.capabilities:
        from modeld.worker.capabilities import line

        print(line({"binary": args.binary}))
        return 0
    if args.fd is None or args.parent is None:
        parser.error("--fd and --parent are both needed; the daemon gives them")
    from modeld.worker.lifeline import die_with

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
        import asyncio

        return asyncio.run(serve(sock))
    return uvloop.run(serve(sock))


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # The model is closed and the link too: what is left is Python's tidying up, and engines' exit handlers,
    # for which the next model's load would wait.
    os._exit(code)
