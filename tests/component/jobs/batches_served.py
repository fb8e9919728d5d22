"""Files and batches over HTTP, with a scripted pool and a real store, and OpenAI's client in front."""

from __future__ import annotations

import asyncio
import json
from array import array
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai
from aiohttp import ClientSession, web
from openai.types import Batch, FileObject

from modeld.clock import Clock, SystemClock
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.egress import Egress, Policy
from modeld.gateway.settings import GatewaySettings
from modeld.ids import new_id
from modeld.jobs.app import Room
from modeld.jobs.batches.app import serving_jobs_and_batches
from modeld.jobs.files.limits import FileLimits
from modeld.jobs.limits import JobLimits
from modeld.protocol.messages import Facts
from modeld.protocol.tasks import ChatTask, EmbedTask, Task, Usage, Vector
from modeld.responses import context as contexts
from modeld.responses.context import Context
from modeld.responses.mcp.servers import policy as mcp_policy
from modeld.responses.mcp.session import McpLimits
from modeld.responses.sealed import Seal
from modeld.store.approvals import Approvals
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.responses import Responses
from modeld.telemetry.metrics import Metrics
from tests.component.jobs.served import WAIT_S, JobPool
from tests.fakes.pool import Answer, model, said

CHAT = "/v1/chat/completions"
EMBED = "/v1/embeddings"
RESPOND = "/v1/responses"

EMBEDDER = model("vectors", usecase="embed", facts=Facts(loader="fake", device="cpu", dimensions=2))


def everything(name: str, task: Task) -> list[Answer]:
    """Say a chat's last words again; make a vector of a text's length."""
    if isinstance(task, EmbedTask):
        vectors: list[Answer] = [
            [Vector(at, array("f", [len(text), 0.5]).tobytes())] for at, text in enumerate(task.inputs)
        ]
        return [*vectors, [Usage(3, 0)], None]
    assert isinstance(task, ChatTask)
    return said(str(task.messages[-1].content))


def pool_of_all() -> JobPool:
    """Return a pool with a model that writes, `tiny`, and one that embeds, `vectors`."""
    pool = JobPool(answer=everything)
    pool.models["vectors"] = EMBEDDER
    return pool


def line(name: str, body: Mapping[str, Any], url: str = CHAT, method: str = "POST") -> bytes:
    """Return a line of an input file."""
    return json.dumps({"custom_id": name, "method": method, "url": url, "body": body}).encode() + b"\n"


def chat(at: int, **more: Any) -> bytes:
    """Return a line that asks for a chat which says its number."""
    body = {"model": "tiny", "messages": [{"role": "user", "content": str(at)}], **more}
    return line(f"line-{at}", body)


def chats(count: int) -> bytes:
    """Return an input file of chats."""
    return b"".join(chat(at) for at in range(count))


@dataclass
class Served:
    """A daemon's worth of batches, on a loopback port. `folder` is where files lie."""

    url: str
    http: ClientSession
    client: openai.AsyncOpenAI
    pool: JobPool
    room: Room
    database: Database
    folder: Path
    metrics: Metrics

    async def upload(self, data: bytes, **more: Any) -> FileObject:
        """Upload a file, as a batch's input if nothing else is said."""
        return await self.client.files.create(file=("in.jsonl", data), **{"purpose": "batch", **more})

    async def begin(self, data: bytes, endpoint: Any = CHAT, **more: Any) -> Batch:
        """Upload an input file and begin a batch."""
        file = await self.upload(data)
        return await self.client.batches.create(
            input_file_id=file.id, endpoint=endpoint, completion_window="24h", **more
        )

    async def until(self, batch: Batch, *statuses: str) -> Batch:
        """Wait until a batch has one of these statuses."""
        async with asyncio.timeout(WAIT_S):
            while True:
                batch = await self.client.batches.retrieve(batch.id)
                if batch.status in statuses:
                    return batch
                await asyncio.sleep(0.002)

    async def over(self, batch: Batch) -> Batch:
        """Wait for a batch's end."""
        return await self.until(batch, "completed", "failed", "expired", "cancelled")

    async def lines(self, id: str | None) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        assert id is not None
        content = await self.client.files.content(id)
        return [json.loads(text) for text in content.content.decode().splitlines()]

    def value(self, name: str, **labels: str) -> float:
        """Return a figure of the metrics; 0 where there is none."""
        return self.metrics.registry.get_sample_value(f"modeld_{name}", labels) or 0.0

    async def rows(self, table: str) -> int:
        """Return how many rows a table has."""
        ((count,),) = await self.database.fetch(f"SELECT count(*) FROM {table}")
        return int(count)


@asynccontextmanager
async def serving(
    folder: Path,
    pool: JobPool | None = None,
    *,
    clock: Clock | None = None,
    jobs: JobLimits | None = None,
    files: FileLimits | None = None,
    keys: Sequence[str] = (),
    **settings: Any,
) -> AsyncIterator[Served]:
    """Serve batches with all that is stored in `folder`; coming back with the same folder is a later life."""
    clock, pool, metrics = clock or SystemClock(), pool or pool_of_all(), Metrics()
    facts = GatewaySettings(api_keys=tuple(keys), **settings)
    async with AsyncExitStack() as stack:
        database = await stack.enter_async_context(Database.open(folder / "modeld.sqlite3", clock))
        app = build_app(pool, facts, metrics, clock)
        servers = mcp_policy((), require_https=False)
        app[contexts.KEY] = Context(
            pool=pool,
            settings=facts,
            responses=Responses(database, new_id("life_")),
            conversations=Conversations(database),
            approvals=Approvals(database),
            seal=Seal(folder / "seal.key"),
            pictures=Egress(Policy("none", ())),
            mcp=Egress(servers),
            mcp_policy=servers,
            mcp_limits=McpLimits(),
            clock=clock,
            keep_s=None,
            replay_s=600.0,
            metrics=metrics,
        )
        room = await stack.enter_async_context(
            serving_jobs_and_batches(
                app,
                database,
                new_id("life_"),
                pool,
                jobs or JobLimits(),
                files or FileLimits(),
                folder / "files",
                clock,
            )
        )
        runner = GatewayRunner(app, shutdown_timeout=1.0)
        await runner.setup()
        stack.push_async_callback(runner.cleanup)
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        http = await stack.enter_async_context(ClientSession())
        url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        client = await stack.enter_async_context(client_of(url, keys[0] if keys else "none"))
        yield Served(url, http, client, pool, room, database, folder / "files", metrics)


def client_of(url: str, key: str = "none") -> openai.AsyncOpenAI:
    """Return OpenAI's client, which checks every answer against its types."""
    return openai.AsyncOpenAI(
        base_url=f"{url}/v1", api_key=key, max_retries=0, _strict_response_validation=True
    )
