from __future__ import annotations

import asyncio
import sys
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.llama_server import devices
from modeld.worker.loaders.llama_server.engine import Engine
from modeld.worker.loaders.llama_server.xllama import accelerators

LISTED = """ggml_cuda_init: found 2 CUDA devices:
Available devices:
  CUDA0: NVIDIA GeForce RTX 4090 (24080 MiB, 23000 MiB free)
  Vulkan1: AMD Radeon (RADV NAVI31) (24560 MiB, 1 MiB free)
"""
"""In the form of `llama-server --list-devices`."""


def test_the_list_of_the_program_is_read() -> None:
    """Names and descriptions are kept, sizes left out; no device is the CPU, another output is unknown."""
    assert devices.parsed(LISTED) == [
        "CUDA0 (NVIDIA GeForce RTX 4090)",
        "Vulkan1 (AMD Radeon (RADV NAVI31))",
    ]
    assert devices.words(devices.parsed("Available devices:\n")) == "cpu"
    assert devices.parsed("error: invalid argument: --list-devices") is None
    assert devices.words(None) == "chosen by the engine"


def test_the_wheels_list_leaves_the_cpu_out() -> None:
    """What is told is what computes beside the CPU."""
    told = [{"name": "CPU", "description": "AMD EPYC"}, {"name": "CUDA0", "description": "NVIDIA H200"}]
    assert accelerators(told) == ["CUDA0 (NVIDIA H200)"]


@pytest.mark.parametrize(
    ("gpus", "layers", "told", "device"),
    [
        (0, -1, ["CUDA0 (X)"], "cpu"),
        (1, 0, ["CUDA0 (X)"], "cpu"),
        (1, -1, ["CUDA0 (X)"], "CUDA0 (X)"),
        (2, 12, ["CUDA0 (X)", "CUDA1 (X)"], "CUDA0 (X), CUDA1 (X)"),
        (1, -1, [], "cpu"),
    ],
)
async def test_the_device_is_where_it_really_runs(
    monkeypatch: pytest.MonkeyPatch, gpus: int, layers: int, told: list[str], device: str
) -> None:
    """A worker without GPUs, or told to leave them alone, is on the CPU, as is one of a build without any."""
    monkeypatch.setattr(sys, "platform", "linux")
    spec = LoadSpec("m", "llama_server", "generate", "m.gguf", "/run", {"n_gpu_layers": layers}, gpus=gpus)
    engine = cast(Engine, SimpleNamespace(accelerators=told))
    assert await devices.device_of(spec, engine, "llama-server") == device


async def test_a_program_that_does_not_tell_is_asked(tmp_path: Any) -> None:
    """What it lists is the device; one that cannot be asked leaves it open."""
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\ncat <<'END'\n{LISTED}END\n")
    program.chmod(0o700)
    spec = LoadSpec("m", "llama_server", "generate", "m.gguf", "/run", gpus=1)
    engine = cast(Engine, SimpleNamespace(accelerators=None))
    async with asyncio.timeout(60):
        assert (await devices.device_of(spec, engine, str(program))).startswith("CUDA0 (NVIDIA")
        assert await devices.device_of(spec, engine, str(tmp_path / "none")) == "chosen by the engine"
