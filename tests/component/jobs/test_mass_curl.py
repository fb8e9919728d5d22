"""MASS's paths by hand, with curl."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modeld.jobs.limits import JobLimits
from modeld.jobs.mass.routes import SHIM
from tests.component.jobs.served import PREFIX, USER, Api, JobPool, serving
from tests.component.jobs.test_mass import pool_of_all
from tests.fakes.pool import said
from tests.harness.curl import Got, curl, needed

pytestmark = needed

CHAT = {"model": "tiny", "messages": [USER]}
ITEM = {"messages": [USER]}


async def ask(api: Api, path: str, *args: str, data: Any = None) -> Got:
    """Call curl below the prefix."""
    return await curl(f"{api.url}{PREFIX}/{path}", *args, data=data)


async def submitted(api: Api, method: str, data: Any, *args: str) -> str:
    """Submit what must be taken, and return its id."""
    got = await ask(api, method, *args, data=data)
    assert (got.status, set(got.json)) == (200, {"job_id"}), got
    assert got.headers["x-mass-job-id"] == got.json["job_id"]
    assert got.headers["content-type"].startswith("application/json")
    return str(got.json["job_id"])


async def test_each_method_and_its_result(tmp_path: Path) -> None:
    """Submitted at once, waited for, with results as MASS's clients read them."""
    async with serving(tmp_path, pool_of_all()) as api:
        results = {}
        for method, data in (
            ("Chat", CHAT),
            ("BatchChat", {"model": "tiny", "items": [ITEM, {**ITEM, "sampling": {"temperature": 0}}]}),
            ("Embed", {"model": "vectors", "input": "four"}),
            ("BatchEmbed", {"model": "vectors", "inputs": ["a", "bb"]}),
            ("Tokenize", {"model": "tiny", "text": "x"}),
        ):
            id = await submitted(api, method, data)
            got = await ask(api, f"Jobs/{id}?wait=1")
            assert (got.status, got.json["job_id"], got.json["status"]) == (200, id, "done"), got
            assert set(got.json) == {"job_id", "status", "result"}
            assert (await ask(api, f"Jobs/{id}")).json == got.json
            results[method] = got.json["result"]
            assert results[method].get("id", id) == id
        chat = results["Chat"]
        assert chat["message"] == {"role": "assistant", "content": "hi"}
        assert set(chat) == {
            *("id", "model", "message", "finish_reason", "reasoning_content", "usage", "tokens_per_second")
        }
        assert [one["message"]["content"] for one in results["BatchChat"]["responses"]] == ["hi", "hi"]
        assert results["Embed"]["embedding"] == [4.0, 0.5]
        assert [one["index"] for one in results["BatchEmbed"]["embeddings"]] == [0, 1]
        assert results["Tokenize"] == {"tokens": [1, 2, 3]}
        assert [card["id"] for card in (await ask(api, "Models")).json] == ["tiny", "vectors"]
        assert (await ask(api, "Models/Detail?id=tiny")).json["context_length"] == 2048


