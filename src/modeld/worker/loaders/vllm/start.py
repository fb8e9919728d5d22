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

BUSY = 0.2
"""Part of a second of processor time, in a second, that counts as work: compilers are silent for minutes."""


async def start(spec: LoadSpec, report: Report) -> VllmModel:
    """Load the model. Raises LoadFailed; one that says nothing and does nothing is given up."""
    loop = asyncio.get_running_loop()
    tap = LogTap()
    thread = ThreadPoolExecutor(1, "vllm")
    tap.to(lambda stage, fraction: _tell(loop, report, stage, fraction))
    report("starting torch and vLLM", 0.0)
    try:
        engine = await _built(spec, tap, thread, report)
        model = await _served(engine, spec, tap, thread, report)
    except BaseException:
        thread.shutdown(wait=False, cancel_futures=True)
        tap.to(None)
        tap.close()
        raise
    tap.to(None)
    report("ready", 1.0)
    return model


def _tell(loop: asyncio.AbstractEventLoop, report: Report, stage: str, fraction: float) -> None:
    loop.call_soon_threadsafe(report, stage, fraction)


async def _built(spec: LoadSpec, tap: LogTap, thread: ThreadPoolExecutor, report: Report) -> Engine:
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
    engine: Engine, spec: LoadSpec, tap: LogTap, thread: ThreadPoolExecutor, report: Report
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
