"""Pictures: what a request may say, and what is made of the engine's events."""

from __future__ import annotations

import base64
import json
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError
from modeld.gateway.families.images import request as requests
from modeld.gateway.families.images.response import ImageChunks, ImageCollector, measured
from modeld.gateway.multipart import Form, Upload
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import Event, ImageFormat, ImageTask, Picture, Step, Usage
from tests.harness.pictures import gif, jpeg_head, webp_head

LIMITS = MediaLimits()


def png(width: int, height: int, mark: bytes = b"") -> bytes:
    """Return what begins like a PNG file of that size."""
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I4sII", 13, b"IHDR", width, height) + mark


def _read(kind: requests.Kind = "generation", **fields: Any) -> ImageTask:
    body = {"model": "paint", "prompt": "a cat", **fields}
    return requests.to_task(requests.read(msgspec.json.encode(body)), kind, LIMITS)


@given(st.integers(1, 700), st.integers(1, 700))
def test_a_size_is_taken_as_it_is_or_refused(width: int, height: int) -> None:
    """Multiples of 8 from 16 on are passed on unchanged; anything else is a 400 that names the field."""
    fits = not width % 8 and not height % 8 and min(width, height) >= 16
    if fits:
        task = _read(size=f"{width}x{height}")
        assert (task.width, task.height) == (width, height)
    else:
        with pytest.raises(BadRequest) as caught:
            _read(size=f"{width}x{height}")
        assert caught.value.param == "size"


@pytest.mark.parametrize(
    "size", ["", "512", "512X512", "512x512x512", "-8x8", "8.0x16", "4104x512", "4096x4104"]
)
def test_what_is_no_size_is_refused(size: str) -> None:
    """Words that are no size, and sizes over the limits, are 400 with the param."""
    with pytest.raises(BadRequest) as caught:
        _read(size=size)
    assert caught.value.param == "size"


@pytest.mark.parametrize("size", ["auto", None])
def test_no_size_leaves_it_to_the_model(size: str | None) -> None:
    """`auto` and nothing are the same."""
    task = _read(size=size)
    assert (task.width, task.height) == (None, None)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("n", 0),
        ("n", 11),
        ("response_format", "png"),
        ("output_format", "gif"),
        ("output_compression", 50),
        ("output_compression", 101),
        ("quality", "hd"),
        ("quality", "low"),
        ("style", "vivid"),
        ("background", "transparent"),
        ("moderation", "strict"),
        ("input_fidelity", "high"),
        ("seed", -1),
        ("steps", 0),
        ("strength", 0.5),
        ("partial_images", 2),
        ("progress", True),
        ("prompt", ""),
        ("prompt", "x" * 32_001),
        ("cfg_scale", 7),
        ("num_inference_steps", 3),
    ],
)
def test_what_cannot_be_honoured_is_refused(field: str, value: Any) -> None:
    """No field is dropped in silence: a value that changes nothing, and an unknown name, are 400s."""
    with pytest.raises(BadRequest) as caught:
        _read(**{field: value})
    assert caught.value.param == field


def test_all_fields_reach_the_task() -> None:
    """What is honoured is passed on as it is."""
    assert _read(
        n=3, size="256x320", seed=7, steps=4, guidance_scale=2.5, negative_prompt="dogs", user="u",
        quality="auto", background="opaque", moderation="low", output_format="png", stream=True,
        partial_images=2,
    ) == ImageTask(
        prompt="a cat", n=3, width=256, height=320, seed=7, steps=4, guidance=2.5, negative_prompt="dogs",
        previews=2,
    )  # fmt: skip


def test_a_stream_carries_its_pictures() -> None:
    """A stream has no links."""
    with pytest.raises(BadRequest) as caught:
        _read(stream=True, response_format="url")
    assert caught.value.param == "response_format"


