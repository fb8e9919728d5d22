from __future__ import annotations

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import StartupError, StoreFailed
from modeld.responses.sealed import Seal

IDENTITIES = st.text(max_size=20)


@pytest.fixture(scope="module")
def seal(tmp_path_factory: pytest.TempPathFactory) -> Seal:
    """Give one machine's seal."""
    return Seal(tmp_path_factory.mktemp("state") / "seal.key")


@given(text=st.text(max_size=500), identity=IDENTITIES)
def test_what_is_sealed_opens_for_the_same_caller(seal: Seal, text: str, identity: str) -> None:
    """Any text comes back whole; sealed, it holds URL-safe characters only and is never the same twice."""
    sealed = seal.seal("reasoning", text, identity)
    assert seal.open("reasoning", sealed, identity) == text
    assert set(sealed) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_")
    assert sealed != seal.seal("reasoning", text, identity)


@given(text=st.text(max_size=50), data=st.data())
def test_any_change_is_noticed(seal: Seal, text: str, data: st.DataObject) -> None:
    """With one character replaced, dropped or added anywhere, nothing opens."""
    sealed = seal.seal("reasoning", text, "a")
    at = data.draw(st.integers(0, len(sealed) - 1))
    # What is drawn must not depend on the sealed text, which is another each time.
    drawn, spare = data.draw(st.permutations("AB_-z09=+ é\n").map(lambda order: order[:2]))
    other = spare if drawn == sealed[at] else drawn
    length = data.draw(st.integers(0, len(sealed) - 1))
    for changed in (
        sealed[:at] + other + sealed[at + 1 :],
        sealed[:at] + other + sealed[at:],
        sealed[:length],
        sealed + other,
        sealed + "\n",
    ):
        with pytest.raises(ValueError, match="not made here"):
            seal.open("reasoning", changed, "a")


@given(junk=st.one_of(st.text(), st.binary(max_size=80).map(lambda raw: raw.hex())))
def test_rubbish_is_refused(seal: Seal, junk: str) -> None:
    """Nothing that a caller makes up is anything but a ValueError."""
    with pytest.raises(ValueError, match="not made here"):
        seal.open("reasoning", junk, "a")


def test_another_caller_purpose_or_machine_cannot_open_it(seal: Seal, tmp_path: Path) -> None:
    """The identity, the kind and the key are bound to what is sealed, and are not taken for each other."""
    sealed = seal.seal("reasoning", "secret", "alice")
    for kind, identity in (
        ("reasoning", "bob"),
        ("compaction", "alice"),
        ("reasoningalice", ""),
        ("", "alice"),
    ):
        with pytest.raises(ValueError, match="not made here"):
            seal.open(kind, sealed, identity)
    with pytest.raises(ValueError, match="not made here"):
        Seal(tmp_path / "seal.key").open("reasoning", sealed, "alice")


def test_the_key_is_made_at_first_use_and_kept(tmp_path: Path) -> None:
    """No file until something is sealed; then one that only its owner can read, and that lasts."""
    path = tmp_path / "seal.key"
    first = Seal(path)
    first.check()
    assert not path.exists()
    sealed = first.seal("reasoning", "text", "a")
    assert path.stat().st_mode & 0o7777 == 0o600
    assert os.listdir(tmp_path) == ["seal.key"]
    assert Seal(path).open("reasoning", sealed, "a") == "text"
    Seal(path).check()


def test_two_that_make_the_key_at_once_have_the_same(tmp_path: Path) -> None:
    """However many begin together, one key is made, and each can open what the others sealed."""
    path, many = tmp_path / "seal.key", 8
    barrier = threading.Barrier(many)

    def begin(number: int) -> tuple[Seal, str]:
        seal = Seal(path)
        barrier.wait()
        return seal, seal.seal("k", str(number), "a")

    with ThreadPoolExecutor(many) as threads:
        made = list(threads.map(begin, range(many)))
    assert os.listdir(tmp_path) == ["seal.key"]
    for seal, _ in made:
        assert [seal.open("k", sealed, "a") for _, sealed in made] == [str(number) for number in range(many)]


@pytest.mark.parametrize("cut", ["empty", "half", "flipped", "longer", "other"])
def test_a_damaged_key_file_is_an_error_and_stays(tmp_path: Path, cut: str) -> None:
    """It is never replaced by a new key, and the message names the file and the way out."""
    path = tmp_path / "seal.key"
    Seal(path).seal("k", "text", "a")
    whole = path.read_bytes()
    at = 20
    damaged = {
        "empty": b"",
        "half": whole[: len(whole) // 2],
        "flipped": whole[:at] + (b"0" if whole[at : at + 1] != b"0" else b"1") + whole[at + 1 :],
        "longer": whole * 2,
        "other": os.urandom(32),
    }[cut]
    path.write_bytes(damaged)
    with pytest.raises(StartupError, match=r"seal\.key is damaged.*delete it"):
        Seal(path).check()
    with pytest.raises(StoreFailed, match="is damaged"):
        Seal(path).seal("k", "text", "a")
    assert path.read_bytes() == damaged


def test_what_is_no_file_is_an_error(tmp_path: Path) -> None:
    """A pipe or a folder in its place is refused, and nobody waits for it."""
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name in ("folder", "pipe"):
        with pytest.raises(StartupError, match=name):
            Seal(tmp_path / name).check()


def test_a_place_that_takes_no_file_is_a_failing_store(tmp_path: Path) -> None:
    """Where the key cannot be made, the error says where and why, and nothing is given out."""
    with pytest.raises(StoreFailed, match=r"none/seal\.key: No such file or directory"):
        Seal(tmp_path / "none" / "seal.key").seal("k", "text", "a")


def test_a_key_file_open_to_others_is_closed(tmp_path: Path) -> None:
    """A copy that came back with wider modes is narrowed, and used."""
    path = tmp_path / "seal.key"
    sealed = Seal(path).seal("k", "text", "a")
    path.chmod(0o644)
    assert Seal(path).open("k", sealed, "a") == "text"
    assert path.stat().st_mode & 0o7777 == 0o600


async def test_it_can_be_made_ready_beside_the_loop(tmp_path: Path) -> None:
    """After `ready` the key is there; a place where it cannot be is an error then."""
    seal = Seal(tmp_path / "seal.key")
    await seal.ready()
    assert (tmp_path / "seal.key").exists()
    with pytest.raises(StoreFailed):
        await Seal(tmp_path / "none" / "seal.key").ready()


def test_the_cipher_is_imported_when_it_is_needed() -> None:
    """A daemon that never seals anything does not pay for the library."""
    program = "import sys, modeld.responses.sealed; sys.exit('cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0
