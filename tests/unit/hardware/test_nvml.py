from __future__ import annotations

import logging
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.hardware import nvml
from modeld.hardware.binding import Code
from modeld.hardware.machine import Condition, Device, Kind
from modeld.hardware.nvml import Nvml
from modeld.hardware.recorded import Frame, RecordedLibrary, RecordedNvml
from tests.fakes.clock import FakeClock
from tests.fakes.nvml import GIB, gpu, machine, recorded

MIB = 1 << 20
A = "GPU-aaaaaaaa-1111-2222-3333-44444444444a"
B = "GPU-bbbbbbbb-1111-2222-3333-44444444444b"
C = "GPU-cccccccc-1111-2222-3333-44444444444c"
OK, LOST, DENIED, PARTITIONED = Condition.OK, Condition.LOST, Condition.DENIED, Condition.PARTITIONED
FUNCTIONS = [
    "nvmlDeviceGetHandleByIndex",
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetPciInfo",
    "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetMigMode",
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
]


def _conditions(devices: tuple[Device, ...]) -> dict[str, Condition]:
    return {device.id: device.condition for device in devices}


# --- a healthy machine --------------------------------------------------------------------------------------


def test_four_equal_gpus() -> None:
    """Each GPU has its UUID, name, number, and memory without what the driver keeps for itself."""
    devices, why = recorded("four_equal", FakeClock()).gpus()
    assert why == ""
    assert [device.index for device in devices] == [0, 1, 2, 3]
    assert len({device.id for device in devices}) == 4
    for device in devices:
        assert (device.kind, device.condition, device.message) == (Kind.GPU, OK, "")
        assert device.name == "NVIDIA GeForce RTX 4090"
        assert device.total == device.free == 24 * GIB - 512 * MIB
        assert device.processes == {}


def test_the_order_is_that_of_the_bus() -> None:
    """Numbers follow PCI bus order, whatever order the driver lists, as CUDA's do when told so."""
    devices, _ = recorded("one_big_two_small", FakeClock()).gpus()
    assert [(device.index, device.id) for device in devices] == [(0, B), (1, C), (2, A)]
    assert [device.total // GIB for device in devices] == [11, 11, 23]


def test_a_process_in_both_lists_counts_once() -> None:
    """A pid that computes and draws holds what either list says of it in all, not the sum."""
    devices, _ = recorded("one_big_two_small", FakeClock()).gpus()
    assert devices[2].processes == {4100: 3 * GIB, 900: 256 * MIB}
    assert devices[1].processes == {4200: 5 * GIB}


def test_an_older_driver_tells_no_reserved_memory() -> None:
    """Without version 2 of the memory call, version 1 answers."""
    device = gpu(
        A, reserved=GIB, free=20 * GIB, errors={"nvmlDeviceGetMemoryInfo_v2": Code.FUNCTION_NOT_FOUND}
    )
    (found,), _ = RecordedNvml(machine(device), clock=FakeClock()).gpus()
    assert (found.total, found.free, found.condition) == (24 * GIB, 20 * GIB, OK)


def test_a_driver_without_gpus_says_so() -> None:
    """A driver that lists nothing is told apart from no driver."""
    assert RecordedNvml(machine(), clock=FakeClock()).gpus() == (
        (),
        "the NVIDIA driver runs and knows no GPU",
    )


def test_processes_that_the_driver_does_not_tell() -> None:
    """No figures, or no list of computing processes, is None; a missing list of drawing ones is no loss."""
    devices, _ = recorded("untold_processes", FakeClock()).gpus()
    assert [device.processes for device in devices] == [None, None, {6300: 3 * GIB}]
    assert {device.condition for device in devices} == {OK}


@pytest.mark.parametrize("size", [None, (1 << 64) - 1, 10**15, -1])
def test_a_process_without_a_figure_is_left_out(size: int | None) -> None:
    """A figure that is not available, or cannot be, does not spoil those that are."""
    (found,), _ = RecordedNvml(machine(gpu(A, compute={1: size, 2: GIB})), clock=FakeClock()).gpus()
    assert found.processes == {2: GIB}


def test_memory_that_is_the_hosts() -> None:
    """A chip whose driver tells no memory is there, with unknown figures and a word about it."""
    device = gpu(A, errors={"nvmlDeviceGetMemoryInfo": Code.NOT_SUPPORTED})
    (found,), why = RecordedNvml(machine(device), clock=FakeClock()).gpus()
    assert (found.condition, found.total, found.free, why) == (OK, 0, 0, "")
    assert "does not tell" in found.message


# --- no driver ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (Code.DRIVER_NOT_LOADED, "not loaded; try: sudo modprobe nvidia"),
        (Code.LIBRARY_NOT_FOUND, "no NVIDIA driver on this machine"),
        (Code.LIB_RM_VERSION_MISMATCH, "different versions"),
        (Code.NO_PERMISSION, "may not speak to the NVIDIA driver"),
        (Code.UNKNOWN, "does not answer (Unknown)"),
        (4711, "does not answer (NVML error 4711)"),
    ],
)
def test_why_there_are_no_gpus(code: int, words: str) -> None:
    """Each way in which a session cannot begin has its own sentence, and no GPU is made up."""
    devices, why = RecordedNvml(
        machine(gpu(A), frames=[Frame(errors={"nvmlInit": code})]), clock=FakeClock()
    ).gpus()
    assert devices == ()
    assert words in why


