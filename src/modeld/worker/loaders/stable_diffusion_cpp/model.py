"""A stable-diffusion.cpp model that serves: calls take turns, and a child killed for one is replaced."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import Callable
from typing import TypeVar

import msgspec

from modeld.errors import EngineError, LoadFailed, ModeldError, WorkerDied
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import ImageTask, Picture, Step, Task, Usage, unsupported
from modeld.worker import capabilities
from modeld.worker.loader import Emit, LoadedModel, Report
from modeld.worker.loaders.stable_diffusion_cpp import drawing, weights, wire
from modeld.worker.loaders.stable_diffusion_cpp.engine import NAME, Engine

LOADER = "stable_diffusion_cpp"

LOADED = 0.9
"""How much of the load the reading of the weights is; the rest is a first small picture."""

_DEVICES = {"cuda": "cuda", "metal": "mps", "cpu": "cpu"}

T = TypeVar("T")


class SdCppModel:
    """One loaded model; see `worker.loader.LoadedModel`."""

    def __init__(self, engine: Engine, again: wire.Load, ready: wire.Ready, spec: LoadSpec) -> None:
        self._again, self._spec, self._multiple = again, spec, ready.multiple
        self._edits = not again.arguments["vae_decode_only"]
        self._turn = asyncio.Lock()
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._engine: Engine | None = None
        self._replaced: Engine | None = None
        self._reload: asyncio.Task[None] | None = None  # `close` awaits it
        self._closed = False
        self._take(engine)
        self.facts = _facts(ready, engine, self._edits)

    @property
    def died(self) -> asyncio.Future[str]:
        """Done when a child has ended by itself, or could not be replaced."""
        return self._died

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Draw. Usage counts as completion tokens the denoising steps taken; prompts' tokens are unknown."""
        if not isinstance(task, ImageTask):
            raise unsupported(LOADER, task)
        async with self._turn:
            spec = self._spec
            job = await _in_thread(
                lambda: drawing.prepare(task, spec.options, spec.limits, self._multiple, self._edits)
            )
            seed = secrets.randbits(32) if task.seed is None else task.seed
            taken = 0
            for index in range(task.n):
                taken += await self._picture(job, index, (seed + index) % drawing.SEEDS, emit)
        await emit(Usage(0, taken))

    async def close(self) -> None:
        """End the child, whatever it does."""
        self._closed = True
        if self._reload is not None:
            self._reload.cancel()
            await asyncio.wait({self._reload})
        for engine in filter(None, (self._replaced, self._engine)):
            engine.kill()
            await engine.gone()

    async def _picture(self, job: drawing.Job, index: int, seed: int, emit: Emit) -> int:
        """Draw one picture of a job and emit it; return the steps taken."""
        engine = await self._ready()
        over = False
        try:
            await engine.send(msgspec.structs.replace(job.draw, seed=seed))
            steps = shown = 0
            while True:
                match await engine.receive():
                    case wire.Progress(done, total):
                        steps = done
                        await emit(_step(job.task.n, index, done, total))
                    case wire.Preview() as preview:
                        data = await _in_thread(lambda: job.coded(preview))
                        await emit(Picture(index, data, None, shown))
                        shown += 1
                    case wire.Drawn() as drawn:
                        over = True
                        data = await _in_thread(lambda: job.coded(drawn))
                        await emit(Picture(index, data, seed))
                        return steps
                    case wire.Failed(message):
                        over = True
                        raise EngineError(f"{NAME} drew nothing: {message}")
                    case _:
                        pass
        finally:
            if not over:
                self._replace(engine)

    def _replace(self, engine: Engine) -> None:
        """Kill a child in the middle of a picture, and load another in the background."""
        if engine.died.done() or self._closed:
            return
        engine.kill()
        self._engine, self._replaced = None, engine
        self._reload = asyncio.ensure_future(self._load_again(engine))

    async def _load_again(self, old: Engine) -> None:
        await old.gone()  # its memory is needed
        try:
            engine, _ = await _loaded(self._again, lambda fraction: None, self._spec.start_timeout_s)
        except (ModeldError, OSError) as error:
            if not self._died.done():
                self._died.set_result(f"after a cancelled call it did not load again: {error}")
            return
        self._take(engine)

    async def _ready(self) -> Engine:
        """Return the child, loaded. Raises WorkerDied."""
        if self._engine is None and self._reload is not None:
            await asyncio.wait({self._reload})
        if self._engine is None:
            words = self._died.result() if self._died.done() else f"{NAME} is being stopped"
            raise WorkerDied(words)
        return self._engine

    def _take(self, engine: Engine) -> None:
        self._engine = engine
        engine.died.add_done_callback(self._on_died)

    def _on_died(self, died: asyncio.Future[str]) -> None:
        if not died.cancelled() and not self._died.done():
            self._died.set_result(died.result())


