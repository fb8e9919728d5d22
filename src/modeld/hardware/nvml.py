"""NVIDIA GPUs as facts, through NVML, which makes no CUDA context and takes no GPU memory.

Everything NVML can answer badly is a state here: no driver, a driver replaced under us, a GPU that fell off
the bus during a suspend, a GPU this user may not ask. A session that saw such a thing is ended and begun
again, at most every few seconds, since NVML finds a GPU that came back only from a new `nvmlInit`.
"""

from __future__ import annotations

import logging
import threading
from typing import Any

import msgspec

from modeld.clock import Clock
from modeld.hardware.binding import NO_SUCH_CALL, Binding, Code, Trouble, why_no_session
from modeld.hardware.machine import Condition, Device, Kind
from modeld.hardware.visible import visible as visible_positions

_log = logging.getLogger("modeld.hardware")

RETRY_FIRST_S = 1.0
"""Seconds until the third try to begin a session; the second comes with the next look. Doubles from there."""

RETRY_DRIVER_S = 8.0
"""Most seconds between two tries while there is no driver: a failing try costs well under a millisecond."""

RETRY_LOST_S = 30.0
"""Most seconds between two new sessions while a GPU is missing: each may stall for a while."""

_MIG_ENABLED = 1
_NOT_AVAILABLE = (1 << 64) - 1


class _Backoff:
    """When to try again: at once after the first failure, then in growing steps."""

    def __init__(self) -> None:
        self._failures = 0
        self._not_before = float("-inf")

    def due(self, now: float) -> bool:
        return now >= self._not_before

    def failed(self, now: float, limit: float) -> None:
        self._failures += 1
        # The exponent is bounded, as a failure may last for months.
        delay = 0.0 if self._failures == 1 else RETRY_FIRST_S * 2.0 ** min(self._failures - 2, 16)
        self._not_before = now + min(delay, limit)

    def worked(self) -> None:
        self._failures, self._not_before = 0, float("-inf")


class _Known(msgspec.Struct):
    """A GPU that was seen: where it sits, and how it was last."""

    bus: tuple[int, int, int]
    device: Device