def test_a_form_s_text_becomes_values() -> None:
    """Numbers and switches come as text in a form, and mean what they mean in JSON."""
    texts = {"model": "paint", "prompt": "x", "n": "2", "strength": "0.5", "stream": "true", "seed": "3"}
    form = Form({name: [text] for name, text in texts.items()})
    body = requests.read_fields(form)
    assert (body.n, body.strength, body.stream, body.seed) == (2, 0.5, True, 3)
    for form, words in (
        (Form({"model": ["a", "b"]}), "2 times"),
        (Form({"model": ["a"]}, {"photo": [Upload("a", "b", b"c")]}), "image and mask"),
    ):
        with pytest.raises(BadRequest, match=words):
            requests.read_fields(form)
    with pytest.raises(BadRequest) as caught:
        requests.read_fields(Form({"model": ["paint"], "n": ["two"]}))
    assert caught.value.param == "n"


def test_a_variation_has_no_prompt() -> None:
    """Words and a mask for a variation are refused rather than dropped."""
    with pytest.raises(BadRequest, match="whole picture"):
        requests.to_task(requests.ImageRequest(model="m"), "variation", LIMITS, b"x", b"y")
    assert requests.to_task(requests.ImageRequest(model="m"), "variation", LIMITS, b"x").prompt == ""
    with pytest.raises(BadRequest) as caught:
        _read("variation")
    assert caught.value.param == "prompt"


def _with_files(*files: bytes) -> Form:
    return Form({}, {"image": [Upload("a.png", "image/png", data) for data in files]})


def test_one_picture_is_needed_and_no_more() -> None:
    """None, several and an empty one are 400s that name the field."""
    for files in ([], [png(16, 16)] * 2, [b""]):
        with pytest.raises(BadRequest) as caught:
            requests.picture(_with_files(*files), "image", LIMITS, needed=True)
        assert caught.value.param == "image"


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"<html><body>no</body></html>", "invalid_image"),
        (png(16, 16)[:20], "invalid_image"),
        (gif(), "invalid_image"),
        (png(20_000, 20_000), "image_too_large"),
        (jpeg_head(4097, 8), "image_too_large"),
        (webp_head("VP8X", 8, 4097), "image_too_large"),
    ],
)
def test_what_its_first_bytes_show_to_be_unusable_is_refused(data: bytes, code: str) -> None:
    """A page, a beginning, another kind of file and one over the limits cost no model's time."""
    with pytest.raises(BadRequest) as caught:
        requests.picture(_with_files(data), "image", LIMITS)
    assert (caught.value.code, caught.value.param) == (code, "image")


def test_the_limits_are_those_of_the_settings() -> None:
    """Sizes asked for and pictures sent are measured by them; at the limit is within it."""
    limits = MediaLimits(image_pixels=64 * 32, image_side=64)
    assert requests.size("64x32", limits) == (64, 32)
    assert requests.picture(_with_files(png(64, 32)), "image", limits) == png(64, 32)
    for width, height, word in ((64, 40, "image_pixels"), (72, 16, "image_side")):
        with pytest.raises(BadRequest, match=word):
            requests.size(f"{width}x{height}", limits)
        with pytest.raises(BadRequest, match=word):
            requests.picture(_with_files(png(width, height)), "image", limits)


@pytest.mark.parametrize(("form", "quality"), [("jpeg", 50), ("webp", 0), ("png", 100)])
def test_the_format_reaches_the_task(form: str, quality: int) -> None:
    """So does how much of the picture the file is to keep."""
    task = _read(output_format=form, output_compression=quality)
    assert (task.format, task.quality) == (form, quality)


def _collector(n: int = 1, size: tuple[int, int] | None = None) -> ImageCollector:
    return ImageCollector(created=5, n=n, size=size, link=None)


def test_the_answer_holds_the_pictures_in_order_with_their_seeds_and_the_usage() -> None:
    """Previews and steps leave no trace in it; the size is read from the pictures."""
    collector = _collector(2, (16, 24))
    collector.add([Step(0.1), Picture(1, png(16, 24, b"b"), 8), Picture(0, png(16, 24), None, 0)])
    collector.add([Picture(0, png(16, 24, b"a"), 7), Usage(3, 8)])
    body = json.loads(collector.body())
    assert [base64.b64decode(one["b64_json"])[-1:] for one in body["data"]] == [b"a", b"b"]
    assert [one["seed"] for one in body["data"]] == [7, 8]
    assert (body["created"], body["size"]) == (5, "16x24")
    assert body["usage"] == {
        "input_tokens": 3,
        "output_tokens": 8,
        "total_tokens": 11,
        "input_tokens_details": {"text_tokens": 3, "image_tokens": 0},
    }


