"""From a hub to whoever watches: the feed of the admin socket, and the watchers of a model's pull."""

from __future__ import annotations

import asyncio
import os
import pty
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from modeld.admin.app import build_admin_app
from modeld.admin.client import AdminClient
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import ChangePlan, DaemonInfo, Outcome
from modeld.control.files import ModelFiles
from modeld.library.known import KnownFiles
from modeld.library.listing import Listing
from modeld.library.resolve import Resolver
from modeld.supervisor.states import State
from tests.component.admin.fake_supervisor import FakeControl, FakeSupervisor, model
from tests.component.library.pulls import BODY, NAME
from tests.component.supervisor.conftest import make_pool, spec, until
from tests.fakes.workers import Workers
from tests.harness.hub import Fault, Hub, serving

LIMIT_S = 120.0
INFO = DaemonInfo("0.1.0", 42, 61.0, "http://127.0.0.1:8000")


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Hub]:
    """Give a hub with one model, which fails once and then stops amid its file until it is told."""
    made = Hub()
    made.repos["org/tiny"] = {NAME: BODY}
    made.fail(NAME, Fault(status=500, headers={"Retry-After": "0"}), Fault(hold=len(BODY) // 2))
    async with serving(made):
        for name in (
            "HF_TOKEN",
            "HUGGING_FACE_HUB_TOKEN",
            "HF_HUB_OFFLINE",
            "TRANSFORMERS_OFFLINE",
            "HF_HUB_CACHE",
        ):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield made


async def until_held(hub: Hub) -> None:
    """Wait until half of the file has gone out."""
    async with asyncio.timeout(LIMIT_S):
        await hub.holding.wait()


async def test_a_model_that_is_added_tells_its_pull_on_the_way(
    hub: Hub, cache: Path, short_dir: Path
) -> None:
    """The admin socket's events name the model, with bytes and a share, and why it was tried again; watchers
    see the same; when it is over the model is up and the files are known.
    """
    (short_dir / "workers").mkdir()
    resolver = Resolver(cache)
    pool = make_pool(
        [spec("m", reference="org/tiny")], short_dir, workers=Workers(), resolve=resolver.resolve
    )
    files = ModelFiles(pool.specs, KnownFiles(resolver, Listing(None)), resolver.pulls)
    async with pool:
        app = build_admin_app(pool, FakeControl(FakeSupervisor()), lambda: INFO)
        async with serve_admin(app, short_dir / "admin.sock"):
            await until_held(hub)
            with files.watch(pool.status("m")) as watch:
                assert watch is not None
                assert await files.of((pool.status("m"),)) == {}
                first = await watch.next(LIMIT_S)
                assert first is not None
                assert first.stage in ("listing", "downloading", "retrying")
                hub.go.set()
                last = first
                while last.stage != "done":
                    news = await watch.next(LIMIT_S)
                    assert news is not None
                    last = news
            assert (last.done, last.total) == (len(BODY), len(BODY))
            await until(pool, State.READY)
            events = await asyncio.to_thread(lambda: list(AdminClient(short_dir / "admin.sock").events()))
            assert set(await files.of((pool.status("m"),))) == {"m"}
            with files.watch(pool.status("m")) as watch:
                assert watch is None
    told = [event for event in events if event.kind == "progress" and event.message.startswith("pulling")]
    assert {event.model for event in told} == {"m"}
    assert f"of {len(BODY) / 1000**2:.1f} MB" in told[-1].message
    assert any("trying again, " in event.message for event in told)
    sizes = [(event.done, event.total) for event in told if event.total is not None]
    assert {total for _, total in sizes} == {len(BODY)}
    assert [done for done, _ in sizes] == sorted(done for done, _ in sizes if done is not None)
    shares = [event.progress for event in told if event.progress is not None]
    assert shares == sorted(shares)


async def added(short_dir: Path, *, terminal: bool) -> str:
    """Run `ctl add --model` while a pull is told of; return what stood on stderr."""
    supervisor = FakeSupervisor(model("qwen"))
    control = FakeControl(supervisor)
    control.go.clear()
    control.planned, control.outcomes = ChangePlan(adds=("new",)), (Outcome("new", True, "ready"),)
    line = [
        "-m",
        "modeld",
        "ctl",
        "--state-dir",
        str(short_dir),
        "add",
        "--model",
        "org/tiny-GGUF:*Q4_K_M.gguf",
    ]
    seen, ours = bytearray(), asyncio.Event()
    master, slave = pty.openpty()
    loop = asyncio.get_running_loop()

    def read() -> None:
        try:
            piece = os.read(master, 65536)
        except OSError:
            piece = b""
        if piece:
            seen.extend(piece)
        else:
            loop.remove_reader(master)
        if b"50.0 of 4567.8" in seen:
            ours.set()

    app = build_admin_app(supervisor, control, lambda: INFO)
    async with serve_admin(app, short_dir / "admin.sock"):
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            *line,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=slave if terminal else asyncio.subprocess.PIPE,
            env={**os.environ, "TERM": "xterm", "COLUMNS": "80", "LINES": "24"},
        )
        os.close(slave)
        loop.add_reader(master, read)
        async with asyncio.timeout(LIMIT_S):
            while not control.work:
                await asyncio.sleep(0.01)
            for at in range(0, 51):
                message = f"pulling org/tiny-GGUF:*Q4_K_M.gguf: {at}.0 of 4567.8 MB"
                supervisor.feed.publish("progress", "new", message=message, progress=at / 100)
            again = (
                "pulling org/tiny-GGUF:*Q4_K_M.gguf: 50.0 of 4567.8 MB: trying again, the hub answered 500"
            )
            supervisor.feed.publish("progress", "new", message=again, progress=0.5)
            if terminal:
                await ours.wait()
            control.go.set()
            _, errors = await process.communicate()
        loop.remove_reader(master)
        os.close(master)
    assert process.returncode == 0
    return bytes(seen).decode() if terminal else errors.decode()


async def test_a_pull_is_a_bar_on_a_terminal(short_dir: Path) -> None:
    """On 80 columns with its figures, for which the reference makes room; it is drawn over, not repeated."""
    seen = await added(short_dir, terminal=True)
    assert "50% pulling 50.0 of 4567.8 MB" in seen
    assert "━" in seen
    assert "\x1b[2K" in seen


async def test_a_pull_is_plain_lines_elsewhere(short_dir: Path) -> None:
    """A line each tenth, with the reference; a try that failed is told with its reason."""
    lines = [line for line in (await added(short_dir, terminal=False)).splitlines() if "pulling" in line]
    assert 6 <= len(lines) <= 7
    assert all("pulling org/tiny-GGUF:*Q4_K_M.gguf" in line for line in lines)
    assert "trying again, the hub answered 500" in lines[-1]
    assert "\x1b" not in "".join(lines)
