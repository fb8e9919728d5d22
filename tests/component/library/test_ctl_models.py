"""`modeld ctl models|import|rm` on folders of real and broken files, without a daemon and with one."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from modeld.admin.app import build_admin_app
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import DaemonInfo, MemoryLimits
from modeld.cli.fits import Fits, fit_of
from modeld.cli.main import modeld
from modeld.clock import SystemClock
from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.library import shelf
from modeld.library.entry import Entry
from modeld.library.lock import locked
from modeld.library.metadata import Metadata
from modeld.library.pull import record
from modeld.store.db import Database
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.supervisor.observation import Limits
from modeld.supervisor.states import ReplicaStatus, State, Status
from tests.component.admin.fake_supervisor import FakeControl, FakeSupervisor
from tests.component.library.test_listing import put, safetensors
from tests.fakes.machine import GIB, FakeProbe
from tests.unit.library.gguf_bytes import chat_model, header


class Ctl:
    """Runs commands for one state and one cache directory."""

    def __init__(self, state: Path, cache: Path) -> None:
        self.state, self.cache = state, cache

    async def __call__(self, command: str, *args: str | Path, cache: bool = True) -> Result:
        line = ["ctl", "--state-dir", str(self.state), command, *map(str, args)]
        line += ["--cache-dir", str(self.cache)] if cache else []
        return await asyncio.to_thread(CliRunner().invoke, modeld, line)

    async def configure(self, *models: dict[str, object], base: Path = Path("/")) -> None:
        """Leave a configuration in the state directory, as a daemon does."""
        stored = [StoredModel(str(each["name"]), "", "file", each, str(base)) for each in models]
        async with Database.open(self.state / "modeld.sqlite3", SystemClock()) as database:
            await EffectiveConfig(database).save(stored)


@pytest.fixture
def ctl(short_dir: Path, cache: Path) -> Ctl:
    """Give the commands, with no daemon there."""
    return Ctl(short_dir, cache)


def broken_ones(folder: Path) -> dict[str, str]:
    """Write broken files; return a word of the reason by name."""
    put(folder / "cut.gguf", chat_model()[:150])
    put(folder / "page.gguf", b"<!DOCTYPE html>" * 20)
    put(folder / "empty.gguf", b"")
    put(folder / "part-00001-of-00003.gguf")
    put(folder / "weights.safetensors", b"\xff" * 64)
    (folder / "dangling.gguf").symlink_to(folder / "gone")
    return {
        "cut": "",
        "page": "GGUF",
        "empty": "empty",
        "part": "lacks 2 of its files",
        "weights": "",
        "dangling": "",
    }


async def test_a_folder_of_real_and_broken_files_is_listed_as_it_is(
    ctl: Ctl, tmp_path: Path, demo_gguf: Path
) -> None:
    """The real one with its figures, each broken one with its reason, on a line each; the exit code is 0."""
    folder = tmp_path / "all"
    reasons = broken_ones(folder)
    (folder / demo_gguf.name).symlink_to(demo_gguf)
    result = await ctl("models", folder)
    head, *rows, total = result.stdout.splitlines()
    assert (result.exit_code, result.stderr) == (0, "")
    headings = ["MODEL", "FITS", "QUANT", "SIZE", "CONTEXT", "PARAMS", "CAPABILITIES;", "PATH"]
    assert head.split() == headings
    assert len(rows) == len(reasons) + 1
    assert total.endswith(f", {len(reasons)} broken")
    (real,) = (row for row in rows if demo_gguf.name in row)
    assert " yes   " in real
    assert all(word in real for word in (" Q4_1 ", " 94 MiB ", " 8192 ", " 135M ", "chat, completion"))
    told = json.loads((await ctl("models", "--json", folder)).stdout)["models"]
    by_file = {Path(each["path"]).name: each for each in told}
    for name, reason in reasons.items():
        (file,) = (each for key, each in by_file.items() if key.startswith(name))
        assert file["error"], name
        assert reason in file["error"]
        assert file["fits"] == "-"
    whole = by_file[demo_gguf.name]
    assert (whole["parameters"], whole["quantization"], whole["fits"]) == (134_515_008, "Q4_1", "yes")
    assert whole["memory"] > whole["size"]


async def test_what_does_not_fit_says_why(ctl: Ctl, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On its row, with the memory it would take; a model that no engine runs is not judged."""
    put(tmp_path / "all/m.gguf")
    safetensors(tmp_path / "all/x.safetensors", "a")

    def estimate(*_: object, **__: object) -> Footprint:
        return Footprint(Source.ESTIMATED, (Line("all there is", 2**60, Where.RAM),))

    monkeypatch.setattr("modeld.cli.fits.estimate", estimate)
    told = json.loads((await ctl("models", "--json", tmp_path / "all")).stdout)["models"]
    assert [(each["fits"], each["memory"]) for each in told] == [("no", 2**60), ("-", 0)]
    assert told[0]["why"]
    large, unjudged = (await ctl("models", tmp_path / "all")).stdout.splitlines()[1:-1]
    assert f"takes 1048576.0 TiB: {told[0]['why']}" in large
    assert "takes" not in unjudged


