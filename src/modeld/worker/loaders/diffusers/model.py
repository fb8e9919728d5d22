"""A diffusers model that serves: one thread that draws, and the calls that wait for it."""

from __future__ import annotations

import asyncio
import functools
import gc
import importlib.metadata
import os
import resource
import secrets
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from modeld.errors import EngineError
from modeld.protocol.messages import Facts, LoadSpec
from modeld.protocol.tasks import ImageTask, Picture, Step, Task, Usage, unsupported
from modeld.worker.loader import Emit, LoadedModel, Report
from modeld.worker.loaders.diffusers import drawing
from modeld.worker.loaders.diffusers.pipeline import Pipelines, build

LOADER = "diffusers"

T = TypeVar("T")


class DiffusersModel:
    """One loaded pipeline folder; see `worker.loader.LoadedModel`."""

    def __init__(
        self, pipelines: Pipelines, facts: Facts, spec: LoadSpec, thread: ThreadPoolExecutor
    ) -> None:
        self.facts = facts
        self._pipelines: Pipelines | None = pipelines
        self._options, self._limits = spec.options, spec.limits
        self._thread = thread
        self._turn = asyncio.Lock()
        self._died: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    @property
    def died(self) -> asyncio.Future[str]:
        """Never done: the engine lives and dies with this process."""
        return self._died

    async def run(self, task: Task, emit: Emit, identity: str) -> None:
        """Draw. Usage counts the prompts' tokens, and as completion tokens the denoising steps taken."""
        if not isinstance(task, ImageTask):
            raise unsupported(LOADER, task)
        async with self._turn:
            pipelines = self._pipelines
            if pipelines is None:
                raise EngineError("the model is being unloaded")
            job = await self._in_thread(lambda: drawing.prepare(pipelines, task, self._options, self._limits))
            taken = await self._draw(pipelines, job, task, emit)
        await emit(Usage(drawing.count_tokens(pipelines, task), taken))

    async def close(self) -> None:
        """Let the parts go; the worker's exit gives the memory back."""
        self._pipelines = None
        self._thread.shutdown(wait=False, cancel_futures=True)
        gc.collect()

    async def _draw(self, pipelines: Pipelines, job: drawing.Job, task: ImageTask, emit: Emit) -> int:
        loop, stopped = asyncio.get_running_loop(), threading.Event()
        told: asyncio.Queue[Step | Picture | None] = asyncio.Queue()

        def tell(event: Step | Picture) -> None:
            loop.call_soon_threadsafe(told.put_nowait, event)

        def work() -> int:
            try:
                return drawing.draw(pipelines, job, seed, tell, stopped)
            finally:
                loop.call_soon_threadsafe(told.put_nowait, None)

        seed = secrets.randbits(32) if task.seed is None else task.seed
        drawn = loop.run_in_executor(self._thread, work)
        try:
            while (event := await told.get()) is not None:
                await emit(event)
            return await asyncio.shield(drawn)
        finally:
            # Whoever is next finds the thread free: a cancelled call has stopped drawing when it ends.
            stopped.set()
            await asyncio.wait({drawn})
            if not drawn.cancelled():
                drawn.exception()

    async def _in_thread(self, work: Callable[[], T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)


async def start(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load in the drawing thread and tell what came of it. Raises LoadFailed."""
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, "drawing")

    def report_from_thread(stage: str, fraction: float | None) -> None:
        loop.call_soon_threadsafe(report, stage, fraction)

    try:
        pipelines = await loop.run_in_executor(thread, functools.partial(build, spec, report_from_thread))
    except BaseException:
        thread.shutdown(wait=False, cancel_futures=True)
        raise
    return DiffusersModel(pipelines, _facts(pipelines), spec, thread)


def _facts(pipelines: Pipelines) -> Facts:
    detail = {
        "engine": f"diffusers {importlib.metadata.version('diffusers')}, "
        f"torch {importlib.metadata.version('torch')}",
        "pipeline": type(pipelines.text).__name__,
        "dtype": pipelines.dtype,
        "masks": "yes" if pipelines.inpaint is not None else "no",
    }
    return Facts(
        loader=LOADER,
        device=pipelines.device,
        slots=1,
        bytes_used=_resident(),
        capabilities=("image",) if pipelines.image is None else ("image", "image_edit"),
        detail=detail | _vram(pipelines.device),
    )


def _vram(device: str) -> dict[str, str]:
    if device != "cuda":
        return {}
    torch: Any = sys.modules["torch"]
    return {"gpu_bytes": str(torch.cuda.memory_reserved(0))}


def _resident() -> int:
    """Return this process's resident memory in bytes."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # macOS, which counts its peak in bytes
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
