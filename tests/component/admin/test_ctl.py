"""`modeld ctl` against a real admin socket."""

from __future__ import annotations

import asyncio
import json
import signal
from pathlib import Path

import pytest
from click.testing import CliRunner

from modeld.cli.main import modeld
from modeld.protocol.messages import Facts
from modeld.supervisor.states import State
from tests.component.admin.conftest import Daemon, Spawn
from tests.component.admin.fake_supervisor import failure, model

LIMIT_S = 60


async def test_status(daemon: Daemon) -> None:
    """The daemon in one line, then a row for each model."""
    result = await daemon.ctl("status")
    head, headings, qwen, whisper = result.stdout.splitlines()
    assert result.exit_code == 0
    assert head == "modeld 0.1.0, pid 42, up 1m, http://127.0.0.1:8000"
    assert headings.split() == ["MODEL", "STATE", "CAUSE", "SINCE", "MEMORY", "IN-FLIGHT", "QUEUE"]
    assert qwen.split()[:3] == ["qwen", "ready", "start"]
    assert qwen.endswith("1.0 GiB          2      0  serves 2 calls")
    assert whisper.split()[:2] == ["whisper", "stopped"]
    assert whisper.endswith("not loaded; its turn comes")


async def test_status_as_json(daemon: Daemon) -> None:
    """--json carries every field of the snapshot."""
    result = await daemon.ctl("status", "--json")
    reply = json.loads(result.stdout)
    assert (reply["pid"], reply["uptime"], reply["address"]) == (42, 61.0, "http://127.0.0.1:8000")
    assert reply["models"][0] | {"name": "qwen", "state": "ready", "bytes_used": 2**30} == reply["models"][0]


@pytest.mark.parametrize(("verb", "end"), [("load", "ready"), ("unload", "stopped"), ("restart", "ready")])
async def test_moves(daemon: Daemon, verb: str, end: str) -> None:
    """A move waits for its outcome; its progress is plain lines on stderr, without other models' events."""
    result = await daemon.ctl(verb, "whisper")
    assert result.exit_code == 0
    assert result.stdout == f"whisper is {end}, 512 MiB\n"
    assert daemon.supervisor.moves == [(verb, "whisper")]
    assert "progress 50%: reading weights" in result.stderr
    assert result.stderr.splitlines()[-1].endswith(f"whisper {end} ({verb})")
    assert "another" not in result.stderr


async def test_failed_move(daemon: Daemon) -> None:
    """A load that fails exits with 1 and says why, in one line after the progress."""
    daemon.supervisor.fails = failure()
    result = await daemon.ctl("load", "whisper")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.splitlines()[-1] == "Error: no such file: /m.gguf"


async def test_defect_in_a_move(daemon: Daemon) -> None:
    """Even a defect in the supervisor ends as one line and exit code 1."""
    daemon.supervisor.fails = KeyError("oops")
    result = await daemon.ctl("load", "whisper")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[-1] == "Error: a defect of modeld: KeyError: 'oops'"