async def test_what_the_owner_lets_models_take_is_what_fits(ctl: Ctl, tmp_path: Path) -> None:
    """By the limits of the file that is named, else by those of the running daemon."""
    file = put(tmp_path / "all/m.gguf").parent
    small = tmp_path / "modeld.yaml"
    small.write_text("memory: {ram: 1MiB, vram: 1MiB}\nmodels: []\n")

    async def fits(*options: str | Path) -> str:
        result = await ctl("models", "--json", file, *options)
        assert result.exit_code == 0, result.output
        (listed,) = json.loads(result.stdout)["models"]
        return f"{listed['fits']}, {listed['why']}"

    assert await fits() == "yes, "
    assert "no, " in (told := await fits("--config", small))
    assert "1 MiB" in told
    supervisor = FakeSupervisor()
    memory = MemoryLimits(ram=2**20, vram=2**20)
    info = DaemonInfo("0.1.0", 42, 61.0, "http://127.0.0.1:8000", str(ctl.cache), memory)
    async with serve_admin(
        build_admin_app(supervisor, FakeControl(supervisor), lambda: info), ctl.state / "admin.sock"
    ):
        assert await fits() == told
    missing = await ctl("models", "--config", tmp_path / "none.yaml")
    assert (missing.exit_code, "Traceback" in missing.output) == (2, False)


@pytest.mark.parametrize(("pinned", "fits"), [(False, Fits.YES), (True, Fits.NOT_NOW)])
async def test_what_the_daemon_s_own_models_hold_is_room_unless_they_are_pinned(
    monkeypatch: pytest.MonkeyPatch, pinned: bool, fits: Fits
) -> None:
    """A model fits where an idle one can go for it, as the daemon will see it."""
    probe = FakeProbe(64 * GIB, {"GPU-0": 10 * GIB})
    probe.others["GPU-0"] = 4 * GIB
    monkeypatch.setattr("modeld.cli.fits.system_probe", lambda _: probe)
    metadata = Metadata("gguf", 6 * GIB)
    entry = Entry("/m.gguf", "gguf", loader="llama_server", usecase="generate", metadata=metadata)
    copy = ReplicaStatus(State.READY, "", "", 0.0, devices={"GPU-0": 4 * GIB})
    other = Status("m", "generate", "llama_server", State.READY, "", "", 0.0, pinned=pinned, replicas=(copy,))
    (found,) = await fit_of([entry], Limits(), [other])
    assert found.fits is fits
    (alone,) = await fit_of([entry], Limits())
    assert alone.fits is Fits.NOT_NOW, "then it is somebody else's"


async def test_models_of_the_cache_and_of_nowhere(ctl: Ctl, tmp_path: Path) -> None:
    """Without a path the cache is shown, empty or not; a path that is not there is the caller's mistake."""
    assert (await ctl("models")).stdout == "no models\n"
    put(ctl.cache / "hub/org/m/abc1234/m.gguf/m.gguf")
    assert "1 model" in (await ctl("models")).stdout
    result = await ctl("models", tmp_path / "nope")
    assert (result.exit_code, result.stderr) == (2, f"Error: there is no {tmp_path / 'nope'}\n")


async def test_models_are_called_by_their_files_and_count_once(ctl: Ctl, tmp_path: Path) -> None:
    """Three that call themselves the same are told apart, and the bytes of one with two names count once."""
    names = header({"general.architecture": "llama", "general.name": "the same"})
    one = put(tmp_path / "all/one.gguf", names)
    put(tmp_path / "all/two.gguf", names)
    os.link(one, tmp_path / "all/three.gguf")
    _, *rows, total = (await ctl("models", tmp_path / "all")).stdout.splitlines()
    assert [row.split()[0] for row in rows] == ["one", "three", "two"]
    assert all("“the same”" in row for row in rows)
    assert total == f"3 models, {2 * len(names)} B"


async def test_a_broken_file_that_is_named_ends_with_1(ctl: Ctl, tmp_path: Path) -> None:
    """A script sees it; in a folder it is one of many."""
    broken = put(tmp_path / "all/m.gguf", b"no model")
    assert (await ctl("models", broken)).exit_code == 1
    assert (await ctl("models", broken.parent)).exit_code == 0


async def test_files_are_read_whole_on_request(ctl: Ctl, tmp_path: Path) -> None:
    """Each one's sha256 is shown, and known from then on; one that is not as it was is an error."""
    path = put(tmp_path / "m.gguf")
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()

    async def known() -> object:
        return json.loads((await ctl("models", "--json", path)).stdout)["models"][0]["sha256"]

    assert await known() == {}
    result = await ctl("models", "--verify", path)
    assert (result.exit_code, f"sha256 {sha256}" in result.stdout) == (0, True)
    assert await known() == {"m.gguf": sha256}
    times = os.stat(path)
    path.write_bytes(path.read_bytes()[:-1] + b"\xff")
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    result = await ctl("models", "--verify", path)
    assert result.exit_code == 1
    assert "broken" in result.stdout
    assert "is damaged: its sha256 is" in result.stdout


