from __future__ import annotations

import asyncio
import hashlib
from pathlib import Path
from typing import Any

import aiohttp
import openai
import pytest

from modeld.jobs.batches import keeper
from modeld.jobs.files.limits import FileLimits
from modeld.store.files import Files
from tests.component.jobs.batches_served import chats, client_of, serving
from tests.component.jobs.served import WAIT_S
from tests.fakes.clock import FakeClock

DAY = 86_400


async def test_a_file_comes_back_as_it_was_sent(tmp_path: Path) -> None:
    """Byte for byte, with its name and checksum, also one that is larger than any other body may be."""
    data = bytes(range(256)) * 20_000
    async with serving(tmp_path, max_request_body=1000) as api:
        file = await api.client.files.create(file=("größe ½.bin", data), purpose="user_data")
        assert (file.bytes, file.filename, file.purpose) == (len(data), "größe ½.bin", "user_data")
        assert (file.object, file.status, file.expires_at) == ("file", "processed", None)
        assert file.to_dict()["sha256"] == hashlib.sha256(data).hexdigest()
        assert await api.client.files.retrieve(file.id) == file
        assert (await api.client.files.content(file.id)).content == data
        headers = {"range": "bytes=255-257"}
        async with api.http.get(f"{api.url}/v1/files/{file.id}/content", headers=headers) as response:
            assert (response.status, await response.read()) == (206, b"\xff\x00\x01")
            assert response.headers["x-content-type-options"] == "nosniff"


async def test_files_are_private_and_nothing_else_lies_beside_them(tmp_path: Path) -> None:
    """0600 in a folder of 0700; a deleted one is gone from the disk."""
    async with serving(tmp_path) as api:
        file = await api.upload(b"x")
        assert api.folder.stat().st_mode & 0o777 == 0o700
        [entry] = api.folder.iterdir()
        assert (entry.name, entry.stat().st_mode & 0o777) == (file.id, 0o600)
        gone = await api.client.files.delete(file.id)
        assert (gone.id, gone.deleted) == (file.id, True)
        assert not list(api.folder.iterdir())
        with pytest.raises(openai.NotFoundError, match="No such File object"):
            await api.client.files.retrieve(file.id)


async def test_files_are_listed_page_by_page(tmp_path: Path) -> None:
    """In either order, of one purpose or of all."""
    async with serving(tmp_path) as api:
        made = [(await api.upload(b"x", purpose="vision" if at % 2 else "batch")).id for at in range(6)]
        assert [file.id async for file in api.client.files.list(limit=2)] == made[::-1]
        assert [file.id async for file in api.client.files.list(limit=4, order="asc")] == made
        assert [file.id async for file in api.client.files.list(purpose="vision", limit=1)] == made[5::-2]
        for query in ({"limit": 0}, {"limit": 10_001}, {"order": "up"}, {"after": "file-x"}):
            async with api.http.get(f"{api.url}/v1/files", params=query) as response:
                assert response.status == 400
                assert (await response.json())["error"]["param"] in query


async def test_files_are_their_callers(tmp_path: Path) -> None:
    """Nobody sees, reads or deletes another's, nor does it count against them."""
    async with serving(tmp_path, keys=("one", "two"), files=FileLimits(together=10)) as api:
        file = await api.upload(b"123456789")
        async with client_of(api.url, "two") as other:
            assert [one async for one in other.files.list()] == []
            for act in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError):
                    await act(file.id)
            await other.files.create(file=b"123456789", purpose="batch")
        assert (await api.client.files.content(file.id)).content == b"123456789"


