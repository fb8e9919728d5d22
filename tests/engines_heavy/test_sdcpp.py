"""The stable_diffusion_cpp loader on a real engine with random weights; the contract suite has the rest."""

from __future__ import annotations

import asyncio
import base64
import os
import shutil
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx2
import openai
import psutil
import pytest
import pytest_asyncio
from PIL import Image

from modeld.errors import BadRequest, LoadFailed, WorkerDied
from modeld.hardware import host
from modeld.protocol.tasks import ChatTask, ImageFormat, ImageTask, Message, Step, Task, Usage
from tests.harness.daemon import running
from tests.harness.drawn import bad_files, file, opened, pictures, previews
from tests.harness.loaded import Loaded, loaded, rest
from tests.harness.models_sdcpp import sdcpp, sdcpp_lora, sdcpp_model, sdcpp_parts

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

LOADER = "stable_diffusion_cpp"
SHORT = ImageTask(prompt="a cat", steps=2, seed=5, width=32, height=32, guidance=1.0)
LONG = ImageTask(prompt="a cat", steps=1000, n=10, width=64, height=48)

HELD_S = 60.0
"""Less than a tenth of what LONG takes; a short call after it takes two seconds."""


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def it() -> AsyncIterator[Loaded]:
    """Give one worker to all tests that leave it well."""
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with loaded(Path(folder), sdcpp_model(), LOADER, "image", n_threads=1, cfg_scale=1.0) as one:
            yield one


def child(worker: int) -> int:
    """Return the process id of a worker's child."""
    (pid,) = (each for each in host.group_members(worker) if each != worker)
    return pid


async def test_it_tells_the_truth_about_itself(it: Loaded) -> None:
    """The engine's kind of model and step of sizes are in the facts; memory is the child's too."""
    assert it.facts.detail["engine"].startswith("stable-diffusion-cpp-python ")
    assert (it.facts.detail["model"], it.facts.device) == ("Ovis Image", "cpu")
    assert it.facts.detail["sides"] == "multiples of 8 pixels"
    assert set(it.facts.capabilities) == {"image", "image_edit"}
    assert it.facts.bytes_used > psutil.Process(child(it.worker.pid)).memory_info().rss / 2
    assert [stage for stage, _ in it.stages][-2:] == ["drawing a first small picture", "ready to draw"]


async def test_it_draws_what_was_asked_for_with_progress(it: Loaded) -> None:
    """Size and count are kept, steps grow to 1, previews come first, seeds count on, usage ends the call."""
    events = await it.ask(ImageTask(prompt="a cat", n=2, steps=6, seed=41, previews=2, width=72, height=40))
    assert [opened(one.data).size for one in pictures(events)] == [(72, 40)] * 2
    assert [(one.index, one.seed) for one in pictures(events)] == [(0, 41), (1, 42)]
    fractions = [event.fraction for event in events if isinstance(event, Step)]
    assert fractions == [pytest.approx(step / 12) for step in range(1, 13)]
    assert [(one.index, one.preview) for one in previews(events)] == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {opened(one.data).size for one in previews(events)} == {(72, 40)}
    assert events[-1] == Usage(0, 12)


async def test_the_same_seed_draws_the_same_and_everything_else_counts(it: Loaded) -> None:
    """Picture i of n is what its own seed draws alone; every other field makes another picture."""

    async def drawn(**fields: Any) -> list[bytes]:
        task = ImageTask(**{"prompt": "a cat", "steps": 2, "seed": 5, "width": 32, "height": 24, **fields})
        return [one.data for one in pictures(await it.ask(task))]

    first, second = await drawn(n=2)
    assert await drawn() == [first]
    assert await drawn(seed=6) == [second]
    others: list[dict[str, Any]] = [
        {"prompt": "a dog"},
        {"seed": 7},
        {"steps": 3},
        {"guidance": 2.0},
        {"negative_prompt": "dogs", "guidance": 2.0},
    ]
    seen = {first, second}
    for other in others:
        (one,) = await drawn(**other)
        assert one not in seen, other
        seen.add(one)


@pytest.mark.parametrize("form", ["jpeg", "webp"])
async def test_pictures_and_previews_come_in_the_format_asked_for(it: Loaded, form: ImageFormat) -> None:
    """Each is a file of that format; less quality is a smaller file."""
    sizes = []
    for quality in (10, 100):
        events = await it.ask(
            ImageTask(
                prompt="x", steps=2, seed=1, width=32, height=32, previews=1, format=form, quality=quality
            )
        )
        (one,), (preview,) = pictures(events), previews(events)
        assert opened(one.data, form).size == opened(preview.data, form).size == (32, 32)
        sizes.append(len(one.data))
    assert sizes[0] < sizes[1]


