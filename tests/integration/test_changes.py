"""Changing a running daemon as its owner does: `modeld ctl`, signals, edits. What is unchanged goes on."""

from __future__ import annotations

import asyncio
import signal
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.harness.daemon import Daemon, Said, resumed, running
from tests.harness.models import fake, llama
from tests.harness.sse import chat, opened
from tests.harness.talk import SCRIPT, talking, whole
from tests.harness.workers import MIB, held, watched, workers_of

TALKER = fake("talker", **SCRIPT)
"""The model that no change touches."""


def config(*models: dict[str, Any], **more: Any) -> dict[str, Any]:
    """Return a configuration."""
    return {"allow_fake": True, "models": list(models), **more}


async def reply(daemon: Daemon, model: str, gateway: str = "") -> str | None:
    """Ask a model; return its answer, None for 404."""
    async with aiohttp.ClientSession() as session:
        answer = await chat(session, daemon.url + (f"/{gateway}" if gateway else ""), model)
    if answer.status == 404:
        return None
    assert answer.status == 200, answer.error
    assert answer.done
    return answer.text


async def names(daemon: Daemon) -> set[str]:
    """Return the models there are."""
    return {model["name"] for model in (await daemon.admin("GET", "/status"))["models"]}


async def pids(daemon: Daemon) -> dict[str, int | None]:
    """Return every model's pid."""
    return {model["name"]: model["pid"] for model in (await daemon.admin("GET", "/status"))["models"]}


def done(said: Said) -> dict[str, Any]:
    """Return what a change with --json did; it must have gone well."""
    assert said.code == 0, said
    result: dict[str, Any] = said.json
    return result


def outcome(said: Said, name: str) -> str:
    """Return what became of one model."""
    [message] = [each["message"] for each in done(said)["outcomes"] if each["name"] == name]
    return str(message)


async def test_models_are_added_replaced_and_removed_beside_streams(short_dir: Path) -> None:
    """`ctl add FILE` adds what is new, replaces what differs and leaves alone what does not; `ctl remove`
    makes a name unknown. The model beside it keeps its process, and every stream on it is whole.
    """
    one, two = short_dir / "one.yaml", short_dir / "two.yaml"
    async with running(short_dir, config(TALKER)) as daemon, asyncio.timeout(180):
        pid = (await daemon.until("talker", "ready"))["pid"]
        daemon.write(config(fake("b", reply="first"), fake("c", reply="c")), one)
        daemon.write(config(fake("b", reply="second"), fake("c", reply="c"), TALKER), two)
        async with talking(daemon.url, "talker"):
            said = await daemon.ctl("add", str(one))
            assert said.code == 0, said
            assert "adds (2)" in said.out
            assert "ok b: ready" in said.out
            assert await reply(daemon, "b") == "first"
            before = await pids(daemon)

            said = await daemon.ctl("add", str(two), "--json")
            plan = done(said)["plan"]
            assert plan["replaces"] == [{"name": "b", "keys": ["fake_config.reply"]}]
            assert set(plan["unchanged"]) == {"c", "talker"}
            assert "took over" in outcome(said, "b")
            assert await reply(daemon, "b") == "second"
            after = await pids(daemon)
            assert after["b"] != before["b"]
            assert after["c"] == before["c"]

            assert "nothing changes" in (await daemon.ctl("add", str(two))).out

            said = await daemon.ctl("remove", "b", "c")
            assert said.code == 0, said
            assert await reply(daemon, "b") is None
            assert await names(daemon) == {"talker"}
        assert await daemon.pid_of("talker") == pid
        wrong = await daemon.ctl("remove", "b", "talker")
        assert wrong.code == 2
        assert "no model is named 'b'; there are: talker" in wrong.err
        assert await daemon.pid_of("talker") == pid


@pytest.mark.engine
async def test_a_real_model_is_added_by_its_path_and_is_back_after_a_kill(
    short_dir: Path, demo_gguf: Path
) -> None:
    """`ctl add --model PATH`: it serves; after kill -9 and a start with the same file it is there again, and
    a start without a file serves the last effective models.
    """
    small = llama("own", demo_gguf, n_ctx=256)
    async with running(short_dir, {"models": [small]}) as daemon, asyncio.timeout(180):
        said = await daemon.ctl("add", "--model", str(demo_gguf), "--name", "extra", "--json")
        assert outcome(said, "extra").startswith("ready")
        daemon.signal(signal.SIGKILL)
        await daemon.ended()
    async with running(short_dir, {"models": [small]}) as daemon, asyncio.timeout(180):
        assert await names(daemon) == {"own", "extra"}
        await daemon.line("extra, which was added to the running daemon, is back")
        said = await daemon.ctl("remove", "own", "--json")
        [note] = said.json["plan"]["notes"]
        assert "comes back at the next start" in note
    async with resumed(short_dir) as daemon, asyncio.timeout(180):
        assert await names(daemon) == {"extra"}
        await daemon.until("extra", "ready")
        async with aiohttp.ClientSession() as session:
            answer = await chat(session, daemon.url, "extra", "Hi", max_tokens=1)
        assert answer.done
        assert answer.text
        refused = await daemon.ctl("reload")
        assert refused.code == 2
        assert "without a configuration file" in refused.err


