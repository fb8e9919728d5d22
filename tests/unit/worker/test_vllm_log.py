"""vLLM's log, read on its way: stages, signs of life, causes; and a tap on a process's output."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.worker.loaders.vllm.log import bare, cause, is_sign_of_life, stage_of

ENGINE = "(EngineCore pid=17) "
LOADING = ENGINE + "INFO 11-30 15:09:05 [cpu_model_runner.py:68] Starting to load model /m..."


@pytest.mark.parametrize(
    ("line", "stage"),
    [
        (LOADING, ("loading the weights", 0.25)),
        ("Loading safetensors checkpoint shards:   0% Completed | 0/2", ("loading the weights", 0.25)),
        ("Loading safetensors checkpoint shards: 100% Completed | 2/2", ("loading the weights", 0.7)),
        (
            ENGINE + "INFO 11-30 15:09 [kv.py:1] CPU KV cache size: 46,592",
            ("making the KV cache", 0.85),
        ),
        ("WARNING [vllm.py:1] Enforce eager set, disabling torch.compile, CUDAGraphs", None),
        ("", None),
    ],
)
def test_a_line_tells_a_stage(line: str, stage: tuple[str, float] | None) -> None:
    """Weights in per cent, the rest by what begins; a word in passing begins nothing."""
    assert stage_of(line) == stage


def test_a_line_without_its_head_is_its_words() -> None:
    """Process, level, time and place go; what is not a head stays."""
    assert bare(LOADING) == "Starting to load model /m..."
    assert bare("  plain (words) [here]") == "plain (words) [here]"


@pytest.mark.parametrize(
    ("line", "sign"),
    [
        (LOADING, True),
        ("", False),
        (ENGINE + "INFO 11-30 15:09:05 [utils.py:1] Waiting for 1 local core engine(s) to start.", False),
        ("INFO 11-30 15:09:05 [shm.py:1] No available shared memory broadcast block found in 60 s", False),
    ],
)
def test_waiting_is_no_sign_of_life(line: str, sign: bool) -> None:
    """Lines that say only that nothing has come yet must not keep a dead load waiting."""
    assert is_sign_of_life(line) is sign


def test_the_cause_is_what_the_first_traceback_ended_with() -> None:
    """Later tracebacks only follow from it; a message of several lines is whole, without others' lines."""
    worker = "(Worker pid=3) ERROR 11-30 15:33:12 [multiproc_executor.py:953] "
    core = "(EngineCore pid=2) ERROR 11-30 15:33:17 [core.py:1510] "
    lines = [
        "(Worker pid=3) INFO 11-30 15:33:12 [x.py:1] ValueError: in passing",
        worker + "WorkerProc failed to start.",
        worker + "Traceback (most recent call last):",
        worker + '  File "a.py", line 1, in f',
        worker + "safetensors_rust.SafetensorError: header is torn",
        worker + "in two lines",
        core + "EngineCore failed to start.",
        core + "Traceback (most recent call last):",
        core + "Exception: WorkerProc initialization failed",
    ]
    assert cause(lines) == "SafetensorError: header is torn in two lines"
    assert cause(lines[:2]) is None
    assert cause(lines[6:]) == "Exception: WorkerProc initialization failed"


@given(st.lists(st.text(max_size=60), max_size=8))
def test_any_log_is_read(lines: list[str]) -> None:
    """Whatever was printed, reading it never fails."""
    cause(lines)
    for line in lines:
        stage_of(line)
        is_sign_of_life(line)


PROGRAM = """
import os, subprocess, sys
from modeld.worker.loaders.vllm.log import LogTap
told = []
tap = LogTap()
tap.to(lambda stage, fraction: told.append((stage, fraction)))
print("from here", flush=True)
words = b"Loading weights took 2 s\\nStarting to load model"
subprocess.run([sys.executable, "-c", f"import os; os.write(2, {words})"])
lines = tap.lines()
words = tap.last_words()
tap.close()
print("LINES", lines)
print("TOLD", told)
print("WORDS", repr(words))
"""


def test_a_tap_reads_what_children_say_and_passes_it_on() -> None:
    """Lines of this process and of its children come by, in order; a stage that lies behind is not told; at
    the end output goes where it went.
    """
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    *passed, lines, told, words = done.stdout.splitlines()
    assert passed == ["from here", "Loading weights took 2 s", "Starting to load model"]
    assert lines == f"LINES {passed}"
    assert told == "TOLD [('preparing the weights', 0.7)]"
    assert words == "WORDS " + repr("\n".join(passed))
    assert done.stderr == ""