async def test_edits_draw_where_the_mask_says_and_nowhere_else(it: Loaded) -> None:
    """White or transparent is drawn on, the rest is kept; a picture with holes is its own mask."""
    red = Image.new("RGB", (32, 24), "red")
    white = Image.new("L", (32, 24), 0)
    white.paste(255, (0, 0, 16, 24))
    holes = Image.new("RGBA", (32, 24), "red")
    holes.paste((0, 0, 0, 0), (0, 0, 16, 24))
    tasks = [
        ImageTask(prompt="x", steps=2, seed=1, image=file(red), mask=file(white)),
        ImageTask(prompt="x", steps=2, seed=1, image=file(red, "JPEG"), mask=file(holes)),
        ImageTask(prompt="x", steps=2, seed=1, image=file(holes)),
    ]
    for task in tasks:
        (one,) = pictures(await it.ask(task))
        result = opened(one.data).convert("RGB")
        assert result.size == (32, 24)
        kept = result.crop((16, 0, 32, 24)).getextrema()
        assert all(
            abs(found - meant) <= 2 for band, meant in zip(kept, (255, 0, 0), strict=True) for found in band
        )
        assert max(high - low for low, high in result.crop((0, 0, 16, 24)).getextrema()) > 10


async def test_variations_go_as_far_as_they_are_told(it: Loaded) -> None:
    """A picture gives another one of its size or of that asked for; strength is a share of the steps."""
    photo = file(Image.new("RGB", (35, 26), "blue"), "WEBP")
    (one,) = pictures(await it.ask(ImageTask(image=photo, steps=2, seed=1)))
    assert opened(one.data).size == (32, 24)
    (one,) = pictures(await it.ask(ImageTask(image=photo, steps=2, seed=1, width=48, height=16)))
    assert opened(one.data).size == (48, 16)
    events = await it.ask(ImageTask(image=photo, steps=10, strength=0.3))
    assert 3 <= len([event for event in events if isinstance(event, Step)]) <= 4


async def test_a_cancelled_picture_costs_a_load_and_not_its_rest(it: Loaded) -> None:
    """The child of a cancelled picture is gone at once; a call that waits is served by a new one soon after,
    and draws what it would have drawn before.
    """
    before = [one.data for one in pictures(await it.ask(SHORT))]
    old = psutil.Process(child(it.worker.pid))
    running = await it.begun(LONG)
    waiting = asyncio.ensure_future(it.ask(SHORT))
    running.cancel()
    await asyncio.wait_for(running.over, 60)
    async with asyncio.timeout(HELD_S):
        assert [one.data for one in pictures(await waiting)] == before
    assert not old.is_running()
    assert child(it.worker.pid) != old.pid
    assert not it.worker.ended.done()


async def test_cancelling_again_and_again_leaves_one_child_and_a_model_that_serves(it: Loaded) -> None:
    """Cancels in the middle of pictures, while the model loads again, and of calls that wait."""
    for _ in range(3):
        running = await it.begun(LONG)
        second, third = it.worker.call(LONG, "local"), it.worker.call(SHORT, "local")
        running.cancel()
        await asyncio.wait_for(running.over, 60)
        second.cancel()
        third.cancel()
        await asyncio.wait_for(asyncio.gather(second.over, third.over), 60)
    assert len(pictures(await it.ask(SHORT))) == 1
    assert child(it.worker.pid)
    assert it.worker.open_calls == 0


async def test_bad_pictures_are_the_callers_fault_and_the_worker_lives(it: Loaded) -> None:
    """Nothing, a web page, half a file, a bomb and another kind of file are BadRequest before any step."""
    good = file(Image.new("L", (64, 48)))
    before, pid = host.tree_memory(it.worker.pid), child(it.worker.pid)
    for data, code in bad_files():
        tries: list[dict[str, Any]] = [{"image": data}, {"image": good, "mask": data}]
        for fields in tries:
            with pytest.raises(BadRequest) as caught:
                await it.ask(ImageTask(prompt="x", steps=2, **fields))
            assert (caught.value.code, caught.value.param) == (code, list(fields)[-1])
    assert host.tree_memory(it.worker.pid) < before + (100 << 20)
    assert child(it.worker.pid) == pid
    assert len(pictures(await it.ask(SHORT))) == 1