async def test_there_are_limits(tmp_path: Path) -> None:
    """413 for a file that is too large, announced or not, and for one too many; none leaves anything."""

    async def unannounced(size: int) -> Any:
        async def pieces() -> Any:
            yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n'
            for _ in range(size // 1000):
                yield b"z" * 1000
            yield b"\r\n--x--\r\n"

        kind = {"content-type": "multipart/form-data; boundary=x"}
        async with api.http.post(f"{api.url}/v1/files", data=pieces(), headers=kind) as response:
            return response.status, (await response.json())["error"]["code"]

    async with serving(tmp_path, files=FileLimits(largest=50_000, together=90_000)) as api:
        with pytest.raises(openai.APIStatusError, match=r"files\.largest") as caught:
            await api.upload(b"z" * 50_001)
        assert caught.value.status_code == 413
        with pytest.raises(openai.APIStatusError, match=r"files\.largest"):
            await api.upload(b"z" * (3 << 20))
        assert await unannounced(51_000) == (413, "file_too_large")
        await api.upload(b"z" * 50_000)
        with pytest.raises(openai.APIStatusError, match=r"files\.together") as caught:
            await api.upload(b"z" * 40_001)
        assert caught.value.status_code == 413
        await api.upload(b"z" * 40_000)
        assert len(list(api.folder.iterdir())) == await api.rows("file") == 2


async def test_files_expire(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch's input after 30 days, others when they ask for it; then they are gone from the disk too."""
    monkeypatch.setattr(keeper, "SWEEP_S", 0.01)
    clock = FakeClock()
    async with serving(tmp_path, clock=clock) as api:
        batch = await api.upload(b"1")
        kept = await api.upload(b"2", purpose="assistants")
        brief = await api.upload(b"3", expires_after={"anchor": "created_at", "seconds": 3600})
        assert batch.expires_at == batch.created_at + 30 * DAY
        assert kept.expires_at is None
        assert brief.expires_at == brief.created_at + 3600
        clock.advance(3600)
        with pytest.raises(openai.NotFoundError):
            await api.client.files.content(brief.id)
        clock.advance(30 * DAY)
        async with asyncio.timeout(WAIT_S):
            while {entry.name for entry in api.folder.iterdir()} != {kept.id}:
                await asyncio.sleep(0.002)
        assert [file.id async for file in api.client.files.list()] == [kept.id]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"purpose": "batch"}, "file"),
        ({"file": b"x"}, "purpose"),
        ({"file": b"x", "purpose": "other"}, "purpose"),
        ({"file": b"x", "purpose": "batch", "expires_after[seconds]": "3600"}, "expires_after.anchor"),
        (
            {"file": b"x", "purpose": "batch", "expires_after[anchor]": "created_at"},
            "expires_after.seconds",
        ),
        (
            {
                "file": b"x",
                "purpose": "batch",
                "expires_after[anchor]": "created_at",
                "expires_after[seconds]": "3599",
            },
            "expires_after.seconds",
        ),
        ({"file": b"x", "purpose": "x" * 5000}, "purpose"),
        ({"other": b"x", "purpose": "batch"}, "file"),
    ],
)
async def test_a_form_that_is_wrong_is_refused(tmp_path: Path, fields: dict[str, Any], param: str) -> None:
    """With the field; nothing is left of its file."""
    form = aiohttp.FormData(default_to_multipart=True)
    for name, value in fields.items():
        if isinstance(value, bytes):
            form.add_field(name, value, filename="f")
        else:
            form.add_field(name, value)
    async with serving(tmp_path) as api:
        async with api.http.post(f"{api.url}/v1/files", data=form) as response:
            assert response.status in (400, 413)
            assert (await response.json())["error"]["param"] == param
        assert not list(api.folder.iterdir())
        assert await api.rows("file") == 0


async def test_a_body_that_is_no_form_is_refused(tmp_path: Path) -> None:
    """Of another type, or broken off."""
    async with serving(tmp_path) as api:
        async with api.http.post(f"{api.url}/v1/files", json={}) as response:
            assert response.status == 415
        kind = {"content-type": "multipart/form-data; boundary=x"}
        broken = b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\nabc'
        async with api.http.post(f"{api.url}/v1/files", data=broken, headers=kind) as response:
            assert response.status == 400
        assert not list(api.folder.iterdir())


