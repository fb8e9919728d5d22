"""`curl`, as people use it by hand; tests that need it say so where there is none."""

from __future__ import annotations

import asyncio
import json
import shutil
from typing import Any, NamedTuple

import pytest

CURL = shutil.which("curl")
needed = pytest.mark.skipif(CURL is None, reason="curl is not installed on this machine")
"""Marks tests that call it."""

WAIT_S = 60.0


class Got(NamedTuple):
    """What came back: `code` is curl's own exit status, `headers` have names in lower case."""

    code: int
    status: int
    headers: dict[str, str]
    body: str

    @property
    def json(self) -> Any:
        """The decoded body."""
        return json.loads(self.body)


async def curl(url: str, *args: str, data: Any = None) -> Got:
    """Call curl with these arguments; `data` is sent as JSON, or as it is when it is text."""
    sent = () if data is None else ("-H", "content-type: application/json", "--data-binary", "@-")
    process = await asyncio.create_subprocess_exec(
        CURL or "curl",
        *("-sS", "-g", "--http1.1", "--noproxy", "*", "-D", "/dev/stderr", *sent, *args, url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        async with asyncio.timeout(WAIT_S):
            text = data if isinstance(data, str) or data is None else json.dumps(data)
            out, head = await process.communicate((text or "").encode())
    except BaseException:
        process.kill()
        await process.wait()
        raise
    lines = [line for line in head.decode().replace("\r", "").split("\n") if line]
    starts = [at for at, line in enumerate(lines) if line.startswith("HTTP/")]
    last = lines[starts[-1] :] if starts else []
    pairs = (line.partition(": ") for line in last[1:])
    headers = {name.lower(): value for name, _, value in pairs}
    return Got(process.returncode or 0, int(last[0].split()[1]) if last else 0, headers, out.decode())
