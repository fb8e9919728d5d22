"""Options of the vllm loader as vLLM's engine arguments."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from modeld.config.engines import VllmEngineKwargs
from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.vllm.options import (
    CHECKED_HERE,
    CPU_CACHE,
    GIB,
    engine_arguments,
    environment,
    reasoning_parser,
    tool_parser,
)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Give a folder that looks like a model."""
    (tmp_path / "config.json").write_text("{}")
    return tmp_path


def spec(
    path: Path, usecase: str = "generate", gpus: int = 0, share: float = 0.0, **options: Any
) -> LoadSpec:
    """Return a spec."""
    return LoadSpec("m", "vllm", usecase, str(path), "/r", options, gpus=gpus, gpu_share=share)


def test_every_option_of_the_configuration_reaches_vllm_or_is_acted_on_here(folder: Path) -> None:
    """Nothing that people write is lost on the way: it has its own name, or a meaning of ours."""
    options: dict[str, Any] = {
        name: "auto" if name == "task" else "1" for name in VllmEngineKwargs.model_fields
    }
    arguments = engine_arguments(spec(folder, **options), 8 * GIB)
    assert options.keys() - arguments.keys() <= CHECKED_HERE
    assert arguments["reasoning_parser"] == tool_parser(options) == "1"
    assert "distributed_executor_backend" in VllmEngineKwargs.model_fields


def test_unset_options_are_left_to_vllm(folder: Path) -> None:
    """The configuration's own defaults make no arguments but those that have values."""
    options = VllmEngineKwargs().model_dump(mode="json", exclude={"model"})
    arguments = engine_arguments(spec(folder, **options, python="/opt/python"), 8 * GIB)
    assert "python" not in arguments
    assert None not in arguments.values()
    assert "max_model_len" not in arguments
    assert arguments["model"] == str(folder)
    assert arguments["served_model_name"] == ["m"]


@pytest.mark.parametrize(
    ("usecase", "task", "wanted"),
    [
        ("generate", "auto", {"runner": "generate"}),
        ("embed", "auto", {"runner": "pooling"}),
        ("transcription", "auto", {"runner": "generate"}),
        ("embed", "classify", {"runner": "pooling", "convert": "classify"}),
        ("generate", "embed", {"runner": "pooling", "convert": "embed"}),
    ],
)
def test_the_runner_follows_from_task_or_usecase(
    folder: Path, usecase: str, task: str, wanted: dict[str, str]
) -> None:
    """What a model is for decides, unless a task says otherwise; `task` itself is no argument any more."""
    arguments = engine_arguments(spec(folder, usecase, task=task), 8 * GIB)
    assert {key: arguments[key] for key in wanted} == wanted
    assert "task" not in arguments


def test_memory_follows_from_what_the_model_was_given(folder: Path) -> None:
    """A share is the share, a whole GPU vLLM's own part; on the CPU the cache is bounded by free RAM."""
    assert engine_arguments(spec(folder, gpus=1, share=0.3), 0)["gpu_memory_utilization"] == 0.3
    for given in (spec(folder, gpus=1), spec(folder, gpus=2)):
        assert (
            not {"gpu_memory_utilization", "kv_cache_memory_bytes"} & engine_arguments(given, 8 * GIB).keys()
        )
    assert engine_arguments(spec(folder), 100 * GIB)["kv_cache_memory_bytes"] == CPU_CACHE
    assert engine_arguments(spec(folder), 4 * GIB)["kv_cache_memory_bytes"] == GIB
    assert engine_arguments(spec(folder), 0)["kv_cache_memory_bytes"] == GIB // 2
    assert engine_arguments(spec(folder, kv_cache_memory_bytes=7), GIB)["kv_cache_memory_bytes"] == 7
    assert "kv_cache_memory_bytes" not in engine_arguments(spec(folder), GIB, own_cache=False)


def test_parsers_are_on_when_named_and_off_when_told_so() -> None:
    """enable_* false wins over a name; thoughts cannot be told apart without one."""
    assert tool_parser({"tool_call_parser": "hermes"}) == "hermes"
    assert tool_parser({"tool_call_parser": "hermes", "enable_auto_tool_choice": False}) is None
    assert tool_parser({"enable_auto_tool_choice": True}) is None
    assert reasoning_parser({"reasoning_parser": "qwen3"}) == "qwen3"
    assert reasoning_parser({"reasoning_parser": "qwen3", "enable_reasoning": False}) is None
    with pytest.raises(LoadFailed, match="reasoning_parser"):
        reasoning_parser({"enable_reasoning": True})


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: spec(folder / "x.gguf"), "llama_server"),
        (lambda folder: spec(folder / "empty"), "config.json"),
        (lambda folder: spec(folder, task="dance"), "dance"),
    ],
)
def test_what_vllm_could_never_load_is_refused_before_it_starts(folder: Path, make: Any, words: str) -> None:
    """A file, a folder without a configuration, an unknown task: permanent, with the way out."""
    (folder / "x.gguf").write_bytes(b"GGUF")
    (folder / "empty").mkdir()
    with pytest.raises(LoadFailed, match=words) as caught:
        engine_arguments(make(folder), GIB)
    assert caught.value.permanent


def test_the_environment_is_offline_without_telemetry_and_otherwise_the_owners() -> None:
    """No hub and no statistics, whatever was set; where threads run may be set."""
    found = environment({"HF_HUB_OFFLINE": "0", "VLLM_CPU_OMP_THREADS_BIND": "0-3"})
    assert found["HF_HUB_OFFLINE"] == found["VLLM_NO_USAGE_STATS"] == "1"
    assert "VLLM_CPU_OMP_THREADS_BIND" not in found
    assert environment({})["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
