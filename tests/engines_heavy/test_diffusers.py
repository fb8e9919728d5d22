"""The diffusers loader on a real pipeline with random weights: through a worker process, and the daemon."""

from __future__ import annotations

import base64
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from PIL import Image

from modeld.errors import BadRequest, LoadFailed
from modeld.hardware import host
from modeld.protocol.tasks import ChatTask, ImageFormat, ImageTask, Message, Picture, Step, Task, Usage
from tests.harness.daemon import running
from tests.harness.drawn import bad_files, file, opened, pictures, previews
from tests.harness.loaded import Loaded, loaded
from tests.harness.models_diffusers import diffusers_model

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

SHORT = ImageTask(prompt="a cat", steps=3, seed=5, width=64, height=48)


@pytest.fixture(scope="session")
def model() -> Path:
    """Give the tiny model's folder, built once for all runs."""
    return diffusers_model()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it(model: Path) -> AsyncIterator[Loaded]:
    """Give one worker to all tests that leave it well: starting torch takes seconds."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with loaded(Path(folder), model, "diffusers", "image", torch_dtype="float16") as one:
            yield one


async def test_it_tells_what_it_really_uses(it: Loaded) -> None:
    """Loading ends at 1; float16, which is not for the CPU, is said to be float32."""
    assert it.stages[-1][1] == 1.0
    assert it.facts.device == "cpu"
    assert it.facts.detail["engine"].startswith("diffusers ")
    assert it.facts.detail["dtype"] == "float32"
    await it.logged("float32 is used")


async def test_it_draws_what_was_asked_for_with_progress(it: Loaded) -> None:
    """Size and count are kept, steps grow to 1, previews come first, seeds count on, usage ends the call."""
    task = ImageTask(prompt="a cat", n=2, steps=6, seed=41, previews=2, width=72, height=40)
    events = await it.ask(task)
    assert [opened(one.data).size for one in pictures(events)] == [(72, 40)] * 2
    assert [(one.index, one.seed) for one in pictures(events)] == [(0, 41), (1, 42)]
    fractions = [event.fraction for event in events if isinstance(event, Step)]
    assert len(fractions) == 12
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    previews = [event for event in events if isinstance(event, Picture) and event.preview is not None]
    assert [(one.index, one.preview) for one in previews] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {opened(one.data).size for one in previews} == {(72, 40)}
    assert isinstance(events[-1], Usage)
    assert events[-1].prompt_tokens > 4
    assert events[-1].completion_tokens == 12


async def test_the_same_seed_draws_the_same_and_everything_else_counts(it: Loaded) -> None:
    """Picture i of n is what its own seed draws alone; every other field makes another picture."""

    async def drawn(**fields: Any) -> list[bytes]:
        task = ImageTask(**{"prompt": "a cat", "steps": 3, "seed": 5, "width": 64, "height": 48, **fields})
        return [one.data for one in pictures(await it.ask(task))]

    first, second = await drawn(n=2)
    assert await drawn() == [first]
    assert await drawn(seed=6) == [second]
    others: list[dict[str, Any]] = [
        {"prompt": "a dog"},
        {"seed": 7},
        {"steps": 4},
        {"guidance": 2.0},
        {"negative_prompt": "dogs"},
    ]
    for other in others:
        assert (await drawn(**other))[0] not in (first, second), other
    seeds = {one.seed for _ in range(2) for one in pictures(await it.ask(ImageTask(prompt="x", steps=1)))}
    assert len(seeds) == 2


@pytest.mark.parametrize("form", ["jpeg", "webp"])
async def test_pictures_and_previews_come_in_the_format_asked_for(it: Loaded, form: ImageFormat) -> None:
    """Each is a file of that format; less quality is a smaller file."""
    sizes = []
    for quality in (10, 100):
        events = await it.ask(
            ImageTask(
                prompt="x", steps=2, seed=1, width=64, height=48, previews=1, format=form, quality=quality
            )
        )
        (one,), (preview,) = pictures(events), previews(events)
        assert opened(one.data, form).size == opened(preview.data, form).size == (64, 48)
        sizes.append(len(one.data))
    assert sizes[0] < sizes[1]


async def test_edits_draw_where_the_mask_says_and_nowhere_else(it: Loaded) -> None:
    """White or transparent is drawn on, the rest is kept; a picture with holes is its own mask."""
    red = Image.new("RGB", (64, 48), "red")
    white = Image.new("L", (64, 48), 0)
    white.paste(255, (0, 0, 32, 48))
    holes = Image.new("RGBA", (64, 48), "red")
    holes.paste((0, 0, 0, 0), (0, 0, 32, 48))
    tasks = [
        ImageTask(prompt="x", steps=3, seed=1, image=file(red), mask=file(white)),
        ImageTask(prompt="x", steps=3, seed=1, image=file(red, "JPEG"), mask=file(holes)),
        ImageTask(prompt="x", steps=3, seed=1, image=file(holes)),
    ]
    for task in tasks:
        (one,) = pictures(await it.ask(task))
        result = opened(one.data).convert("RGB")
        assert result.size == (64, 48)
        kept = result.crop((32, 0, 64, 48)).getextrema()
        assert all(
            abs(found - meant) <= 2 for band, meant in zip(kept, (255, 0, 0), strict=True) for found in band
        )
        assert max(high - low for low, high in result.crop((0, 0, 32, 48)).getextrema()) > 10


async def test_variations_go_as_far_as_they_are_told(it: Loaded) -> None:
    """A picture gives another one of its size or of that asked for; strength is a share of the steps."""
    photo = file(Image.new("RGB", (67, 50), "blue"), "WEBP")
    (one,) = pictures(await it.ask(ImageTask(image=photo, steps=4, seed=1)))
    assert opened(one.data).size == (64, 48)
    (one,) = pictures(await it.ask(ImageTask(image=photo, steps=4, seed=1, width=96, height=32)))
    assert opened(one.data).size == (96, 32)
    events = await it.ask(ImageTask(image=photo, steps=10, strength=0.3))
    assert len([event for event in events if isinstance(event, Step)]) == 3


async def test_bad_pictures_are_the_callers_fault_and_the_worker_lives(it: Loaded) -> None:
    """Nothing, a web page, half a file, a bomb and another kind of file are BadRequest before any step."""
    good = file(Image.new("L", (64, 48)))
    before = host.tree_memory(it.worker.pid)
    for data, code in bad_files():
        tries: list[dict[str, Any]] = [{"image": data}, {"image": good, "mask": data}]
        for fields in tries:
            with pytest.raises(BadRequest) as caught:
                await it.ask(ImageTask(prompt="x", steps=2, **fields))
            assert (caught.value.code, caught.value.param) == (code, list(fields)[-1])
    assert host.tree_memory(it.worker.pid) < before + (100 << 20)
    assert len(pictures(await it.ask(SHORT))) == 1


@pytest.mark.parametrize(
    ("task", "param"),
    [
        (ChatTask(messages=(Message(role="user", content="hi"),)), None),
        (ImageTask(prompt="x", width=60, height=64), "size"),
        (ImageTask(prompt="x", width=8192, height=64), "size"),
        (ImageTask(prompt="x", negative_prompt="y", guidance=1.0), "negative_prompt"),
        (ImageTask(prompt="x", strength=0.5), "strength"),
        (ImageTask(prompt="x", mask=b"x"), "mask"),
        (
            ImageTask(prompt="x", image=file(Image.new("L", (64, 64))), mask=file(Image.new("L", (32, 64)))),
            "mask",
        ),
        (ImageTask(prompt="x", image=file(Image.new("L", (64, 64))), steps=2, strength=0.1), "strength"),
    ],
)
async def test_a_bad_task_is_the_callers_fault(it: Loaded, task: Task, param: str | None) -> None:
    """What the model cannot do is BadRequest with the field's name; the next call is answered."""
    with pytest.raises(BadRequest) as caught:
        await it.ask(task)
    assert caught.value.param == param
    assert len(pictures(await it.ask(SHORT))) == 1