async def test_an_upload_whose_client_leaves_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it is read and while it is stored: nothing is left of it."""
    entered = asyncio.Event()

    async def slow(self: Files, file: Any, most: int, token: Any) -> None:
        entered.set()
        await asyncio.Event().wait()

    async with serving(tmp_path) as api:
        monkeypatch.setattr(Files, "add", slow)
        upload = asyncio.ensure_future(api.upload(b"x" * 100_000))
        async with asyncio.timeout(WAIT_S):
            await entered.wait()
        upload.cancel()
        await asyncio.wait({upload})
        async with asyncio.timeout(WAIT_S):
            while list(api.folder.iterdir()):
                await asyncio.sleep(0.002)

        sent = asyncio.Event()

        async def pieces() -> Any:
            yield b'--x\r\ncontent-disposition: form-data; name="file"; filename="f"\r\n\r\n' + b"z" * 5000
            sent.set()
            await asyncio.Event().wait()

        kind = {"content-type": "multipart/form-data; boundary=x"}
        left = asyncio.ensure_future(api.http.post(f"{api.url}/v1/files", data=pieces(), headers=kind))
        async with asyncio.timeout(WAIT_S):
            await sent.wait()
            while not list(api.folder.iterdir()):
                await asyncio.sleep(0.002)
        left.cancel()
        await asyncio.wait({left})
        async with asyncio.timeout(WAIT_S):
            while list(api.folder.iterdir()):
                await asyncio.sleep(0.002)


async def test_a_full_disk_is_told_as_such(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """503, worth another try."""
    from modeld.jobs.files.shelf import Part

    def full(self: Part, data: bytes) -> None:
        raise OSError(28, "No space left on device")

    async with serving(tmp_path) as api:
        monkeypatch.setattr(Part, "write", full)
        with pytest.raises(openai.InternalServerError, match="the disk is full") as caught:
            await api.upload(b"x")
        assert caught.value.status_code == 503
        assert not list(api.folder.iterdir())


async def test_a_damaged_input_is_found_out(tmp_path: Path) -> None:
    """A batch checks its input against the checksum of the upload."""
    async with serving(tmp_path) as api:
        file = await api.upload(chats(2))
        (api.folder / file.id).write_bytes(chats(3))
        batch = await api.client.batches.create(
            input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
        )
        batch = await api.over(batch)
        assert batch.errors is not None
        assert batch.errors.data is not None
        assert [one.code for one in batch.errors.data] == ["damaged_file"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "files"),
        ("GET", "files"),
        ("GET", "files/x"),
        ("GET", "files/x/content"),
        ("DELETE", "files/x"),
        ("POST", "batches"),
        ("GET", "batches"),
        ("GET", "batches/x"),
        ("POST", "batches/x/cancel"),
    ],
)
async def test_every_route_is_behind_the_edge(tmp_path: Path, method: str, path: str) -> None:
    """No key, a wrong key, a foreign name of this machine, a foreign web page that would change something."""
    async with serving(tmp_path, keys=("one",)) as api:
        good = {"authorization": "Bearer one"}
        tries: list[tuple[dict[str, str], int]] = [
            ({}, 401),
            ({"authorization": "Bearer two"}, 401),
            ({**good, "host": "evil.example"}, 403),
        ]
        if method != "GET":
            tries.append(({**good, "origin": "https://evil.example"}, 403))
        for headers, status in tries:
            url = f"{api.url}/v1/{path}"
            async with api.http.request(method, url, json={}, headers=headers) as response:
                assert response.status == status


async def test_a_file_that_is_sent_again_by_its_name_is_there_once(tmp_path: Path) -> None:
    """However often its client sends it, also at the same moment, when no more would go in, and in a later
    life; forms differ in how they are written. Another file by the same name is a conflict.
    """
    name = {"Idempotency-Key": "k1"}
    limits = FileLimits(together=10)
    async with serving(tmp_path, keys=("one", "two"), files=limits) as api:
        made = await asyncio.gather(*(api.upload(b"123456", extra_headers=name) for _ in range(8)))
        assert len({file.id for file in made}) == 1
        assert [entry.name for entry in api.folder.iterdir()] == [made[0].id]
        for data, more in (
            (b"654321", {}),
            (b"123456", {"purpose": "vision"}),
            (b"123456", {"expires_after": {"anchor": "created_at", "seconds": 3600}}),
        ):
            with pytest.raises(openai.ConflictError, match="'k1' was used before") as caught:
                await api.upload(data, extra_headers=name, **more)
            assert caught.value.code == "idempotency_key_reused"
            assert caught.value.response.headers["x-should-retry"] == "false"
        with pytest.raises(openai.BadRequestError, match="Idempotency-Key"):
            await api.upload(b"1", extra_headers={"Idempotency-Key": "x" * 256})
        assert len(list(api.folder.iterdir())) == await api.rows("file") == 1
        async with client_of(api.url, "two") as other:
            theirs = await other.files.create(file=b"654321", purpose="batch", extra_headers=name)
            assert theirs.id != made[0].id
    async with serving(tmp_path, keys=("one", "two"), files=limits) as api:
        again = await api.upload(b"123456", extra_headers=name)
        assert again == made[0]
        await api.client.files.delete(again.id)
        fresh = await api.upload(b"654321", extra_headers=name)
        assert fresh.id != again.id


async def test_the_name_of_a_file_that_has_expired_is_free_again(tmp_path: Path) -> None:
    """Although it has not been cleared away yet."""
    clock, name = FakeClock(), {"Idempotency-Key": "k1"}
    async with serving(tmp_path, clock=clock) as api:
        first = await api.upload(b"1", extra_headers=name)
        clock.advance(30 * DAY)
        assert (await api.upload(b"2", extra_headers=name)).id != first.id
        assert await api.rows("file") == 2


async def test_a_file_whose_client_leaves_while_it_is_stored_is_not_told_to_another_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second try waits until the first is taken back, and stores its own."""
    entered, add = asyncio.Event(), Files.add

    async def stuck(self: Files, *args: Any) -> Any:
        added = await add(self, *args)
        if entered.is_set():
            return added
        entered.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(Files, "add", stuck)
    name = {"Idempotency-Key": "k1"}
    async with serving(tmp_path) as api:
        first = asyncio.ensure_future(api.upload(b"1", extra_headers=name))
        async with asyncio.timeout(WAIT_S):
            await entered.wait()
        second = asyncio.ensure_future(api.upload(b"1", extra_headers=name))
        first.cancel()
        file = await second
        assert (await api.client.files.content(file.id)).content == b"1"
        assert [entry.name for entry in api.folder.iterdir()] == [file.id]
