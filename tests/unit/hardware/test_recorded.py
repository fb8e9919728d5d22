from __future__ import annotations

import inspect
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from modeld.errors import UsageError
from modeld.hardware import binding, nvml
from modeld.hardware.binding import Code
from modeld.hardware.recorded import Frame, NVMLError, RecordedLibrary, read_recording
from tests.fakes.nvml import RECORDINGS, gpu, machine

pynvml = pytest.importorskip("pynvml")

USED = sorted(
    set(
        re.findall(
            r'"(nvml(?:Init|Shutdown|Device)\w*)"', inspect.getsource(nvml) + inspect.getsource(binding)
        )
    )
)
"""What the room calls by name."""

STUB = Path(__file__).with_name("nvml_stub.c")


def test_the_list_of_functions_is_whole() -> None:
    """The functions used are found in the source by their names."""
    assert len(USED) == 11
    assert {"nvmlInit", "nvmlShutdown", "nvmlDeviceGetMemoryInfo"} <= set(USED)


@pytest.mark.parametrize("name", USED)
def test_functions_are_called_as_in_the_library(name: str) -> None:
    """The stand-in has each function under the same name, with the same parameters."""
    real = inspect.signature(getattr(pynvml, name))
    mine = inspect.signature(getattr(RecordedLibrary(machine()), name))
    assert [(p.name, p.default) for p in mine.parameters.values()] == [
        (p.name, p.default) for p in real.parameters.values()
    ]


@pytest.mark.parametrize("code", Code)
def test_errors_are_those_of_the_library(code: Code) -> None:
    """Values, constants and class names of errors are NVML's, and an error is of its value's class."""
    assert getattr(pynvml, f"NVML_ERROR_{code.name}") == code
    library = RecordedLibrary(machine())
    assert getattr(library, f"NVML_ERROR_{code.name}") == code
    mine, real = NVMLError(code), pynvml.NVMLError(code)
    assert type(mine).__name__ == type(real).__name__
    assert isinstance(mine, getattr(library, type(real).__name__))
    assert isinstance(mine, library.NVMLError)
    assert mine.value == real.value
    assert str(mine)


def test_constants_are_those_of_the_library() -> None:
    """The version of the memory call and the two special values are the library's."""
    assert RecordedLibrary.nvmlMemory_v2 == pynvml.nvmlMemory_v2
    assert nvml._MIG_ENABLED == pynvml.NVML_DEVICE_MIG_ENABLE
    assert pynvml.NVML_VALUE_NOT_AVAILABLE_ulonglong.value == nvml._NOT_AVAILABLE


def test_answers_have_the_fields_of_the_library() -> None:
    """Memory, place on the bus and processes carry the names that the library's structures have."""
    library = RecordedLibrary(machine(gpu("GPU-a", compute={1: 2})))
    library.nvmlInit()
    handle = library.nvmlDeviceGetHandleByIndex(0)
    fields = {name for name, _ in pynvml.c_nvmlMemory_v2_t._fields_}
    assert fields >= set(library.nvmlDeviceGetMemoryInfo(handle, pynvml.nvmlMemory_v2)._fields)
    fields = {name for name, _ in pynvml.c_nvmlMemory_t._fields_}
    assert fields == set(library.nvmlDeviceGetMemoryInfo(handle)._fields)
    fields = {name for name, _ in pynvml.nvmlPciInfo_t._fields_}
    assert fields >= set(library.nvmlDeviceGetPciInfo(handle)._fields)
    fields = {name for name, _ in pynvml.c_nvmlProcessInfo_v3_t._fields_}
    assert fields >= set(library.nvmlDeviceGetComputeRunningProcesses(handle)[0]._fields)


def test_nothing_is_answered_outside_a_session() -> None:
    """As with NVML, every call before nvmlInit and after the last nvmlShutdown is refused."""
    library = RecordedLibrary(machine(gpu("GPU-a")))
    for begin in (False, True):
        if begin:
            library.nvmlInit()
            assert library.nvmlDeviceGetCount() == 1
            library.nvmlShutdown()
        with pytest.raises(library.NVMLError) as caught:
            library.nvmlDeviceGetCount()
        assert caught.value.value == Code.UNINITIALIZED


def test_a_lost_gpu_stays_lost_for_the_session() -> None:
    """A handle that was lost answers only after a new nvmlInit, unless the recording says otherwise."""
    frames = [Frame(devices={"GPU-a": {"errors": {"*": 15}}}), Frame()]
    for sticky in (True, False):
        library = RecordedLibrary(machine(gpu("GPU-a"), frames=frames, sticky=sticky))
        library.nvmlInit()
        with pytest.raises(library.NVMLError):
            library.nvmlDeviceGetHandleByIndex(0)
        library.advance()
        if sticky:
            with pytest.raises(library.NVMLError):
                library.nvmlDeviceGetHandleByIndex(0)
            library.nvmlInit()
        assert library.nvmlDeviceGetHandleByIndex(0) == "GPU-a"