async def test_a_model_that_cannot_load_is_refused_for_good(model: Path, short_dir: Path) -> None:
    """No folder of the kind, a broken file in it and a type nobody knows: permanent, in words."""
    broken = short_dir / "broken"
    shutil.copytree(model, broken)
    weights = broken / "unet" / "diffusion_pytorch_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    wrong: list[tuple[Path, dict[str, Any], str]] = [
        (short_dir, {}, "model_index.json"),
        (weights, {}, "is one file"),
        (broken, {}, "cannot load|broken"),
        (model, {"torch_dtype": "int3"}, "int3"),
        (model, {"offload": "sideways"}, "sideways"),
    ]
    for path, options, words in wrong:
        with pytest.raises(LoadFailed, match=words) as caught:
            async with loaded(short_dir, path, "diffusers", "image", **options):
                pass
        assert caught.value.permanent


async def test_the_stock_sdk_draws_through_the_daemon(model: Path, short_dir: Path) -> None:
    """Generation, edit, variation, stream and link, each a real PNG of the size asked for."""
    entry = {
        "name": "paint",
        "model": str(model),
        "usecase": "image",
        "loader": "diffusers",
        "num_gpus": 0,
        "diffusers_config": {"num_inference_steps": 3},
    }
    # Named here, the interpreter runs the worker in the way of an engine with an environment of its own.
    engines = {"diffusers": {"python": sys.executable}}
    async with running(short_dir, {"models": [entry], "engines": engines}) as daemon:
        await daemon.until("paint", "ready")
        async with openai.AsyncOpenAI(
            base_url=f"{daemon.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client:
            answer = await client.images.generate(model="paint", prompt="a cat", n=2, size="64x48")
            assert answer.data is not None
            files = [base64.b64decode(one.b64_json or "") for one in answer.data]
            assert [opened(data).size for data in files] == [(64, 48)] * 2
            edited = await client.images.edit(model="paint", prompt="a dog", image=files[0], size="32x64")
            assert edited.data is not None
            assert opened(base64.b64decode(edited.data[0].b64_json or "")).size == (32, 64)
            linked = await client.images.generate(
                model="paint", prompt="a cat", size="64x64", response_format="url"
            )
            assert linked.data is not None
            raw = await client.get(linked.data[0].url or "", cast_to=bytes)
            assert opened(raw).size == (64, 64)
            stream = await client.images.generate(
                model="paint", prompt="a cat", size="64x64", stream=True, partial_images=1
            )
            seen = [(event.type, opened(base64.b64decode(event.b64_json)).size) async for event in stream]
            assert seen == [
                ("image_generation.partial_image", (64, 64)),
                ("image_generation.completed", (64, 64)),
            ]
            with pytest.raises(openai.BadRequestError) as caught:
                await client.images.edit(model="paint", prompt="x", image=b"<html>")
            assert caught.value.code == "invalid_image"
