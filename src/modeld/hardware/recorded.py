"""A recording of NVML in the place of the driver's, for tests and for machines one does not have.

A recording is a JSON file: the devices in the order the driver lists them, and frames that change them over
time. Every look shows the next frame, and the last one stays. What the stand-in answers and raises is what
`pynvml` does, and a test compares the two.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from modeld.clock import Clock
from modeld.errors import UsageError
from modeld.hardware.binding import Code
from modeld.hardware.machine import Device
from modeld.hardware.nvml import Nvml


class RecordedDevice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One GPU; sizes in bytes. `errors` maps a function's name, or "*" for all, to the error it raises.

    `compute` and `graphics` map pids to bytes, null for "not available". `mig` is null where the GPU knows no
    MIG, else 0 or 1.
    """

    uuid: str
    name: str
    bus_id: str
    total: int
    free: int
    reserved: int = 0
    compute: dict[int, int | None] = {}
    graphics: dict[int, int | None] = {}
    mig: int | None = None
    errors: dict[str, int] = {}


class Frame(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What differs from the devices as listed: by UUID, the fields that do, or null for a GPU that is gone.

    `errors` are those of functions that are not about one device, e.g. {"nvmlInit": 9}.
    """

    devices: dict[str, dict[str, Any] | None] = {}
    errors: dict[str, int] = {}


class Recording(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole recording. `about` says in words what it shows.

    No frames are one without changes. With `sticky`, a GPU that was lost answers only after a new nvmlInit,
    as with the real driver.
    """

    about: str
    devices: list[RecordedDevice]
    frames: list[Frame] = []
    sticky: bool = True


class NVMLError(Exception):
    """The base of the stand-in's errors; `NVMLError(15)` is of the class named NVMLError_GpuIsLost."""

    value: int

    def __new__(cls, value: int) -> NVMLError:
        """Make an instance of the class that belongs to the value."""
        error = Exception.__new__(_CLASSES.get(value, cls))
        error.value = value
        return error

    def __str__(self) -> str:
        try:
            return Code(self.value).name.replace("_", " ").capitalize()
        except ValueError:
            return f"NVML error {self.value}"


def _class_name(code: Code) -> str:
    return "NVMLError_" + "".join(word.capitalize() for word in code.name.split("_"))


_CLASSES: dict[int, type[NVMLError]] = {
    code.value: type(_class_name(code), (NVMLError,), {}) for code in Code
}


class _Memory(NamedTuple):
    total: int
    reserved: int
    free: int
    used: int


class _MemoryV1(NamedTuple):
    total: int
    free: int
    used: int


class _Pci(NamedTuple):
    domain: int
    bus: int
    device: int
    busId: str


class _Process(NamedTuple):
    pid: int
    usedGpuMemory: int | None


class RecordedLibrary:
    """A recording with the functions of `pynvml` that `Nvml` uses. A handle is a GPU's UUID."""

    NVMLError = NVMLError
    nvmlMemory_v2 = 0x02000028

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._frames = recording.frames or [Frame()]
        self._shown = [_shown(recording.devices, frame) for frame in self._frames]
        self._now = 0
        self._sessions = 0
        self._dead: dict[str, int] = {}
        self.began = 0
        for code, error in _CLASSES.items():
            setattr(self, f"NVML_ERROR_{Code(code).name}", code)
            setattr(self, error.__name__, error)

    def advance(self) -> None:
        """Show the next frame; the last one stays."""
        self._now = min(self._now + 1, len(self._frames) - 1)

    def nvmlInit(self) -> None:
        """Begin a session; sessions are counted, as NVML counts them."""
        self._fail("nvmlInit")
        self.began += 1
        self._sessions += 1
        self._dead.clear()

    def nvmlShutdown(self) -> None:
        """End a session."""
        self._session()
        self._fail("nvmlShutdown")
        self._sessions -= 1

    def nvmlDeviceGetCount(self) -> int:
        """Return how many GPUs there are, those that cannot be used included."""
        self._session()
        self._fail("nvmlDeviceGetCount")
        return len(self._devices())

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        """Return the handle of a GPU by its place in the driver's order, which need not be the bus's."""
        self._session()
        devices = self._devices()
        if not 0 <= index < len(devices):
            raise NVMLError(Code.INVALID_ARGUMENT)
        return self._device(devices[index].uuid, "nvmlDeviceGetHandleByIndex").uuid

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        """Return a GPU's UUID."""
        return self._device(handle, "nvmlDeviceGetUUID").uuid

    def nvmlDeviceGetName(self, handle: str) -> str:
        """Return a GPU's product name."""
        return self._device(handle, "nvmlDeviceGetName").name

    def nvmlDeviceGetPciInfo(self, handle: str) -> _Pci:
        """Return where a GPU sits: domain, bus and device, and all of it as text."""
        bus_id = self._device(handle, "nvmlDeviceGetPciInfo").bus_id
        domain, bus, rest = bus_id.split(":")
        return _Pci(int(domain, 16), int(bus, 16), int(rest.partition(".")[0], 16), bus_id)

    def nvmlDeviceGetMemoryInfo(self, handle: str, version: int | None = None) -> _Memory | _MemoryV1:
        """Return total, free and used bytes; version 2 tells reserved ones too."""
        device = self._device(handle, "nvmlDeviceGetMemoryInfo")
        used = device.total - device.free
        if version is None:
            return _MemoryV1(device.total, device.free, used)
        if version != self.nvmlMemory_v2:
            raise NVMLError(Code.ARGUMENT_VERSION_MISMATCH)
        self._raise(device.errors.get("nvmlDeviceGetMemoryInfo_v2"))
        return _Memory(device.total, device.reserved, device.free, used - device.reserved)

    def nvmlDeviceGetComputeRunningProcesses(self, handle: str) -> list[_Process]:
        """Return the processes with a compute context and the bytes each holds in all."""
        device = self._device(handle, "nvmlDeviceGetComputeRunningProcesses")
        return [_Process(pid, size) for pid, size in device.compute.items()]

    def nvmlDeviceGetGraphicsRunningProcesses(self, handle: str) -> list[_Process]:
        """Return the processes with a graphics context and the bytes each holds in all."""
        device = self._device(handle, "nvmlDeviceGetGraphicsRunningProcesses")
        return [_Process(pid, size) for pid, size in device.graphics.items()]

    def nvmlDeviceGetMigMode(self, device: str) -> list[int]:
        """Return the current and the pending MIG mode."""
        mig = self._device(device, "nvmlDeviceGetMigMode").mig
        if mig is None:
            raise NVMLError(Code.NOT_SUPPORTED)
        return [mig, mig]

    def _session(self) -> None:
        if self._sessions <= 0:
            raise NVMLError(Code.UNINITIALIZED)

    def _fail(self, function: str) -> None:
        self._raise(self._frames[self._now].errors.get(function))

    def _raise(self, code: int | None) -> None:
        if code is not None:
            raise NVMLError(code)

    def _devices(self) -> list[RecordedDevice]:
        return self._shown[self._now]

    def _device(self, handle: str, function: str) -> RecordedDevice:
        self._session()
        self._raise(self._dead.get(handle))
        for device in self._devices():
            if device.uuid == handle:
                code = device.errors.get(function, device.errors.get("*"))
                if self._recording.sticky and code in (Code.GPU_IS_LOST, Code.UNKNOWN):
                    self._dead[handle] = code
                self._raise(code)
                return device
        raise NVMLError(Code.GPU_IS_LOST)


def _shown(devices: list[RecordedDevice], frame: Frame) -> list[RecordedDevice]:
    """Return the devices as a frame has them. Raises msgspec.ValidationError for a change that cannot be."""
    shown = []
    for device in devices:
        change = frame.devices.get(device.uuid, {})
        if change is not None:
            fields = {**msgspec.to_builtins(device), **change}
            shown.append(msgspec.convert(fields, RecordedDevice, strict=False))
    return shown


class RecordedNvml(Nvml):
    """`Nvml` on a recording; the first look shows the first frame."""

    def __init__(self, recording: Recording, *, visible: str | None = None, clock: Clock) -> None:
        self.library = RecordedLibrary(recording)
        self._looked = False
        super().__init__(self.library, visible=visible, clock=clock)

    def gpus(self) -> tuple[tuple[Device, ...], str]:
        """Look at the next frame; see `Nvml.gpus`."""
        if self._looked:
            self.library.advance()
        self._looked = True
        return super().gpus()


def read_recording(file: Path) -> Recording:
    """Read a recording. Raises UsageError naming the file and what is wrong in it."""
    try:
        recording = msgspec.json.decode(file.read_bytes(), type=Recording)
        known = {device.uuid for device in recording.devices}
        for frame in recording.frames:
            for uuid in frame.devices:
                if uuid not in known:
                    raise UsageError(f"{file}: a frame changes {uuid}, which is not among the devices")
            _shown(recording.devices, frame)
    except OSError as error:
        raise UsageError(f"cannot read the NVML recording {file}: {error.strerror}") from error
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file} is not an NVML recording: {error}") from error
    return recording
