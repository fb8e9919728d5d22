from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.cli.engines import Lines, in_words
from modeld.engines.guard import signalled
from modeld.engines.pip import Beat, Reading, clean_environment, explained

LOG = """\
Looking in indexes: https://pypi.example/simple
Collecting pywhispercpp==1.5.1
  Downloading pywhispercpp-1.5.1-cp311-cp311-manylinux_2_28_x86_64.whl (4.7 MB)
Collecting numpy==2.4.6
  Using cached https://pypi.example/n/numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl (16.6 MB)
Collecting stable-diffusion-cpp-python==0.4.7
  Downloading stable_diffusion_cpp_python-0.4.7.tar.gz (12.1 MB)
  Installing build dependencies: started
  Installing build dependencies: finished with status 'done'
Building wheels for collected packages: stable-diffusion-cpp-python
  Building wheel for stable-diffusion-cpp-python (pyproject.toml): started
  Building wheel for stable-diffusion-cpp-python (pyproject.toml): still running...
Installing collected packages: numpy, pywhispercpp, stable-diffusion-cpp-python
"""


def test_what_pip_says_becomes_stages() -> None:
    """Each kind of line is a stage with what is worked on; a share is told where it is known."""
    reading, seen = Reading(), []
    for line in LOG.splitlines():
        reading.feed(line)
        seen.append(reading.beat(downloaded=2_350_000, installed=1))
    words = [in_words(beat) for beat in dict.fromkeys(seen)]
    assert words == [
        "looking for packages",
        "looking for packages pywhispercpp==1.5.1 (1)",
        "downloading pywhispercpp-1.5.1, 4.7 MB (50%)",
        "looking for packages numpy==2.4.6 (2)",
        "downloading numpy-2.4.6, 16.6 MB (14%)",
        "looking for packages stable-diffusion-cpp-python==0.4.7 (3)",
        "downloading stable_diffusion_cpp_python-0.4.7, 12.1 MB (19%)",
        "preparing the build stable_diffusion_cpp_python-0.4.7, 12.1 MB",
        "building stable-diffusion-cpp-python",
        "installing 1 of 3 packages (33%)",
    ]


@given(st.lists(st.one_of(st.text(), st.sampled_from(LOG.splitlines()))), st.integers(0), st.integers(0))
def test_no_output_of_pip_breaks_the_reading(lines: list[str], downloaded: int, installed: int) -> None:
    """Whatever pip prints, there is a stage, and a share is from 0 to 1."""
    reading = Reading()
    for line in lines:
        reading.feed(line)
        beat = reading.beat(downloaded, installed)
        assert beat.stage
        assert beat.done is None or 0 <= beat.done <= 1


@given(st.lists(st.tuples(st.sampled_from(["downloading", "building"]), st.integers(0, 1000))))
def test_lines_are_few(steps: list[tuple[str, int]]) -> None:
    """A growing download is at most five lines, and every change of what is worked on is one."""
    lines = Lines()
    assert sum(lines.worth(Beat("downloading", "x", done / 100)) for done in range(101)) == 5
    shown = [lines.worth(Beat(stage, str(number))) for stage, number in steps]
    changed = [index == 0 or steps[index] != steps[index - 1] for index in range(len(steps))]
    assert shown == changed


@pytest.mark.parametrize(
    ("output", "words"),
    [
        (
            "ERROR: Could not find a version that satisfies the requirement x==9\n"
            "ERROR: No matching distribution found for x==9",
            "the package index has no such version for this machine and its Python; pip says: Could not find",
        ),
        (
            "WARNING: Retrying (Retry(total=4)) after connection broken by 'NewConnectionError'\n"
            "ERROR: No matching distribution found for x==9",
            "the package index does not answer; try again",
        ),
        ("ERROR: [Errno 28] No space left on device", "the disk is full; make room"),
        ("error: subprocess-exited-with-error\n  CMake Error: no CUDA", "pip says: error: subprocess"),
        ("", "pip says: exit code 3"),
        ("ERROR: 401 for https://me:secret@pypi.example/simple?token=1", "https://pypi.example/simple"),
    ],
)
def test_a_failure_of_pip_is_one_sentence(output: str, words: str) -> None:
    """The reason comes first, pip's own words last, and never a password from an index's address."""
    said = explained(output, 3)
    assert words in said
    assert "secret" not in said
    assert "token" not in said


def test_what_would_send_packages_elsewhere_is_left_out() -> None:
    """The owner's indexes and proxies hold; what would have pip install elsewhere, or be silent, does not."""
    kept = {"PIP_INDEX_URL": "https://x", "HTTPS_PROXY": "y", "PATH": "/bin"}
    away = {"PIP_TARGET": "/x", "PIP_USER": "1", "PYTHONPATH": "/y", "PIP_QUIET": "3", "PYTHONHOME": "/z"}
    found = clean_environment({**kept, **away})
    assert kept.items() <= found.items()
    assert not away.keys() & found.keys()


@given(st.integers(1, 31))
def test_a_signal_is_told_as_one(number: int) -> None:
    """A warden's exit code tells which signal killed its program; other codes are the program's own."""
    assert signalled(128 + number) == -number
    assert signalled(number) == number
