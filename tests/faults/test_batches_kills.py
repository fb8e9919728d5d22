"""kill -9 of the daemon in the middle of batches."""

from __future__ import annotations

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import openai

from tests.harness.daemon import Daemon, running
from tests.harness.models import fake

COUNT = 200


def client(daemon: Daemon) -> openai.AsyncOpenAI:
    """Return OpenAI's client, with no second tries."""
    return openai.AsyncOpenAI(base_url=f"{daemon.url}/v1", api_key="x", max_retries=0)


def input_file() -> bytes:
    """Return requests that ask for different numbers of tokens, so that an answer tells whose it is."""
    lines = []
    for at in range(COUNT):
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "Go on."}],
            "max_tokens": 1 + at % 7,
        }
        lines.append({"custom_id": str(at), "method": "POST", "url": "/v1/chat/completions", "body": body})
    return b"\n".join(json.dumps(line).encode() for line in lines)


async def test_every_line_is_answered_once_and_in_order_however_often_the_daemon_dies(
    short_dir: Path,
) -> None:
    """kill -9 at random points, right after the upload and while the output is written among them."""
    config = {"models": [fake("m", slots=4, tokens=100, token_delay=0.002)], "allow_fake": True}
    chance, id, before = random.Random(11), "", 0
    for life in range(4):
        async with running(short_dir, config) as daemon, client(daemon) as api:
            if not id:
                file = await api.files.create(file=("in.jsonl", input_file()), purpose="batch")
                batch = await api.batches.create(
                    input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
                )
                id = batch.id
            # By so many more that no line is at work at MOST_ATTEMPTS deaths.
            wanted = before + chance.randint(20, 50) if life else 0
            async with asyncio.timeout(120):
                while life and (await ended(api, id)) < min(wanted, COUNT - 20):
                    await asyncio.sleep(0.005)
            await asyncio.sleep(chance.random() * 0.05)  # anywhere within a step
            before = await ended(api, id)
            daemon.process.kill()
            await daemon.process.wait()
    async with running(short_dir, config) as daemon, client(daemon) as api:
        async with asyncio.timeout(180):
            while (batch := await api.batches.retrieve(id)).status != "completed":
                assert batch.status in ("validating", "in_progress", "finalizing"), batch
                await asyncio.sleep(0.02)
        assert batch.request_counts is not None
        assert batch.request_counts.completed == COUNT
        assert batch.output_file_id is not None
        text = (await api.files.content(batch.output_file_id)).text
        lines: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines()]
        assert [line["custom_id"] for line in lines] == [str(at) for at in range(COUNT)]
        written = [line["response"]["body"]["usage"]["completion_tokens"] for line in lines]
        assert written == [1 + at % 7 for at in range(COUNT)]
        left = {entry.name for entry in (daemon.state_dir / "files").iterdir()}
        assert left == {batch.input_file_id, batch.output_file_id}


async def ended(api: openai.AsyncOpenAI, id: str) -> int:
    """Return how many lines of a batch have an end."""
    counts = (await api.batches.retrieve(id)).request_counts
    return 0 if counts is None else counts.completed + counts.failed