async def test_reconcile_makes_the_models_exactly_those_of_a_file(short_dir: Path) -> None:
    """What is not in the file goes, what is new comes, what differs is replaced or takes its new settings in
    place, the rest keeps its process. A dry run shows all that and does none of it.
    """
    file = short_dir / "goal.yaml"
    start = config(TALKER, fake("goes"), fake("differs", reply="old"), fake("tuned", reply="t"))
    goal = config(
        TALKER, fake("differs", reply="new"), fake("tuned", reply="t") | {"keep_alive": "1h"}, fake("comes")
    )
    plan = {
        "adds": ["comes"],
        "removes": ["goes"],
        "replaces": [{"name": "differs", "keys": ["fake_config.reply"]}],
        "updates": [{"name": "tuned", "keys": ["keep_alive"]}],
        "unchanged": ["talker"],
    }
    async with running(short_dir, start) as daemon, asyncio.timeout(180):
        for name in ("talker", "goes", "differs", "tuned"):
            await daemon.until(name, "ready")
        before = await pids(daemon)
        daemon.write(goal, file)
        async with talking(daemon.url, "talker"):
            dry = done(await daemon.ctl("reconcile", str(file), "--dry-run", "--json"))
            assert {key: dry[key] for key in plan} == plan
            page = (await daemon.ctl("reconcile", str(file), "--dry-run")).out
            for words in ("adds (1)", "removes (1)", "replaces (1)", "updates (1)", "unchanged (1)"):
                assert words in page
            assert await pids(daemon) == before
            assert await reply(daemon, "differs") == "old"

            result = done(await daemon.ctl("reconcile", str(file), "--json"))
            assert {key: result["plan"][key] for key in plan} == plan
            assert all(each["ok"] for each in result["outcomes"])
        after = await pids(daemon)
        assert after.keys() == {"talker", "differs", "tuned", "comes"}
        assert (after["talker"], after["tuned"]) == (before["talker"], before["tuned"])
        assert after["differs"] != before["differs"]
        assert await reply(daemon, "differs") == "new"
        assert await reply(daemon, "goes") is None
        assert (await daemon.model("tuned"))["idle_unload_at"] is not None


async def test_reconcile_without_a_file_brings_up_what_is_down(short_dir: Path) -> None:
    """The last effective models are the goal, those added since the start included: one that was unloaded and
    one that crashes are started, those that are up keep their process.
    """
    file = short_dir / "more.yaml"
    async with running(short_dir, config(TALKER, fake("down", reply="d"))) as daemon, asyncio.timeout(180):
        daemon.write(config(fake("added", reply="a")), file)
        done(await daemon.ctl("add", str(file), "--json"))
        await daemon.until("talker", "ready")
        await daemon.until("down", "ready")
        assert (await daemon.ctl("unload", "down")).code == 0
        assert (await daemon.model("down"))["state"] == "stopped"
        before = await pids(daemon)
        async with talking(daemon.url, "talker"):
            dry = await daemon.ctl("reconcile", "--dry-run")
            assert "down is not up, and is started" in dry.out
            assert (await daemon.model("down"))["state"] == "stopped"
            result = await daemon.ctl("reconcile", "--json")
            assert outcome(result, "down").startswith("ready")
        after = await pids(daemon)
        assert (after["talker"], after["added"]) == (before["talker"], before["added"])
        assert await reply(daemon, "down") == "d"


