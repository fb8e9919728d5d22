"""Whether a worker ended because memory ran out: its exit code, and the last words of its engine. Pure."""

from __future__ import annotations

import re

_KILLED = frozenset({-9, 137})
"""SIGKILL, as a child's exit code and as a shell reports it; when none of us sent it, the kernel did."""

_PHRASES = (
    # CUDA, HIP and their relatives, as llama.cpp, whisper.cpp and stable-diffusion.cpp report them
    r"(cuda|hip|musa)\w*malloc\w* failed: out of memory",
    r"(cuda|hip|rocm|musa|sycl) error:? out of memory",
    r"(cuda|hip)errormemoryallocation|(cuda|hip)erroroutofmemory|cuda_error_out_of_memory",
    r"(cublas|cudnn|hipblas|rocblas)_status_(alloc_failed|internal_error_alloc)",
    # Vulkan, SYCL, Metal
    r"(error|vk_error_)_?out_?of_?(device|host|pool)_?memory",
    r"ur_result_error_out_of_(device|host|resources)\w*",
    r"device memory allocation of size \d+ failed",
    r"kiogpucommandbuffercallbackerroroutofmemory",
    # ggml, whatever the device
    r"failed to allocate \S+ buffer of size \d+",
    r"alloc_buffer: failed to allocate buffer of size \d+",
    r"failed to allocate buffer, size =",
    r"unable to allocate \S+ buffer",
    r"failed to allocate compute (pp )?buffers",
    r"failed to allocate (the )?(kv cache|buffer for (the )?kv cache|memory for (the )?kv cache)",
    r"ggml_aligned_malloc: insufficient memory",
    r"alloc (compute |params |compute params )backend buffer failed",
    # torch
    r"(cuda|hip|xpu) out of memory\. tried to allocate",
    r"mps backend out of memory",
    r"torch\.(cuda\.)?outofmemoryerror",
    r"defaultcpuallocator: (can't allocate|not enough) memory",
    # vLLM: what its share of the GPU leaves for the cache
    r"no available memory for the cache blocks",
    r"available kv cache memory: -",
    r"kv cache is needed, which is larger than the available kv cache memory",
    r"is less than desired gpu memory utilization",
    # onnxruntime
    r"failed to allocate memory for requested buffer of size",
    # the languages' own, as the last words of a program
    r"std::bad_alloc",
    r"(?<![\w.])(\w+\.)*_?(array)?memoryerror(:|\s*$)",
    r"memory allocation of \d+ bytes failed",
    # the system's, for a program that reports an errno
    r"\[errno 12\]|cannot allocate memory",
)

_OUT = re.compile("|".join(_PHRASES), re.MULTILINE)

_HARMLESS = re.compile(r"mlock|retrying")
"""Lines that only sound alike: memory that could not be locked, and a buffer that was tried again smaller."""


def out_of_memory(exit_code: int | None, words: str, *, killed_by_us: bool = False) -> bool:
    """Say whether a worker that ended, or failed to load, ran out of memory, its GPU's or the host's.

    `exit_code` as `subprocess` gives it (below zero for a signal), None while it runs. `words`: its last log
    lines. `killed_by_us`: the daemon sent the signal, which then says nothing.
    """
    if exit_code in _KILLED and not killed_by_us:
        return True
    lines = [line for line in words.lower().splitlines() if not _HARMLESS.search(line)]
    return _OUT.search("\n".join(lines)) is not None