def test_the_library_itself_is_missing() -> None:
    """On a machine without a driver nothing is imported and the sentence says what is not there."""
    found = Nvml(clock=FakeClock())
    devices, why = found.gpus()
    if devices:
        pytest.skip("this machine has an NVIDIA driver")
    assert "NVIDIA driver" in why


def test_a_driver_that_comes_late_is_found() -> None:
    """The service may start before the driver: looks go on trying, and find the GPUs without a restart."""
    clock = FakeClock()
    found = recorded("driver_comes_late", clock)
    for _ in range(3):
        devices, why = found.gpus()
        assert devices == ()
        assert "not loaded" in why
        clock.advance(10)
    devices, why = found.gpus()
    assert (_conditions(devices), why) == ({A: OK, B: OK}, "")


def test_a_driver_that_comes_after_twenty_seconds_serves_a_look_at_thirty() -> None:
    """Looks every second from the start: the driver at second 20 is found before second 30."""
    clock = FakeClock()
    library = RecordedLibrary(
        machine(gpu(A), frames=[Frame(errors={"nvmlInit": Code.DRIVER_NOT_LOADED}), Frame()])
    )
    found = Nvml(library, clock=clock)
    seen = []
    for second in range(30):
        if second == 20:
            library.advance()
        seen.append(bool(found.gpus()[0]))
        clock.advance(1)
    assert not any(seen[:20])
    assert seen[-1]


def test_tries_are_spaced() -> None:
    """A thousand looks in a minute make a handful of tries, and the reason stays the same in between."""
    clock = FakeClock()
    library = _Counting(RecordedLibrary(machine(frames=[Frame(errors={"nvmlInit": Code.DRIVER_NOT_LOADED})])))
    found = Nvml(library, clock=clock)
    sentences = set()
    for _ in range(1000):
        sentences.add(found.gpus()[1])
        clock.advance(0.06)
    assert len(sentences) == 1
    assert 60 / nvml.RETRY_DRIVER_S <= library.calls["nvmlInit"] <= 15


class _Counting:
    """A library that counts its calls."""

    def __init__(self, library: RecordedLibrary) -> None:
        self._library = library
        self.calls: dict[str, int] = {}

    def __getattr__(self, name: str) -> Any:
        self.calls[name] = self.calls.get(name, 0) + 1
        return getattr(self._library, name)


# --- trouble under way --------------------------------------------------------------------------------------


def test_a_lost_gpu_stays_listed_and_comes_back() -> None:
    """A GPU that falls away keeps its place and size, has nothing free, and a new session finds it again."""
    clock = FakeClock()
    found = recorded("lost_and_back", clock)
    before, _ = found.gpus()
    assert _conditions(before) == {A: OK, B: OK}
    for _ in range(2):
        devices, why = found.gpus()
        lost = devices[1]
        assert why == ""
        assert devices[0] == before[0]
        assert (lost.id, lost.index, lost.condition) == (B, 1, LOST)
        assert (lost.total, lost.free, lost.processes) == (before[1].total, 0, None)
        assert "does not answer (Gpu is lost)" in lost.message
        clock.advance(nvml.RETRY_LOST_S)
    after, _ = found.gpus()
    assert after == before
    assert found.library.began == 3  # the first, one in vain, and the one that found it


def test_a_gpu_that_leaves_the_drivers_list_keeps_its_place() -> None:
    """Numbers do not move when a GPU vanishes, so that what was said of GPU 1 stays true of it."""
    clock = FakeClock()
    found = recorded("vanished_and_back", clock)
    before, _ = found.gpus()
    for _ in range(2):
        devices, _ = found.gpus()
        assert [(device.index, device.id, device.condition) for device in devices] == [
            (0, A, LOST),
            (1, B, OK),
        ]
        assert "not in the driver's list" in devices[0].message
        clock.advance(nvml.RETRY_LOST_S)
    assert found.gpus()[0] == before


