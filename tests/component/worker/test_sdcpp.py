"""Children of the stable_diffusion_cpp loader, loaded, cancelled and replaced, without the library."""

from __future__ import annotations

import asyncio
import importlib.util
import os
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from modeld.errors import EngineError, LoadFailed, WorkerDied
from modeld.protocol.messages import LoadSpec
from modeld.protocol.tasks import Event, ImageTask, Step
from modeld.worker import elsewhere
from modeld.worker.loaders.stable_diffusion_cpp import wire
from modeld.worker.loaders.stable_diffusion_cpp.engine import Engine
from modeld.worker.loaders.stable_diffusion_cpp.model import SdCppModel, start
from tests.fakes import sdcpp_child

WAIT_S = 60.0


@pytest.fixture(autouse=True)
def _child_that_plays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "command", lambda module: [sys.executable, sdcpp_child.__file__])


def _spec() -> LoadSpec:
    return LoadSpec("m", "stable_diffusion_cpp", "image", "/m.gguf", "/run/x", start_timeout_s=WAIT_S)


async def model(**arguments: Any) -> SdCppModel:
    """Return a model whose child has loaded."""
    task = wire.Load({"vae_decode_only": True, **arguments})
    engine = await Engine.start()
    ready = await engine.load(task, lambda fraction: None, WAIT_S)
    return SdCppModel(engine, task, ready, _spec())


def children() -> list[psutil.Process]:
    """Return the running children of this process that play."""
    return [
        each
        for each in psutil.Process().children()
        if each.status() != psutil.STATUS_ZOMBIE and sdcpp_child.__file__ in each.cmdline()
    ]


class Call:
    """A call under way; `begun` once it has drawn a step."""

    def __init__(self, it: SdCppModel, prompt: str) -> None:
        self.begun = asyncio.Event()
        self.task = asyncio.ensure_future(it.run(ImageTask(prompt=prompt), self._emit, "local"))

    async def _emit(self, event: Event) -> None:
        assert isinstance(event, Step)
        self.begun.set()

    async def start(self) -> None:
        """Wait until the engine is at work on it."""
        await asyncio.wait_for(self.begun.wait(), WAIT_S)

    async def cancel(self) -> None:
        """Cancel it, and wait for its end."""
        self.task.cancel()
        await asyncio.wait({self.task}, timeout=WAIT_S)
        assert self.task.cancelled()

    async def end(self) -> None:
        """Wait for its end by itself."""
        await asyncio.wait_for(self.task, WAIT_S)


async def test_a_cancelled_picture_kills_its_child_and_the_next_call_gets_a_new_one() -> None:
    """Calls that wait are answered though the first picture would never have ended, and in their order."""
    it = await model()
    try:
        (old,) = children()
        first, second, third = Call(it, "hang"), Call(it, "second"), Call(it, "third")
        await first.start()
        await first.cancel()
        for call in (second, third):
            with pytest.raises(EngineError, match="second" if call is second else "third"):
                await call.end()
        assert not old.is_running()
        assert len(children()) == 1
        assert not it.died.done()
    finally:
        await it.close()
    assert children() == []


async def test_a_call_that_is_cancelled_while_it_waits_costs_no_child() -> None:
    """Neither while another is drawn, nor while the model loads again."""
    it = await model()
    try:
        (old,) = children()
        first, second = Call(it, "hang"), Call(it, "hang")
        await first.start()
        await second.cancel()
        assert old.is_running()
        await first.cancel()
        await Call(it, "hang").cancel()
        with pytest.raises(EngineError, match="last"):
            await Call(it, "last").end()
        assert len(children()) == 1
    finally:
        await it.close()


async def test_a_model_that_does_not_load_again_is_dead(tmp_path: Path) -> None:
    """Whoever waits is told why, and so is the worker."""
    it = await model(once=str(tmp_path / "loaded"))
    try:
        first, second = Call(it, "hang"), Call(it, "second")
        await first.start()
        await first.cancel()
        with pytest.raises(WorkerDied, match="a second time it will not"):
            await second.end()
        assert "after a cancelled call it did not load again" in it.died.result()
    finally:
        await it.close()
    assert children() == []


async def test_a_child_that_dies_by_itself_is_not_replaced() -> None:
    """Its call, and the worker, get its last words."""
    it = await model()
    try:
        with pytest.raises(WorkerDied, match=r"(?s)SIGSEGV.*fake child loads"):
            await Call(it, "die").end()
        assert "SIGSEGV" in await asyncio.wait_for(asyncio.shield(it.died), WAIT_S)
        with pytest.raises(WorkerDied, match="SIGSEGV"):
            await Call(it, "next").end()
        assert children() == []
    finally:
        await it.close()


async def test_a_child_that_dies_between_calls_is_the_end_too() -> None:
    """Nobody has to ask for a picture to find out."""
    it = await model()
    try:
        (child,) = children()
        child.kill()
        assert "SIGKILL" in await asyncio.wait_for(asyncio.shield(it.died), WAIT_S)
    finally:
        await it.close()