@pytest.mark.parametrize("file", sorted(RECORDINGS.glob("*.json")), ids=lambda file: file.stem)
def test_every_recording_can_be_read(file: Path) -> None:
    """The recordings in the repository are whole and say what they show."""
    assert read_recording(file).about


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not an NVML recording"),
        ('{"about": "x", "devices": [{"uuid": 1}]}', "is not an NVML recording"),
        (
            '{"about": "x", "devices": [], "frames": [{"devices": {"GPU-z": null}}]}',
            "GPU-z, which is not among",
        ),
        ('{"about": "x", "devices": [], "typo": 1}', "typo"),
    ],
)
def test_a_bad_recording_is_refused_by_name(tmp_path: Path, text: str, words: str) -> None:
    """A file that is no recording is refused with its path and what is wrong."""
    file = tmp_path / "recording.json"
    file.write_text(text)
    with pytest.raises(UsageError, match=re.escape(str(file))) as caught:
        read_recording(file)
    assert words in str(caught.value)


def test_a_bad_change_in_a_frame_is_refused(tmp_path: Path) -> None:
    """A frame that sets a field no GPU has is refused when the file is read, not at a later look."""
    device = {"uuid": "GPU-a", "name": "x", "bus_id": "0:1:0.0", "total": 1, "free": 1}
    file = tmp_path / "recording.json"
    file.write_text(
        json.dumps({"about": "x", "devices": [device], "frames": [{"devices": {"GPU-a": {"fre": 2}}}]})
    )
    with pytest.raises(UsageError, match="fre"):
        read_recording(file)


def test_a_missing_recording_is_refused_by_name(tmp_path: Path) -> None:
    """A path that leads nowhere is refused with the system's words."""
    with pytest.raises(UsageError, match=r"missing\.json: No such file"):
        read_recording(tmp_path / "missing.json")


LOOKS = """
import json, os, sys
from modeld.hardware.nvml import Nvml
from tests.fakes.clock import FakeClock

clock = FakeClock()
nvml = Nvml(clock=clock)
for turn in sys.argv[2:]:
    os.replace(turn, sys.argv[1])
    clock.advance(60)
    devices, why = nvml.gpus()
    told = [[d.id, d.name, d.total, d.free, d.processes, d.condition, d.message] for d in devices]
    print(json.dumps([*told, why]))
print(json.dumps("pynvml" in sys.modules))
"""


@pytest.mark.skipif(
    shutil.which("cc") is None or sys.platform != "linux", reason="needs a C compiler on Linux"
)
def test_the_real_binding_survives_a_replaced_driver_library(tmp_path: Path) -> None:
    """With `pynvml` itself, on a library of our own: one that does not fit its kernel module is a state,
    and once the right library lies in its place this same process finds the GPU.
    """
    turns = []
    for name, flags in (("old", ["-DMISMATCH"]), ("new", [])):
        turns.append(str(tmp_path / name))
        command = [
            "cc",
            "-shared",
            "-fPIC",
            "-Wl,-soname,libnvidia-ml.so.1",
            *flags,
            str(STUB),
            "-o",
            turns[-1],
        ]
        subprocess.run(command, check=True)
    (tmp_path / "same").write_bytes(Path(turns[1]).read_bytes())
    installed = tmp_path / "libnvidia-ml.so.1"
    done = subprocess.run(
        [sys.executable, "-c", LOOKS, str(installed), *turns, str(tmp_path / "same")],
        env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": str(Path(__file__).parents[3])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    old, new, same, imported = map(json.loads, done.stdout.splitlines())
    assert len(old) == 1
    assert "different versions" in old[0]
    # 800 of 1000 MiB: 40 are the driver's own. 7 computes and draws, 8 has no figure.
    mib = 1 << 20
    assert new == [["GPU-stub", "Stub GPU", 960 * mib, 800 * mib, {"7": 100 * mib}, "ok", ""], ""]
    assert same == new
    assert imported is True


def test_without_a_driver_the_binding_is_not_imported(tmp_path: Path) -> None:
    """The module is imported only where the driver's library is: a machine without GPUs pays nothing."""
    code = (
        "import sys, modeld.hardware.probe; from modeld.hardware import binding\n"
        "binding.LIBRARY = 'libno-such-driver.so.1'\n"
        "machine = modeld.hardware.probe.system_probe({}).look()\n"
        "print(len(machine.gpus), 'pynvml' in sys.modules, machine.message)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("0 False ")
    if sys.platform == "linux":
        assert "no NVIDIA driver" in done.stdout
