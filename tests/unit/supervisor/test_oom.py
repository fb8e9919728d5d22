from __future__ import annotations

import pytest

from modeld.supervisor.oom import out_of_memory

OUT = """\
alloc_buffer: allocating 22953.12 MiB on device 0: cudaMalloc failed: out of memory
llama_model_load: error loading model: unable to allocate CUDA0 buffer
llama_model_load: error loading model: unable to allocate backend buffer
alloc_tensor_range: failed to allocate CPU_REPACK buffer of size 147169738752
ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 292926534144
ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 9126805504
graph_reserve: failed to allocate compute buffers
llama_new_context_with_model: failed to allocate compute pp buffers
ggml_aligned_malloc: insufficient memory (attempted to allocate 9216.00 MB)
CUDA error: out of memory
ROCm error: out of memory
ggml_metal_buffer_init: error: failed to allocate buffer, size = 9093.12 MiB
error: Insufficient Memory (00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)
ggml_vulkan: Device memory allocation of size 462323712 failed.
ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory
z_image alloc params backend buffer failed, num_tensors = 453
model manager alloc params backend buffer failed, size = 5638.16MB
whisper_model_load: failed to allocate memory for the kv cache
torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 23.53 GiB
torch.cuda.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB (GPU 0; 512.00 MiB total capacity)
RuntimeError: CUDA out of memory. Tried to allocate 16.00 MiB
RuntimeError: MPS backend out of memory (MPS allocated: 7.64 GiB, max allowed: 88.13 GiB)
RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`
RuntimeError: [enforce fail at alloc_cpu.cpp:117] . DefaultCPUAllocator: can't allocate memory
cudaErrorMemoryAllocation
ValueError: No available memory for the cache blocks. Try increasing it.
(EngineCore pid=15) INFO gpu_worker.py:298] Available KV cache memory: -3.21 GiB
ValueError: 24.00 GiB KV cache is needed, which is larger than the available KV cache memory (10.91 GiB).
ValueError: Free memory on device (2.6/121.63 GiB) is less than desired GPU memory utilization (0.08).
onnxruntime::BFCArena::AllocateRawInternal Failed to allocate memory for requested buffer of size 4294967296
terminate called after throwing an instance of 'std::bad_alloc'
MemoryError
MemoryError: Unable to allocate output buffer.
(worker) MemoryError: no more
numpy._core._exceptions._ArrayMemoryError: Unable to allocate 7.45 GiB for an array with shape (1000000000,)
memory allocation of 9663676416 bytes failed
OSError: [Errno 12] Cannot allocate memory
""".splitlines()

FINE = """\
Available KV cache memory: 33.4 GiB
If you are running out of memory, consider decreasing `gpu_memory_utilization`.
warning: failed to mlock 1234-byte buffer (after previously locking 0 bytes): Cannot allocate memory
graph_reserve: failed to allocate compute buffers, retrying without pipeline parallelism
This model's maximum context length is 4096 tokens. However, your messages resulted in 5000 tokens.
the request exceeds the available context size (512 tokens), try increasing it
context_length_exceeded: 5000 tokens, 512 fit
llama_model_load: error loading model: tensor 'blk.0.attn_q.weight' data is not within the file bounds
error: failed to open GGUF file 'model.gguf'
RuntimeError: CUDA error: an illegal memory access was encountered
RuntimeError: CUDA error: no kernel image is available for execution on the device
load_tensors: CUDA0 model buffer size = 59851.68 MiB
NameError: name 'MemoryErrorHandler' is not defined
torch_cuda_alloc_conf: garbage_collection_threshold
OSError: [Errno 28] No space left on device
Segmentation fault (core dumped)

""".splitlines()


@pytest.mark.parametrize("line", OUT)
@pytest.mark.parametrize("exit_code", [1, -6, None])
def test_every_engine_s_last_words_are_understood(line: str, exit_code: int | None) -> None:
    """One line among ordinary ones is enough, in any case of letters, whatever the exit code."""
    words = f"load_tensors: loading\n{line}\nexiting\n"
    assert out_of_memory(exit_code, words)
    assert out_of_memory(exit_code, words.upper())


@pytest.mark.parametrize("line", FINE)
@pytest.mark.parametrize("exit_code", [1, -6, -11, -15, 0, None])
def test_other_troubles_are_not_mistaken_for_it(line: str, exit_code: int | None) -> None:
    """Prompts that are too long, warnings, hints and other crashes say nothing of memory that ran out."""
    assert not out_of_memory(exit_code, line)


@pytest.mark.parametrize("exit_code", [-9, 137])
def test_a_kill_that_nobody_here_sent_was_the_kernel_s(exit_code: int) -> None:
    """SIGKILL means the kernel's, unless the daemon sent it; then only the words count."""
    assert out_of_memory(exit_code, "")
    assert not out_of_memory(exit_code, "", killed_by_us=True)
    assert out_of_memory(exit_code, "std::bad_alloc", killed_by_us=True)


def test_a_long_log_is_searched_quickly() -> None:
    """A megabyte of one line, as a broken engine may write it, is searched without backtracking."""
    assert not out_of_memory(1, "failed to allocate " * 50_000)
