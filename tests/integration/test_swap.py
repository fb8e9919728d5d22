"""More models than memory: who is loaded changes with what is asked for, on real processes."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from tests.harness.daemon import Daemon, running
from tests.harness.models import fake, llama
from tests.harness.sse import chat, opened
from tests.harness.workers import MIB, WORKER, watched

ON_DEMAND = {"load": "on_demand"}
BUDGET = 500 * MIB
ENDLESS = {"tokens": 10**6, "token_delay": 0.01}


def big(name: str, **script: Any) -> dict[str, Any]:
    """Return a model of 200 MiB, of which two have room at once; it says who it is."""
    answers = {"reply": f"I am {name}, and nobody else."} if "tokens" not in script else {}
    return fake(name, memory=200 * MIB, **answers, **script) | ON_DEMAND


def budget(*models: dict[str, Any], ram: int = BUDGET, **more: Any) -> dict[str, Any]:
    """Return a configuration whose models have `ram` bytes in all."""
    return {"allow_fake": True, "memory": {"ram": ram}, "models": list(models), **more}


async def ask(client: openai.AsyncOpenAI, model: str, *, stream: bool, **more: Any) -> tuple[str, str, str]:
    """Ask with the SDK; return the answer's text, the model that it names, and its finish reason."""
    messages: Any = [{"role": "user", "content": "Who are you?"}]
    if not stream:
        answer = await client.chat.completions.create(model=model, messages=messages, **more)
        choice = answer.choices[0]
        return choice.message.content or "", answer.model, choice.finish_reason
    text, named, reason = "", "", ""
    async for chunk in await client.chat.completions.create(
        model=model, messages=messages, stream=True, **more
    ):
        named = chunk.model
        for piece in chunk.choices:
            text += piece.delta.content or ""
            reason = piece.finish_reason or reason
    return text, named, reason


def sdk(daemon: Daemon, **options: Any) -> openai.AsyncOpenAI:
    """Return a client that never tries again by itself, so that no failure hides behind a second attempt."""
    return openai.AsyncOpenAI(
        base_url=f"{daemon.url}/v1", api_key="x", timeout=180, **{"max_retries": 0, **options}
    )


