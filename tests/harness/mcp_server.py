"""A real MCP server (the SDK's own) in a process of its own, and beside it endpoints that behave badly.

    async with mcp_server() as server:
        server.url                    # all is well there
        server.at("/auth")            # one of the others
        server.calls()                # what its tools were asked and how that went
        await server.seen("hang", "cancelled", mark="")

The endpoints stand in mcp_program.py.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEEN_S = 60.0

PROGRAM = Path(__file__).with_name("mcp_program.py")


@dataclass(frozen=True)
class Server:
    """A running server."""

    origin: str
    log: Path
    process: subprocess.Popen[bytes]

    @property
    def url(self) -> str:
        """Where all is well."""
        return self.at("/mcp")

    @property
    def port(self) -> int:
        """Its port on loopback."""
        return int(self.origin.rpartition(":")[2])

    def at(self, path: str) -> str:
        """Return the URL of another endpoint."""
        return self.origin + path

    def calls(self) -> list[dict[str, Any]]:
        """Return what happened so far: {"tool", "event": begin, end or cancelled, "arguments"}."""
        return [call for call in self._lines() if "tool" in call]

    def requests(self) -> list[dict[str, Any]]:
        """Return the requests so far: {"method", "path", "headers"}."""
        return [line for line in self._lines() if "method" in line]

    async def seen(self, tool: str, event: str, **arguments: Any) -> None:
        """Wait until a tool's event was there, of a call with these arguments."""
        async with asyncio.timeout(SEEN_S):
            while {"tool": tool, "event": event, "arguments": arguments} not in self.calls():
                await asyncio.sleep(0.02)

    def _lines(self) -> list[dict[str, Any]]:
        text = self.log.read_text()
        return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


@contextmanager
def serving() -> Iterator[Server]:
    """Run a server for as long as the block lasts; starting it takes a few seconds."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        log = Path(folder) / "calls"
        log.touch()
        command = [sys.executable, "-P", str(PROGRAM), str(log)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
            try:
                assert process.stdout is not None
                yield Server(f"http://127.0.0.1:{int(process.stdout.readline())}", log, process)
            finally:
                process.kill()


@asynccontextmanager
async def mcp_server() -> AsyncIterator[Server]:
    """Do the same without holding up the loop."""
    with ExitStack() as stack:
        yield await asyncio.to_thread(stack.enter_context, serving())
