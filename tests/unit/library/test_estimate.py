from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.config.engines import CacheType
from modeld.hardware.footprint import Footprint, Source, Where
from modeld.library import estimate as room
from modeld.library.estimate import WORKER, estimate
from modeld.library.llama_memory import BATCH, CACHE_TYPES, ENGINE_RAM, WORD_RAM
from modeld.library.metadata import Layer, Metadata, Vision
from modeld.protocol.llama import DEFAULT_CONTEXT

MIB = 1024**2

PLAIN = Metadata(
    format="gguf",
    size=1000,
    context_length=4096,
    layers=(Layer(weights=100, keys=512, values=512),) * 4,
    input_weights=50,
    output_weights=7,
    tied=True,
    embedding_length=512,
    feed_forward_length=2048,
    n_head=8,
    vocabulary=1000,
)
GROUPED = msgspec.structs.replace(PLAIN, layers=(Layer(weights=100, keys=128, values=128),) * 4)
WINDOWED = msgspec.structs.replace(
    PLAIN, layers=(*(Layer(100, keys=128, values=128, window=1024),) * 3, Layer(100, keys=128, values=128))
)
HYBRID = msgspec.structs.replace(PLAIN, layers=(*(Layer(100, state=6000),) * 3, PLAIN.layers[0]))


def llama(metadata: Metadata, *, gpu: bool = False, **options: Any) -> Footprint:
    """Estimate for llama.cpp."""
    return estimate(metadata, "llama_server", options, gpu=gpu)


def part(footprint: Footprint, label: str, where: Where = Where.RAM) -> int:
    """Return the bytes of the lines whose label begins like this."""
    return sum(line.size for line in footprint.lines if line.label.startswith(label) and line.where is where)


def cache(metadata: Metadata, **options: Any) -> int:
    """Return the bytes of the KV cache and the recurrent state, in RAM."""
    return part(llama(metadata, **options), "KV cache")


def test_the_defaults_are_the_loader_s() -> None:
    """What is not configured is what the worker's loader would take."""
    assert cache(PLAIN) == cache(PLAIN, n_ctx=DEFAULT_CONTEXT, parallel=1)


def test_plain_attention() -> None:
    """Keys and values of every layer for every token of every slot, two bytes each."""
    assert cache(PLAIN, n_ctx=1024) == 4 * 1024 * (512 + 512) * 2
    assert cache(PLAIN, n_ctx=1024, parallel=3) == 3 * cache(PLAIN, n_ctx=1024)


def test_grouped_attention() -> None:
    """A quarter of the key heads makes a quarter of the cache."""
    assert cache(GROUPED) * 4 == cache(PLAIN)


def test_a_slot_is_rounded_up() -> None:
    """llama.cpp gives each slot a multiple of 256 cells."""
    assert cache(PLAIN, n_ctx=300, parallel=3) == cache(PLAIN, n_ctx=512, parallel=3)
    assert cache(PLAIN, n_ctx=256) < cache(PLAIN, n_ctx=257) == cache(PLAIN, n_ctx=512)


def test_no_context_is_the_model_s_own() -> None:
    """0 asks for what the model was trained for; where that is not known, for a usual length."""
    assert cache(PLAIN, n_ctx=0, parallel=2) == cache(PLAIN, n_ctx=4096, parallel=2)
    unknown = msgspec.structs.replace(PLAIN, context_length=None)
    assert cache(unknown, n_ctx=0) == cache(PLAIN, n_ctx=32768)


def test_a_sliding_window() -> None:
    """Layers with a window keep it and one physical batch, rounded up; the others keep the whole context."""
    per_token = (128 + 128) * 2
    assert cache(WINDOWED, n_ctx=8192) == (3 * (1024 + 512) + 8192) * per_token
    assert cache(WINDOWED, n_ctx=8192, ubatch_size=100) == (3 * 1280 + 8192) * per_token
    assert cache(WINDOWED, n_ctx=8192, parallel=2) == 2 * cache(WINDOWED, n_ctx=8192)
    assert cache(WINDOWED, n_ctx=1024) == 4 * 1024 * per_token
    assert cache(WINDOWED, n_ctx=8192, extra_args=["--swa-full"]) == cache(GROUPED, n_ctx=8192)


