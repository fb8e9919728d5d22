from __future__ import annotations

import hashlib
import os
from pathlib import Path

from modeld.library import checksums
from modeld.library.checksums import Verified
from modeld.library.listing import Listing
from modeld.library.pull import record
from modeld.library.pull.record import Pulled, PulledFile
from tests.component.library.test_listing import put
from tests.unit.library.gguf_bytes import chat_model

SHA256 = hashlib.sha256(chat_model()).hexdigest()


async def test_what_a_file_was_pulled_with_is_known_without_reading_it(tmp_path: Path, cache: Path) -> None:
    """Whatever it holds now; reading it shows that it is another."""
    path = put(cache / "hub/org/m/abc1234/m.gguf/m.gguf")
    file = PulledFile("m.gguf", len(chat_model()), SHA256)
    record.keep(cache, Pulled("org/m", None, "abc1234", "gguf", (file,), None, path.parent), tmp_path)
    entry = await Listing(None).look(path)
    assert checksums.told(cache, entry) == {"m.gguf": SHA256}
    assert checksums.verify(cache, entry) == Verified({"m.gguf": SHA256})
    path.write_bytes(bytes(len(chat_model())))
    assert checksums.told(cache, entry) == {"m.gguf": SHA256}
    (wrong,) = checksums.verify(cache, entry).wrong
    assert "is damaged: its sha256 is" in wrong
    assert f"it was pulled with {SHA256}" in wrong


async def test_what_was_read_once_is_known_until_the_file_changes(tmp_path: Path, cache: Path) -> None:
    """Bytes that change while size and time do not are found out; a changed file is simply another."""
    path = put(tmp_path / "m.gguf")
    entry = await Listing(None).look(path)
    assert checksums.told(cache, entry) == {}
    heard: list[int] = []
    assert checksums.verify(cache, entry, heard.append) == Verified({"m.gguf": SHA256})
    assert sum(heard) == len(chat_model())
    assert checksums.told(cache, entry) == {"m.gguf": SHA256}
    times = os.stat(path)
    path.write_bytes(bytes(len(chat_model())))
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert "its size and time are those of then" in checksums.verify(cache, entry).wrong[0]
    os.utime(path, ns=(0, 0))
    assert checksums.told(cache, entry) == {}
    assert not checksums.verify(cache, entry).wrong


async def test_what_is_kept_of_sums_may_be_damaged(tmp_path: Path, cache: Path) -> None:
    """Then it is made afresh, and a file that has gone is told."""
    entry = await Listing(None).look(put(tmp_path / "m.gguf"))
    put(cache / checksums.NAME, b"\xff\xff")
    assert checksums.told(cache, entry) == {}
    assert checksums.verify(cache, entry).sha256 == checksums.told(cache, entry) == {"m.gguf": SHA256}
    os.unlink(tmp_path / "m.gguf")
    assert checksums.told(cache, entry) == {}
    assert "cannot be read: No such file" in checksums.verify(cache, entry).wrong[0]
