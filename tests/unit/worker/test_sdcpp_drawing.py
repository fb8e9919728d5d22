"""What a task becomes for stable-diffusion.cpp, and what is refused before the engine hears of it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import ImageTask
from modeld.worker.loaders.stable_diffusion_cpp import child, drawing, wire

LIMITS = MediaLimits()
OPTIONS = {"sample_steps": 6, "cfg_scale": 1.5, "sample_method": "lcm", "scheduler": "karras"}


def prepared(multiple: int = 8, edits: bool = True, limits: MediaLimits = LIMITS, **fields: Any) -> wire.Draw:
    """Return what the child is asked for."""
    return drawing.prepare(ImageTask(**fields), OPTIONS, limits, multiple, edits).draw


def test_what_the_task_leaves_open_is_the_options() -> None:
    """The size nobody asked for is the library's own."""
    assert prepared(prompt="a cat") == wire.Draw(
        "a cat", "", 512, 512, 6, 1.5, 0, "lcm", "karras", previews=0
    )


def test_what_the_task_says_is_passed_on() -> None:
    """Every field reaches the child as it is."""
    draw = prepared(
        prompt="a cat", negative_prompt="dogs", width=64, height=40, steps=3, guidance=2.0, previews=2
    )
    assert draw == wire.Draw("a cat", "dogs", 64, 40, 3, 2.0, 0, "lcm", "karras", previews=2)


@given(st.integers(1, 200), st.integers(1, 200), st.sampled_from([1, 8, 16, 64]))
def test_a_size_is_drawn_as_it_is_or_refused(width: int, height: int, multiple: int) -> None:
    """Nothing is rounded: what is no multiple is refused, with the multiple in words."""
    if width % multiple or height % multiple:
        with pytest.raises(BadRequest, match=f"multiples of {multiple}") as caught:
            prepared(multiple, prompt="x", width=width, height=height)
        assert caught.value.param == "size"
    else:
        draw = prepared(multiple, prompt="x", width=width, height=height)
        assert (draw.width, draw.height) == (width, height)


def test_the_limits_are_those_of_the_model() -> None:
    """Neither side nor pixels go over what the load said."""
    limits = MediaLimits(image_pixels=64 * 32, image_side=64)
    assert prepared(limits=limits, prompt="x", width=64, height=32).width == 64
    with pytest.raises(BadRequest, match="512x512 is not possible"):
        prepared(limits=limits, prompt="x")
    for size, word in (((72, 8), "up to 64"), ((64, 40), "2560 pixels")):
        with pytest.raises(BadRequest, match=word):
            prepared(limits=limits, prompt="x", width=size[0], height=size[1])


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"negative_prompt": "dogs", "guidance": 1.0}, "negative_prompt"),
        ({"mask": b"x"}, "mask"),
        ({"strength": 0.5}, "strength"),
        ({"image": b"x", "edits": False}, "image"),
        ({"width": 16_400, "height": 16, "format": "webp", "limits": MediaLimits(image_side=20_000)}, "size"),
    ],
)
def test_what_cannot_be_done_is_refused(fields: dict[str, Any], param: str) -> None:
    """With the field's name."""
    with pytest.raises(BadRequest) as caught:
        prepared(prompt="x", **fields)
    assert caught.value.param == param


class _Sent:
    """Stands for the link to the worker."""

    def __init__(self) -> None:
        self.frames: list[wire.FromChild] = []

    def send(self, frame: wire.FromChild) -> None:
        self.frames.append(frame)


def _watch(capfd: pytest.CaptureFixture[str], *lines: tuple[int, str]) -> tuple[child.Watch, list[str]]:
    watch = child.Watch(_Sent())  # type: ignore[arg-type]
    for level, line in lines:
        watch.log(level, line.encode(), None)
    return watch, capfd.readouterr().err.splitlines()


def test_the_log_is_passed_on_but_not_its_chatter(capfd: pytest.CaptureFixture[str]) -> None:
    """Lines of level debug, which have the prompts, are dropped; errors are kept for a refusal."""
    watch, lines = _watch(capfd, (0, "split prompt secret"), (1, "fine\n"), (3, "broken"))
    assert lines == ["fine", "broken"]
    assert list(watch.errors) == ["broken"]


@pytest.mark.parametrize(
    ("lines", "facts"),
    [
        (["util.cpp:757  - Using CPU backend"], {"cpu": "Using CPU"}),
        (["stable-diffusion.cpp:387 - CLIP: Using CPU backend"], {}),
        (["util.cpp:714  - #0: CUDA0", "util.cpp:714  - #1: CPU"], {"gpu": "CUDA0"}),
        (["stable-diffusion.cpp:305  - Version: SD 1.x "], {"family": "SD 1.x"}),
        (["x - align generation request up 63x63 to 64x64 (multiple=64)"], {"multiple": "64"}),
    ],
)
def test_facts_are_taken_from_the_log(
    capfd: pytest.CaptureFixture[str], lines: list[str], facts: dict[str, str]
) -> None:
    """The library tells them nowhere else."""
    watch, _ = _watch(capfd, *((0, line) for line in lines))
    assert watch.facts == facts


def test_only_denoising_steps_are_progress_of_a_picture() -> None:
    """The tiles of a VAE are counted by the same callback, before the steps and after them."""
    link = _Sent()
    watch = child.Watch(link)  # type: ignore[arg-type]
    watch.begin("drawing")
    watch.progress(3, 9, 0.1, None)
    watch.log(1, b"generating image: 1/1 - seed 5", None)
    for done in (0, 1, 1, 2):
        watch.progress(done, 2, 0.1, None)
    watch.log(1, b"sampling completed, taking 1s", None)
    watch.progress(1, 4, 0.1, None)
    assert link.frames == [wire.Progress(1, 2), wire.Progress(2, 2)]


@given(st.integers(1, 40), st.integers(0, 3))
def test_previews_are_spread_over_the_steps_and_never_the_last_one(total: int, previews: int) -> None:
    """As many are asked of the library as were wanted, or as there are steps before the last."""
    watch = child.Watch(_Sent())  # type: ignore[arg-type]
    wanted: list[int] = []
    step = 0

    def want(yes: bool) -> None:
        if yes:
            wanted.append(step + 1)
            watch._shown += 1

    watch.want_preview = want
    watch.begin("drawing", previews)
    watch.log(1, b"generating image: 1/1 - seed 5", None)
    for step in range(total):
        watch.progress(step, total, 0.1, None)
    assert len(wanted) == min(previews, total - 1)
    assert all(0 < at < total for at in wanted)
    assert wanted == sorted(set(wanted))


@pytest.mark.parametrize("name", ["euler", " Euler ", "EULER"])
def test_names_of_the_library_are_known_by_any_case(name: str) -> None:
    """The name "default" leaves the choice to the library; one it has not is refused with those it has."""
    table = {"default": None, "euler": 0, "lcm": 9, "sample_method_count": 15}
    assert child.named(table, name, 7) == 0
    assert child.named(table, "default", 7) == 7
    for wrong in ("sideways", "sample_method_count"):
        with pytest.raises(ValueError, match="default, euler, lcm"):
            child.named(table, wrong, 7)
