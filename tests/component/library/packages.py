"""Packages with a tiny model in them, indexes that fail, and what a fetch leaves behind."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import zipfile
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

CONTENT = b"GGUF" + bytes(range(256)) * 4000
SHA256 = hashlib.sha256(CONTENT).hexdigest()
REF = "pypi:tiny_model==1.0/tiny_model/m.gguf"


class Reports:
    """Keeps what was reported, and wakes who waits for it."""

    def __init__(self) -> None:
        self.seen: list[tuple[str, float | None]] = []
        self.sizes: list[tuple[int | None, int | None]] = []
        self.first = asyncio.Event()

    def __call__(
        self, stage: str, fraction: float | None, done: int | None = None, total: int | None = None, /
    ) -> None:
        self.seen.append((stage, fraction))
        self.sizes.append((done, total))
        self.first.set()


def build_wheel(
    folder: Path, *, content: bytes = CONTENT, recorded: bytes = CONTENT, name: str = "tiny_model"
) -> Path:
    """Write a wheel that any Python may read and none may run, whose RECORD holds the hash of `recorded`."""
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nRequires-Dist: other\nRequires-Python: <3"
    files = {
        f"{name}/m.gguf": content,
        f"{info}/METADATA": metadata.encode(),
        f"{info}/WHEEL": b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = ""
    for member, body in files.items():
        digest = hashlib.sha256(recorded if member.endswith(".gguf") else body).digest()
        record += f"{member},sha256={base64.urlsafe_b64encode(digest).rstrip(b'=').decode()},{len(body)}\n"
    folder.mkdir(exist_ok=True)
    wheel = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for member, body in files.items():
            archive.writestr(member, body)
        archive.writestr(f"{info}/RECORD", record + f"{info}/RECORD,,\n")
    return wheel


def files(cache: Path) -> list[str]:
    """Return every file below the cache, hidden ones too."""
    return sorted(str(path.relative_to(cache)) for path in cache.rglob("*") if not path.is_dir())


def no_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make every further run of pip fail."""
    monkeypatch.setenv("PIP_FIND_LINKS", "/nowhere")


def family() -> list[psutil.Process]:
    """Return the processes below this one that run still."""
    return [p for p in psutil.Process().children(recursive=True) if p.status() != psutil.STATUS_ZOMBIE]


async def until(condition: Callable[[], bool], what: str) -> None:
    """Wait, within bounds, for a process outside to come that far."""
    async with asyncio.timeout(120):
        while not condition():
            await asyncio.sleep(0.02)
    assert condition(), what


@asynccontextmanager
async def silent_index(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[asyncio.Event]:
    """Point pip at an index that takes connections and never answers; gives the event of the first one."""
    asked = asyncio.Event()
    writers: list[asyncio.StreamWriter] = []

    def connected(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        asked.set()

    server = await asyncio.start_server(connected, "127.0.0.1", 0)
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    port = server.sockets[0].getsockname()[1]
    monkeypatch.setenv("PIP_INDEX_URL", f"http://user:secret@127.0.0.1:{port}/simple")
    try:
        yield asked
    finally:
        server.close()
        for writer in writers:
            writer.close()
        await server.wait_closed()