class Nvml:
    """The GPUs of this machine. Safe to call from any thread; calls wait for each other.

    `library` is the `pynvml` module, imported at the first look that finds a driver, or a stand-in with its
    functions and exceptions. `visible` is the CUDA_VISIBLE_DEVICES that binds this process, None for no
    restriction.
    """

    def __init__(self, library: Any = None, *, visible: str | None = None, clock: Clock) -> None:
        self._nvml = Binding(library)
        self._visible = visible
        self._clock = clock
        self._lock = threading.Lock()
        self._ill = False
        self._backoff = _Backoff()
        self._trouble = Trouble(Code.UNINITIALIZED, "not asked yet")
        self._known: dict[str, _Known] = {}
        self._at: dict[int, str] = {}
        self._warned = ""

    def gpus(self) -> tuple[tuple[Device, ...], str]:
        """Return the GPUs in PCI bus order and, when there is none, a sentence that says why. Never raises.

        A device's `total` leaves out what the driver reserves for itself. `index` counts every GPU ever seen
        here, so that it neither moves when another is lost nor depends on CUDA_VISIBLE_DEVICES. GPUs that
        NVML never let us identify come last, with the id "nvml:N".
        """
        with self._lock:
            return self._look()

    def close(self) -> None:
        """End the session, which lets an idle GPU sleep and its driver be replaced; a look begins anew."""
        with self._lock:
            self._nvml.end()

    # --- the session ----------------------------------------------------------------------------------------

    def _look(self) -> tuple[tuple[Device, ...], str]:
        now = self._clock.monotonic()
        renewed = False
        if self._ill and self._nvml.open and self._backoff.due(now):
            self._nvml.end()
        if not self._nvml.open:
            if not self._backoff.due(now):
                return self._without_session()
            try:
                self._nvml.begin()
            except Trouble as trouble:
                self._trouble = trouble
                self._backoff.failed(now, RETRY_DRIVER_S)
                return self._without_session()
            renewed = True
            self._at.clear()
        try:
            count = int(self._nvml.ask("nvmlDeviceGetCount"))
        except Trouble as trouble:
            self._trouble = trouble
            self._nvml.end()
            self._backoff.failed(now, RETRY_DRIVER_S)
            return self._without_session()
        strangers = self._refresh(count)
        ill = any(known.device.condition is Condition.LOST for known in self._known.values()) or any(
            device.condition is Condition.LOST for device in strangers
        )
        if not ill:
            self._backoff.worked()
        elif renewed or not self._ill:
            self._backoff.failed(now, RETRY_LOST_S)
        self._ill = ill
        return self._listed(strangers, "the NVIDIA driver runs and knows no GPU")

    # --- one look -------------------------------------------------------------------------------------------

    def _refresh(self, count: int) -> tuple[Device, ...]:
        """Ask every GPU and bring `_known` up to date; return those that cannot be told from one another."""
        before, self._at = self._at, {}
        failures: dict[int, Trouble] = {}
        for number in range(count):
            try:
                self._at[number] = self._identify(number)
            except Trouble as trouble:
                failures[number] = trouble
        missing = set(self._known) - set(self._at.values())
        for number in list(failures):
            uuid = before.get(number)
            if uuid in missing:
                missing.discard(uuid)
                self._at[number] = uuid
                self._mark(uuid, failures.pop(number))
        for uuid in sorted(missing):
            gone = Trouble(Code.GPU_NOT_FOUND, "it is not in the driver's list any more")
            # A GPU that was known and one that does not say its name are the same one, as far as we can tell.
            self._mark(uuid, failures.pop(next(iter(failures))) if failures else gone)
        return tuple(
            _bad(Device(id=f"nvml:{number}", kind=Kind.GPU, name="GPU", total=0, free=0), trouble)
            for number, trouble in failures.items()
        )

    def _identify(self, number: int) -> str:
        """Find out which GPU has a number and how it is; return its UUID. Raises Trouble for a stranger."""
        handle = self._nvml.ask("nvmlDeviceGetHandleByIndex", number)
        uuid = _text(self._nvml.ask("nvmlDeviceGetUUID", handle))
        known = self._known.get(uuid)
        if known is None:
            pci = self._nvml.ask("nvmlDeviceGetPciInfo", handle)
            name = _text(self._nvml.ask("nvmlDeviceGetName", handle))
            device = Device(id=uuid, kind=Kind.GPU, name=name, total=0, free=0)
            known = self._known[uuid] = _Known((int(pci.domain), int(pci.bus), int(pci.device)), device)
        try:
            self._set(known, self._measure(handle, known.device))
        except Trouble as trouble:
            self._mark(uuid, trouble)
        return uuid

    def _measure(self, handle: Any, last: Device) -> Device:
        """Return a GPU's present memory. Raises Trouble when it does not answer."""
        good = Device(id=last.id, kind=Kind.GPU, name=last.name, total=0, free=0)
        if self._partitioned(handle):
            message = (
                f"MIG is on, and only whole GPUs are used; to switch it off: nvidia-smi -i {last.id} -mig 0"
            )
            return msgspec.structs.replace(
                good, total=last.total, condition=Condition.PARTITIONED, message=message
            )
        try:
            total, free = self._memory(handle)
        except Trouble as trouble:
            if trouble.code != Code.NOT_SUPPORTED:
                raise
            # Chips that share the host's RAM (Tegra, GB10) answer so.
            return msgspec.structs.replace(good, message="the driver does not tell this GPU's memory")
        return msgspec.structs.replace(good, total=total, free=free, processes=self._processes(handle, total))

    def _partitioned(self, handle: Any) -> bool:
        try:
            current, _ = self._nvml.ask("nvmlDeviceGetMigMode", handle)
        except Trouble as trouble:
            if trouble.code in NO_SUCH_CALL or trouble.code == Code.NO_PERMISSION:
                return False
            raise
        return bool(current == _MIG_ENABLED)

    def _memory(self, handle: Any) -> tuple[int, int]:
        """Return (usable, free) bytes: version 2 of the call tells the driver's own share, version 1 not."""
        try:
            info = self._nvml.ask("nvmlDeviceGetMemoryInfo", handle, self._nvml.constant("nvmlMemory_v2"))
        except Trouble as trouble:
            if trouble.code not in NO_SUCH_CALL:
                raise
            info = self._nvml.ask("nvmlDeviceGetMemoryInfo", handle)
        return max(int(info.total) - int(getattr(info, "reserved", 0)), 0), int(info.free)

    def _processes(self, handle: Any, total: int) -> dict[int, int] | None:
        """Return bytes by pid, or None when the driver does not tell.

        A process that computes and draws is in both lists, each time with all its memory ("all of the memory
        used by the application", says NVML), so the larger figure counts. A pid whose figure is not available
        is left out.
        """
        held: dict[int, int] = {}
        untold = False
        for function in ("nvmlDeviceGetComputeRunningProcesses", "nvmlDeviceGetGraphicsRunningProcesses"):
            try:
                entries = self._nvml.ask(function, handle)
            except Trouble as trouble:
                if trouble.code not in NO_SUCH_CALL and trouble.code != Code.NO_PERMISSION:
                    raise
                if "Compute" in function:
                    return None
                continue
            for entry in entries:
                size = entry.usedGpuMemory
                if not isinstance(size, int) or size == _NOT_AVAILABLE or not 0 <= size <= 2 * total:
                    untold = True
                    continue
                held[int(entry.pid)] = max(held.get(int(entry.pid), 0), size)
        return None if untold and not held else held

    # --- what is told ---------------------------------------------------------------------------------------

    def _set(self, known: _Known, device: Device) -> None:
        before, known.device = known.device.condition, device
        if device.condition is not before:
            if device.condition is Condition.OK:
                _log.info("GPU %s (%s) is back", device.name, device.id)
            else:
                _log.warning("GPU %s (%s): %s", device.name, device.id, device.message)

    def _mark(self, uuid: str, trouble: Trouble) -> None:
        known = self._known[uuid]
        self._set(known, _bad(known.device, trouble))

    def _without_session(self) -> tuple[tuple[Device, ...], str]:
        why = why_no_session(self._trouble)
        for uuid in self._known:
            self._mark(uuid, Trouble(self._trouble.code, why))
        return self._listed((), why)

    def _listed(self, strangers: tuple[Device, ...], why: str) -> tuple[tuple[Device, ...], str]:
        ordered = sorted(self._known.values(), key=lambda known: (known.bus, known.device.id))
        devices = [known.device for known in ordered]
        if self._visible is None:
            return _numbered([*devices, *strangers]), "" if devices or strangers else why
        if not devices:
            return (), _denied(strangers) or why
        chosen, problem = visible_positions(self._visible, [device.id for device in devices])
        if chosen and problem and problem != self._warned:
            _log.warning("%s; only the GPUs named before it are used", problem)
            self._warned = problem
        numbered = _numbered(devices)
        return tuple(numbered[at] for at in sorted(chosen)), "" if chosen else problem


def _numbered(devices: list[Device]) -> tuple[Device, ...]:
    return tuple(msgspec.structs.replace(device, index=at) for at, device in enumerate(devices))


def _denied(strangers: tuple[Device, ...]) -> str:
    return strangers[0].message if strangers else ""


def _bad(device: Device, trouble: Trouble) -> Device:
    """Return the device as one that cannot be used, with what is still known of it."""
    if trouble.code == Code.NO_PERMISSION:
        condition = Condition.DENIED
        message = f"this user may not use it ({trouble.words})"
        if "/dev/" not in trouble.words:
            message += "; look at who may open /dev/nvidia*"
    else:
        condition = Condition.LOST
        message = f"it does not answer ({trouble.words}); modeld goes on asking"
    return msgspec.structs.replace(device, free=0, processes=None, condition=condition, message=message)


def _text(value: Any) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