@pytest.mark.parametrize("way", ["ctl", "SIGHUP", "watch"])
async def test_an_edit_replaces_the_edited_model_alone(short_dir: Path, way: str) -> None:
    """`ctl reload`, SIGHUP and `watch: true`: the edited model answers anew, the others keep their processes
    and their streams, and an edit that says the same does nothing.
    """
    more = {"watch": way == "watch"}
    old = config(TALKER, fake("b", reply="old"), fake("c", reply="c"), **more)
    new = config(fake("c", reply="c"), TALKER, fake("b", reply="new"), **more)

    async def tell(daemon: Daemon) -> None:
        if way == "SIGHUP":
            daemon.signal(signal.SIGHUP)
        elif way == "ctl":
            assert (await daemon.ctl("reload")).code == 0

    async with running(short_dir, old) as daemon, asyncio.timeout(180):
        for name in ("talker", "b", "c"):
            await daemon.until(name, "ready")
        before = await pids(daemon)
        async with talking(daemon.url, "talker"):
            daemon.write(new)
            await tell(daemon)
            await daemon.line("replaced: the new one took over when it was ready")
            assert await reply(daemon, "b") == "new"
        after = await pids(daemon)
        assert {name for name in after if after[name] != before[name]} == {"b"}
        metrics = await daemon.metrics()
        assert metrics['modeld_config_changes_total{kind="reload",outcome="ok"}'] == 1


async def test_blue_green_keeps_streams_where_they_are(short_dir: Path) -> None:
    """A stream that runs on the old model goes on there to its end, while new requests are answered by the
    new one; then the old process is gone.
    """
    tokens = 150
    slow = fake("b", tokens=tokens, token_delay=0.01)
    async with running(short_dir, config(slow)) as daemon, aiohttp.ClientSession() as session:
        old = (await daemon.until("b", "ready"))["pid"]
        async with asyncio.timeout(180), opened(session, daemon.url, "b") as stream:
            await stream.until_text()
            with held(old):
                daemon.write(config(fake("b", reply="new")))
                daemon.signal(signal.SIGHUP)
                await daemon.until_status("b", lambda status: status["pid"] != old)
                assert await reply(daemon, "b") == "new"
            answer = await stream.to_end()
            assert answer.done
            assert answer.text == whole(tokens)
            await daemon.line("replaced: the new one took over when it was ready")
        assert [worker.pid for worker in workers_of(daemon.pid)] == [await daemon.pid_of("b")]