def test_fewer_pictures_than_asked_for_are_an_error() -> None:
    """The count is never quietly another, streamed or not."""
    collector = _collector(2)
    collector.add([Picture(0, png(16, 16)), Usage(1, 1)])
    with pytest.raises(EngineError, match="1 of 2 pictures"):
        collector.body()
    chunks = ImageChunks(family="image_edit", created=0, n=2, size=None, progress=False)
    chunks.encode([Picture(0, png(16, 16)), Usage(1, 1)])
    with pytest.raises(EngineError, match="1 of 2 pictures"):
        chunks.end()


def test_another_size_than_asked_for_is_an_error() -> None:
    """The size is never quietly another."""
    with pytest.raises(EngineError, match="16x24 in place of 24x16"):
        _collector(1, (24, 16)).add([Picture(0, png(16, 24))])


@given(st.binary(max_size=40), st.sampled_from(["png", "jpeg", "webp"]))
def test_what_is_no_picture_is_an_engine_s_error(data: bytes, form: ImageFormat) -> None:
    """Anything but a picture's header is refused, and nothing else is raised."""
    with pytest.raises(EngineError):
        measured(data, form)


def test_the_format_is_never_quietly_another() -> None:
    """Each format is measured, and taken only where it was asked for; the answer names it."""
    files: dict[ImageFormat, bytes] = {
        "png": png(24, 16),
        "jpeg": jpeg_head(24, 16),
        "webp": webp_head("VP8 ", 24, 16),
    }
    for form, data in files.items():
        assert measured(data, form) == (24, 16)
        collector = ImageCollector(created=5, n=1, size=(24, 16), link=None, form=form)
        collector.add([Picture(0, data), Usage(0, 1)])
        assert json.loads(collector.body())["output_format"] == form
        chunks = ImageChunks(family="image_edit", created=5, n=1, size=None, progress=False, form=form)
        chunks.encode([Picture(0, data), Usage(0, 1)])
        assert json.loads(chunks.end()[0].split(b"data: ")[1])["output_format"] == form
        for other in files.keys() - {form}:
            with pytest.raises(EngineError, match=f"is {form}, not {other}"):
                measured(data, other)


def test_a_stream_tells_of_steps_previews_and_pictures() -> None:
    """Every event is whole, named as in OpenAI's API; usages of the pictures add up to the call's."""
    chunks = ImageChunks(family="image_generation", created=9, n=2, size=None, progress=False)
    events: list[Event] = [
        Step(0.25),
        Picture(0, png(16, 16), None, 0),
        Picture(0, png(16, 16), 1),
        Picture(1, png(16, 16), 2),
    ]
    out = [*chunks.encode([*events, Usage(2, 8)]), *chunks.end()]
    assert all(chunk.endswith(b"\n\n") for chunk in out)
    assert out[0] == b": 25%\n\n"
    bodies = [json.loads(chunk.split(b"data: ")[1]) for chunk in out[1:]]
    assert [body["type"] for body in bodies] == ["image_generation." + kind for kind in (
        "partial_image", "completed", "completed")]  # fmt: skip
    assert bodies[0]["partial_image_index"] == 0
    assert [body["usage"]["output_tokens"] for body in bodies[1:]] == [0, 8]
    assert [body["image_index"] for body in bodies[1:]] == [0, 1]
    assert chunks.usage == Usage(2, 8)


def test_progress_is_an_event_when_asked_for() -> None:
    """Otherwise it is a comment, which SDKs pass over."""
    chunks = ImageChunks(family="image_edit", created=9, n=1, size=None, progress=True)
    (out,) = chunks.encode([Step(0.5, "drawing")])
    assert json.loads(out.split(b"data: ")[1]) == {
        "type": "image_edit.progress",
        "fraction": 0.5,
        "stage": "drawing",
    }