@pytest.mark.parametrize(
    ("task", "param", "word"),
    [
        (ChatTask(messages=(Message(role="user", content="hi"),)), None, "does not"),
        (ImageTask(prompt="x", width=60, height=64), "size", "multiples of 8"),
        (ImageTask(prompt="x", width=8192, height=64), "size", "up to 4096"),
        (ImageTask(prompt="x", negative_prompt="y", guidance=1.0), "negative_prompt", "no effect"),
        (ImageTask(prompt="x", strength=0.5), "strength", "goes with a picture"),
        (ImageTask(prompt="x", mask=b"x"), "mask", "goes with a picture"),
        (
            ImageTask(prompt="x", image=file(Image.new("L", (64, 64))), mask=file(Image.new("L", (32, 64)))),
            "mask",
            "32x64",
        ),
    ],
)
async def test_a_bad_task_is_the_callers_fault(it: Loaded, task: Task, param: str | None, word: str) -> None:
    """What the model cannot do is BadRequest with the field's name, and the child is not bothered."""
    pid = child(it.worker.pid)
    with pytest.raises(BadRequest, match=word) as caught:
        await it.ask(task)
    assert caught.value.param == param
    assert child(it.worker.pid) == pid


async def test_prompts_stay_out_of_the_log(it: Loaded) -> None:
    """The engine's log goes on to the worker's, without the words of what was asked for."""
    secret, other = "xylophonist", "quetzalcoatl"
    await it.ask(
        ImageTask(
            prompt=f"a {secret}", negative_prompt=f"no {other}", guidance=2.0, steps=1, width=64, height=64
        )
    )
    await it.logged("sampling completed")
    assert secret not in it.log
    assert other not in it.log


async def test_without_an_encoder_it_draws_from_words_only(short_dir: Path) -> None:
    """The facts say so, pictures are refused, and options are those of the configuration."""
    options = {"n_threads": 1, "sample_steps": 2, "sample_method": "heun", "scheduler": "karras"}
    model = sdcpp_model(encoder=False)
    async with loaded(short_dir, model, LOADER, "image", **options, vae_tiling=True) as it:
        assert it.facts.capabilities == ("image",)
        await it.logged("sampling using Heun method")
        events = await it.ask(ImageTask(prompt="x", width=64, height=64))
        assert events[-1] == Usage(0, 2)
        with pytest.raises(BadRequest, match="no VAE encoder") as caught:
            await it.ask(ImageTask(prompt="x", image=file(Image.new("L", (64, 64)))))
        assert caught.value.param == "image"


async def test_parts_are_loaded_from_their_own_files(short_dir: Path) -> None:
    """A file of the transformer alone is known as such, and the others are read beside it."""
    parts = sdcpp_parts()
    options = {"n_threads": 1, "vae_path": str(parts["vae"]), "model_kwargs": {"llm_path": str(parts["llm"])}}
    async with loaded(short_dir, parts["diffusion"], LOADER, "image", **options) as it:
        for words in ("loading diffusion model from", "loading vae from", "loading llm from"):
            await it.logged(words)
        assert it.facts.capabilities == ("image",)
        assert len(pictures(await it.ask(SHORT))) == 1


async def test_a_lora_that_the_prompt_names_is_applied_to_its_picture_only(short_dir: Path) -> None:
    """In its strength; other pictures are as they were, and no file outside the folder is opened."""
    sdcpp_lora(short_dir / "style.safetensors")
    options = {"n_threads": 1, "model_kwargs": {"lora_model_dir": str(short_dir)}}
    async with loaded(short_dir, sdcpp_model(encoder=False), LOADER, "image", **options) as it:

        async def drawn(prompt: str) -> bytes:
            (one,) = pictures(await it.ask(ImageTask(prompt=prompt, steps=1, seed=1, width=32, height=32)))
            return one.data

        plain, strong = await drawn("x"), await drawn("x<lora:style:1>")
        assert plain != strong != await drawn("x<lora:style:0.2>") != plain
        assert await drawn("x") == plain
        with pytest.raises(BadRequest, match="there are style") as caught:
            await drawn(f"x<lora:{short_dir}/style.safetensors:1>")
        assert caught.value.param == "prompt"


async def test_an_engine_that_dies_by_itself_is_the_workers_death(short_dir: Path) -> None:
    """Killed from outside in the middle of a picture, it is not replaced: the call is told how it died."""
    async with loaded(short_dir, sdcpp_model(encoder=False), LOADER, "image", n_threads=1) as it:
        call = await it.begun(LONG)
        os.kill(child(it.worker.pid), 11)
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            await rest(call)
        assert "SIGSEGV" in await asyncio.wait_for(asyncio.shield(it.worker.ended), 60)


def junk(folder: Path) -> Path:
    """Make a file of no kind."""
    path = folder / "junk.gguf"
    path.write_bytes(b"junk" * 1000)
    return path


