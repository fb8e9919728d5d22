"""How much memory a model will take, from its metadata and its options: the first guess, until it has run.

The sum of a llama.cpp model is by its own rules, and is checked against its own log in the tests; those of
the other engines rest on their files' size. Whatever the guess, the first run's measurement replaces it.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from modeld.hardware.footprint import Footprint, Line, Source, Where
from modeld.library.inspect import inspect
from modeld.library.llama_memory import ENGINE_GPU, llama_lines
from modeld.library.metadata import Metadata
from modeld.protocol.llama import NO_PROJECTOR, projector_beside

MIB = 1024**2
GIB = 1024**3

WORKER = 28 * MIB
"""A worker process by itself: Python, the link, the loader's module; measured 24 to 26 MB."""

VLLM_WEIGHTS = 1.14
"""vLLM's weights in memory for a byte on disk: padding, packing for kernels, and what profiling leaves."""

VLLM_GRAPHS = 1 * GIB
"""CUDA graphs of the usual batch sizes, unless `enforce_eager`."""

VLLM_RAM = 2 * GIB
"""vLLM's processes in host memory: torch twice, in the server and in the engine core."""

VLLM_SEQUENCES = 4
"""Sequences of full length that the KV cache is to hold; with less vLLM works, but one at a time."""

VLLM_CONTEXT = 32768
"""Context length when neither the options nor the model say."""

IMAGE_WORK = 0.6
"""What drawing a picture takes beside the weights, as a part of them; decoding it sets the peak."""

IMAGE_WORK_MOST = 4 * GIB
"""The peak of drawing one picture of the usual sizes."""

TORCH_RAM = 1 * GIB
"""A process that has imported torch and a pipeline, before any weights."""

WHISPER_WEIGHTS = 1.27
"""whisper.cpp's memory for a byte on disk: from the table in its README, tiny to large, within 8 %."""

WHISPER_FIXED = 200 * MIB
"""The part of that table that does not grow with the model."""

SHERPA_WEIGHTS = 1.6
"""ONNX Runtime keeps an optimised copy of a part of the graph."""

SHERPA_FIXED = 100 * MIB
"""ONNX Runtime itself."""

OTHER_WEIGHTS = 1.2
"""A loader that is not known here."""

_ELEMENT = {"float32": 4, "fp32": 4, "float16": 2, "fp16": 2, "half": 2, "bfloat16": 2, "bf16": 2}
_PARTS = ("diffusion_model_path", "clip_l_path", "clip_g_path", "t5xxl_path", "vae_path")
"""Options of stable_diffusion_cpp that name more files of the model."""


def estimate(
    metadata: Metadata,
    loader: str,
    options: Mapping[str, Any],
    *,
    gpu: bool,
    usecase: str = "generate",
    mmproj: Metadata | None = None,
    adapters: int = 0,
    draft: Metadata | None = None,
) -> Footprint:
    """Return the memory that one replica will take; pure, and never an error: what is unknown counts as 0.

    `options` are the loader's, as the configuration gives them to the worker. `mmproj` is the projector's
    metadata, `draft` that of the model that guesses, `adapters` the bytes of LoRA adapters. Without `gpu`
    every line is RAM. What only grows with use and has a limit of its own, llama.cpp's store of prompts put
    aside (`cache_ram_mib`), is not in the sum.
    """
    match loader:
        case "llama_server":
            lines, note = llama_lines(
                metadata,
                options,
                gpu=gpu,
                mmproj=mmproj,
                embedding=usecase == "embed",
                adapters=adapters,
                draft=draft,
            )
        case "vllm":
            lines, note = _vllm(metadata, options, gpu=gpu)
        case "diffusers" | "stable_diffusion_cpp":
            lines, note = _images(metadata, loader, options, gpu=gpu)
        case "whispercpp":
            lines, note = _by_size(metadata, WHISPER_WEIGHTS, WHISPER_FIXED, gpu=gpu)
        case "sherpa_onnx":
            lines, note = _by_size(metadata, SHERPA_WEIGHTS, SHERPA_FIXED, gpu=gpu)
        case "fake":
            memory = options.get("memory")
            lines = [Line("scripted memory", memory if isinstance(memory, int) else 0, Where.GPU)]
            note = "from the script"
        case _:
            lines, note = _by_size(metadata, OTHER_WEIGHTS, 0, gpu=gpu)
    lines = [*lines, Line("worker process", WORKER, Where.RAM)]
    if not gpu:
        lines = [Line(line.label, line.size, Where.RAM) for line in lines]
    return Footprint(Source.ESTIMATED, tuple(line for line in lines if line.size), note)