async def test_what_is_refused_says_why(tmp_path: Path) -> None:
    """`{"error": text}` with a true status, by every layer; nothing is stored of it."""
    cases: list[tuple[int, str, str, tuple[str, ...], Any]] = [
        (400, "not valid JSON", "Chat", (), "{"),
        (400, "messages", "Chat", (), {"model": "tiny"}),
        (400, "does not exist", "Chat", (), {**CHAT, "model": "other"}),
        (400, "it makes vectors", "Chat", (), {**CHAT, "model": "vectors"}),
        (400, "it writes text", "Embed", (), {"model": "tiny", "input": "x"}),
        (400, "cache_type", "Chat", (), {**CHAT, "config": {"cache_type": "q5"}}),
        (400, "items", "BatchChat", (), {"model": "tiny", "items": []}),
        (400, "Idempotency-Key", "Chat", ("-H", f"idempotency-key: {'x' * 256}"), CHAT),
        (415, "content-type: application/json", "Chat", ("-d", "{}"), None),
        (404, "not found or expired", "Jobs/job_x", (), None),
        (404, "not found or expired", "Jobs/job_x?wait=1", (), None),
        (400, "wait is 0 or 1", "Jobs/job_x?wait=yes", (), None),
        (404, "cannot be cancelled", "Jobs/job_x", ("-X", "DELETE"), None),
        (404, "does not exist", "Models/Detail?id=other", (), None),
        (404, "", "Nothing", (), None),
        (405, "", "Chat", (), None),
        (401, "key", "Models", ("-H", "authorization: Bearer no"), None),
        (403, "", "Models", ("-H", "host: evil.example"), None),
    ]
    async with serving(tmp_path, pool_of_all(), keys=("one",)) as api:
        for status, words, path, args, data in cases:
            key = () if status == 401 else ("-H", "authorization: Bearer one")
            got = await ask(api, path, *key, *args, data=data)
            assert (got.status, set(got.json)) == (status, {"error"}), (path, args, got)
            assert words in got.json["error"], got
        assert await api.rows("job") == 0


async def test_a_job_is_cancelled_and_a_reader_who_leaves_cancels_nothing(tmp_path: Path) -> None:
    """Queued and running alike: 204, then an error, then 404."""
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool) as api:
        running, queued = await submitted(api, "Chat", CHAT), await submitted(api, "Chat", CHAT)
        await pool.until(lambda: len(pool.begun) == 1 and pool.open_calls == 2)
        got = await ask(api, f"Jobs/{running}?wait=1", "--max-time", "0.5")
        assert got.code == 28, "curl did not give up waiting"
        assert not pool.begun[0].cancelled
        for id in (queued, running):
            got = await ask(api, f"Jobs/{id}", "-X", "DELETE")
            assert (got.status, got.body) == (204, "")
            told = (await ask(api, f"Jobs/{id}?wait=1")).json
            assert told == {"job_id": id, "status": "error", "error": "the job was cancelled"}
            assert (await ask(api, f"Jobs/{id}", "-X", "DELETE")).status == 404
        await pool.until(lambda: pool.open_calls == 0)


async def test_waiting_is_bounded_and_limits_are_told(tmp_path: Path) -> None:
    """202 when a job is not over by then; 429 with a time to wait; the same key is the same job, and 409 with
    another body.
    """
    pool = JobPool(answer=lambda model, task: [], free=1)
    async with serving(tmp_path, pool, limits=JobLimits(wait_s=0.05, most=1)) as api:
        id = await submitted(api, "Chat", CHAT, "-H", "idempotency-key: k1")
        await pool.until(lambda: len(pool.begun) == 1)
        got = await ask(api, f"Jobs/{id}?wait=1")
        assert (got.status, got.json["job_id"]) == (202, id)
        assert got.json["status"] in ("pending", "processing")
        got = await ask(api, "Chat", data=CHAT)
        assert (got.status, set(got.json)) == (429, {"error"})
        assert int(got.headers["retry-after"]) > 0
        pool.begun[0].feed(*said())
        await api.over(id)
        assert await submitted(api, "Chat", CHAT, "-H", "idempotency-key: k1") == id
        got = await ask(api, "Chat", "-H", "idempotency-key: k1", data={**CHAT, "sampling": {}})
        assert (got.status, got.headers["x-should-retry"]) == (409, "false")


async def test_openais_routes_tell_errors_as_openai_does(tmp_path: Path) -> None:
    """At MASS's prefix too."""
    async with serving(tmp_path, pool_of_all()) as api:
        got = await curl(f"{api.url}{SHIM}/models")
        assert [card["id"] for card in got.json["data"]] == ["tiny", "vectors"]
        for path, data, status in (
            ("chat/completions", {**CHAT, "model": "other"}, 404),
            ("embeddings", {"model": "vectors"}, 400),
            ("models/other", None, 404),
        ):
            got = await curl(f"{api.url}{SHIM}/{path}", data=data)
            assert got.status == status, got
            assert set(got.json["error"]) == {"message", "type", "param", "code"}