@pytest.mark.parametrize("line", [("load", "x/y"), ("unload", "nope"), ("restart", "ü?#"), ("logs", "nope")])
async def test_unknown_model(daemon: Daemon, line: tuple[str, ...]) -> None:
    """A name that is not configured exits with 2 and lists the names that are."""
    result = await daemon.ctl(*line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"Error: no model is named {line[1]!r}; there are: qwen, whisper\n"


async def test_logs(daemon: Daemon) -> None:
    """The kept lines come oldest first, and cannot steer the terminal."""
    daemon.supervisor.rings["qwen"].feed(b"first\n\x1b[2Jsecond\n")
    result = await daemon.ctl("logs", "qwen")
    assert [line[9:] for line in result.stdout.splitlines()] == ["first", "\\x1b[2Jsecond"]


async def test_logs_follow(daemon: Daemon, spawn: Spawn) -> None:
    """-f gives the kept lines and then each new one; ^C ends it with 130 and no traceback."""
    ring = daemon.supervisor.rings["qwen"]
    ring.add("old")
    process = await spawn("logs", "-f", "qwen")
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert (await process.stdout.readline()).endswith(b"old\n")
        ring.add("new")
        assert (await process.stdout.readline()).endswith(b"new\n")
        process.send_signal(signal.SIGINT)
        _, err = await process.communicate()
    assert process.returncode == 130
    assert b"Traceback" not in err


async def test_events(daemon: Daemon, spawn: Spawn) -> None:
    """Events are followed from the oldest kept one; a reader who has seen enough is no error."""
    daemon.supervisor.feed.publish("state", "qwen", state="failed", cause="crash", message="exit code 1")
    process = await spawn("events")
    assert process.stdout is not None
    async with asyncio.timeout(LIMIT_S):
        assert (await process.stdout.readline()).endswith(b" qwen failed (crash): exit code 1\n")
        process.stdout._transport.close()  # type: ignore[attr-defined]
        while process.returncode is None:
            daemon.supervisor.feed.publish("state", "qwen", state="ready")
            await asyncio.sleep(0.01)
    assert process.stderr is not None
    assert (process.returncode, await process.stderr.read()) == (0, b"")


async def test_events_without_following(daemon: Daemon) -> None:
    """--no-follow prints what is kept and ends; --json is one object per line."""
    daemon.supervisor.feed.publish("progress", "qwen", message="reading", progress=0.25)
    result = await daemon.ctl("events", "--no-follow", "--json")
    (event,) = map(json.loads, result.stdout.splitlines())
    assert (event["kind"], event["model"], event["progress"]) == ("progress", "qwen", 0.25)


def test_dead_daemon(short_dir: Path) -> None:
    """Without a daemon every command says so in one line, names the socket and the cure, and exits with 1."""
    commands = (
        ["status"],
        ["devices"],
        ["estimate", "x"],
        ["load", "x", "--force"],
        ["logs", "x", "-f"],
        ["events"],
        ["remove", "x"],
        ["reconcile", "--dry-run"],
        ["reload"],
        ["add", "--model", "org/x:x.gguf"],
    )
    for command in commands:
        result = CliRunner().invoke(modeld, ["ctl", "--state-dir", str(short_dir), *command])
        assert result.exit_code == 1
        why = f"modeld is not running (no answer on {short_dir}/admin.sock); start it with `modeld serve`"
        assert result.stderr == f"Error: {why}\n"


@pytest.mark.parametrize("line", [("load", ""), ("logs", ""), ("estimate", ""), ("jobs", "show", "")])
async def test_an_empty_name(daemon: Daemon, line: tuple[str, ...]) -> None:
    """A name that a script left empty is told as such, not as an address that is not there."""
    result = await daemon.ctl(*line)
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.startswith("Error: the ")
    assert "is empty" in result.stderr


async def test_state_directory_from_the_environment(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """MODELD_STATE_DIR stands in for --state-dir."""
    monkeypatch.setenv("MODELD_STATE_DIR", str(daemon.state_dir))
    result = await asyncio.to_thread(CliRunner().invoke, modeld, ["ctl", "status"])
    assert result.exit_code == 0
    assert "qwen" in result.stdout


async def test_status_of_one_model(daemon: Daemon) -> None:
    """A name shows that model alone, with what its worker found; one that is not there is exit code 2."""
    facts = Facts(loader="llama_server", device="cpu", capabilities=("chat",))
    daemon.supervisor.add(model("qwen", State.READY, facts=facts))
    result = await daemon.ctl("status", "qwen")
    assert result.exit_code == 0
    assert "whisper" not in result.stdout
    assert result.stdout.splitlines()[-1].split() == ["can", "do", "chat"]
    (only,) = json.loads((await daemon.ctl("status", "qwen", "--json")).stdout)["models"]
    assert only["facts"]["device"] == "cpu"
    result = await daemon.ctl("status", "nope")
    assert result.exit_code == 2
    assert "there is no model 'nope'; there is: qwen, whisper" in result.stderr
