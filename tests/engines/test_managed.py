"""`modeld engines install` for real: whisper.cpp in an environment of its own, and a recording through it."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path

import aiohttp
import pytest

from modeld.engines.pins import RECIPES, Variant
from modeld.engines.place import Place
from tests.harness.daemon import running
from tests.harness.models_whisper import whisper, whisper_tiny_en
from tests.harness.recordings import SPOKEN

pytestmark = [pytest.mark.engine, pytest.mark.network]

PATIENCE = 600.0
"""Seconds for downloads on a busy machine."""

HIDES = """
import sys
if sys.prefix == {prefix!r}:
    class Hidden:
        def find_spec(self, name, path=None, target=None):
            if name.partition(".")[0] in ("pywhispercpp", "_pywhispercpp", "av", "numpy"):
                raise ModuleNotFoundError(f"{{name}} is hidden", name=name)
    sys.meta_path.insert(0, Hidden())
"""
"""Takes the engine away from the environment that the tests run in, and from no other."""


def hiding(folder: Path) -> dict[str, str]:
    """Return variables under which the tests' own environment lacks whisper.cpp."""
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(HIDES.format(prefix=sys.prefix))
    return {"PYTHONPATH": str(folder)}


async def test_a_recording_through_an_engine_that_modeld_installed(short_dir: Path) -> None:
    """A daemon whose own environment lacks whisper.cpp waits for it, finds it when it has been installed
    beside, and writes down a recording; the versions are those of the table.
    """
    ears = whisper("ears", whisper_tiny_en())
    async with running(short_dir, {"models": [ears]}, env=hiding(short_dir / "hide")) as daemon:
        status = await daemon.until("ears", "waiting")
        assert "modeld engines install whispercpp" in status["message"]
        command = [sys.executable, "-m", "modeld", "engines", "install", "whispercpp", "--cpu"]
        command += ["--state-dir", str(daemon.state_dir)]
        async with asyncio.timeout(PATIENCE):
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=False, timeout=PATIENCE
            )
        assert done.returncode == 0, done.stderr
        assert "trying it out" in done.stderr

        await daemon.ctl("load", "ears")
        status = await daemon.until("ears", "ready", "failed", within=120)
        assert status["state"] == "ready", status["message"]
        form = aiohttp.FormData()
        form.add_field("model", "ears")
        form.add_field("response_format", "text")
        form.add_field("file", SPOKEN.read_bytes(), filename="fox.ogg")
        url = f"{daemon.url}/v1/audio/transcriptions"
        async with aiohttp.ClientSession() as session, session.post(url, data=form) as answer:
            assert answer.status == 200, await answer.text()
            assert re.search(r"quick.*fox.*river", await answer.text(), re.IGNORECASE)

        about = Place(daemon.state_dir).installed("whispercpp")
        assert about is not None
        assert about.packages == RECIPES["whispercpp"][Variant.CPU].packages
        assert f"pywhispercpp=={about.version}" in about.packages
