"""What goes into an engine's environment: one table of versions that are known to work together. Pure.

A recipe pins the packages that modeld names; what these need besides is pip's to find. Sizes are rough, for
the question whether the disk has room, and were read off installations on Linux x86-64 (those of CUDA builds:
from the sizes of their wheels).
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

MSGSPEC = "msgspec==0.23.0"
"""What the worker program itself needs of every environment, see `worker.elsewhere`."""


class Variant(enum.StrEnum):
    """What an engine computes on."""

    CPU = "cpu"
    CUDA = "cuda"
    METAL = "metal"


@dataclass(frozen=True)
class Step:
    """One run of `pip install`.

    `options` are pip's. `index` is a further package index that the public build of this variant comes from;
    it is left out where the owner has set an index of his own. `environment` is for builds from source.
    """

    packages: tuple[str, ...]
    options: tuple[str, ...] = ()
    index: str = ""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Recipe:
    """How an engine's environment is made.

    `distribution` is the package whose version is the engine's. `modules` must be importable in the end.
    `disk` is bytes needed while it is made, the result included. `programs` must be on PATH: it is built from
    source.
    """

    steps: tuple[Step, ...]
    distribution: str
    modules: tuple[str, ...]
    disk: int
    programs: tuple[str, ...] = ()

    @property
    def packages(self) -> tuple[str, ...]:
        """Every pin, in the order of installation."""
        return tuple(package for step in self.steps for package in step.packages)


_MB = 1000**2
_GB = 1000**3

_MEDIA = ("av==18.1.0", "numpy==2.4.6")
_DIFFUSERS = (
    "diffusers==0.42.1",
    "transformers==5.24.0",
    "safetensors==0.8.0",
    "pillow==13.0.0",
    MSGSPEC,
)
_DIFFUSERS_MODULES = ("torch", "diffusers", "transformers", "safetensors", "PIL")
_TORCH = "torch==2.13.0"
_TORCH_CPU = Step((_TORCH,), ("--no-deps",), index="https://download.pytorch.org/whl/cpu")
"""PyPI's torch for Linux is the CUDA build with gigabytes of NVIDIA's libraries; the CPU build has an index
of its own (https://pytorch.org/get-started/locally). Its dependencies come from the usual one, in a later
step: each index is asked for every package of a step.
"""


def _sdcpp(disk: int, *cmake: str, programs: tuple[str, ...] = ("c++",)) -> Recipe:
    # Source: the package's page on PyPI, "Installation Configuration"; there are no wheels.
    environment = {"CMAKE_ARGS": " ".join(cmake)} if cmake else {}
    return Recipe(
        (
            Step(
                ("stable-diffusion-cpp-python==0.4.7", "pillow==13.0.0", "numpy==2.4.6", MSGSPEC),
                environment=environment,
            ),
        ),
        "stable-diffusion-cpp-python",
        ("stable_diffusion_cpp", "PIL", "numpy"),
        disk,
        programs,
    )


_WHISPER = Recipe(
    (Step(("pywhispercpp==1.5.1", *_MEDIA, MSGSPEC)),),
    "pywhispercpp",
    ("pywhispercpp.model", "av", "numpy"),
    500 * _MB,
)
_SHERPA = Recipe(
    (Step(("sherpa-onnx==2.0.1", *_MEDIA, MSGSPEC)),),
    "sherpa-onnx",
    ("sherpa_onnx", "av", "numpy"),
    500 * _MB,
)
_XLLAMA = Recipe(
    (Step(("xllamacpp==2026.10.11549", MSGSPEC)),),
    "xllamacpp",
    ("xllamacpp",),
    300 * _MB,
)

RECIPES: dict[str, dict[Variant, Recipe]] = {
    "llama_server": {
        Variant.CPU: _XLLAMA,
        Variant.METAL: _XLLAMA,  # PyPI's wheel for macOS has Metal in it
        # Source: xllamacpp's page on PyPI, "From github pypi for CUDA"; CUDA 12.8 runs on older drivers too.
        Variant.CUDA: Recipe(
            (
                Step((MSGSPEC,)),
                Step(
                    ("xllamacpp==2026.10.11549",),
                    # Both indexes have this version, so this one stands alone.
                    ("--no-deps", "--index-url", "https://xorbitsai.github.io/xllamacpp/whl/cu128"),
                ),
            ),
            "xllamacpp",
            ("xllamacpp",),
            2 * _GB,
        ),
    },
    "whispercpp": {
        Variant.CPU: _WHISPER,
        Variant.METAL: _WHISPER,
    },
    "sherpa_onnx": {
        Variant.CPU: _SHERPA,
        Variant.METAL: _SHERPA,
    },
    "diffusers": {
        Variant.CPU: Recipe(
            (_TORCH_CPU, Step((_TORCH, *_DIFFUSERS))), "diffusers", _DIFFUSERS_MODULES, 3 * _GB
        ),
        Variant.METAL: Recipe((Step((_TORCH, *_DIFFUSERS)),), "diffusers", _DIFFUSERS_MODULES, 3 * _GB),
        Variant.CUDA: Recipe((Step((_TORCH, *_DIFFUSERS)),), "diffusers", _DIFFUSERS_MODULES, 14 * _GB),
    },
    "stable_diffusion_cpp": {
        Variant.CPU: _sdcpp(1 * _GB),
        Variant.METAL: _sdcpp(1 * _GB, "-DSD_METAL=ON"),
        Variant.CUDA: _sdcpp(3 * _GB, "-DSD_CUDA=ON", programs=("c++", "nvcc")),
    },
    "vllm": {
        Variant.CUDA: Recipe((Step(("vllm==0.32.0", MSGSPEC)),), "vllm", ("vllm", "torch"), 25 * _GB),
    },
}
"""By loader: every name that the configuration knows, except "fake", which needs none."""
