"""A daemon and the environments that `modeld engines` makes beside it."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.harness import tiny_engine
from tests.harness.daemon import MARK, Daemon, Said, running

LOADER = "diffusers"
"""An engine that the environment of these tests does not have."""


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Give a package index with a diffusers that says where it is from."""
    assert importlib.util.find_spec(LOADER) is None
    folder = tiny_engine.index(tmp_path_factory.mktemp("index") / "wheels")
    for version in ("1.0", "2.0"):
        tiny_engine.engine(folder, version, "", "diffusers")
        said = f"raise ImportError('no', name='that the tiny torch {version} lacks')"
        tiny_engine.engine(folder, version, said, "torch")
    return folder


async def engines(daemon: Daemon, packages: Path, *arguments: str, version: str = "1.0") -> Said:
    """Run `modeld engines …` on the daemon's state directory."""
    command = tiny_engine.command(packages, version, "torch", "diffusers", loader=LOADER)
    process = await asyncio.create_subprocess_exec(
        *command,
        *arguments,
        "--state-dir",
        str(daemon.state_dir),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, MARK: daemon.mark},
    )
    async with asyncio.timeout(120):
        out, err = await process.communicate()
    assert process.returncode is not None
    return Said(process.returncode, out.decode(), err.decode())


async def found(daemon: Daemon) -> dict[str, Any]:
    """Return what the daemon says of the engine."""
    there: dict[str, Any] = (await daemon.admin("GET", "/devices"))["loaders"][LOADER]
    return there


async def test_an_engine_installed_while_the_daemon_runs(short_dir: Path, packages: Path) -> None:
    """A model whose engine is missing says which command brings it; once that has run, it is loaded there,
    with nothing configured. The daemon, `ctl devices` and `engines list` tell the same. A removal is refused
    while a model needs the engine; by force it is done, and the model waits again.
    """
    pipeline = short_dir / "pipeline"
    pipeline.mkdir()
    (pipeline / "model_index.json").write_text(json.dumps({"_class_name": "StableDiffusionPipeline"}))
    model = {"name": "brush", "model": str(pipeline), "loader": LOADER, "ram": "64MiB"}
    async with running(short_dir, {"models": [model]}) as daemon:
        status = await daemon.until("brush", "waiting")
        assert status["cause"] == "engine"
        assert f"modeld engines install {LOADER}" in status["message"]

        said = await engines(daemon, packages, "install", LOADER)
        assert said.code == 0, said
        await daemon.ctl("load", "brush")
        status = await daemon.until("brush", "failed")
        assert "that the tiny torch 1.0 lacks" in status["message"]

        there = await found(daemon)
        assert there["available"]
        assert there["python"].startswith(str(daemon.state_dir / "engines" / LOADER))
        assert f"diffusers 1.0; in the environment of {there['python']}" in (await daemon.ctl("devices")).out
        (listed,) = (
            each
            for each in (await engines(daemon, packages, "list", "--json")).json["engines"]
            if each["name"] == LOADER
        )
        assert (listed["where"], listed["python"]) == ("managed", there["python"])

        assert (await engines(daemon, packages, "install", LOADER, version="2.0")).code == 0
        await daemon.ctl("load", "brush")
        status = await daemon.until_status("brush", lambda now: "torch 2.0" in now["message"])
        assert status["state"] == "failed"

        said = await engines(daemon, packages, "remove", LOADER)
        assert said.code == 2
        assert f"{LOADER} is in use: the running daemon needs it for brush" in said.err
        said = await engines(daemon, packages, "remove", LOADER, "--force")
        assert said.code == 0, said
        assert not (await found(daemon))["available"]
        await daemon.ctl("load", "brush")
        status = await daemon.until_status("brush", lambda now: now["cause"] == "engine")
        assert status["state"] == "waiting"
