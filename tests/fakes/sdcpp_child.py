"""Stands for the stable-diffusion.cpp child, without the library: the frames are real, the pictures none.

Run as a program with the socket's number. What a load does is in its arguments: "refuse" (words), "kill" (a
signal for itself), "silent", "works" (seconds of work without a word), "once" (a file: a load that finds it
refuses, any other makes it), and "backend" (where it says it runs). A picture is what its prompt says: "hang"
after the first step, "die", or else no picture, with the prompt for a reason.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

from modeld.protocol.framing import FrameDecoder, FrameEncoder
from modeld.worker.loaders.stable_diffusion_cpp import wire


def _answers(task: wire.ToChild) -> list[wire.FromChild]:
    if isinstance(task, wire.Draw):
        if task.prompt == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if task.prompt == "hang":
            return [wire.Progress(1, 9)]
        return [wire.Progress(1, 1), wire.Failed(task.prompt)]
    asked = task.arguments
    print("fake child loads", flush=True)
    if "kill" in asked:
        os.kill(os.getpid(), asked["kill"])
    if "silent" in asked:
        return []
    if "works" in asked:
        until = time.monotonic() + asked["works"]
        while time.monotonic() < until:
            pass
    if "refuse" in asked:
        return [wire.Refused(asked["refuse"])]
    if "once" in asked:
        try:
            Path(asked["once"]).touch(exist_ok=False)
        except FileExistsError:
            return [wire.Refused("a second time it will not")]
    return [wire.Progress(1, 2), wire.Progress(2, 2), wire.Ready("0", asked.get("backend", "CPU"), "fake", 8)]


def main() -> None:
    """Answer frames until the worker goes."""
    link = socket.socket(fileno=int(sys.argv[1]))
    encoder = FrameEncoder(wire.LIMIT)
    decoder: FrameDecoder[wire.ToChild] = FrameDecoder(wire.ToChild, wire.LIMIT)
    while data := link.recv(1 << 16):
        for task, _ in decoder.feed(data):
            for answer in _answers(task):
                link.sendall(encoder.encode(answer))


if __name__ == "__main__":
    main()
