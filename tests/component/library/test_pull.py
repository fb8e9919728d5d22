from __future__ import annotations

import asyncio
import hashlib
import shutil
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from modeld.errors import LoadFailed
from modeld.library.pull.client import pull
from modeld.library.pull.transfer import Limits
from modeld.library.refs import HubRef
from modeld.library.resolve import Resolver
from tests.component.library.packages import Reports, family
from tests.component.library.pulls import BODY, DONE, FAST, NAME, REF, Heard, left, pulled
from tests.harness.hub import COMMIT, Fault, Hub, git_sha1, serving, sha256


@pytest.fixture
async def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> AsyncIterator[Hub]:
    """Give a hub with one model; it is the one that pulls ask, without anybody's token."""
    made = Hub()
    made.repos["org/tiny"] = {NAME: BODY, "README.md": b"# tiny"}
    async with serving(made):
        for name in ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_ENDPOINT", made.address)
        for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
        monkeypatch.setenv("NO_PROXY", "127.0.0.1")
        yield made


async def test_a_model_is_pulled_with_progress_and_then_cached(hub: Hub, cache: Path) -> None:
    """The file arrives whole, by its name, with bytes told on the way; the second time nobody is asked."""
    heard = Heard()
    found = await pulled(cache, heard=heard)
    assert found.path == cache / "hub/org/tiny" / COMMIT / NAME / NAME
    assert found.path.read_bytes() == BODY
    assert left(cache) == DONE
    assert (found.size, found.commit, found.form) == (len(BODY), COMMIT, "gguf")
    assert [each.stage for each in heard.all][:2] == ["listing", "downloading"]
    assert {each.total for each in heard.all[1:]} == {len(BODY)}
    before = len(hub.asked)
    again = Heard()
    assert await pulled(cache, heard=again) == found
    assert (len(hub.asked), again.all) == (before, [])


@pytest.mark.parametrize(
    "fault",
    [
        pytest.param(Fault(status=500), id="500"),
        pytest.param(Fault(status=503), id="503"),
        pytest.param(Fault(status=429, headers={"Retry-After": "0"}), id="429"),
        pytest.param(Fault(cut=0), id="nothing-came"),
    ],
)
async def test_a_passing_error_is_tried_again(hub: Hub, cache: Path, fault: Fault) -> None:
    """An answer that may be better next time is asked for again, and each failed try is told."""
    hub.fail(NAME, fault, fault)
    heard = Heard()
    found = await pulled(cache, heard=heard)
    assert found.path.read_bytes() == BODY
    assert len(hub.gets(NAME)) == 3
    assert len(heard.why) == 2


async def test_a_cut_connection_is_gone_on_with(hub: Hub, cache: Path) -> None:
    """After a cut only what is missing is asked for, and the whole is right."""
    hub.fail(NAME, Fault(cut=1_000_000), Fault(cut=1_500_000))
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert [each.range for each in hub.gets(NAME)] == [None, "bytes=1000000-", "bytes=1500000-"]


@pytest.mark.parametrize("how", ["ignored", "refused", "other"])
async def test_a_range_that_is_not_kept_to_joins_nothing_wrong(hub: Hub, cache: Path, how: str) -> None:
    """Whatever a server makes of a range (the whole, 416, another part), the file is right in the end."""
    hub.fail(NAME, Fault(cut=1_000_000), Fault(range=how))  # type: ignore[arg-type]
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert left(cache) == DONE


async def test_a_server_that_never_gets_further_is_given_up(hub: Hub, cache: Path) -> None:
    """Coming to the same byte again and again is no progress: the tries end, and may be had again later."""
    hub.always[NAME] = Fault(cut=1_000_000, range="ignored")
    with pytest.raises(LoadFailed, match=r"broke off: .*1000000.*\(3 tries\); check") as caught:
        await pulled(cache)
    assert not caught.value.permanent
    assert left(cache) == ["org/tiny/.incoming: 1000000"]


async def test_a_damaged_file_is_got_anew(hub: Hub, cache: Path) -> None:
    """A flipped byte is found by the checksum; all of the file is got once more."""
    hub.fail(NAME, Fault(flip=77))
    heard = Heard()
    found = await pulled(cache, heard=heard)
    assert found.path.read_bytes() == BODY
    assert heard.why == [f"{NAME} arrived damaged, all of it is got again"]
    assert [each.range for each in hub.gets(NAME)] == [None, None]


async def test_a_file_that_is_always_damaged_is_refused(hub: Hub, cache: Path) -> None:
    """Both checksums are told, and nothing is kept, under no name."""
    hub.always[NAME] = Fault(flip=77)
    wrong = bytearray(BODY)
    wrong[77] ^= 1
    words = f"its sha256 is {hashlib.sha256(wrong).hexdigest()}, expected {hashlib.sha256(BODY).hexdigest()}"
    with pytest.raises(LoadFailed, match=words) as caught:
        await pulled(cache)
    assert caught.value.permanent, "or all of it is got again and again"
    assert left(cache) == []


