"""Changes to the models there are: over the socket, and as `modeld ctl` shows them."""

from __future__ import annotations

import asyncio
import io
import json
import re
import signal
import socket
import threading
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest

from modeld.admin.client import AdminClient
from modeld.admin.schemas import LARGEST_CHANGE, Change, ChangePlan, ChangeResult, Outcome, Replacement
from modeld.errors import ConfigError, StartupError, TooLarge, UsageError
from modeld.supervisor.events import FeedEvent
from tests.component.admin.conftest import Daemon, Spawn

LIMIT_S = 60

ADD = Change("add", {"models": []}, "/etc")

PLAN = """\
adds (1)
    + new
unchanged (2)
    qwen, whisper
"""

FAKE = """\
allow_fake: true
models:
  - {name: new, loader: fake}
"""


@pytest.fixture
async def http(daemon: Daemon) -> AsyncIterator[aiohttp.ClientSession]:
    """Give a plain HTTP client on the admin socket."""
    connector = aiohttp.UnixConnector(str(daemon.socket))
    async with aiohttp.ClientSession("http://modeld", connector=connector) as session:
        yield session


# --- the socket ---------------------------------------------------------------------------------------------


async def test_dry_run_is_a_document(daemon: Daemon) -> None:
    """A plan is asked for, with every field of the change, and nothing is done."""
    change = Change("reconcile", {"models": [{"name": "ü"}]}, "/etc", strategy="stop_start")
    assert await asyncio.to_thread(daemon.client.plan, change) == daemon.control.planned
    (asked,) = daemon.control.asked
    assert asked == Change("reconcile", {"models": [{"name": "ü"}]}, "/etc", (), "stop_start", True)
    assert daemon.control.done == []


async def test_change_streams_while_it_runs(daemon: Daemon) -> None:
    """Events of the models concerned arrive before the outcome, others' do not; the result comes last."""
    daemon.control.go.clear()
    items = daemon.client.apply(ADD)
    first, second = [await asyncio.to_thread(next, items) for _ in range(2)]
    assert isinstance(first, FeedEvent)
    assert isinstance(second, FeedEvent)
    assert (first.state, second.progress) == ("loading", 0.5)
    daemon.control.go.set()
    third, end = await asyncio.to_thread(list, items)
    assert isinstance(third, FeedEvent)
    assert (third.model, third.state) == ("new", "ready")
    assert end == ChangeResult(daemon.control.planned, daemon.control.outcomes)


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(
    "error", [ConfigError("models[0].name: is missing"), UsageError("no file to reload")]
)
async def test_refusal_comes_before_any_header(
    daemon: Daemon, http: aiohttp.ClientSession, error: UsageError, dry_run: bool
) -> None:
    """A change that cannot be is a 400 in the shape of every error, also when it was to be carried out."""
    daemon.control.refuses = error
    async with http.post("/changes", json={"kind": "reload", "dry_run": dry_run}) as response:
        body = await response.json()
    assert response.status == 400
    assert body["error"] == {"message": error.message, "code": error.code, "kind": error.kind}
    assert not daemon.control.work
    with pytest.raises(type(error), match=error.message.replace("[", r"\[")):
        await asyncio.to_thread(list, daemon.client.apply(ADD))


async def test_refusal_after_the_plan(daemon: Daemon) -> None:
    """What is refused only when its turn comes ends the stream with the error's own class."""
    daemon.control.fails = ConfigError("another change took the name 'new'")
    with pytest.raises(ConfigError, match="took the name"):
        await asyncio.to_thread(list, daemon.client.apply(ADD))


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b"", "malformed"),
        (b"[]", "object"),
        (b"{", "malformed"),
        (b"{}", "`kind`"),
        (b'{"kind":"explode"}', r"$.kind"),
        (b'{"kind":"remove","names":[1]}', r"$.names[0]"),
        (b'{"kind":"reload","strategy":"hope"}', r"$.strategy"),
        (b'{"kind":"add"}', r"$.document"),
        (b'{"kind":"remove"}', r"$.names"),
        (b'{"kind":"add","document":[]}', r"$.document"),
        (b'{"kind":"\xff"}', ""),
    ],
)
async def test_no_change(daemon: Daemon, http: aiohttp.ClientSession, body: bytes, words: str) -> None:
    """A body that is no change is a 400 that names the place; nothing reaches the control."""
    async with http.post("/changes", data=body) as response:
        error = (await response.json())["error"]
    assert (response.status, error["kind"]) == (400, "bad_request")
    assert words in error["message"] or "truncated" in error["message"]
    assert daemon.control.asked == []