async def test_swapping_works_under_concurrent_load(short_dir: Path) -> None:
    """Three models, room for two, 72 requests from 12 clients, streams and plain ones mixed: every answer is
    whole and from the model that was asked, every model serves, and all workers together never hold more than
    the budget and one worker's own memory.
    """
    names = ("a", "b", "c")
    models = [big(name, token_delay=0.002) for name in names]
    async with running(short_dir, budget(*models)) as daemon, sdk(daemon) as client:

        async def caller(number: int) -> None:
            for turn in range(6):
                name = names[(number + turn) % 3]
                answer = await ask(client, name, stream=bool((number + turn // 3) % 2))
                assert answer == (f"I am {name}, and nobody else.", name, "stop")

        async with asyncio.timeout(180), watched(daemon.pid) as seen, asyncio.TaskGroup() as group:
            for number in range(12):
                group.create_task(caller(number))
        await asyncio.to_thread(seen.look, daemon.pid)  # two are loaded in the end
        assert 2 * 200 * MIB < seen.peak <= BUDGET + WORKER
        metrics = await daemon.metrics()
        assert sum(_evicted(metrics, name) for name in names) >= 1
        for name in names:
            assert metrics[f'modeld_model_loads_total{{model="{name}",outcome="ready"}}'] >= 1
            assert metrics[f'modeld_model_calls_queued{{model="{name}"}}'] == 0
        # Batches, not one load for each request: without them each would meet a model that is not loaded.
        assert len(seen.pids) < 48


def _evicted(metrics: dict[str, float], name: str, reason: str = "memory") -> float:
    return metrics.get(f'modeld_evictions_total{{model="{name}",reason="{reason}"}}', 0)


@pytest.mark.engine
async def test_two_real_engines_that_do_not_fit_together_take_turns(short_dir: Path, demo_gguf: Path) -> None:
    """The demo model under two names, with room for one: asked in turn and at once both answer, never two
    engines run, evictions are counted, and what a load took is known after a restart.
    """
    models = [llama("small", demo_gguf) | ON_DEMAND, llama("large", demo_gguf, n_ctx=4096) | ON_DEMAND]
    config = budget(*models, ram=400 * MIB)
    more: dict[str, Any] = {"max_tokens": 4, "temperature": 0}
    async with running(short_dir, config) as daemon:
        estimates = {}
        for name in ("small", "large"):
            said = await daemon.ctl("estimate", name, "--json")
            assert said.json["footprint"]["source"] == "estimated", said
            estimates[name] = sum(line["size"] for line in said.json["footprint"]["lines"])
        assert max(estimates.values()) < 400 * MIB < sum(estimates.values())
        async with asyncio.timeout(180), watched(daemon.pid) as seen, sdk(daemon) as client:
            texts = set()
            for name in ("small", "large"):
                text, named, reason = await ask(client, name, stream=name == "small", **more)
                assert (named, reason) == (name, "length")
                texts.add(text)
            assert len(texts) == 1  # one model, one temperature
            at_once = [
                ask(client, name, stream=stream, **more)
                for stream in (True, False)
                for name in ("small", "large")
            ]
            for text, named, reason in await asyncio.gather(*at_once):
                assert text in texts, (text, texts)
                assert named in estimates
                assert reason == "length"
        assert seen.most == 1
        assert seen.peak <= 400 * MIB
        metrics = await daemon.metrics()
        loads = [metrics[f'modeld_model_loads_total{{model="{name}",outcome="ready"}}'] for name in estimates]
        assert sum(_evicted(metrics, name) for name in estimates) == sum(loads) - 1 >= 2
    async with running(short_dir, config) as daemon:
        footprint = (await daemon.ctl("estimate", "small", "--json")).json["footprint"]
        assert footprint["source"] == "learned"
        measured = sum(line["size"] for line in footprint["lines"])
        assert estimates["small"] / 2 < measured < estimates["small"] * 2
        assert "large: learned" in (await daemon.ctl("estimate", "large")).out


async def test_a_stream_that_waits_for_a_swap_is_kept_alive_and_answered(short_dir: Path) -> None:
    """While a busy model keeps the memory, a stream for another gets comments; when the busy one is done its
    answer comes, whole. The busy model's stream is not cut for it.
    """
    config = budget(big("a", **ENDLESS), big("b"), big("c"), ram=260 * MIB, keepalive_interval=0.05)
    async with running(short_dir, config) as daemon, aiohttp.ClientSession() as session:
        async with asyncio.timeout(180):
            async with opened(session, daemon.url, "a") as busy:
                await busy.until_text()
                async with opened(session, daemon.url, "b") as waiting:
                    await waiting.until_comments(3)
                    status = await daemon.model("b")
                    assert (status["state"], status["cause"], status["queued"]) == ("waiting", "memory", 1)
                    assert "waits for a" in status["message"]
                    assert "1 request in flight" in status["message"]
                    before = len(busy.answer.text)
                    await busy.until_more(before)
                    assert waiting.answer.chunks == []
                    busy.close()
                    answer = await waiting.to_end()
            assert answer.done
            assert answer.error is None
            assert answer.text == "I am b, and nobody else."


async def test_a_client_that_leaves_while_it_waits_for_a_swap_loads_nothing(short_dir: Path) -> None:
    """Who leaves leaves the queue; the model it asked for is then loaded for nobody, and nobody goes for it:
    streaming or not.
    """
    config = budget(big("a", **ENDLESS), big("b"), ram=260 * MIB, keepalive_interval=0.05)
    async with (
        running(short_dir, config) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        async with opened(session, daemon.url, "a") as busy:
            await busy.until_text()
            pid = await daemon.pid_of("a")
            for stream in (True, False):
                asking = asyncio.ensure_future(chat(session, daemon.url, "b", stream=stream))
                await daemon.until_status("b", lambda status: status["state"] == "waiting")
                asking.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await asking
                gone = await daemon.until_status("b", lambda status: status["state"] == "stopped")
                assert (gone["cause"], gone["queued"]) == ("left", 0)
            await busy.until_more(len(busy.answer.text))
        await daemon.until_idle("a")
        assert await daemon.pid_of("a") == pid
        states = [event["state"] for event in await daemon.events() if event["model"] == "b"]
        assert "loading" not in states
        metrics = await daemon.metrics()
        left = 'modeld_client_disconnects_total{endpoint="/v1/chat/completions",model="b"}'
        assert metrics[left] == 2


async def test_an_idle_model_is_unloaded_after_its_keep_alive(short_dir: Path) -> None:
    """`keep_alive` of the model, then of the file; a request's own 0 unloads at once, and says nothing about
    the life that the next request begins.
    """
    models = [
        fake("brief", reply="x") | ON_DEMAND | {"keep_alive": 0.1},
        fake("file", reply="x") | ON_DEMAND,
        fake("long", reply="x") | ON_DEMAND | {"keep_alive": "1h"},
    ]
    config = {"allow_fake": True, "models": models, "keep_alive": 0.2}
    async with running(short_dir, config) as daemon, sdk(daemon) as client, asyncio.timeout(180):
        for name in ("brief", "file", "long"):
            assert (await ask(client, name, stream=False))[0] == "x"
        for name in ("brief", "file"):
            status = await daemon.until_status(name, lambda status: status["state"] == "stopped")
            assert status["cause"] == "idle"
            assert status["pid"] is None
        assert _evicted(await daemon.metrics(), "brief", "idle") == 1
        status = await daemon.model("long")
        assert status["state"] == "ready"
        assert 3000 < status["idle_unload_at"] - status["since"] < 4000

        assert (await ask(client, "long", stream=True, extra_body={"keep_alive": 0}))[0] == "x"
        status = await daemon.until_status("long", lambda status: status["state"] == "stopped")
        assert status["cause"] == "idle"
        assert (await ask(client, "long", stream=False))[0] == "x"
        status = await daemon.until_status("long", lambda status: not status["in_flight"])
        assert status["state"] == "ready"
        assert status["idle_unload_at"] - status["since"] > 3000
        assert (await ask(client, "brief", stream=False, extra_body={"keep_alive": -1}))[0] == "x"
        status = await daemon.until_status("brief", lambda status: not status["in_flight"])
        assert (status["state"], status["idle_unload_at"]) == ("ready", None)


async def test_a_pinned_model_never_goes_and_a_refusal_names_it(short_dir: Path) -> None:
    """What fits beside the pinned model swaps beside it; what does not is refused at once with 503, the pin's
    name, the numbers and Retry-After. A request's keep_alive of 0 does not unload a pin.
    """
    pinned = big("keeper") | {"load": "eager", "pin": True}
    wide = fake("wide", memory=350 * MIB) | ON_DEMAND
    config = budget(pinned, big("b"), big("c"), wide)
    async with running(short_dir, config) as daemon, sdk(daemon) as client, asyncio.timeout(180):
        pid = (await daemon.until("keeper", "ready"))["pid"]
        for name in ("b", "c"):
            assert (await ask(client, name, stream=False))[1] == name
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(client, "wide", stream=False)
        error = raised.value
        assert error.status_code == 503
        assert error.code == "insufficient_memory"
        assert "held by pinned keeper" in error.message
        assert "378 MiB" in error.message
        assert int(error.response.headers["Retry-After"]) >= 1
        await ask(client, "keeper", stream=False, extra_body={"keep_alive": 0})
        assert (await ask(client, "b", stream=True))[1] == "b"
        status = await daemon.model("keeper")
        assert (status["pid"], status["state"]) == (pid, "ready")
        assert _evicted(await daemon.metrics(), "c") == 1


async def test_what_can_never_fit_is_refused_at_once_and_nobody_goes_for_it(short_dir: Path) -> None:
    """A model larger than the whole budget fails with both numbers; the loaded ones stay where they are."""
    giant = fake("giant", memory=900 * MIB) | ON_DEMAND
    config = budget(big("a"), big("b"), giant)
    async with running(short_dir, config) as daemon, sdk(daemon) as client, asyncio.timeout(180):
        for name in ("a", "b"):
            await ask(client, name, stream=False)
        pids = [await daemon.pid_of(name) for name in ("a", "b")]
        with pytest.raises(openai.InternalServerError) as raised:
            await ask(client, "giant", stream=True)
        assert raised.value.status_code == 503
        assert "928 MiB" in raised.value.message
        assert "500 MiB" in raised.value.message
        assert [await daemon.pid_of(name) for name in ("a", "b")] == pids


async def test_the_smallest_set_of_idle_models_makes_room(short_dir: Path) -> None:
    """One small and one large idle model are loaded: for a middling one the large one goes and the small one
    keeps its process. What is loaded goes on answering while another loads.
    """
    small = fake("small", memory=20 * MIB, reply="small") | ON_DEMAND
    large = fake("large", memory=300 * MIB, reply="large") | ON_DEMAND
    weights = short_dir / "weights"
    middling = fake("middling", memory=200 * MIB, reply="middling", load_until=str(weights)) | ON_DEMAND
    config = budget(small, large, middling, ram=450 * MIB)
    async with running(short_dir, config) as daemon, sdk(daemon) as client, asyncio.timeout(180):
        await ask(client, "small", stream=False)
        pid = await daemon.pid_of("small")
        await ask(client, "large", stream=False)
        asking = asyncio.ensure_future(ask(client, "middling", stream=True))
        await daemon.until_status("middling", lambda status: status["state"] == "loading")
        assert (await ask(client, "small", stream=True))[0] == "small"
        assert (await daemon.model("middling"))["state"] == "loading"
        weights.touch()
        assert (await asking)[0] == "middling"
        assert await daemon.pid_of("small") == pid
        assert (await daemon.model("large"))["cause"] == "evicted"


async def test_a_client_that_gives_up_does_not_throw_away_the_load(short_dir: Path) -> None:
    """A load that has begun goes on when everybody who waited for it has left: the next try is answered by
    that process, not by another.
    """
    weights = short_dir / "weights"
    model = fake("m", reply="x", load_until=str(weights)) | ON_DEMAND
    async with (
        running(short_dir, {"allow_fake": True, "models": [model]}) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        asking = asyncio.ensure_future(chat(session, daemon.url, "m"))
        pid = (await daemon.until("m", "loading"))["pid"]
        asking.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asking
        await daemon.until_status("m", lambda status: status["queued"] == 0)
        weights.touch()
        assert (await chat(session, daemon.url, "m")).text == "x"
        assert await daemon.pid_of("m") == pid
        metrics = await daemon.metrics()
        assert metrics['modeld_model_loads_total{model="m",outcome="ready"}'] == 1


async def test_the_owner_s_load_waits_for_the_busy_unless_it_is_forced(short_dir: Path) -> None:
    """`ctl load` takes the way of a request: an idle model goes for it, a busy one is waited for. With
    --force the busy one goes after the drain, its stream ends with an error, and the load succeeds.
    """
    busy, other = big("busy", **ENDLESS), big("other")
    config = budget(busy, other, ram=260 * MIB, drain_timeout=0.1)
    async with (
        running(short_dir, config) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        async with opened(session, daemon.url, "busy") as stream:
            await stream.until_text()
            waiting = asyncio.ensure_future(daemon.ctl("load", "other"))
            status = await daemon.until_status("other", lambda status: status["cause"] == "memory")
            assert "1 request in flight" in status["message"]
            await stream.until_more(len(stream.answer.text))
            assert not waiting.done()
            said = await daemon.ctl("load", "other", "--force")
            assert said.code == 0, said
            answer = await stream.to_end()
            assert answer.error is not None
            assert answer.error["code"] == "model_stopped"
            assert (await waiting).code == 0
        assert _evicted(await daemon.metrics(), "busy", "forced") == 1
        assert (await daemon.ctl("load", "busy")).code == 0
        assert (await daemon.model("other"))["cause"] == "evicted"
