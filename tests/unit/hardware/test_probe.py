from __future__ import annotations

import platform
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from modeld.errors import UsageError
from modeld.hardware import apple, host
from modeld.hardware.machine import HOST, Condition, Kind, Probe
from modeld.hardware.probe import RECORDING, SystemProbe, UnifiedProbe, system_probe
from tests.fakes.clock import FakeClock
from tests.fakes.nvml import recorded, recording_file

GIB = 1 << 30


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine with 16 GiB of RAM, 10 of them available."""
    monkeypatch.setattr(host, "total_memory", lambda: 16 * GIB)
    monkeypatch.setattr(host, "available_memory", lambda: 10 * GIB)


@pytest.mark.usefixtures("memory")
def test_the_host_comes_first() -> None:
    """A machine is its RAM, then its GPUs."""
    found = SystemProbe(recorded("four_equal", FakeClock())).look()
    assert (found.devices[0].id, found.devices[0].kind, found.devices[0].name) == (HOST, Kind.HOST, "RAM")
    assert (found.devices[0].total, found.devices[0].free) == (16 * GIB, 10 * GIB)
    assert found.devices[0].index is None
    assert [gpu.index for gpu in found.gpus] == [0, 1, 2, 3]
    assert found.message == ""


def test_available_is_never_more_than_all(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures taken at two moments do not make more free than there is."""
    monkeypatch.setattr(host, "total_memory", lambda: 4 * GIB)
    monkeypatch.setattr(host, "available_memory", lambda: 5 * GIB)
    device = SystemProbe(None).look().devices[0]
    assert device.free == device.total == 4 * GIB


@pytest.mark.parametrize("error", [OSError("hidden"), ValueError("odd"), psutil.AccessDenied()])
def test_a_system_that_does_not_tell_its_memory(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """A look never raises: memory that cannot be known is a device that cannot be used."""

    def fail() -> int:
        raise error

    monkeypatch.setattr(host, "total_memory", fail)
    device = SystemProbe(None).look().devices[0]
    assert (device.total, device.free, device.condition) == (0, 0, Condition.DENIED)
    assert "does not tell its memory" in device.message


@pytest.mark.usefixtures("memory")
def test_a_recording_by_environment() -> None:
    """MODELD_NVML_RECORDING puts a recorded machine in the driver's place, with CUDA_VISIBLE_DEVICES."""
    file = str(recording_file("one_big_two_small"))
    probe: Probe = system_probe({RECORDING: file, "CUDA_VISIBLE_DEVICES": "2"})
    (found,) = probe.look().gpus
    assert (found.index, found.total // GIB) == (2, 23)


def test_a_recording_that_is_not_there_is_refused(tmp_path: Path) -> None:
    """A wrong path is a mistake in the environment, told before anything runs."""
    with pytest.raises(UsageError, match="cannot read the NVML recording"):
        system_probe({RECORDING: str(tmp_path / "none")})


def test_rest_ends_the_session() -> None:
    """A probe at rest holds no driver; the next look works as before."""
    nvml = recorded("four_equal", FakeClock())
    probe = SystemProbe(nvml)
    before = probe.look().gpus
    probe.rest()
    with pytest.raises(nvml.library.NVMLError):
        nvml.library.nvmlDeviceGetCount()
    assert probe.look().gpus == before
    SystemProbe(None).rest()


def test_this_machine() -> None:
    """The real probe of the machine at hand answers with its RAM, and with GPUs or the reason for none."""
    found = system_probe({}).look()
    assert 0 < found.devices[0].free <= found.devices[0].total <= psutil.virtual_memory().total
    assert bool(found.gpus) != bool(found.message)


@pytest.mark.usefixtures("memory")
def test_apple_silicon_is_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """On Apple silicon RAM and GPU memory are the same, so there is one device, named by its chip."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "arm64")
    asked = []

    def sysctl(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, "Apple M3 Max\n", "")

    monkeypatch.setattr(subprocess, "run", sysctl)
    probe = system_probe({})
    assert isinstance(probe, UnifiedProbe)
    assert asked == []
    for _ in range(2):
        found = probe.look()
        (device,) = found.devices
        assert (device.id, device.kind, device.name) == (HOST, Kind.UNIFIED, "Apple M3 Max")
        assert (device.total, device.free, device.condition) == (16 * GIB, 10 * GIB, Condition.OK)
        assert found.gpus == ()
        assert found.message
    assert len(asked) == 1
    probe.rest()


@pytest.mark.parametrize("error", [OSError(), subprocess.TimeoutExpired("sysctl", 2)])
def test_a_chip_that_does_not_say_its_name(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Without sysctl the device has a name all the same."""

    def fail(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(subprocess, "run", fail)
    assert apple.chip() == "Apple silicon"


@pytest.mark.usefixtures("memory")
def test_a_mac_with_intel_has_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an older Mac nothing looks for NVIDIA's driver, and the reason is said."""
    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    found = system_probe({}).look()
    assert [device.kind for device in found.devices] == [Kind.HOST]
    assert "x86_64" in found.message