async def start(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load the model in a child. Raises LoadFailed."""
    arguments = await _in_thread(lambda: weights.arguments(spec))
    _check_packages()
    again = wire.Load(
        arguments,
        str(spec.options.get("sample_method") or "default"),
        str(spec.options.get("scheduler") or "default"),
        probe=False,
    )
    report(f"starting {NAME}", 0.0)

    def progress(fraction: float) -> None:
        stage = "reading the weights" if fraction < 1 else "drawing a first small picture"
        report(stage, fraction * LOADED)

    first = msgspec.structs.replace(again, probe=True)
    engine, ready = await _loaded(first, progress, spec.start_timeout_s)
    if spec.gpus and _device(ready) == "cpu":
        engine.kill()
        await engine.gone()
        raise LoadFailed(
            f"the model was given a GPU, but this {NAME} was built without support for one; have one built "
            f"with: modeld engines install {LOADER} --cuda (or --metal), or set num_gpus: 0",
            permanent=True,
        )
    report("ready to draw", 1.0)
    return SdCppModel(engine, again, ready, spec)


async def _loaded(
    task: wire.Load, progress: Callable[[float], None], stall_s: float
) -> tuple[Engine, wire.Ready]:
    """Start a child and load the model in it. Raises LoadFailed; then, as when cancelled, none is left."""
    engine = await Engine.start()
    try:
        return engine, await engine.load(task, progress, stall_s)
    except BaseException as error:
        engine.kill()
        await engine.gone()
        if isinstance(error, WorkerDied):
            raise LoadFailed(str(error)) from error
        raise


def _check_packages() -> None:
    import importlib.util

    for module, package in (("stable_diffusion_cpp", "stable-diffusion-cpp-python"), ("PIL", "pillow")):
        if importlib.util.find_spec(module) is None:
            raise LoadFailed(
                f"the loader {LOADER} needs the Python package {package}; install it with: "
                + capabilities.install_line(capabilities.ENGINES[LOADER]),
                permanent=True,
            )


def _step(n: int, index: int, done: int, total: int) -> Step:
    which = "drawing" if n == 1 else f"drawing picture {index + 1} of {n}"
    return Step((index + done / total) / n, f"{which}: step {done} of {total}")


def _facts(ready: wire.Ready, engine: Engine, edits: bool) -> Facts:
    return Facts(
        loader=LOADER,
        device=_device(ready),
        slots=1,
        bytes_used=_resident(os.getpid()) + _resident(engine.pid),
        capabilities=("image", "image_edit") if edits else ("image",),
        detail={
            "engine": f"stable-diffusion-cpp-python {ready.version}",
            "model": ready.family,
            "sides": f"multiples of {ready.multiple} pixels",
            "masks": "yes" if edits else "no",
        },
    )


def _device(ready: wire.Ready) -> str:
    backend = ready.backend.lower()
    return next((name for start, name in _DEVICES.items() if backend.startswith(start)), backend)


def _resident(pid: int) -> int:
    """Return a process's resident memory in bytes, 0 where the system does not tell cheaply."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


async def _in_thread(work: Callable[[], T]) -> T:
    return await asyncio.get_running_loop().run_in_executor(None, work)
