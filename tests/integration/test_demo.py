"""`modeld serve --demo` as whoever tries modeld meets it: a process, real engines, models and clients."""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest
import pytest_asyncio

from modeld.library.demo import CHAT, DEMO_MODELS
from tests.harness.daemon import Daemon, demonstrating
from tests.harness.models import CACHE, resolved
from tests.harness.models_kokoro import VOICES
from tests.harness.word_errors import word_error_rate

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

NAMES = [model.name for model in DEMO_MODELS]
SENTENCE = "The quick brown fox jumps over the lazy dog, and then it runs back to the house by the river."
MOST_WRONG = 0.2
PATIENCE = 600.0
"""Seconds for a model to load, or to answer, on a busy machine."""


@pytest.fixture(scope="module")
def warm() -> dict[str, str]:
    """Give the environment of a daemon whose cache holds every demo model."""
    for model in DEMO_MODELS:
        resolved(model.ref)
    return {"MODELD_CACHE_DIR": str(CACHE)}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo(warm: dict[str, str]) -> AsyncIterator[Daemon]:
    """Run the demo with all engines, until every model is ready."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with demonstrating(Path(folder), warm) as daemon:
            for name in NAMES:
                await daemon.until(name, "ready", within=PATIENCE)
            yield daemon


@pytest_asyncio.fixture(loop_scope="module")
async def client(demo: Daemon) -> AsyncIterator[openai.AsyncOpenAI]:
    """Give the stock SDK, pointed at the demo."""
    async with openai.AsyncOpenAI(
        base_url=f"{demo.url}/v1", api_key="none", max_retries=0, timeout=PATIENCE
    ) as sdk:
        yield sdk


async def test_chat_answers(client: openai.AsyncOpenAI) -> None:
    """The chat model says something."""
    answer = await client.chat.completions.create(
        model="smollm2", max_tokens=16, messages=[{"role": "user", "content": "Say hello"}]
    )
    assert answer.choices[0].message.content


async def test_embeddings_know_what_is_alike(client: openai.AsyncOpenAI) -> None:
    """Sentences of one meaning are nearer to one another than to another meaning's."""
    texts = ["A cat sits on the mat.", "A kitten is resting on a rug.", "Shares lost value on Wall Street."]
    answer = await client.embeddings.create(model="minilm", input=texts)
    cat, kitten, shares = (item.embedding for item in answer.data)
    assert len(cat) == 384
    assert _product(cat, kitten) > _product(cat, shares) + 0.2


def _product(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


async def test_what_is_said_is_written_down(client: openai.AsyncOpenAI) -> None:
    """Speech goes out as mp3 and comes back as text; at most one word in five is wrong."""
    spoken = await client.audio.speech.create(model="kokoro", voice=VOICES[0], input=SENTENCE)
    heard = await client.audio.transcriptions.create(model="whisper", file=("speech.mp3", spoken.content))
    assert word_error_rate(SENTENCE, heard.text) <= MOST_WRONG, heard.text


async def test_the_chat_model_is_the_first(demo: Daemon) -> None:
    """Whoever waits for a first answer waits for no other model."""
    ready = [event["model"] for event in await demo.events() if event.get("state") == "ready"]
    assert ready[0] == CHAT.name
    assert sorted(ready) == sorted(NAMES)
    loading = [event["model"] for event in await demo.events() if event.get("state") == "loading"]
    assert loading[0] == CHAT.name


async def test_status_tells_of_four_ready_models(demo: Daemon) -> None:
    """`modeld ctl status` names each with its state, and /readyz agrees."""
    status = await demo.ctl("status")
    assert (status.code, status.err) == (0, "")
    for name in NAMES:
        [line] = [line for line in status.out.splitlines() if line.split()[:1] == [name]]
        assert "ready" in line
    async with aiohttp.ClientSession() as session, session.get(f"{demo.url}/readyz") as response:
        assert response.status == 200


async def test_the_lines_to_try_work_as_they_are_printed(demo: Daemon, tmp_path: Path) -> None:
    """Each printed command, pasted into a shell in turn, succeeds; the last one transcribes the speech."""
    # The lines of all models come before the list of models.
    await demo.line("  whisper: ready")
    commands = [line.strip() for line in demo.lines if line.startswith("  curl ")]
    assert len(commands) == len(NAMES)
    paths = ("chat/completions", "embeddings", "audio/speech", "audio/transcriptions")
    ordered = [next(command for command in commands if f"/v1/{path} " in command) for path in paths]
    outputs = [await _in_shell(command.replace("curl ", "curl -sSf ", 1), tmp_path) for command in ordered]
    assert '"content"' in outputs[0]
    assert '"embedding"' in outputs[1]
    assert (tmp_path / "speech.mp3").stat().st_size > 1000
    assert "morning" in outputs[3].lower()


async def _in_shell(command: str, folder: Path) -> str:
    process = await asyncio.create_subprocess_exec(
        "sh", "-c", command, cwd=folder, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(PATIENCE):
        out, err = await process.communicate()
    assert process.returncode == 0, (command, err)
    return out.decode()


async def test_without_their_engines_the_others_say_what_to_install(
    warm: dict[str, str], short_dir: Path
) -> None:
    """Chat and embeddings serve, nothing is waited for, and speech and transcription name their extras: on
    the terminal, and to whoever asks for them.
    """
    env = {**warm, "MODELD_CAPABILITIES": "sherpa_onnx=no,whispercpp=no"}
    async with demonstrating(short_dir, env) as daemon:
        for name in ("smollm2", "minilm"):
            await daemon.until(name, "ready", within=PATIENCE)
        assert "pip install 'modeld[tts]'" in await daemon.line("kokoro needs an engine")
        assert "pip install 'modeld[stt]'" in await daemon.line("whisper needs an engine")
        async with aiohttp.ClientSession() as session:
            async with session.get(f"{daemon.url}/readyz") as response:
                assert response.status == 200
            body: dict[str, Any] = {"model": "kokoro", "voice": "alloy", "input": "Hello."}
            async with session.post(f"{daemon.url}/v1/audio/speech", json=body) as response:
                assert response.status == 503
                error = (await response.json())["error"]
                assert error["code"] == "engine_missing"
                assert "sherpa_onnx is missing" in error["message"]
        status = await daemon.ctl("status")
        assert status.code == 0


async def test_without_any_engine_the_daemon_is_up(warm: dict[str, str], short_dir: Path) -> None:
    """Where not even chat has an engine, the daemon says so and answers."""
    env = {**warm, "MODELD_CAPABILITIES": "llama_server=no,sherpa_onnx=no,whispercpp=no"}
    async with demonstrating(short_dir, env) as daemon:
        line = await daemon.line("  smollm2: waiting - ")
        assert "the engine of the loader llama_server is missing" in line
        async with aiohttp.ClientSession() as session, session.get(f"{daemon.url}/health") as response:
            assert response.status == 200