def test_sessions_for_a_lost_gpu_are_spaced() -> None:
    """While a GPU is missing new sessions come at once, then in growing steps; looks go on in between."""
    clock = FakeClock()
    lost = Frame(devices={B: {"errors": {"*": int(Code.UNKNOWN)}}})
    found = RecordedNvml(machine(gpu(A), gpu(B, bus=2), frames=[Frame(), lost]), clock=clock)
    found.gpus()
    for _ in range(600):
        assert _conditions(found.gpus()[0]) == {A: OK, B: LOST}
        clock.advance(1)
    assert 600 / nvml.RETRY_LOST_S <= found.library.began <= 600 / nvml.RETRY_LOST_S + 8


def test_a_driver_replaced_under_way() -> None:
    """A session that breaks leaves the GPUs listed as lost, with the reason, until a new one works."""
    clock = FakeClock()
    found = recorded("driver_replaced", clock)
    before, _ = found.gpus()
    devices, why = found.gpus()
    assert (_conditions(devices), why) == ({A: LOST, B: LOST}, "")
    devices, _ = found.gpus()
    assert _conditions(devices) == {A: LOST, B: LOST}
    assert "different versions" in devices[0].message
    clock.advance(nvml.RETRY_DRIVER_S)
    assert found.gpus()[0] == before


def test_permission_denied() -> None:
    """A GPU this user may not ask is listed as such; one that does not even say its name comes last."""
    devices, why = recorded("permission_denied", FakeClock()).gpus()
    assert why == ""
    assert [(device.id, device.index, device.condition) for device in devices] == [
        (A, 0, OK),
        (C, 1, DENIED),
        ("nvml:1", 2, DENIED),
    ]
    assert {device.free for device in devices[1:]} == {0}
    assert all("may not use it" in device.message for device in devices[1:])


def test_a_gpu_cut_into_parts() -> None:
    """With MIG on a GPU is there and cannot be used as one; its neighbour, with MIG off, can."""
    devices, _ = recorded("mig", FakeClock()).gpus()
    assert [device.condition for device in devices] == [PARTITIONED, OK]
    assert devices[0].free == 0
    assert f"nvidia-smi -i {A} -mig 0" in devices[0].message


def test_loss_and_return_are_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    """Each change of a GPU's condition is one line of the log."""
    clock = FakeClock()
    found = recorded("lost_and_back", clock)
    with caplog.at_level(logging.INFO, "modeld.hardware"):
        for _ in range(6):
            found.gpus()
            clock.advance(nvml.RETRY_LOST_S)
    assert [record.levelname for record in caplog.records] == ["WARNING", "INFO"]
    assert "does not answer" in caplog.messages[0]
    assert "is back" in caplog.messages[1]


@pytest.mark.parametrize(
    "code", [Code.GPU_IS_LOST, Code.UNKNOWN, Code.RESET_REQUIRED, Code.NO_PERMISSION, 4711]
)
@pytest.mark.parametrize("function", FUNCTIONS)
def test_an_error_of_any_call_is_a_condition(function: str, code: int) -> None:
    """Whichever call fails under way, with whatever error, the GPU stays listed, and its neighbour works."""
    broken = Frame(devices={B: {"errors": {function: int(code)}}})
    clock = FakeClock()
    found = RecordedNvml(
        machine(gpu(A), gpu(B, bus=2), frames=[Frame(), broken, broken, Frame()]), clock=clock
    )
    found.gpus()
    for _ in range(2):
        devices, why = found.gpus()
        assert [device.id for device in devices] == [A, B]
        assert devices[0].condition is OK
        assert why == ""
        assert (devices[1].condition is OK) == (devices[1].message == "")
        clock.advance(nvml.RETRY_LOST_S)
    assert _conditions(found.gpus()[0]) == {A: OK, B: OK}


@pytest.mark.parametrize("error", [RuntimeError("no"), OSError(5, "I/O"), AttributeError("x"), ValueError()])
def test_an_exception_that_is_none_of_nvmls_is_a_condition_too(error: Exception) -> None:
    """Bindings that misbehave are trouble of one GPU, never an exception for whoever looks."""
    library = RecordedLibrary(machine(gpu(A)))
    found = Nvml(library, clock=FakeClock())
    assert _conditions(found.gpus()[0]) == {A: OK}

    def fail(*_: object) -> None:
        raise error

    library.nvmlDeviceGetMemoryInfo = fail  # type: ignore[assignment, method-assign]
    assert _conditions(found.gpus()[0]) == {A: LOST}


# --- what CUDA_VISIBLE_DEVICES leaves -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("visible", "ids"),
    [(None, [B, C, A]), ("1", [C]), ("GPU-aaaa", [A]), (f"0,{A}", [B, A]), ("2,0", [B, A])],
)
def test_hidden_gpus_are_not_there(visible: str | None, ids: list[str]) -> None:
    """Only visible GPUs are listed; they keep their numbers, which count in PCI bus order."""
    devices, why = recorded("one_big_two_small", FakeClock(), visible=visible).gpus()
    assert ([device.id for device in devices], why) == (ids, "")
    assert [device.index for device in devices] == [[B, C, A].index(uuid) for uuid in ids]


