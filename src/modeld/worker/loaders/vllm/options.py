"""From a model's options to vLLM's engine arguments. Pure.

`CHECKED_HERE` are options of ours; whatever else has a value goes to vLLM under its own name.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec

GIB = 1024**3

CPU_CACHE = 4 * GIB
"""Bytes of KV cache on a CPU, unless told otherwise: vLLM's own choice there is half of the machine."""

CPU_CACHE_PART = 4
"""One of so many parts of the free RAM is the most that the KV cache takes unasked."""

CHECKED_HERE = frozenset(
    {
        "python",  # whose interpreter this is
        "model",
        "task",
        "enable_reasoning",
        "reasoning_parser",
        "enable_auto_tool_choice",
        "tool_call_parser",
        "chat_template_content_format",
        "gpu_memory_utilization",
    }
)

TASKS: dict[str, dict[str, str]] = {
    "auto": {},
    "generate": {"runner": "generate"},
    "transcription": {"runner": "generate"},
    "embed": {"runner": "pooling", "convert": "embed"},
    "embedding": {"runner": "pooling", "convert": "embed"},
    "classify": {"runner": "pooling", "convert": "classify"},
    "score": {"runner": "pooling"},
    "reward": {"runner": "pooling"},
    "draft": {"runner": "draft"},
}
"""vLLM's former `task`, by what has replaced it."""


def environment(present: dict[str, str]) -> dict[str, str]:
    """Return what vLLM must find in its environment: no telemetry, no hub; `present` is not overruled.

    Threads are not bound to cores: vLLM would take the same ones for every model of a machine.
    """
    wanted = {
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
    }
    lenient = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",
        "TOKENIZERS_PARALLELISM": "false",
    }
    return wanted | {key: value for key, value in lenient.items() if key not in present}


def engine_arguments(spec: LoadSpec, free_ram: int, *, own_cache: bool = True) -> dict[str, Any]:
    """Return keyword arguments of vLLM's AsyncEngineArgs. Raises LoadFailed (permanent).

    `free_ram` in bytes; `own_cache` False leaves the KV cache's size on a CPU to vLLM's environment.
    """
    options = spec.options
    folder = Path(spec.path)
    _check_folder(folder)
    arguments: dict[str, Any] = {
        key: value for key, value in options.items() if value is not None and key not in CHECKED_HERE
    }
    arguments |= {"model": str(folder), "served_model_name": [spec.name]}
    arguments |= _runner(spec.usecase, str(options.get("task") or "auto"))
    if parser := reasoning_parser(options):
        arguments["reasoning_parser"] = parser
    if spec.gpus:
        if 0 < spec.gpu_share < 1:
            arguments["gpu_memory_utilization"] = spec.gpu_share
    elif "kv_cache_memory_bytes" not in arguments and own_cache:
        arguments["kv_cache_memory_bytes"] = max(min(CPU_CACHE, free_ram // CPU_CACHE_PART), GIB // 2)
    return arguments


def reasoning_parser(options: dict[str, Any]) -> str | None:
    """Return the reasoning parser wanted, None for none. Raises LoadFailed (permanent)."""
    wanted, parser = options.get("enable_reasoning"), options.get("reasoning_parser")
    if wanted and not parser:
        raise refused("enable_reasoning needs a reasoning_parser; name the one that fits the model")
    return str(parser) if parser and wanted is not False else None


def tool_parser(options: dict[str, Any]) -> str | None:
    """Return vLLM's parser of tool calls wanted, None for none. Raises LoadFailed (permanent)."""
    wanted, parser = options.get("enable_auto_tool_choice"), options.get("tool_call_parser")
    if wanted is False:
        return None
    return str(parser) if parser else None


def _runner(usecase: str, task: str) -> dict[str, str]:
    if task not in TASKS:
        raise refused(f"task is {task!r}; it is one of {', '.join(TASKS)}")
    if task == "auto":
        return {"runner": "pooling" if usecase == "embed" else "generate"}
    return TASKS[task]


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        hint = "; GGUF files are for the loader llama_server" if folder.suffix == ".gguf" else ""
        raise refused(f"{folder} is one file, and vLLM needs a folder with config.json in it{hint}")
    # Mistral's own format has another name for it.
    if not any((folder / name).is_file() for name in ("config.json", "params.json")):
        raise refused(f"{folder} has no config.json: it is not a model folder that vLLM can load")


def refused(words: str) -> LoadFailed:
    """Return the error of a load that no second try would help."""
    return LoadFailed(words, permanent=True)
