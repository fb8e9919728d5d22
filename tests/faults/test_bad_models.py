"""Models that cannot load are FAILED at once, with the reason wherever somebody asks."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import aiohttp
import pytest

from tests.harness.daemon import running
from tests.harness.models import fake, llama
from tests.harness.sse import chat


@pytest.mark.engine
async def test_missing_junk_and_truncated_files_fail_at_once_with_the_reason(
    short_dir: Path, demo_gguf: Path
) -> None:
    """FAILED without a retry; the reason stands in the status, in the API's error (503 model_failed) and in
    ctl.
    """
    junk, cut = short_dir / "junk.gguf", short_dir / "cut.gguf"
    junk.write_bytes(b"<html>not a model</html>")
    with demo_gguf.open("rb") as file:
        cut.write_bytes(file.read(1 << 20))
    models = [llama("missing", short_dir / "no.gguf"), llama("junk", junk), llama("cut", cut)]
    reasons = {
        "missing": str(short_dir / "no.gguf"),
        "junk": "not a GGUF file",
        "cut": "is cut short or damaged",
    }
    async with running(short_dir, {"models": models}) as daemon, aiohttp.ClientSession() as session:
        for name, reason in reasons.items():
            status = await daemon.until(name, "failed")
            assert reason in status["message"]
            assert status["restarts"] == 0
            answer = await chat(session, daemon.url, name)
            assert answer.status == 503
            assert answer.error is not None
            assert answer.error["code"] == "model_failed"
            assert reason in answer.error["message"]
        ctl = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "modeld",
            "ctl",
            "status",
            env={"MODELD_STATE_DIR": str(daemon.state_dir)},
            stdout=asyncio.subprocess.PIPE,
        )
        out = (await ctl.communicate())[0].decode()
        assert ctl.returncode == 0
        for name, reason in reasons.items():
            assert any(line.startswith(name) and reason in line for line in out.splitlines()), out


async def test_unknown_model_is_404_model_not_found(short_dir: Path) -> None:
    """A name nobody configured is the caller's fault, in OpenAI's words."""
    async with (
        running(short_dir, {"models": [fake("f")], "allow_fake": True}) as daemon,
        aiohttp.ClientSession() as session,
    ):
        answer = await chat(session, daemon.url, "gpt-4o")
        assert (answer.status, answer.error and answer.error["code"]) == (404, "model_not_found")


async def test_a_failed_model_gets_a_new_chance_by_ctl_load(short_dir: Path) -> None:
    """What failed for a missing file loads after the file is there and the owner says load."""
    config = {"models": [fake("f", load_error="scripted: no")], "allow_fake": True}
    async with running(short_dir, config) as daemon:
        await daemon.until("f", "failed")
        answer = await daemon.admin("POST", "/models/f/load")
        assert "scripted: no" in answer["error"]["message"]
        assert (await daemon.model("f"))["state"] == "failed"


@pytest.mark.engine
async def test_a_load_without_progress_ends_at_the_start_timeout(short_dir: Path) -> None:
    """A worker that hangs at load does not hang the daemon: the limit is on lack of progress."""
    entry = {**fake("f", load_hang=True), "start_timeout": 0.2}
    async with running(short_dir, {"models": [entry], "allow_fake": True}) as daemon:
        await daemon.until_status("f", lambda status: "no progress within 0.4 s" in (status["message"] or ""))