async def test_body_limit(daemon: Daemon, http: aiohttp.ClientSession) -> None:
    """A change over the limit is a 413 on the socket, and the client does not even send it."""
    big = io.BytesIO(json.dumps({"kind": "add", "document": {"x": "y" * LARGEST_CHANGE}}).encode())
    # The daemon may close the connection while the rest of the body is still on its way.
    with suppress(aiohttp.ClientConnectionError):
        async with http.post("/changes", data=big) as response:
            assert response.status == 413
            assert "4 MiB" in (await response.json())["error"]["message"]
    with pytest.raises(UsageError, match=r"is 4\.0 MiB of JSON, the limit is 4 MiB"):
        await asyncio.to_thread(daemon.client.plan, Change("add", {"x": "y" * LARGEST_CHANGE}))
    assert daemon.control.asked == []
    fits = Change("add", {"x": "y" * (LARGEST_CHANGE - 100)})
    assert await asyncio.to_thread(daemon.client.plan, fits) == daemon.control.planned


async def test_removing_unknown_models(daemon: Daemon) -> None:
    """A name that is not configured is refused with the names that are; the others stay."""
    result = await daemon.ctl("remove", "qwen", "nope")
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == "Error: no model is named 'nope'; there are: qwen, whisper\n"
    assert daemon.control.done == []


@pytest.mark.parametrize(
    ("change", "shown"),
    [
        (Change("reconcile"), {"new", "qwen"}),
        (Change("reconcile", {"models": []}), {"new"}),
        (Change("reload"), {"new"}),
    ],
)
async def test_whose_events(daemon: Daemon, change: Change, shown: set[str]) -> None:
    """Reconciling without a document may bring up models that do not differ, so their events count too."""
    items = await asyncio.to_thread(list, daemon.client.apply(change))
    assert {item.model for item in items if isinstance(item, FeedEvent)} == shown


async def test_client_that_leaves(daemon: Daemon) -> None:
    """Whoever stops watching stops nothing: the change is carried out."""
    daemon.control.go.clear()
    items = daemon.client.apply(ADD)
    await asyncio.to_thread(next, items)
    await asyncio.to_thread(items.close)  # type: ignore[attr-defined]
    async with asyncio.timeout(LIMIT_S):
        while daemon.supervisor.feed._subscriptions:
            await asyncio.sleep(0.01)
        (work,) = daemon.control.work
        assert not work.done()
        daemon.control.go.set()
        await work
    assert daemon.control.done == [ADD]


async def test_daemon_that_stops_in_between(short_dir: Path, daemon: Daemon) -> None:
    """A stream that breaks off tells that part of the change may be done, and what to do."""
    line = b'{"time":1.0,"kind":"state","model":"new","state":"loading"}\n'

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))  # type: ignore[index]
        writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"%x\r\n%b\r\n" % (len(line), line))
        await writer.drain()
        writer.close()

    async with await asyncio.start_unix_server(answer, short_dir / "half"):
        with pytest.raises(StartupError, match="stopped before the change was over; part of it may be done"):
            await asyncio.to_thread(list, AdminClient(short_dir / "half").apply(ADD))


