"""A program that runs another one and outlives nobody: `python warden.py COMMAND…`, with a pipe as stdin.

When the pipe closes, because whoever started this has ended in whatever way, the command and all that it has
started are killed. A compiler three processes down would otherwise go on for minutes after a `kill -9`.
It imports the standard library only, and is run as a file.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading


def _watch() -> None:
    while os.read(0, 4096):
        pass
    os.killpg(0, signal.SIGKILL)  # this program included


def main() -> int:
    """Run the command in this program's own process group, and return its exit code."""
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    threading.Thread(target=_watch, daemon=True).start()
    try:
        command = subprocess.Popen(sys.argv[1:], stdin=subprocess.DEVNULL)
    except OSError as error:
        print(f"{sys.argv[1]} cannot be started: {error.strerror}", file=sys.stderr)
        return 127
    code = command.wait()
    return code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.stdout.flush()
    # The watcher is in a read: an orderly end would wait for nobody, and costs time.
    os._exit(main())
