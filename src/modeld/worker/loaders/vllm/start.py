"""Loading a model with vLLM: the engine in its thread, progress from its log, then facts by trying it out."""

from __future__ import annotations

import asyncio
import functools
import time
from concurrent.futures import ThreadPoolExecutor

from modeld.errors import LoadFailed, ModeldError
from modeld.protocol.messages import LoadSpec
from modeld.worker.loader import Report
from modeld.worker.loaders.vllm import facts
from modeld.worker.loaders.vllm.build import Engine, build
from modeld.worker.loaders.vllm.failures import load_error
from modeld.worker.loaders.vllm.log import LogTap
from modeld.worker.loaders.vllm.model import VllmModel
from modeld.worker.loaders.vllm.processes import processor_time
from modeld.worker.loaders.vllm.serving import Serving

LOOK_S = 1.0
"""Seconds between two looks at a load: whether anything has happened."""

BUSY = 0.05
"""Part of a second of processor time, in a second, that counts as work: compilers are silent for minutes, and
a busy machine gives little to each.
"""


async def start(spec: LoadSpec, report: Report) -> VllmModel:
    """Load the model. Raises LoadFailed; one that says nothing and does nothing is given up."""
    progress = _Progress(report)
    tap = LogTap()
    thread = ThreadPoolExecutor(1, "vllm")
    tap.to(progress.from_thread)
    progress("starting torch and vLLM", 0.0)
    try:
        engine = await _built(spec, tap, thread, progress)
        model = await _served(engine, spec, tap, thread, progress)
    except BaseException:
        thread.shutdown(wait=False, cancel_futures=True)
        tap.to(None)
        tap.close()
        raise
    tap.to(None)
    progress("ready", 1.0)
    return model


class _Progress:
    """Reports to the daemon what is further than all before: the log and our own looks at it may cross."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self._loop = asyncio.get_running_loop()
        self._furthest = 0.0

    def __call__(self, stage: str, fraction: float) -> None:
        if fraction >= self._furthest:
            self._furthest = fraction
            self._report(stage, fraction)

    def from_thread(self, stage: str, fraction: float) -> None:
        self._loop.call_soon_threadsafe(self, stage, fraction)


async def _built(spec: LoadSpec, tap: LogTap, thread: ThreadPoolExecutor, report: _Progress) -> Engine:
    loop = asyncio.get_running_loop()
    building = loop.run_in_executor(thread, functools.partial(build, spec, tap))
    used, quiet_since = processor_time(), time.monotonic()
    while not building.done():
        await asyncio.wait({building}, timeout=LOOK_S)
        now = processor_time()
        if now - used > BUSY * LOOK_S or tap.last_sign > quiet_since:
            quiet_since = time.monotonic()
            report(*tap.stage)
        used = now
        if time.monotonic() - quiet_since > spec.start_timeout_s:
            raise LoadFailed(
                f"vLLM made no progress for {spec.start_timeout_s:g} s while loading; its last words:\n"
                + tap.last_words()
            )
    return building.result()


async def _served(
    engine: Engine, spec: LoadSpec, tap: LogTap, thread: ThreadPoolExecutor, report: _Progress
) -> VllmModel:
    report("trying the model out", 0.97)
    try:
        tasks = tuple(await engine.llm.get_supported_tasks())
        log_requests = bool(spec.options.get("enable_log_requests"))
        serving = Serving(engine, tasks, spec.name, log_requests=log_requests)
        model = VllmModel(engine, serving, spec, tap, thread)
        await facts.find(model, engine, spec)
    except BaseException as error:
        await asyncio.get_running_loop().run_in_executor(thread, lambda: engine.llm.shutdown(timeout=0.0))
        if isinstance(error, LoadFailed) or not isinstance(error, Exception):
            raise
        if isinstance(error, ModeldError):
            raise load_error(str(error), None) from error
        raise load_error(f"{type(error).__name__}: {error}", None) from error
    return model