async def test_closing_in_the_middle_of_a_load_leaves_nothing() -> None:
    """Also right after a cancel, before the new child has started."""
    it = await model()
    first = Call(it, "hang")
    await first.start()
    await first.cancel()
    await asyncio.wait_for(it.close(), WAIT_S)
    assert children() == []
    assert not it.died.done()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells cheaply what a process uses")
async def test_a_child_at_work_is_not_taken_for_a_stalled_one() -> None:
    """A large model's first picture takes longer than the stall limit, without a word."""
    told: list[float] = []
    engine = await Engine.start()
    try:
        ready = await engine.load(wire.Load({"works": 3.0}), told.append, 1.0)
        assert ready.family == "fake"
        assert told[0] == 0.0  # at work, before the child's first word
        assert told == sorted(told)
    finally:
        engine.kill()
        await engine.gone()


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Give a file that is left to the engine."""
    path = tmp_path / "m.ckpt"
    path.write_bytes(b"PK\x03\x04")
    return path


def _installed(monkeypatch: pytest.MonkeyPatch, *packages: str) -> None:
    found = importlib.util.find_spec("json")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: found if name in packages else None)


@pytest.mark.parametrize(
    ("gpus", "backend", "device"), [(0, "CPU", "cpu"), (1, "CUDA0", "cuda"), (1, "Metal", "mps")]
)
async def test_the_facts_are_those_of_the_engine(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, gpus: int, backend: str, device: str
) -> None:
    """Where it runs, what it can do, and the memory of both processes; progress grows to 1."""
    _installed(monkeypatch, "stable_diffusion_cpp", "PIL")
    told: list[float | None] = []
    options = {"model_kwargs": {"backend": backend}}
    spec = LoadSpec("m", "stable_diffusion_cpp", "image", str(checkpoint), "/run/x", options, gpus=gpus)
    it = await start(spec, lambda stage, fraction: told.append(fraction))
    try:
        assert (it.facts.device, it.facts.detail["model"]) == (device, "fake")
        assert it.facts.detail["sides"] == "multiples of 8 pixels"
        assert it.facts.capabilities == ("image", "image_edit")
        (child,) = children()
        assert it.facts.bytes_used > child.memory_info().rss / 2 + psutil.Process().memory_info().rss / 2
        assert told == sorted(told, key=lambda fraction: fraction or 0.0)
        assert (told[0], told[-1]) == (0.0, 1.0)
    finally:
        await it.close()


async def test_a_gpu_that_the_engine_cannot_use_is_a_refusal(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path
) -> None:
    """A model is never quietly run somewhere else than it was placed; the words say what to do."""
    _installed(monkeypatch, "stable_diffusion_cpp", "PIL")
    spec = LoadSpec("m", "stable_diffusion_cpp", "image", str(checkpoint), "/run/x", gpus=1)
    with pytest.raises(LoadFailed, match="num_gpus: 0") as caught:
        await start(spec, lambda stage, fraction: None)
    assert caught.value.permanent
    assert children() == []


@pytest.mark.parametrize(
    ("there", "named"), [("PIL", "stable-diffusion-cpp-python"), ("stable_diffusion_cpp", "pillow")]
)
async def test_a_package_that_is_missing_is_named(
    monkeypatch: pytest.MonkeyPatch, checkpoint: Path, there: str, named: str
) -> None:
    """The refusal says how to have it."""
    _installed(monkeypatch, there)
    spec = LoadSpec("m", "stable_diffusion_cpp", "image", str(checkpoint), "/run/x")
    with pytest.raises(LoadFailed, match=f"the Python package {named}; install it with: modeld engines"):
        await start(spec, lambda stage, fraction: None)


@pytest.mark.parametrize(
    ("arguments", "stall_s", "words", "permanent"),
    [
        ({"refuse": "no such layout"}, WAIT_S, r"(?s)no such layout.*fake child loads", True),
        ({"kill": signal.SIGSEGV}, WAIT_S, r"(?s)SIGSEGV.*fake child loads", True),
        ({"kill": signal.SIGKILL}, WAIT_S, "SIGKILL", False),
        ({"silent": True}, 0.5, "no progress for 0.5 s", False),
    ],
)
async def test_a_failed_load_is_told_with_the_last_words(
    arguments: dict[str, Any], stall_s: float, words: str, permanent: bool
) -> None:
    """It is for good unless the child was killed from outside, as the kernel does without memory, or hung."""
    engine = await Engine.start()
    try:
        with pytest.raises(LoadFailed, match=words) as caught:
            await engine.load(wire.Load(arguments), lambda fraction: None, stall_s)
        assert caught.value.permanent is permanent
    finally:
        engine.kill()
        await engine.gone()
    with pytest.raises(ProcessLookupError):
        os.kill(engine.pid, 0)