def test_refusal_before_the_request_is_read(short_dir: Path) -> None:
    """An answer that comes while the change is still being sent is the answer, not a daemon that is gone."""
    change = Change("add", {"models": [{"name": "x" * (1 << 20)}]})
    body = b'{"error":{"message":"too much","code":"too_large","kind":"too_large"}}'
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listening:
        listening.bind(str(short_dir / "early"))
        listening.listen(1)

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(100)
                connection.sendall(b"HTTP/1.1 413 X\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body))

        thread = threading.Thread(target=answer)
        thread.start()
        try:
            with pytest.raises(TooLarge, match="too much"):
                list(AdminClient(short_dir / "early").apply(change))
        finally:
            thread.join()


# --- the command line ---------------------------------------------------------------------------------------


async def test_add_a_file(daemon: Daemon, tmp_path: Path) -> None:
    """A file is checked here and sent as plain data with its folder; the plan comes first, outcomes last."""
    file = tmp_path / "m.yaml"
    file.write_text(FAKE)
    result = await daemon.ctl("add", str(file))
    assert (result.exit_code, result.stdout) == (0, PLAN + "ok new: ready after 0.1 s\n")
    assert "progress 50%: reading weights" in result.stderr
    (done,) = daemon.control.done
    document = {"allow_fake": True, "models": [{"name": "new", "loader": "fake"}]}
    assert done == Change("add", document, str(tmp_path))


@pytest.mark.parametrize("command", ["add", "reconcile"])
async def test_bad_files_change_nothing(daemon: Daemon, tmp_path: Path, command: str) -> None:
    """Every mistake of a file is told as file:line:column with exit code 2; the daemon never hears of it."""
    file = tmp_path / "m.yaml"
    file.write_text("models:\n  - {name: new, loader: fake, usecase: dance}\n  - {name: }\n")
    result = await daemon.ctl(command, str(file))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith(f"{file}:2:")
    assert f"\n{file}:3:" in result.stderr
    assert daemon.control.asked == []


async def test_add_one_model(daemon: Daemon) -> None:
    """--model makes a document of one model from the options; relative paths count from here."""
    options = ("--name", "tiny", "--num-replicas", "2", "--max-ongoing-requests", "8", "--num-gpus", "0")
    result = await daemon.ctl("add", "--model", "org/repo:*q4.gguf", *options, "--dry-run")
    assert (result.exit_code, result.stdout) == (0, PLAN)
    (asked,) = daemon.control.asked
    assert asked.base == str(Path.cwd())
    assert asked.document is not None
    (model,) = asked.document["models"]
    assert model["name"] == "tiny"
    assert (model["num_replicas"], model["max_ongoing_requests"], model["num_gpus"]) == (2, 8, 0)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (("add",), "give one of FILE and --model REF"),
        (("add", "m.yaml", "--model", "org/x.gguf"), "give one of FILE and --model REF"),
        (("add", "m.yaml", "--name", "x", "--num-gpus", "1"), "--name, --num-gpus: goes with --model"),
        (("add", "nowhere.yaml"), "nowhere.yaml: there is no such file"),
        (("add", "--model", "org/x", "--loader", "warp"), "warp"),
        (("add", "--model", "org/x:x.gguf", "--num-replicas", "0"), "num_replicas"),
        (("add", "--model", "./nowhere.gguf"), "there is no"),
        (("remove",), "NAMES"),
        (("remove", "qwen", "--replace-strategy", "hope"), "blue_green"),
    ],
)
async def test_bad_lines(daemon: Daemon, line: tuple[str, ...], words: str) -> None:
    """What a command line gets wrong exits with 2 and never reaches the daemon."""
    result = await daemon.ctl(*line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert words in result.stderr
    assert daemon.control.asked == []


@pytest.mark.parametrize(
    ("line", "change"),
    [
        (("remove", "qwen", "whisper", "qwen"), Change("remove", names=("qwen", "whisper"))),
        (("reconcile",), Change("reconcile")),
        (("reload",), Change("reload")),
        (("reload", "--replace-strategy", "stop_start"), Change("reload", strategy="stop_start")),
    ],
)
async def test_other_changes(daemon: Daemon, line: tuple[str, ...], change: Change) -> None:
    """Each command sends its own kind of change, names once each."""
    result = await daemon.ctl(*line)
    assert result.exit_code == 0
    assert daemon.control.done == [change]


async def test_dry_run_shows_every_section(daemon: Daemon) -> None:
    """--dry-run prints the plan alone, with keys that differ and notes; empty sections are left out."""
    daemon.control.planned = ChangePlan(
        removes=("old",),
        replaces=(Replacement("qwen", ("llama_server_config.n_ctx", "num_gpus")),),
        updates=(Replacement("whisper", ("num_replicas",)),),
        notes=("`listen` takes effect at the next start.",),
    )
    result = await daemon.ctl("reconcile", "--dry-run")
    assert result.stdout.splitlines() == [
        "removes (1)",
        "    - old",
        "replaces (1)",
        "    ~ qwen: llama_server_config.n_ctx, num_gpus",
        "updates (1)",
        "    ~ whisper: num_replicas",
        "notes",
        "    * `listen` takes effect at the next start.",
    ]
    assert (result.exit_code, daemon.control.done) == (0, [])


async def test_nothing_changes(daemon: Daemon) -> None:
    """A change without effect says so and succeeds."""
    daemon.control.planned, daemon.control.outcomes = ChangePlan(unchanged=("qwen",)), ()
    result = await daemon.ctl("reload")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == "nothing changes\nunchanged (1)\n    qwen\ndone\n"


async def test_outcomes(daemon: Daemon) -> None:
    """One line per model; one that did not work makes the exit code 1, its engine's words are escaped."""
    bad = Outcome("bad", False, "exit code 1:\n\x1b]0;owned\x07 no memory.")
    daemon.control.outcomes = (bad, Outcome("new", True, ""))
    result = await daemon.ctl("reload")
    assert result.exit_code == 1
    assert result.stdout == PLAN + "ok new\nfailed bad: exit code 1: \\x1b]0;owned\\x07 no memory\n"


async def test_what_failed_after_it_was_added(daemon: Daemon) -> None:
    """It is configured all the same, so both ways on are named."""
    daemon.control.outcomes = (Outcome("new", False, "failed: the hub has no such repository"),)
    result = await daemon.ctl("reload")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == (
        "what failed stays configured: `modeld ctl load new` tries again, `modeld ctl remove new` forgets it"
    )


async def test_json(daemon: Daemon) -> None:
    """--json prints exactly one document on stdout: the plan of a dry run, else the result."""
    result = await daemon.ctl("reload", "--dry-run", "--json")
    assert json.loads(result.stdout)["adds"] == ["new"]
    daemon.control.outcomes = (Outcome("new", False, "no memory"),)
    result = await daemon.ctl("reload", "--json")
    assert result.exit_code == 1
    assert json.loads(result.stdout)["outcomes"] == [{"name": "new", "ok": False, "message": "no memory"}]


async def test_plan_that_changed(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """When another change came between plan and turn, what was really done is shown."""

    async def apply(change: Change) -> ChangeResult:
        return ChangeResult(ChangePlan(unchanged=("new",)))

    monkeypatch.setattr(daemon.control, "apply", apply)
    result = await daemon.ctl("reload")
    assert "the plan has changed meanwhile:\nnothing changes\nunchanged (1)\n    new\n" in result.stdout


async def test_interrupted(daemon: Daemon, spawn: Spawn) -> None:
    """^C ends the watching with 130 and says that the change goes on; it does."""
    daemon.control.go.clear()
    process = await spawn("reload")
    assert process.stderr is not None
    async with asyncio.timeout(LIMIT_S):
        assert b"new loading (add)" in await process.stderr.readline()
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
        assert process.returncode == 130
        assert b"modeld goes on with it" in err
        assert b"Traceback" not in err
        daemon.control.go.set()
        await next(iter(daemon.control.work))
    assert daemon.control.done == [Change("reload")]