async def estimate_file(
    path: Path | None,
    loader: str,
    options: Mapping[str, Any],
    *,
    gpu: bool,
    usecase: str = "generate",
) -> Footprint:
    """Return the estimate for a model on disk, with the other files that its options name or that lie by it.

    `path` is None for a loader that reads no file. Raises LoadFailed (permanent) for a file that no engine
    would load.
    """
    metadata = Metadata(format="other", size=0)
    if path is not None and loader != "fake":
        metadata = await inspect(path)
    if loader == "stable_diffusion_cpp":
        parts = {Path(str(options[key])) for key in _PARTS if options.get(key)} - {path}
        # A part may be named in a form that is not a path, and which only the loader resolves.
        known = [await inspect(part) for part in sorted(parts) if part.exists()]
        metadata = msgspec.structs.replace(metadata, size=metadata.size + sum(part.size for part in known))
    if loader != "llama_server":
        return estimate(metadata, loader, options, gpu=gpu, usecase=usecase)
    projector = await asyncio.to_thread(_projector, path, options, usecase)
    adapters = [await inspect(Path(str(each["path"]))) for each in options.get("lora") or ()]
    draft = options.get("draft_model")
    return estimate(
        metadata,
        loader,
        options,
        gpu=gpu,
        usecase=usecase,
        mmproj=await inspect(projector) if projector else None,
        adapters=sum(each.size for each in adapters),
        draft=await inspect(Path(str(draft))) if draft else None,
    )


def _projector(path: Path | None, options: Mapping[str, Any], usecase: str) -> Path | None:
    """Return the projector that the loader will take: the one named, else one beside the model."""
    chosen = options.get("mmproj")
    if chosen or path is None or usecase != "generate":
        return Path(str(chosen)) if chosen and chosen != NO_PROJECTOR else None
    try:
        found = projector_beside(path.name, os.listdir(path.parent))
    except OSError:
        return None
    return path.parent / found if found else None


def _vllm(metadata: Metadata, options: Mapping[str, Any], *, gpu: bool) -> tuple[list[Line], str]:
    context = _positive(options.get("max_model_len")) or metadata.context_length or VLLM_CONTEXT
    element = 1 if str(options.get("kv_cache_dtype") or "").startswith("fp8") else 2
    sequences = min(VLLM_SEQUENCES, _positive(options.get("max_num_seqs")) or VLLM_SEQUENCES)
    cache = 0
    for layer in metadata.layers:
        tokens = min(context, layer.window) if layer.window else context
        cache += tokens * (layer.keys + layer.values) * element
    lines = [
        Line("weights", round(metadata.size * VLLM_WEIGHTS), Where.GPU),
        Line(f"KV cache, {sequences} sequences of {context} tokens", cache * sequences, Where.GPU),
    ]
    if gpu:
        lines.append(Line("GPU context and kernels", ENGINE_GPU, Where.GPU))
        if not options.get("enforce_eager"):
            lines.append(Line("CUDA graphs", VLLM_GRAPHS, Where.GPU))
    lines.append(Line("engine processes", VLLM_RAM, Where.RAM))
    return lines, f"from the size of the weights ({metadata.size} bytes) and {len(metadata.layers)} layers"


def _images(
    metadata: Metadata, loader: str, options: Mapping[str, Any], *, gpu: bool
) -> tuple[list[Line], str]:
    weights = metadata.size
    element = _ELEMENT.get(str(options.get("torch_dtype") or ""))
    if loader == "diffusers" and element and metadata.parameters:
        weights = metadata.parameters * element
    lines = [
        Line("weights", weights, Where.GPU),
        Line("drawing", min(round(weights * IMAGE_WORK), IMAGE_WORK_MOST), Where.GPU),
    ]
    if gpu:
        lines.append(Line("GPU context and kernels", ENGINE_GPU, Where.GPU))
    if loader == "diffusers":
        lines.append(Line("torch", TORCH_RAM, Where.RAM))
    return lines, f"from the size of the weights ({weights} bytes)"


def _by_size(metadata: Metadata, factor: float, fixed: int, *, gpu: bool) -> tuple[list[Line], str]:
    lines = [
        Line("weights and working memory", round(metadata.size * factor), Where.GPU),
        Line("engine", fixed, Where.GPU),
    ]
    if gpu:
        lines.append(Line("GPU context and kernels", ENGINE_GPU, Where.GPU))
    return lines, f"from the size of the files ({metadata.size} bytes)"


def _positive(value: object) -> int:
    return value if isinstance(value, int) and value > 0 else 0