def cut(folder: Path) -> Path:
    """Make a model that ends in the middle of its weights."""
    path = folder / "cut.gguf"
    data = sdcpp_model(encoder=False).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def chat(folder: Path) -> Path:
    """Make a GGUF file that is no image model: the header of one without any tensors."""
    path = folder / "chat.gguf"
    path.write_bytes(b"GGUF\x03\x00\x00\x00" + bytes(16))
    return path


def tiny(folder: Path) -> Path:
    """Give the model as it is."""
    return Path(shutil.copy(sdcpp_model(encoder=False), folder))


@pytest.mark.parametrize(
    ("make", "options", "words"),
    [
        (junk, {}, "no GGUF, safetensors or checkpoint"),
        (cut, {}, "cannot load|killed by signal|exited"),
        (chat, {}, "cannot load|killed by signal|exited"),
        (tiny, {"vae_path": "/nowhere/vae.gguf"}, "vae_path: there is no file"),
        (tiny, {"wtype": "int3"}, "int3"),
        (tiny, {"sample_method": "sideways"}, "sample_method: there is no 'sideways'; there are default, eu"),
        (tiny, {"scheduler": "sideways"}, "scheduler: there is no 'sideways'"),
        (tiny, {"model_kwargs": {"colour": "red"}}, "colour"),
        (tiny, {"model_kwargs": {"vae_decode_only": False}}, "encoder"),
    ],
)
async def test_a_model_that_cannot_load_is_refused_for_good(
    short_dir: Path, make: Callable[[Path], Path], options: dict[str, Any], words: str
) -> None:
    """However the engine takes it, the refusal is permanent, in words, and nothing is left of the try."""
    with pytest.raises(LoadFailed, match=words) as caught:
        async with loaded(short_dir, make(short_dir), LOADER, "image", n_threads=1, **options):
            pass
    assert caught.value.permanent


async def test_the_stock_sdk_draws_through_the_daemon(short_dir: Path) -> None:
    """Generation, edit, variation, stream and links in every format, each what it says it is.

    A bad picture is the caller's fault at both endpoints.
    """
    # Named here, the interpreter runs worker and child as those of an engine with its own environment.
    engines = {LOADER: {"python": sys.executable}}
    async with running(short_dir, {"models": [sdcpp("paint", sdcpp_model())], "engines": engines}) as daemon:
        await daemon.until("paint", "ready")
        async with openai.AsyncOpenAI(
            base_url=f"{daemon.url}/v1", api_key="x", max_retries=0, _strict_response_validation=True
        ) as client:
            answer = await client.images.generate(model="paint", prompt="a cat", n=2, size="32x24")
            files = [base64.b64decode(one.b64_json or "") for one in answer.data or ()]
            assert [opened(data).size for data in files] == [(32, 24)] * 2
            edited = await client.images.edit(
                model="paint", prompt="a dog", image=files[0], mask=files[1], size="48x16"
            )
            assert [opened(base64.b64decode(one.b64_json or "")).size for one in edited.data or ()] == [
                (48, 16)
            ]
            forms: tuple[ImageFormat, ...] = ("png", "jpeg", "webp")
            for form in forms:
                linked = await client.images.generate(
                    model="paint", prompt="x", size="32x32", response_format="url", output_format=form
                )
                assert linked.data is not None
                raw = await client.get(linked.data[0].url or "", cast_to=httpx2.Response)
                assert raw.headers["content-type"] == f"image/{form}"
                assert opened(raw.content, form).size == (32, 32)
            stream = await client.images.generate(
                model="paint", prompt="a cat", size="32x32", stream=True, partial_images=1
            )
            seen = [(event.type, opened(base64.b64decode(event.b64_json)).size) async for event in stream]
            assert seen == [
                ("image_generation.partial_image", (32, 32)),
                ("image_generation.completed", (32, 32)),
            ]
            with pytest.warns(DeprecationWarning, match="deprecated"):  # OpenAI has none of its own any more
                varied = await client.images.create_variation(model="paint", image=files[0])
            assert [opened(base64.b64decode(one.b64_json or "")).size for one in varied.data or ()] == [
                (32, 24)
            ]
            for data, code in bad_files():
                with pytest.raises(openai.BadRequestError) as caught:
                    await client.images.edit(model="paint", prompt="x", image=("a.png", data))
                assert caught.value.code == code
                with (
                    pytest.warns(DeprecationWarning, match="deprecated"),
                    pytest.raises(openai.BadRequestError) as caught,
                ):
                    await client.images.create_variation(model="paint", image=("a.png", data))
                assert caught.value.code == code