async def test_more_bytes_than_told_are_not_taken(hub: Hub, cache: Path) -> None:
    """A body that is longer than the file's size never becomes the file."""
    hub.fail(NAME, Fault(more=b"x"))
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY


@pytest.mark.parametrize(
    ("repo", "words"),
    [
        ("org/none", "has no repository org/none for us; check the name, and if it is private, set HF_TOKEN"),
        ("org/private", "has no repository org/private for us"),
        ("org/gated", "accept their terms at http://127.0.0.1:.*/org/gated and set HF_TOKEN"),
        ("org/empty", "holds no model that is known here; it has README.md"),
        ("org/two", "holds 2 models; choose one: .*a-Q4_0.gguf .*, .*a-Q8_0.gguf"),
    ],
)
async def test_refusals_say_what_to_do(hub: Hub, cache: Path, repo: str, words: str) -> None:
    """What trying again cannot better is told at once, with the fix, and asked for once."""
    hub.repos |= {"org/private": {}, "org/gated": {}, "org/empty": {"README.md": b"x"}}
    hub.repos["org/two"] = {"a-Q4_0.gguf": b"x", "a-Q8_0.gguf": b"x"}
    hub.tokens["org/private"] = "secret"
    hub.gated.add("org/gated")
    with pytest.raises(LoadFailed, match=words) as caught:
        await pulled(cache, HubRef(repo))
    assert caught.value.permanent
    assert len(hub.asked) == 1


