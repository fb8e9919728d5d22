"""The pipelines of one model folder: loaded once, sharing their parts. Runs in the drawing thread."""

from __future__ import annotations

import inspect
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker.loader import Report

INDEX = "model_index.json"
DTYPES = ("auto", "float16", "bfloat16", "float32")
OFFLOADS = ("none", "model", "sequential")


@dataclass(frozen=True)
class Pipelines:
    """What one model can do; `device` is "cpu", "cuda" or "mps", `dtype` the weights' type in memory."""

    text: Any
    image: Any | None
    inpaint: Any | None
    device: str
    dtype: str

    @property
    def factor(self) -> int:
        """Sides of a picture are multiples of this."""
        return int(getattr(self.text, "vae_scale_factor", 8))


def takes(pipe: Any, name: str) -> bool:
    """Say whether a pipeline's call has this parameter."""
    return name in inspect.signature(type(pipe).__call__).parameters


def build(spec: LoadSpec, report: Report) -> Pipelines:
    """Load the folder and put it on its device. Raises LoadFailed."""
    folder = Path(spec.path)
    _check_folder(folder)
    wanted, offload = str(spec.options.get("torch_dtype") or "auto"), spec.options.get("offload") or "none"
    if wanted not in DTYPES:
        raise _refused(f"torch_dtype is {wanted!r}; it is one of {', '.join(DTYPES)}")
    if offload not in OFFLOADS:
        raise _refused(f"offload is {offload!r}; it is one of {', '.join(OFFLOADS)}")
    report("starting torch and diffusers", 0.0)
    os.environ["HF_HUB_OFFLINE"] = "1"  # what is not in the folder is an error, not a download
    try:
        import diffusers
        import torch
    except ImportError as error:
        raise _refused(
            f"the loader diffusers needs the Python package {error.name} (diffusers, torch, transformers, "
            "safetensors and pillow in all); to get it: modeld engines install diffusers"
        ) from None
    device = _device(torch, spec)
    dtype = _dtype(torch, wanted, device)
    report("reading the weights", 0.2)
    try:
        text = diffusers.AutoPipelineForText2Image.from_pretrained(folder, dtype=dtype, local_files_only=True)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RuntimeError, ImportError) as error:
        raise _refused(f"diffusers cannot load {folder}: {' '.join(str(error).split())[:500]}") from error
    except Exception as error:  # safetensors' own class is no OSError
        raise _refused(f"{folder} is broken: {type(error).__name__}: {str(error)[:500]}") from error
    report("moving the weights into place", 0.7)
    _place(torch, text, device, offload)
    if spec.options.get("vae_tiling"):
        text.vae.enable_tiling()
    text.set_progress_bar_config(disable=True)
    found = Pipelines(
        text,
        _sibling(diffusers.AutoPipelineForImage2Image, text),
        _sibling(diffusers.AutoPipelineForInpainting, text),
        device,
        str(dtype).removeprefix("torch."),
    )
    report("ready to draw", 1.0)
    return found


def _check_folder(folder: Path) -> None:
    if folder.is_file():
        raise _refused(
            f"{folder} is one file, and the loader diffusers needs a pipeline folder with {INDEX} in it; "
            "single files are for the loader stable_diffusion_cpp"
        )
    if not (folder / INDEX).is_file():
        raise _refused(f"{folder} has no {INDEX}: it is not a diffusers pipeline folder")


def _device(torch: Any, spec: LoadSpec) -> str:
    if spec.gpus:
        if torch.cuda.is_available():
            if 0 < spec.gpu_share < 1:
                torch.cuda.set_per_process_memory_fraction(spec.gpu_share, 0)
            return "cuda"
        if not torch.backends.mps.is_available():
            raise _refused(
                f"the model was given a GPU, but this torch ({torch.__version__}) cannot use one; "
                "install a torch build for it, or set num_gpus: 0"
            )
    return "mps" if torch.backends.mps.is_available() else "cpu"


def _dtype(torch: Any, wanted: str, device: str) -> Any:
    if wanted == "auto":
        wanted = "float32" if device == "cpu" else "float16"
    if wanted == "float16" and device == "cpu":
        print("torch_dtype float16 is not for the CPU: float32 is used", flush=True)
        wanted = "float32"
    return getattr(torch, wanted)


def _place(torch: Any, pipe: Any, device: str, offload: str) -> None:
    try:
        if offload == "none":
            pipe.to(device)
        elif device == "cpu":
            print(f"offload {offload} has no meaning without a GPU: all is in RAM already", flush=True)
        elif offload == "model":
            pipe.enable_model_cpu_offload()
        else:
            pipe.enable_sequential_cpu_offload()
    except torch.OutOfMemoryError as error:
        raise LoadFailed(
            f"the weights do not fit into the GPU memory this model was given ({_first_line(error)}); "
            "give it more (num_gpus, vram), or set offload: model"
        ) from None
    except ImportError as error:
        raise _refused(f"offload {offload} needs the Python package accelerate ({error})") from None


def _sibling(auto: Any, text: Any) -> Any | None:
    """Return the pipeline of another kind on the same parts, None when the family has none."""
    try:
        pipe = auto.from_pipe(text)
    except (ValueError, AttributeError, TypeError):
        return None
    pipe.set_progress_bar_config(disable=True)
    return pipe


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0][:300]


def _refused(words: str) -> LoadFailed:
    return LoadFailed(words, permanent=True)
