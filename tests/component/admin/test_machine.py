"""Devices, estimates, forced loads, odd names: over the socket and as `modeld ctl` shows them."""

from __future__ import annotations

import asyncio
import json

import pytest

from modeld.admin.schemas import DeviceReport, DevicesReply, EstimateReply
from modeld.errors import LoadFailed, ModeldError
from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.hardware.machine import HOST, Condition, Device, Kind
from modeld.protocol.capabilities import Capability
from modeld.supervisor.states import ReplicaStatus, State, Status
from tests.component.admin.conftest import Daemon
from tests.component.admin.fake_supervisor import model

GIB = 2**30

ODD = ["org/model", "50%", "a%2Fb", "%25", "..", ".", "a{b}", "ü #?&=", "a b", "models/x/load", "%2e%2e/%"]


@pytest.mark.parametrize("name", ODD)
async def test_odd_names(daemon: Daemon, name: str) -> None:
    """Whatever a model is called, its name arrives as it was written."""
    daemon.supervisor.add(model(name))
    footprint = Footprint(Source.EXPLICIT, (Line("ram", GIB, Where.RAM),))
    daemon.control.estimates[name] = EstimateReply(name, footprint)
    *_, end = await asyncio.to_thread(list, daemon.client.move(name, "load"))
    assert isinstance(end, Status)
    assert end.name == name
    assert (await asyncio.to_thread(daemon.client.estimate, name)).name == name
    assert await asyncio.to_thread(list, daemon.client.logs(name)) == []


async def test_forced_load(daemon: Daemon) -> None:
    """--force reaches the supervisor; without it nothing is forced."""
    assert (await daemon.ctl("load", "whisper", "--force")).exit_code == 0
    assert (await daemon.ctl("load", "whisper")).exit_code == 0
    assert daemon.supervisor.moves == [("load by force", "whisper"), ("load", "whisper")]


def _machine() -> DevicesReply:
    host = Device(HOST, Kind.HOST, "RAM", 32 * GIB, 20 * GIB)
    gpu = Device("GPU-1", Kind.GPU, "NVIDIA H200", 140 * GIB, 100 * GIB, 0)
    lost = Device("GPU-2", Kind.GPU, "NVIDIA H200", 0, 0, 1, None, Condition.LOST, "fell off the bus.")
    return DevicesReply(
        (
            DeviceReport(host, 28 * GIB),
            DeviceReport(
                gpu, 130 * GIB, {"qwen#1": 10 * GIB, "big": 30 * GIB}, "1.9 GiB used by other programs"
            ),
            DeviceReport(lost, 0),
        ),
        loaders={
            "vllm": Capability(False, "no module named vllm", "pip install 'modeld[vllm]'"),
            "llama_server": Capability(True, "xllamacpp 2026.10"),
        },
    )


async def test_devices(daemon: Daemon) -> None:
    """Each memory with its condition, sizes and holders, largest first; each loader with its fix."""
    daemon.control.machine = _machine()
    result = await daemon.ctl("devices")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "DEVICE  CONDITION      TOTAL       FREE      HELD     USABLE",
        "RAM     ok          32.0 GiB   20.0 GiB         -   28.0 GiB",
        "GPU 0   ok         140.0 GiB  100.0 GiB  40.0 GiB  130.0 GiB  NVIDIA H200; "
        "held by big 30.0 GiB, qwen#1 10.0 GiB; 1.9 GiB used by other programs",
        "GPU 1   lost               -          -         -          -  NVIDIA H200; fell off the bus",
        "",
        "LOADER        ENGINE",
        "llama_server  there    xllamacpp 2026.10",
        "vllm          missing  no module named vllm; to get it: pip install 'modeld[vllm]'",
    ]


async def test_devices_as_json(daemon: Daemon) -> None:
    """--json carries every field."""
    daemon.control.machine = _machine()
    reply = json.loads((await daemon.ctl("devices", "--json")).stdout)
    assert reply["devices"][1]["device"]["total"] == 140 * GIB
    assert reply["devices"][1]["held"] == {"qwen#1": 10 * GIB, "big": 30 * GIB}
    assert reply["loaders"]["vllm"]["available"] is False


async def test_no_gpu_says_why(daemon: Daemon) -> None:
    """A machine without a GPU says why none is seen."""
    host = Device(HOST, Kind.HOST, "RAM", 32 * GIB, 20 * GIB)
    daemon.control.machine = DevicesReply((DeviceReport(host, 1),), "the NVIDIA driver is not installed.")
    result = await daemon.ctl("devices")
    assert result.stdout.splitlines()[-1] == "no GPU: the NVIDIA driver is not installed"


async def test_estimate(daemon: Daemon) -> None:
    """The sum line by line in one unit, a total per memory, the estimate beside it, what would happen."""
    used = Footprint(Source.LEARNED, (Line("measured", 3 * GIB, Where.GPU),), "3 runs.")
    lines = (
        Line("weights, 24 of 24 layers", 2 * GIB, Where.GPU),
        Line("KV cache, 4096 × 2", 2 * GIB, Where.GPU),
        Line("token table", 2**20, Where.RAM),
    )
    daemon.control.estimates["qwen"] = EstimateReply(
        "qwen", used, Footprint(Source.ESTIMATED, lines), "it goes to GPU 0."
    )
    result = await daemon.ctl("estimate", "qwen")
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "qwen: learned (3 runs)",
        "  GPU  measured        3,072.0 MiB",
        "  GPU  total, 3.0 GiB  3,072.0 MiB",
        "",
        "without knowing better: estimated",
        "  GPU  weights, 24 of 24 layers  2,048.0 MiB",
        "  GPU  KV cache, 4096 × 2        2,048.0 MiB",
        "  GPU  total, 4.0 GiB            4,096.0 MiB",
        "  RAM  token table                   1.0 MiB",
        "  RAM  total, 1 MiB                  1.0 MiB",
        "the learned figure is 25% below it",
        "",
        "it goes to GPU 0",
    ]
    assert json.loads((await daemon.ctl("estimate", "qwen", "--json")).stdout)["fits"] == "it goes to GPU 0."


async def test_estimate_without_a_file(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """A model whose file is not there yet says so in one line, with exit code 1."""

    async def estimate(name: str) -> EstimateReply:
        raise LoadFailed(f"{name}: not fetched yet; load it once")

    monkeypatch.setattr(daemon.control, "estimate", estimate)
    result = await daemon.ctl("estimate", "qwen")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == "Error: qwen: not fetched yet; load it once\n"


@pytest.mark.parametrize("seen", [True, False])
async def test_status_names_gpus(daemon: Daemon, monkeypatch: pytest.MonkeyPatch, seen: bool) -> None:
    """A model on a GPU says which one by its number; when devices cannot be had the id does."""
    daemon.control.machine = _machine()
    copy = ReplicaStatus(State.READY, "start", "", 0.0, devices={HOST: GIB, "GPU-1": 10 * GIB})
    daemon.supervisor.add(model("on-gpu", State.READY, replicas=(copy,)))
    if not seen:

        async def devices() -> DevicesReply:
            raise ModeldError("no")

        monkeypatch.setattr(daemon.control, "devices", devices)
    result = await daemon.ctl("status")
    assert result.exit_code == 0
    assert result.stdout.splitlines()[-1].endswith("; on GPU 0" if seen else "; on GPU-1")
