"""From a configuration to GPUs: a recorded machine of four, and workers without processes."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path

import pytest

from modeld.config.diff import wanted_models
from modeld.config.load import load_config
from modeld.control import specs_of
from modeld.hardware.machine import HOST
from modeld.hardware.probe import RECORDING, system_probe
from modeld.supervisor import memory, observation
from modeld.supervisor.spec import Resources
from modeld.supervisor.states import State
from tests.component.supervisor.conftest import Pools, answer, ask, spec
from tests.fakes.machine import GIB, FakeProbe
from tests.fakes.nvml import recording_file
from tests.fakes.worker_link import WAIT_S
from tests.fakes.workers import Workers

FOUR_GPUS = """
models:
  - {name: pair, model: org/pair, usecase: generate, loader: vllm, num_gpus: 2,
     vllm_engine_kwargs: {tensor_parallel_size: 2}}
  - {name: most, model: org/most, usecase: generate, loader: vllm, num_gpus: 0.55}
  - {name: some, model: org/some, usecase: generate, loader: vllm, num_gpus: 0.15}
  - {name: little, model: org/little, usecase: embed, loader: vllm, num_gpus: 0.1}
  - {name: one, model: org/one, usecase: generate, loader: vllm, num_gpus: 1}
  - {name: late, model: org/late, usecase: generate, loader: vllm, num_gpus: 4, load: on_demand,
     vllm_engine_kwargs: {tensor_parallel_size: 4}}
  - {name: cpu, model: org/cpu, usecase: embed, loader: vllm, num_gpus: 0, ram: 1GiB}
"""


def visible(workers: Workers, name: str) -> set[str]:
    """Return the GPUs that a model's worker sees."""
    env = workers.of(name).env
    assert env is not None
    assert env["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"
    return set(filter(None, env["CUDA_VISIBLE_DEVICES"].split(",")))


async def resolved(reference: str, report: object) -> Path:
    """Find every model; nothing is read of it."""
    return Path("/nonexistent") / reference


async def test_vllm_models_are_placed_on_a_recorded_machine_of_four_gpus(
    pools: Pools, tmp_path: Path
) -> None:
    """Groups get whole GPUs of their own, whole before shared, shares stack on one GPU, the CPU sees none."""
    file = tmp_path / "models.yaml"
    file.write_text(FOUR_GPUS)
    config = load_config(file, {})
    specs = specs_of(wanted_models(config, tmp_path), config)
    probe = system_probe({RECORDING: str(recording_file("four_equal"))})
    workers = Workers(quick=True)
    async with pools(specs.values(), probe=probe, workers=workers, resolve=resolved) as pool:
        await pool.settled()
        assert sorted(workers.spawned) == ["cpu", "little", "most", "one", "pair", "some"]
        pair, one = visible(workers, "pair"), visible(workers, "one")
        shared = visible(workers, "most")
        assert (len(pair), len(one), len(shared)) == (2, 1, 1)
        assert pair | one | shared == {"0", "1", "2", "3"}
        assert visible(workers, "some") == visible(workers, "little") == shared
        assert visible(workers, "cpu") == set()
        total = pool.memory.machine.gpus[0].total
        (gpu,) = (device for device in pool.memory.machine.gpus if str(device.index) in shared)
        held = pool.memory.held(gpu.id)
        assert held == {
            "most#0": math.ceil(0.55 * total),
            "some#0": math.ceil(0.15 * total),
            "little#0": math.ceil(0.1 * total),
        }
        spec = workers.of("most").spec
        assert spec is not None
        assert (spec.gpus, spec.gpu_share) == (1, 0.55)
        # The largest comes on demand: everybody on the GPUs makes room, the one on the CPU stays.
        await answer(ask(pool, "late"))
        assert visible(workers, "late") == {"0", "1", "2", "3"}
        assert workers.names() == ["cpu", "late"]


async def test_one_load_at_a_time_on_each_gpu(pools: Pools) -> None:
    """Two engines never profile one GPU's memory at once; two GPUs load side by side."""
    probe = FakeProbe(64 * GIB, {"GPU-a": 24 * GIB, "GPU-b": 24 * GIB})
    workers = Workers()
    names = ("a1", "a2", "b1", "b2")
    workers.gates = {name: asyncio.Event() for name in names}
    specs = [spec(name, resources=Resources(vram=10 * GIB, ram=0)) for name in names]
    async with pools(specs, probe=probe, workers=workers) as pool, asyncio.timeout(WAIT_S):
        while len(workers.spawned) < 2:
            await asyncio.sleep(0)
        first = list(workers.spawned)
        assert visible(workers, first[0]) != visible(workers, first[1])
        for _ in range(50):
            await asyncio.sleep(0)
        assert workers.spawned == first
        for name in first:
            workers.gates[name].set()
        while len(workers.spawned) < 4:
            await asyncio.sleep(0)
        for gate in workers.gates.values():
            gate.set()
        await pool.settled()
        assert all(status.state is State.READY for status in pool.statuses())
        assert workers.most_loading == 2
        assert sum(pool.memory.held("GPU-a").values()) == 20 * GIB
        assert pool.memory.held(HOST) == {}


async def test_the_driver_is_let_go_when_no_gpu_works(pools: Pools, monkeypatch: pytest.MonkeyPatch) -> None:
    """With nobody on the GPUs the driver is left in peace; a request looks again."""
    monkeypatch.setattr(memory, "CALM_S", 0.05)
    monkeypatch.setattr(observation, "FRESH_S", 0.0)
    probe = FakeProbe(64 * GIB, {"GPU-a": 24 * GIB})
    model = spec(resources=Resources(vram=GIB, ram=0), on_demand=True)
    async with pools(model, probe=probe, workers=Workers(quick=True)) as pool:
        async with asyncio.timeout(WAIT_S):
            await answer(ask(pool))
            await pool.unload("m")
            while not probe.rests:
                await asyncio.sleep(0.01)
            looks = probe.looks
            await answer(ask(pool))
            assert probe.looks > looks
