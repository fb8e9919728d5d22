"""kill -9 of each process in turn: what dies with it, what does not, and what the client is told."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path

import aiohttp
import psutil
import pytest

from tests.harness.daemon import Daemon, family_gone, running
from tests.harness.models import fake, llama
from tests.harness.sse import Answer, Reader, chat
from tests.harness.workers import held

LONG = {"max_tokens": 1500, "temperature": 0}


async def _kill_mid_stream(daemon: Daemon, session: aiohttp.ClientSession, victim: psutil.Process) -> Answer:
    """Stream, kill `victim` after the first text, and read the stream to its end."""
    body = {
        "model": "m",
        "messages": [{"role": "user", "content": "Tell me a story"}],
        "stream": True,
        **LONG,
    }
    async with session.post(f"{daemon.url}/v1/chat/completions", json=body) as response:
        reader = Reader(response)
        await reader.until_text()
        victim.kill()
        return await reader.to_end()


@pytest.mark.engine
@pytest.mark.parametrize("victim", ["llama_server.xllama", "modeld.worker "])
async def test_a_killed_engine_or_worker_ends_its_stream_with_an_error_and_the_next_request_works(
    short_dir: Path, demo_gguf: Path, victim: str
) -> None:
    """kill -9 of the engine or its worker mid-stream: an error event, no [DONE], and the next request is
    answered.
    """
    async with (
        running(short_dir, {"models": [llama("m", demo_gguf)]}) as daemon,
        aiohttp.ClientSession() as session,
    ):
        await daemon.until("m", "ready")
        [process] = [
            child for child in daemon.children(victim) if "lifeline" not in " ".join(child.cmdline())
        ]
        answer = await _kill_mid_stream(daemon, session, process)
        assert answer.error is not None
        assert answer.error["code"] == "worker_died"
        assert "killed by signal 9 (SIGKILL)" in answer.error["message"]
        assert not answer.done

        after = await chat(session, daemon.url, "m", "Hi", max_tokens=4)
        assert after.status == 200
        assert after.done
        assert after.text
        assert (await daemon.model("m"))["restarts"] == 1


@pytest.mark.engine
async def test_a_killed_daemon_leaves_no_worker_and_no_engine(short_dir: Path, demo_gguf: Path) -> None:
    """kill -9 of the daemon, with a stream open: no process of its family is left."""
    models = [llama("m", demo_gguf), fake("f", ignore_term=True)]
    async with running(short_dir, {"models": models, "allow_fake": True}) as daemon:
        await daemon.until("m", "ready")
        await daemon.until("f", "ready")
        assert daemon.children("llama_server.xllama")
        assert len(daemon.children("modeld.worker --fd")) == 2
        async with aiohttp.ClientSession() as session:
            body = {"model": "m", "messages": [{"role": "user", "content": "Hi"}], "stream": True, **LONG}
            async with session.post(f"{daemon.url}/v1/chat/completions", json=body) as response:
                await Reader(response).until_text()
                daemon.signal(signal.SIGKILL)
                await daemon.ended()
        assert await family_gone(daemon.mark) == []

    # The same state directory serves again: nothing of the dead daemon is in the way.
    async with running(short_dir, {"models": [fake("f")], "allow_fake": True}) as daemon:
        await daemon.until("f", "ready")


async def test_a_worker_that_ignores_sigterm_is_gone_after_the_ladder(short_dir: Path) -> None:
    """Stopping the daemon ends a worker that ignores the request to stop and SIGTERM."""
    async with running(short_dir, {"models": [fake("f", ignore_term=True)], "allow_fake": True}) as daemon:
        await daemon.until("f", "ready")
        assert await daemon.stop() == 0
        assert daemon.children("modeld.worker") == []


async def test_a_crash_loop_ends_in_failed_with_the_last_words(short_dir: Path) -> None:
    """A worker that always dies at load is FAILED after its budget, and requests are told why."""
    async with (
        running(short_dir, {"models": [fake("f", load_crash=True)], "allow_fake": True}) as daemon,
        aiohttp.ClientSession() as session,
    ):
        status = await daemon.until("f", "failed")
        assert "scripted crash while loading" in status["message"]
        assert status["cause"] == "crash_loop"
        answer = await chat(session, daemon.url, "f")
        assert (answer.status, answer.error and answer.error["code"]) == (503, "model_failed")


async def test_a_crash_before_the_first_event_is_retried_in_silence(short_dir: Path) -> None:
    """A worker killed while a request waits for its first token costs that request only time."""
    config = {"models": [fake("f", tokens=3)], "allow_fake": True}
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:
        status = await daemon.until("f", "ready")
        with held(status["pid"]):
            asking = asyncio.ensure_future(chat(session, daemon.url, "f"))
            await daemon.until_status("f", lambda status: status["in_flight"] == 1)
            psutil.Process(status["pid"]).kill()
        answer = await asking
        assert answer.done
        assert answer.text == "tok0 tok1 tok2 "
