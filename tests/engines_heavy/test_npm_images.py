"""`openai` for npm: pictures from a real engine; images.mjs beside the other npm scripts makes the calls."""

from __future__ import annotations

import base64
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from modeld.protocol.tasks import ImageFormat
from tests.conformance import node
from tests.harness.daemon import Daemon, running
from tests.harness.drawn import opened
from tests.harness.models_sdcpp import sdcpp, sdcpp_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SCRIPT, MODEL = "images.mjs", "paint"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def daemon() -> AsyncIterator[Daemon]:
    """Run a daemon with stable-diffusion.cpp."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": [sdcpp(MODEL, sdcpp_model())]}) as started:
            await started.until(MODEL, "ready")
            yield started


def size(text: str, form: ImageFormat = "png") -> tuple[int, int]:
    """Return the size of a picture in base64, wholly decoded."""
    width, height = opened(base64.b64decode(text), form).size
    return width, height


async def test_pictures_in_the_answer(daemon: Daemon) -> None:
    """As many as asked for, in the size asked for, with their usage."""
    found = await node.seen(SCRIPT, daemon.url, MODEL, "base64")
    assert [size(one) for one in found["files"]] == [(32, 24)] * 2
    assert (found["size"], found["output_format"]) == ("32x24", "png")
    assert found["usage"]["output_tokens"] == 2 * 3


async def test_links_in_each_format(daemon: Daemon) -> None:
    """What a link leads to is what the answer and the content type say."""
    found = await node.seen(SCRIPT, daemon.url, MODEL, "formats")
    forms: tuple[ImageFormat, ...] = ("png", "jpeg", "webp")
    for form in forms:
        seen = found[form]
        assert (seen["named"], seen["status"], seen["type"]) == (form, 200, f"image/{form}")
        assert size(seen["file"], form) == (32, 24)


async def test_an_edit_and_a_variation(daemon: Daemon) -> None:
    """A picture that was drawn before is drawn on, and varied in another size."""
    (edited,) = await node.seen(SCRIPT, daemon.url, MODEL, "edit")
    assert size(edited) == (32, 24)
    varied = await node.seen(SCRIPT, daemon.url, MODEL, "variation")
    assert [size(one) for one in varied] == [(48, 16)] * 2
    assert varied[0] != varied[1]


async def test_a_stream(daemon: Daemon) -> None:
    """Unfinished pictures come first, and the finished one has the usage."""
    *partial, last = await node.seen(SCRIPT, daemon.url, MODEL, "stream")
    assert [one["type"] for one in partial] == ["image_generation.partial_image"] * 2
    assert [one["partial_image_index"] for one in partial] == [0, 1]
    assert (last["type"], last["usage"]["output_tokens"]) == ("image_generation.completed", 3)
    assert {size(one["file"]) for one in (*partial, last)} == {(32, 24)}


async def test_refusals(daemon: Daemon) -> None:
    """A size the model cannot draw and a page for a picture raise the SDK's own error, with the field."""
    found = await node.seen(SCRIPT, daemon.url, MODEL, "refusals")
    for name, code, param in (("size", "invalid_value", "size"), ("page", "invalid_image", "image")):
        seen = found[name]
        assert (seen["name"], seen["status"]) == ("BadRequestError", 400)
        assert (seen["code"], seen["param"]) == (code, param)
        assert seen["requestID"].startswith("req_")