@pytest.mark.parametrize("why", ["no room", "as asked"])
async def test_stop_start_when_both_do_not_fit_or_the_owner_says_so(short_dir: Path, why: str) -> None:
    """The old model ends first: its stream finishes, requests that come meanwhile wait for the new one, and
    the owner is told why. Two of the model are never there at once.
    """
    memory, tokens = 150 * MIB, 150
    strict = {"memory": {"ram": 250 * MIB}} if why == "no room" else {"replace_strategy": "stop_start"}
    words = "both do not fit side by side" if why == "no room" else "stopped the old one first, as asked"
    old = fake("b", tokens=tokens, token_delay=0.01, memory=memory)
    async with (
        running(short_dir, config(old, **strict)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
        watched(daemon.pid) as seen,
    ):
        await daemon.until("b", "ready")
        async with opened(session, daemon.url, "b") as stream:
            await stream.until_text()
            with held(await daemon.pid_of("b")):
                daemon.write(config(fake("b", reply="new", memory=memory), **strict))
                daemon.signal(signal.SIGHUP)
                await daemon.line("draining: replaced by its new configuration; 1 open request may finish")
                meanwhile = asyncio.ensure_future(reply(daemon, "b"))
            assert (await stream.to_end()).text == whole(tokens)
            assert await meanwhile == "new"
            await daemon.line(f"replaced: {words}")
        assert seen.most == 1


async def test_the_owner_chooses_how_a_model_is_replaced(short_dir: Path) -> None:
    """`--replace-strategy` goes before the configuration's, and the outcome says which way it went."""
    words = {"blue_green": "took over when it was ready", "stop_start": "stopped the old one first, as asked"}
    async with running(short_dir, config(fake("b"))) as daemon, asyncio.timeout(180):
        await daemon.until("b", "ready")
        for configured, asked in (("blue_green", "stop_start"), ("stop_start", "blue_green")):
            daemon.write(config(fake("b", reply=asked), replace_strategy=configured))
            said = await daemon.ctl("reload", "--replace-strategy", asked, "--json")
            assert words[asked] in outcome(said, "b")
            assert await reply(daemon, "b") == asked


async def test_a_new_model_that_does_not_come_up_leaves_the_old_one_in_place(short_dir: Path) -> None:
    """Blue-green with a model that fails: exit code 1 and its words; the old one serves on, and is what the
    next reconcile wants too.
    """
    async with running(short_dir, config(fake("b", reply="old"))) as daemon, asyncio.timeout(180):
        old = (await daemon.until("b", "ready"))["pid"]
        daemon.write(config(fake("b", load_error="scripted: no")))
        said = await daemon.ctl("reload")
        assert said.code == 1
        assert "did not come up, and the old one serves on: scripted: no" in said.out
        assert await reply(daemon, "b") == "old"
        assert await daemon.pid_of("b") == old
        assert "nothing changes" in (await daemon.ctl("reconcile")).out
        assert await daemon.pid_of("b") == old


async def test_a_broken_file_changes_nothing_and_says_where(short_dir: Path) -> None:
    """Not YAML, an unknown key, a name twice: exit code 2 and FILE:LINE:COLUMN from `ctl reload`, `add` and
    `reconcile`; by SIGHUP the daemon's log says it. Processes, models and streams stay.
    """
    twice = "allow_fake: true\nmodels:\n- {name: b, loader: fake}\n- {name: b, loader: fake}\n"
    async with running(short_dir, config(TALKER, fake("b", reply="b"))) as daemon, asyncio.timeout(180):
        await daemon.until("talker", "ready")
        await daemon.until("b", "ready")
        before = await pids(daemon)
        async with talking(daemon.url, "talker"):
            for text, place, words, others in (
                ("models:\n- {name: b, loader: fake\n", "3:1", "", ["add", "reconcile"]),
                ("allow_fake: true\nmodels:\n- name: b\n  lodaer: fake\n", "4:3", "did you mean loader", []),
                (twice, "4:10", "'b' is taken", []),
            ):
                daemon.file.write_text(text)
                for args in (["reload"], *([other, str(daemon.file)] for other in others)):
                    said = await daemon.ctl(*args)
                    assert said.code == 2, (args, said)
                    assert f"{daemon.file}:{place}: " in said.err, (args, said)
                    assert words in said.err
                    assert "Traceback" not in said.err
            daemon.signal(signal.SIGHUP)
            line = await daemon.line("SIGHUP: the models stay as they are")
            assert f"{daemon.file}:4:10: " in line
        assert await pids(daemon) == before
        assert "nothing changes" in (await daemon.ctl("reconcile")).out


async def test_a_model_in_use_is_renamed(short_dir: Path) -> None:
    """Its stream goes on to the end under the old name, which is unknown from then on; the new one serves."""
    tokens = 100
    entry = fake("before", tokens=tokens, token_delay=0.01)
    async with (
        running(short_dir, config(entry)) as daemon,
        aiohttp.ClientSession() as session,
        asyncio.timeout(180),
    ):
        await daemon.until("before", "ready")
        async with opened(session, daemon.url, "before") as stream:
            await stream.until_text()
            with held(await daemon.pid_of("before")):
                daemon.write(config(entry | {"name": "after"}))
                daemon.signal(signal.SIGHUP)
                await daemon.until("after", "ready")
                assert await reply(daemon, "before") is None
            answer = await stream.to_end()
            assert (answer.text, answer.done) == (whole(tokens), True)
            await daemon.line("[before] stopped: it was removed")
            assert (await chat(session, daemon.url, "after", max_tokens=3)).text == whole(3)
        assert [worker.pid for worker in workers_of(daemon.pid)] == [await daemon.pid_of("after")]


async def test_gateways_and_aliases_come_and_go_live(short_dir: Path) -> None:
    """A new gateway's route answers, with its own model of a name that the default one has too; an alias
    answers as its model; both are unknown after they are taken out. No worker is replaced for it.
    """
    plain = config(fake("m", reply="default"))
    wide = config(
        fake("m", reply="default") | {"aliases": ["nick"]},
        gateways=[{"name": "Team X", "models": [fake("m", reply="team")]}],
    )
    async with running(short_dir, plain) as daemon, asyncio.timeout(180):
        pid = (await daemon.until("m", "ready"))["pid"]
        assert await reply(daemon, "nick") is None
        assert await reply(daemon, "m", "team-x") is None
        daemon.write(wide)
        plan = done(await daemon.ctl("reload", "--json"))["plan"]
        assert (plan["adds"], plan["updates"]) == (["team-x/m"], [{"name": "m", "keys": ["aliases"]}])
        assert await reply(daemon, "m") == await reply(daemon, "nick") == "default"
        assert await reply(daemon, "m", "team-x") == "team"
        assert await reply(daemon, "nick", "team-x") is None
        async with (
            aiohttp.ClientSession() as session,
            session.get(f"{daemon.url}/team-x/v1/models") as response,
        ):
            assert [model["id"] for model in (await response.json())["data"]] == ["m"]
        daemon.write(plain)
        done(await daemon.ctl("reload", "--json"))
        assert await reply(daemon, "nick") is None
        assert await reply(daemon, "m", "team-x") is None
        assert await daemon.pid_of("m") == pid
        assert [worker.pid for worker in workers_of(daemon.pid)] == [pid]