def test_a_hybrid() -> None:
    """Recurrent layers keep a state for each slot, however long the context."""
    assert cache(HYBRID, n_ctx=2048) == 3 * 6000 + 2048 * 1024 * 2
    assert cache(HYBRID, n_ctx=4096, parallel=2) == 2 * (3 * 6000 + 4096 * 1024 * 2)


@pytest.mark.parametrize(
    ("kind", "size"),
    [
        *(("f32", 128), ("f16", 64), ("bf16", 64), ("q8_0", 34)),
        *(("q5_1", 24), ("q5_0", 22), ("q4_1", 20), ("q4_0", 18), ("iq4_nl", 18)),
    ],
)
def test_a_quantised_cache(kind: str, size: int) -> None:
    """32 elements take what a block of their type takes, its scales included; keys and values may differ."""
    cells = 2048 * 4 * (512 // 32)
    assert cache(PLAIN, cache_type_k=kind, cache_type_v=kind) == 2 * cells * size
    assert cache(PLAIN, cache_type_k=kind) == cells * (size + 64)


def test_every_type_of_the_configuration_is_known() -> None:
    """No type that can be configured is taken for another."""
    assert set(CACHE_TYPES) == set(get_args(CacheType))


def test_flags_count_like_options() -> None:
    """What reaches the engine as a flag counts, in both spellings; the flag's context is for all slots."""
    flags = ["--cache-type-k", "q8_0", "--cache-type-v=q8_0", "-ub", "128", "-c", "8192", "--seed", "1"]
    options: dict[str, Any] = {
        "cache_type_k": "q8_0",
        "cache_type_v": "q8_0",
        "ubatch_size": 128,
        "n_ctx": 4096,
    }
    assert llama(PLAIN, parallel=2, extra_args=flags) == llama(PLAIN, parallel=2, **options)


def test_without_flash_attention() -> None:
    """Then the scores of a whole physical batch are kept: heads × batch × context, in f32."""
    more = part(llama(PLAIN, flash_attn="off"), "compute") - part(llama(PLAIN), "compute")
    assert more == 8 * BATCH * 2048 * 4 + BATCH * 2048 * 2


def test_the_compute_buffer() -> None:
    """Vectors of both widths for each token of a physical batch, and one f16 mask over the context."""
    assert part(llama(PLAIN, n_ctx=4096), "compute") == 512 * (5 * 512 + 3 * 2048) * 4 + 512 * 4096 * 2
    small = part(llama(PLAIN, n_ctx=4096, n_batch=64), "compute")
    assert small == 64 * (5 * 512 + 3 * 2048) * 4 + 64 * 4096 * 2


def test_all_on_the_gpu() -> None:
    """The embedding stays in RAM; a tied one is copied to serve as the output; the cache goes along."""
    for layers in (-1, 5, 99):
        whole = llama(PLAIN, gpu=True, n_gpu_layers=layers)
        assert part(whole, "weights, 4 of 4", Where.GPU) == 400
        assert part(whole, "weights, token embedding") == 50
        assert part(whole, "weights, output", Where.GPU) == 57
        assert part(whole, "weights", Where.RAM) == 50
        assert part(whole, "KV cache", Where.RAM) == 0


def test_a_part_on_the_gpu() -> None:
    """The GPU is filled from the end, and the output is the first to go there."""
    two = llama(PLAIN, gpu=True, n_gpu_layers=3)
    assert part(two, "weights, 2 of 4", Where.GPU) == part(two, "weights, 2 of 4", Where.RAM) == 200
    assert part(two, "weights, output", Where.GPU) == 57
    assert part(two, "KV cache", Where.GPU) == part(two, "KV cache", Where.RAM) == cache(PLAIN) // 2
    none = llama(PLAIN, gpu=True, n_gpu_layers=0)
    assert part(none, "weights", Where.GPU) == part(none, "KV cache", Where.GPU) == 0
    assert part(none, "weights") == 457


def test_experts_kept_in_ram() -> None:
    """With the experts of the first layers in RAM the rest of those layers is still on the GPU."""
    mixture = msgspec.structs.replace(PLAIN, layers=(Layer(weights=100, experts=80, keys=1, values=1),) * 4)
    some = llama(mixture, gpu=True, extra_args=["--n-cpu-moe", "3"])
    assert part(some, "weights, experts") == 240
    assert part(some, "weights, 4 of 4", Where.GPU) == 160
    every = llama(mixture, gpu=True, extra_args=["--cpu-moe"])
    assert part(every, "weights, experts") == 320


def test_a_projector() -> None:
    """The projector's file is on the GPU with the model, unless it is told to stay."""
    vision = Vision(image_size=64, patch_size=8, embedding_length=32, feed_forward_length=64)
    projector = Metadata(format="gguf", size=999, architecture="clip", vision=vision)
    there = estimate(PLAIN, "llama_server", {}, gpu=True, mmproj=projector)
    assert part(there, "projector", Where.GPU) == 999 + 4 * (64 * (2 * 32 + 64) + 3 * 64**2)
    here = estimate(
        PLAIN, "llama_server", {"extra_args": ["--no-mmproj-offload"]}, gpu=True, mmproj=projector
    )
    assert part(here, "projector", Where.GPU) == 0


def test_adapters_and_a_draft_model() -> None:
    """An adapter counts by its size; a draft model as a model of the same context, with layers of its own."""
    both = estimate(PLAIN, "llama_server", {"n_ctx": 1024}, gpu=True, adapters=77, draft=GROUPED)
    alone = llama(GROUPED, gpu=True, n_ctx=1024)
    assert part(both, "LoRA", Where.GPU) == 77
    for label in ("weights", "KV cache", "compute buffer"):
        assert part(both, f"draft model: {label}", Where.GPU) == part(alone, label, Where.GPU) > 0
    away = estimate(
        PLAIN,
        "llama_server",
        {"n_ctx": 1024, "cache_type_k": "q4_0", "draft_n_gpu_layers": 0},
        gpu=True,
        draft=GROUPED,
    )
    assert part(away, "draft model", Where.GPU) == part(away, "draft model: compute", Where.GPU)
    assert part(away, "draft model: KV") == part(alone, "KV cache", Where.GPU)


def test_an_embedding_model_takes_whole_inputs_at_once() -> None:
    """Its compute buffer grows with the context, whatever n_batch says; only flags go before that."""

    def compute(**options: Any) -> int:
        found = estimate(PLAIN, "llama_server", options, gpu=False, usecase="embed")
        return part(found, "compute buffer")

    assert compute(n_ctx=4096) > 3 * compute(n_ctx=1024)
    assert compute(n_ctx=1024, n_batch=64) == compute(n_ctx=1024)
    assert compute(n_ctx=4096, extra_args=["-ub", "256"]) < compute(n_ctx=4096) / 4


def test_a_file_that_says_nothing() -> None:
    """Of a file whose metadata is not known the size counts, and the note says so."""
    bare = llama(Metadata(format="gguf", size=12345))
    assert part(bare, "weights") == 12345
    assert bare.note == "from the file's size (12345 bytes) alone"


def test_the_fixed_parts() -> None:
    """The engine's process with its vocabulary, and the worker's, are lines of their own."""
    whole = llama(PLAIN)
    assert part(whole, "engine") == ENGINE_RAM + 1000 * WORD_RAM
    assert part(whole, "worker process") == WORKER
    assert whole.source is Source.ESTIMATED


def test_vllm() -> None:
    """14 % over the weights, four sequences of full length, what the GPU's runtime takes, two GiB of RAM."""
    model = msgspec.structs.replace(PLAIN, format="safetensors", size=100 * MIB)
    whole = estimate(model, "vllm", {"max_model_len": 1024}, gpu=True)
    assert part(whole, "weights", Where.GPU) == 114 * MIB
    assert part(whole, "KV cache", Where.GPU) == 4 * 1024 * 4 * 1024 * 2
    assert part(whole, "CUDA graphs", Where.GPU) == room.VLLM_GRAPHS
    assert whole.total(Where.RAM) == room.VLLM_RAM + WORKER
    eager = estimate(model, "vllm", {"max_model_len": 1024, "enforce_eager": True}, gpu=True)
    assert part(eager, "CUDA graphs", Where.GPU) == 0
    half = estimate(model, "vllm", {"max_model_len": 1024, "kv_cache_dtype": "fp8_e4m3"}, gpu=True)
    assert part(half, "KV cache", Where.GPU) * 2 == part(whole, "KV cache", Where.GPU)


def test_diffusers_loads_in_the_type_asked_for() -> None:
    """Weights stored as f32 and loaded as f16 take half."""
    model = Metadata(format="safetensors", size=400 * MIB, parameters=100 * MIB)
    half = estimate(model, "diffusers", {"torch_dtype": "float16"}, gpu=True)
    full = estimate(model, "diffusers", {"torch_dtype": "float32"}, gpu=True)
    assert part(half, "weights", Where.GPU) == 200 * MIB
    assert part(full, "weights", Where.GPU) == 400 * MIB


@pytest.mark.parametrize(("disk", "memory"), [(142, 388), (466, 852), (1536, 2150), (2970, 3900)])
def test_whisper(disk: int, memory: int) -> None:
    """Within 8 % of the table that whisper.cpp publishes, in MiB."""
    whole = estimate(Metadata(format="other", size=disk * MIB), "whispercpp", {}, gpu=False)
    assert (whole.total(Where.RAM) - WORKER) / MIB == pytest.approx(memory, rel=0.08)


def test_fake() -> None:
    """A scripted model takes what its script says, and its worker."""
    whole = estimate(Metadata(format="other", size=0), "fake", {"memory": 64 * MIB}, gpu=True)
    assert (whole.total(Where.GPU), whole.total(Where.RAM)) == (64 * MIB, WORKER)


# --- properties ---------------------------------------------------------------------------------------------

LAYERS = st.builds(
    Layer,
    weights=st.integers(0, 10**9),
    experts=st.just(0),
    keys=st.integers(0, 64).map(lambda n: n * 32),
    values=st.integers(0, 64).map(lambda n: n * 32),
    window=st.sampled_from([0, 0, 512, 1000, 4096]),
    state=st.sampled_from([0, 0, 10_000]),
)
MODELS = st.builds(
    Metadata,
    format=st.just("gguf"),
    size=st.integers(0, 10**12),
    layers=st.lists(LAYERS, max_size=8).map(tuple),
    input_weights=st.integers(0, 10**9),
    output_weights=st.integers(0, 10**9),
    tied=st.booleans(),
    embedding_length=st.integers(0, 8192),
    feed_forward_length=st.integers(0, 32768),
    n_head=st.integers(0, 64),
    vocabulary=st.integers(0, 300_000),
)
OPTIONS = st.fixed_dictionaries(
    {
        "n_ctx": st.integers(1, 200_000),
        "parallel": st.integers(1, 16),
        "n_batch": st.integers(1, 4096),
        "n_gpu_layers": st.integers(-1, 12),
    },
    optional={
        "ubatch_size": st.integers(1, 4096),
        "flash_attn": st.sampled_from(["on", "off", "auto"]),
        "cache_type_k": st.sampled_from(sorted(CACHE_TYPES)),
        "cache_type_v": st.sampled_from(sorted(CACHE_TYPES)),
    },
)


def everything(footprint: Footprint) -> int:
    """Return the sum over both memories."""
    return sum(line.size for line in footprint.lines)


@given(metadata=MODELS, options=OPTIONS, gpu=st.booleans(), more=st.integers(1, 100_000))
def test_more_context_never_takes_less(
    metadata: Metadata, options: dict[str, Any], gpu: bool, more: int
) -> None:
    """In each memory by itself."""
    before = llama(metadata, gpu=gpu, **options)
    after = llama(metadata, gpu=gpu, **{**options, "n_ctx": options["n_ctx"] + more})
    for where in Where:
        assert after.total(where) >= before.total(where)


@given(metadata=MODELS, options=OPTIONS, gpu=st.booleans())
def test_more_slots_never_take_less(metadata: Metadata, options: dict[str, Any], gpu: bool) -> None:
    """In each memory by itself."""
    before = llama(metadata, gpu=gpu, **options)
    after = llama(metadata, gpu=gpu, **{**options, "parallel": options["parallel"] + 1})
    for where in Where:
        assert after.total(where) >= before.total(where)


@given(metadata=MODELS, options=OPTIONS, layers=st.integers(0, 10))
def test_more_layers_on_the_gpu_never_take_more_ram(
    metadata: Metadata, options: dict[str, Any], layers: int
) -> None:
    """And never less of the GPU's memory."""
    before = llama(metadata, gpu=True, **{**options, "n_gpu_layers": layers})
    after = llama(metadata, gpu=True, **{**options, "n_gpu_layers": layers + 1})
    assert after.total(Where.RAM) <= before.total(Where.RAM)
    assert after.total(Where.GPU) >= before.total(Where.GPU)


@given(metadata=MODELS, options=OPTIONS)
def test_nothing_is_lost_between_the_memories(metadata: Metadata, options: dict[str, Any]) -> None:
    """However the layers are split, weights and cache are the same in sum; the output's copy aside."""
    split, alone = llama(metadata, gpu=True, **options), llama(metadata, gpu=False, **options)
    copied = metadata.tied and options["n_gpu_layers"] != 0 and bool(metadata.layers)
    for label, extra in (("weights", metadata.input_weights if copied else 0), ("KV cache", 0)):
        both = part(split, label, Where.GPU) + part(split, label, Where.RAM)
        assert both == part(alone, label) + extra


@given(
    metadata=MODELS,
    options=OPTIONS,
    loader=st.sampled_from(
        [
            "vllm",
            "llama_server",
            "diffusers",
            "stable_diffusion_cpp",
            "whispercpp",
            "sherpa_onnx",
            "fake",
            "?",
        ]
    ),
)
def test_without_a_gpu_all_is_ram(metadata: Metadata, options: dict[str, Any], loader: str) -> None:
    """No line speaks of a GPU that is not used; none is empty or negative."""
    whole = estimate(metadata, loader, options, gpu=False)
    assert whole.total(Where.GPU) == 0
    assert everything(whole) > 0
    assert all(line.size > 0 and line.label for line in whole.lines)


@given(
    options=st.dictionaries(
        st.sampled_from(["n_ctx", "parallel", "n_batch", "ubatch_size", "n_gpu_layers", "cache_type_k"]),
        st.none() | st.text(max_size=4) | st.integers(-5, 5),
    ),
    flags=st.lists(st.sampled_from(["-c", "-ub", "-np", "-ngl", "--cpu-moe", "-ncmoe", "x", "-3", "7"])),
    gpu=st.booleans(),
)
def test_odd_options_are_no_error(options: dict[str, Any], flags: list[str], gpu: bool) -> None:
    """What an engine may refuse or read otherwise still gives an estimate, with no negative part."""
    whole = llama(PLAIN, gpu=gpu, **options, extra_args=flags)
    assert all(line.size > 0 for line in whole.lines)
