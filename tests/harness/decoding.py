"""A program that decodes recordings, one after the other, so that a decoder's crash is seen from outside.

It reads a length (4 bytes, big-endian) and so many bytes of a recording, and answers with one line of JSON:
how long it was, or the code of its refusal.
"""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from types import TracebackType
from typing import Self

MOST_SECONDS = 60.0


class Decoder:
    """The program, started anew after it has died."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.communicate()

    def decode(self, media: bytes) -> dict[str, float | str]:
        """Decode a recording; return {"seconds": …} or {"code": …}.

        Raises AssertionError when it kills the program.
        """
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", __name__],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(struct.pack(">I", len(media)) + media)
        process.stdin.flush()
        if line := process.stdout.readline():
            answer: dict[str, float | str] = json.loads(line)
            return answer
        self._process = None
        process.communicate()
        raise AssertionError(f"the decoder ended with {process.returncode} on {media!r}")


def main() -> None:
    """Answer until the input ends."""
    from modeld.errors import BadRequest
    from modeld.worker.media.decode import RATE, Recording

    while head := sys.stdin.buffer.read(4):
        media = sys.stdin.buffer.read(*struct.unpack(">I", head))
        try:
            pieces = Recording(media, MOST_SECONDS).samples()
            answer: dict[str, float | str] = {"seconds": sum(len(piece) for piece in pieces) / RATE}
        except BadRequest as refusal:
            answer = {"code": refusal.code}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