async def test_a_token_opens_a_private_repository_and_goes_nowhere_else(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """HF_TOKEN is sent to the hub, and not to where the hub redirects."""
    hub.tokens["org/tiny"] = "secret"
    hub.redirect = True
    monkeypatch.setenv("HF_TOKEN", "secret")
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert {each.authorization for each in hub.asked if not each.elsewhere} == {"Bearer secret"}
    assert [each.authorization for each in hub.asked if each.elsewhere] == [None]


async def test_a_bare_listing_is_completed(hub: Hub, cache: Path) -> None:
    """Where the listing tells no checksums they are asked for file by file, also across a redirect."""
    hub.bare = hub.redirect = True
    hub.fail(NAME, Fault(flip=5))
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert len(hub.gets(NAME)) == 2


async def test_a_folder_is_pulled_whole(hub: Hub, cache: Path) -> None:
    """Of a repository with a config all that serves it comes, in its folders, small files checked too."""
    hub.repos["org/tiny"] = {
        "config.json": b"{}",
        "model.safetensors": b"w" * 100,
        "sub/vocab.txt": b"a\nb\n",
        "empty.txt": b"",
        "model.onnx": b"other",
    }
    hub.fail("config.json", Fault(flip=0))
    found = await pulled(cache)
    there = {str(p.relative_to(found.path)) for p in found.path.rglob("*") if p.is_file()}
    assert there == {"config.json", "model.safetensors", "sub/vocab.txt", "empty.txt"}
    assert (found.path / "config.json").read_bytes() == b"{}"


async def test_offline_is_told_plainly(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """HF_HUB_OFFLINE: nothing is asked, the variable is named, and what is here is still found."""
    found = await pulled(cache)
    hub.asked.clear()
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert await pulled(cache) == found
    with pytest.raises(LoadFailed, match="HF_HUB_OFFLINE is set and it is not on this disk") as caught:
        await pulled(cache, HubRef("org/other"))
    assert caught.value.permanent
    assert hub.asked == []


async def test_a_hub_that_is_not_there(hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No connection: the address is named, without its password; trying later may help."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))  # nobody else gets the port, and nobody listens
        port = held.getsockname()[1]
        monkeypatch.setenv("HF_ENDPOINT", f"http://user:secret@127.0.0.1:{port}")
        with pytest.raises(LoadFailed, match=rf"http://127.0.0.1:{port} does not answer") as caught:
            await pulled(cache)
    assert "secret" not in str(caught.value)
    assert not caught.value.permanent


async def test_two_pulls_at_once_are_one(hub: Hub, cache: Path) -> None:
    """Two programs want one file by two references: its bytes come once, and both have it."""
    hub.fail(NAME, Fault(hold=1_000_000))
    second = Heard()
    async with asyncio.TaskGroup() as tasks:
        one = tasks.create_task(pulled(cache))
        await hub.holding.wait()
        two = tasks.create_task(pulled(cache, HubRef("org/tiny", "Q4_K_M"), second))
        await second.at("waiting").wait()
        hub.go.set()
    assert one.result().path == two.result().path
    assert len(hub.gets(NAME)) == 1
    assert left(cache) == DONE


async def test_a_killed_pull_is_gone_on_with(hub: Hub, cache: Path) -> None:
    """kill -9 in mid-file: nothing has the final name, and the next pull asks for the missing part only."""
    hub.fail(NAME, Fault(hold=1_000_000))
    pulling = asyncio.create_task(pulled(cache))
    await hub.holding.wait()
    part = cache / "hub/org/tiny/.incoming" / hashlib.sha256(BODY).hexdigest()
    async with asyncio.timeout(120):
        while not part.exists() or part.stat().st_size < 1_000_000:
            await asyncio.sleep(0.02)
    [program] = family()
    program.kill()
    with pytest.raises(LoadFailed, match=r"pulling org/tiny ended early .killed by signal 9") as caught:
        await pulling
    assert not caught.value.permanent
    assert "org/tiny/.incoming: 1000000" in left(cache)
    assert DONE[0] not in left(cache)
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert [each.range for each in hub.gets(NAME)] == [None, "bytes=1000000-"]
    assert left(cache) == DONE


async def test_a_part_of_another_file_is_not_gone_on_with(hub: Hub, cache: Path) -> None:
    """When the file has changed at the hub, what had come of the old one is thrown away."""
    hub.always[NAME] = Fault(cut=1_000_000, range="ignored")
    with pytest.raises(LoadFailed, match="broke off"):
        await pulled(cache)
    hub.always.clear()
    hub.asked.clear()
    hub.repos["org/tiny"][NAME] = BODY[::-1]
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY[::-1]
    assert [each.range for each in hub.gets(NAME)] == [None]
    assert left(cache) == DONE


async def test_a_damaged_part_is_found(hub: Hub, cache: Path) -> None:
    """A part whose bytes are wrong (a power cut) spoils nothing: all of it is got again."""
    parts = cache / "hub/org/tiny/.incoming"
    parts.mkdir(parents=True)
    (parts / hashlib.sha256(BODY).hexdigest()).write_bytes(bytes(1_000_000))
    found = await pulled(cache)
    assert found.path.read_bytes() == BODY
    assert [each.range for each in hub.gets(NAME)] == ["bytes=1000000-", None]


async def test_silence_is_not_waited_for_for_ever(hub: Hub, cache: Path) -> None:
    """A server that stops sending is given up after the stall limit, and gone on with."""
    hub.fail(NAME, Fault(hold=1_000_000))
    heard = Heard()
    # On a slow machine others may seem silent, too: then it is only tried more often.
    found = await pulled(cache, heard=heard, limits=Limits(stall=1.0, tries=100, pause=0.0))
    assert found.path.read_bytes() == BODY
    assert any("fell silent" in why for why in heard.why)
    ends = {f"bytes={each.done}-" for each in heard.all if each.stage == "retrying"}
    assert {each.range for each in hub.gets(NAME)} <= {None, *ends}


async def test_a_cancelled_pull_leaves_no_process(hub: Hub, cache: Path) -> None:
    """Cancelling ends the program at once; what had come stays for the next time."""
    hub.fail(NAME, Fault(hold=1_000_000))
    pulling = asyncio.create_task(pulled(cache))
    await hub.holding.wait()
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    assert family() == []
    assert DONE[0] not in left(cache)


def shared(folder: Path, files: dict[str, bytes], commit: str = COMMIT) -> dict[str, bytes]:
    """Write the cache of another program that has pulled files of org/tiny; return all that is in it."""
    home = folder / "hf/hub/models--org--tiny"
    for name, body in files.items():
        blob = home / "blobs" / (sha256(body) if name.endswith(".gguf") else git_sha1(body))
        blob.parent.mkdir(parents=True, exist_ok=True)
        blob.write_bytes(body)
        link = home / "snapshots" / commit / name
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(f"../../blobs/{blob.name}")
    (home / "refs").mkdir()
    (home / "refs/main").write_text(commit)
    return everything(folder)


def everything(folder: Path) -> dict[str, bytes]:
    """Return all files of the other program's cache."""
    return {str(path): path.read_bytes() for path in (folder / "hf").rglob("*") if path.is_file()}


async def test_what_another_program_has_pulled_is_not_pulled_again(
    hub: Hub, cache: Path, tmp_path: Path
) -> None:
    """It is checked and taken, also when it was pulled at another commit; there nothing changes."""
    before = shared(tmp_path, {NAME: BODY}, "e" * 40)
    heard = Heard()
    found = await pulled(cache, heard=heard)
    assert found.commit == COMMIT
    assert found.path.read_bytes() == BODY
    assert hub.gets(NAME) == []
    assert "checking" in {each.stage for each in heard.all}
    assert everything(tmp_path) == before


async def test_what_another_program_has_and_is_damaged_is_pulled(
    hub: Hub, cache: Path, tmp_path: Path
) -> None:
    """Its bytes are not what its checksum says: it stays where it is, and the right ones are got."""
    shared(tmp_path, {NAME: BODY})
    (blob,) = (tmp_path / "hf/hub/models--org--tiny/blobs").iterdir()
    blob.write_bytes(bytes(len(BODY)))
    assert (await pulled(cache)).path.read_bytes() == BODY
    assert blob.read_bytes() == bytes(len(BODY))


async def test_offline_what_another_program_has_pulled_serves(
    hub: Hub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a word to the hub; a model of which some is missing there does not."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    index = b'{"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}'
    files = {"model.safetensors.index.json": index, "model.safetensors": b"x", "config.json": b"{}"}
    shared(tmp_path, files)
    with pytest.raises(LoadFailed, match="HF_HUB_OFFLINE is set"):
        await pulled(cache)
    shutil.rmtree(tmp_path / "hf")
    shared(tmp_path, {NAME: BODY, "README.md": b"# tiny"})
    assert (await pulled(cache)).path.read_bytes() == BODY
    assert hub.asked == []


async def test_what_nothing_stands_for_any_more_is_reclaimed(hub: Hub, cache: Path) -> None:
    """When a reference comes to mean a newer commit, the files of the old one go."""
    old = await pulled(cache)
    hub.repos["org/tiny"][NAME] = BODY[::-1]
    hub.commit = "f" * 40
    new = await pull(cache, REF, Heard(), limits=FAST, refresh=True)
    assert (new.commit, new.path.read_bytes()) == (hub.commit, BODY[::-1])
    assert not old.folder.parent.exists()
    assert left(cache) == [f"org/tiny/{hub.commit}/{NAME}/{NAME}"]


async def test_two_references_share_a_projector(hub: Hub, cache: Path) -> None:
    """Each model lies alone with its projector, which is got once and takes its place once."""
    hub.repos["org/tiny"] = {"a-Q4_0.gguf": BODY, "a-Q8_0.gguf": BODY[1:], "mmproj-f16.gguf": b"GGUFmm"}
    one = await pulled(cache, HubRef("org/tiny", "Q4_0"))
    two = await pulled(cache, HubRef("org/tiny", "Q8_0"))
    assert sorted(p.name for p in one.folder.iterdir()) == ["a-Q4_0.gguf", "mmproj-f16.gguf"]
    assert sorted(p.name for p in two.folder.iterdir()) == ["a-Q8_0.gguf", "mmproj-f16.gguf"]
    assert len(hub.gets("mmproj-f16.gguf")) == 1
    assert (one.folder / "mmproj-f16.gguf").samefile(two.folder / "mmproj-f16.gguf")


async def test_a_reference_is_resolved_by_a_pull(hub: Hub, cache: Path) -> None:
    """What a configuration names at a hub is pulled, with words on the way, and must have its sha256."""
    reports = Reports()
    resolver = Resolver(cache)
    path = await resolver.resolve("org/tiny:Q4_K_M", reports)
    assert path.read_bytes() == BODY
    assert reports.seen[0] == ("pulling org/tiny:Q4_K_M", None)
    assert "pulling org/tiny:Q4_K_M: " in reports.seen[1][0]
    assert reports.seen[1][0].endswith(" of 2.0 MB")
    with pytest.raises(LoadFailed, match="is not the file that is wanted: its sha256 is") as caught:
        await resolver.resolve("org/tiny:Q4_K_M", reports, "0" * 64)
    assert caught.value.permanent
    with pytest.raises(LoadFailed, match=r"has no repository org/none for us; .* nor is there a folder"):
        await resolver.resolve("org/none", reports)


async def test_a_full_disk_is_seen_before_the_first_byte(
    hub: Hub, cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that cannot fit is refused with both figures and the fix, before a byte is asked for."""
    shadow = tmp_path / "shadow"
    shadow.mkdir()
    # Imported by every Python that starts.
    (shadow / "sitecustomize.py").write_text(
        "import collections, shutil\n"
        "usage = collections.namedtuple('usage', 'total used free')\n"
        "shutil.disk_usage = lambda path: usage(10, 9, 1_000_000)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(shadow))
    with pytest.raises(
        LoadFailed, match=r"is full: org/tiny takes 2\.0 MB, 1\.0 MB are free; make room"
    ) as caught:
        await pulled(cache)
    assert caught.value.permanent
    assert hub.gets(NAME) == []
    assert left(cache) == []


def test_the_daemon_does_not_import_the_hub_library() -> None:
    """What the daemon imports to pull holds neither huggingface-hub nor its HTTP client."""
    names = ("huggingface_hub", "httpx2")
    code = f"import sys, modeld.library.pull.client; print([name for name in {names} if name in sys.modules])"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "[]"