@pytest.mark.parametrize(
    ("visible", "words"),
    [
        ("", "set and empty"),
        ("-1", "hides every GPU"),
        ("7", "there is no GPU 7"),
        ("GPU-ffff", "no GPU has"),
    ],
)
def test_nothing_visible_is_explained(visible: str, words: str) -> None:
    """With nothing left the sentence says what the variable is and what is wrong with it."""
    devices, why = recorded("one_big_two_small", FakeClock(), visible=visible).gpus()
    assert devices == ()
    assert "CUDA_VISIBLE_DEVICES" in why
    assert words in why


def test_a_number_means_the_same_gpu_while_another_is_lost() -> None:
    """A GPU that vanishes does not shift the numbers of CUDA_VISIBLE_DEVICES onto somebody else's GPU."""
    clock = FakeClock()
    found = recorded("vanished_and_back", clock, visible="1")
    assert [[device.id for device in found.gpus()[0]] for _ in range(3)] == [[B]] * 3


def test_a_half_bad_list_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    """GPUs before a bad entry are used, and the log says why the rest is not."""
    found = recorded("one_big_two_small", FakeClock(), visible="0,x")
    assert [len(found.gpus()[0]) for _ in range(3)] == [1, 1, 1]
    assert len(caplog.messages) == 1
    assert "'x' is neither" in caplog.messages[0]


# --- sessions -----------------------------------------------------------------------------------------------


def test_close_lets_go_and_a_look_begins_anew() -> None:
    """After `close` nothing is held; the next look sees the same."""
    found = recorded("four_equal", FakeClock())
    before = found.gpus()
    found.close()
    found.close()
    with pytest.raises(found.library.NVMLError):
        found.library.nvmlDeviceGetCount()
    assert found.gpus() == before


def test_looks_from_many_threads() -> None:
    """Looks at the same time wait for each other, and each gets a whole answer."""
    library = RecordedLibrary(machine(gpu(A), gpu(B, bus=2)))
    found = Nvml(library, clock=FakeClock())
    barrier = threading.Barrier(8)

    def look(_: int) -> int:
        barrier.wait()
        return len(found.gpus()[0])

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(look, range(8))) == [2] * 8
    assert library.began == 1


def _fault() -> st.SearchStrategy[dict[str, Any] | None]:
    codes = st.sampled_from([int(code) for code in Code])
    errors = st.dictionaries(st.sampled_from([*FUNCTIONS, "*"]), codes, max_size=2)
    return st.none() | st.builds(
        lambda found, mig: {"errors": found, "mig": mig}, errors, st.sampled_from([None, 0, 1])
    )


@given(
    st.lists(
        st.builds(
            Frame,
            devices=st.dictionaries(st.sampled_from([A, B, C]), _fault(), max_size=3),
            errors=st.dictionaries(
                st.sampled_from(["nvmlInit", "nvmlDeviceGetCount", "nvmlShutdown"]),
                st.sampled_from([int(code) for code in Code]),
                max_size=1,
            ),
        ),
        max_size=8,
    ),
    st.lists(st.floats(0, 40), min_size=8, max_size=8),
    st.booleans(),
)
def test_whatever_happens_looks_go_on_and_heal(
    frames: list[Frame], pauses: list[float], sticky: bool
) -> None:
    """Any run of faults: no look raises, ids and numbers are unique, what was seen stays listed, only usable
    GPUs have free memory, and once the machine is well again everything is.
    """
    clock = FakeClock()
    recording = machine(gpu(A), gpu(B, bus=3), gpu(C, bus=2), frames=[*frames, Frame()], sticky=sticky)
    found = RecordedNvml(recording, clock=clock)
    seen: set[str] = set()
    for step in range(len(frames)):
        devices, why = found.gpus()
        ids = [device.id for device in devices]
        assert len(set(ids)) == len(ids)
        assert [device.index for device in devices] == list(range(len(devices)))
        assert seen <= set(ids)
        assert bool(devices) != bool(why)
        assert all(device.condition is OK or (device.free == 0 and device.message) for device in devices)
        seen |= {uuid for uuid in ids if uuid.startswith("GPU-")}
        clock.advance(pauses[step])
    for _ in range(3):
        found.gpus()
        clock.advance(nvml.RETRY_LOST_S)
    assert [(device.id, device.condition) for device in found.gpus()[0]] == [(A, OK), (C, OK), (B, OK)]