async def test_a_pull_that_was_begun_is_removed_by_its_repository(ctl: Ctl) -> None:
    """What has arrived of it goes, and is told; while it is pulled, it stays."""
    part = put(ctl.cache / "hub/org/m/.incoming/etag", b"half")
    with locked(record.home(ctl.cache, "org/m")):
        held = await ctl("rm", "org/m")
    assert (held.exit_code, part.exists()) == (2, True)
    assert "org/m is being pulled" in held.stderr
    result = await ctl("rm", "org/m")
    assert (result.exit_code, result.stdout) == (0, "removed what had arrived of org/m (4 B freed)\n")
    assert (await ctl("rm", "org/m")).exit_code == 2


async def test_importing_a_folder_takes_what_is_whole_and_names_the_rest(
    ctl: Ctl, tmp_path: Path, demo_gguf: Path
) -> None:
    """Each broken file is one line on stderr, and the exit code is 1; the whole one is in the cache."""
    folder = tmp_path / "all"
    reasons = broken_ones(folder)
    (folder / "real.gguf").symlink_to(demo_gguf)
    result = await ctl("import", folder)
    there = ctl.cache / "models/real/real.gguf"
    assert result.exit_code == 1
    assert str(there) in result.stdout
    assert there.samefile(demo_gguf)
    assert result.stdout.endswith(f"use it with: modeld ctl add --model {there}\n")
    assert len(result.stderr.splitlines()) == len(reasons)
    assert os.listdir(ctl.cache / "models") == ["real"]
    again = await ctl("import", "--copy", demo_gguf)
    assert (again.exit_code, again.stderr) == (0, "")
    copied = ctl.cache / "models" / demo_gguf.stem / demo_gguf.name
    assert (copied.stat().st_size, copied.samefile(demo_gguf)) == (demo_gguf.stat().st_size, False)


@pytest.mark.parametrize("name", ["path", "m", "org/m", "the name"])
async def test_a_model_is_removed_by_any_of_its_names(ctl: Ctl, name: str) -> None:
    """Its path, its folder below models, its repository, or what it calls itself; then it is gone."""
    place = "hub/org/m/abc1234/m.gguf/m.gguf" if name == "org/m" else "models/m/m.gguf"
    path = put(ctl.cache / place, header({"general.architecture": "llama", "general.name": "the name"}))
    wanted = str(path) if name == "path" else name
    result = await ctl("rm", wanted)
    assert (result.exit_code, path.exists()) == (0, False), result.stderr
    assert str(path) in result.stdout
    assert (await ctl("rm", wanted)).exit_code == 2


async def test_what_a_configured_model_uses_stays(ctl: Ctl, tmp_path: Path) -> None:
    """By its path, by its folder, relative, or as another model's projector; the users are named."""
    kept = [put(ctl.cache / f"models/{name}/{name}.gguf") for name in ("a", "b", "c", "d")]
    free = put(ctl.cache / "models/e/e.gguf")
    await ctl.configure(
        {"name": "by-path", "model": str(kept[0]), "loader": "llama_server"},
        {"name": "by-folder", "model": str(kept[1].parent), "loader": "llama_server"},
        {"name": "relative", "model": os.path.relpath(kept[2], tmp_path), "loader": "llama_server"},
        {"name": "part", "model": "./x.gguf", "llama_server_config": {"mmproj": str(kept[3])}},
        {"name": "too", "model": str(kept[0]), "loader": "llama_server"},
        base=tmp_path,
    )
    users = ["'by-path', 'too'", "'by-folder'", "'relative'", "'part'"]
    for path, user in zip(kept, users, strict=True):
        result = await ctl("rm", path)
        assert (result.exit_code, path.exists()) == (2, True)
        assert f"is in use by {user}; take it out of the configuration" in result.stderr
    assert (await ctl("rm", free)).exit_code == 0


async def test_an_ambiguous_name_and_one_outside_are_refused(ctl: Ctl, tmp_path: Path) -> None:
    """Nothing is removed; the paths there are, and the cache, are told."""
    names = {"general.architecture": "llama", "general.name": "twin"}
    paths = [put(ctl.cache / f"models/{each}/{each}.gguf", header(names)) for each in ("a", "b")]
    result = await ctl("rm", "twin")
    assert result.exit_code == 2
    assert all(str(path) in result.stderr for path in paths)
    outside = put(tmp_path / "x.gguf")
    assert "is not in modeld's cache" in (await ctl("rm", outside)).stderr
    assert all(path.exists() for path in (*paths, outside))


async def test_the_running_daemon_s_cache_is_used(ctl: Ctl, tmp_path: Path) -> None:
    """Wherever its configuration put it, and nothing has to be said."""
    supervisor = FakeSupervisor()
    info = DaemonInfo("0.1.0", 42, 61.0, "http://127.0.0.1:8000", str(ctl.cache))
    app = build_admin_app(supervisor, FakeControl(supervisor), lambda: info)
    async with serve_admin(app, ctl.state / "admin.sock"):
        result = await ctl("import", put(tmp_path / "m.gguf"), cache=False)
    assert result.exit_code == 0
    assert (shelf.shelf(ctl.cache) / "m/m.gguf").exists()
