"""The memory of a llama.cpp model, part by part, by llama.cpp's own rules. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import msgspec

from modeld.hardware.footprint import Line, Where
from modeld.library.metadata import Layer, Metadata
from modeld.protocol.llama import DEFAULT_CONTEXT, embedding_batch

MIB = 1024**2

ENGINE_RAM = 36 * MIB
"""The engine's process beside weights and buffers: code, threads, HTTP server; xllamacpp's takes 36.5 MB."""

WORD_RAM = 480
"""Bytes for each word of the vocabulary: its text, score and kind, and looking it up both ways; measured
60.4 MB for process and vocabulary together with 49,152 words."""

ENGINE_GPU = 512 * MIB
"""A process's GPU context with its loaded kernels and workspaces, of which no engine's log speaks."""

CUDA_RAM = 200 * MIB
"""The GPU driver's libraries in the process's own memory."""

BATCH = 512
"""Tokens in a batch, and in a physical one, when nothing is set."""

UNKNOWN_CONTEXT = 32768
"""Context when the model's own is asked for and its file does not tell."""

CELLS = 256
"""llama.cpp rounds the cells of a slot, and those of a sliding window, up to a multiple of this."""

FLOATS_WIDE, FLOATS_INNER = 5, 3
"""Compute buffer: for each token of a physical batch so many vectors of the embedding's and of the
feed-forward's width are alive at once, in f32. Fitted to llama.cpp's own "compute buffer size" for models of
the kinds llama, gemma3 and lfm2, with n_ubatch from 128 to 2048 and contexts to 32,768: exact to 0.3 %, and
too much by a fifth where the feed-forward is no wider than the embedding."""

FLOATS_UNGATED = 1
"""The same for the feed-forward of the kind bert, which has no gate."""

BLOCK = 32
"""Elements of the KV cache that share one block with its scales."""

CACHE_TYPES = {
    **{"f32": 128, "f16": 64, "bf16": 64},
    **{"q8_0": 34, "q5_1": 24, "q5_0": 22, "q4_1": 20, "q4_0": 18, "iq4_nl": 18},
}
"""Bytes of a block of the KV cache."""

_FLAGS = {
    **dict.fromkeys(("-c", "--ctx-size"), "context"),
    **dict.fromkeys(("-np", "--parallel"), "parallel"),
    **dict.fromkeys(("-b", "--batch-size"), "n_batch"),
    **dict.fromkeys(("-ub", "--ubatch-size"), "ubatch_size"),
    **dict.fromkeys(("-ngl", "--gpu-layers", "--n-gpu-layers"), "n_gpu_layers"),
    **dict.fromkeys(("-ctk", "--cache-type-k"), "cache_type_k"),
    **dict.fromkeys(("-ctv", "--cache-type-v"), "cache_type_v"),
    **dict.fromkeys(("-fa", "--flash-attn"), "flash_attn"),
    **dict.fromkeys(("-ncmoe", "--n-cpu-moe"), "cpu_moe"),
}
_SWITCHES = {
    **dict.fromkeys(("-nkvo", "--no-kv-offload"), "no_kv_offload"),
    **dict.fromkeys(("-cmoe", "--cpu-moe"), "all_cpu_moe"),
    "--swa-full": "swa_full",
    "--no-mmproj-offload": "no_mmproj_offload",
}


class Plan(msgspec.Struct, frozen=True):
    """What the options come to. `context`: cells of one slot. `first`: the first layer on the GPU."""

    context: int
    parallel: int
    ubatch: int
    key_type: str
    value_type: str
    flash: bool
    first: int
    output_on_gpu: bool
    cache_on_gpu: bool
    projector_on_gpu: bool
    cpu_experts: int
    swa_full: bool

    def cells(self, layer: Layer) -> int:
        """Return the cells that one slot has in this layer's cache."""
        if not layer.window or self.swa_full:
            return self.context
        return _rounded(min(self.context, layer.window + self.ubatch))

    def cache(self, layer: Layer) -> int:
        """Return the bytes of this layer's KV cache and recurrent state, all slots together."""
        usual = CACHE_TYPES["f16"]
        keys = layer.keys * CACHE_TYPES.get(self.key_type, usual)
        values = layer.values * CACHE_TYPES.get(self.value_type, usual)
        return self.parallel * (self.cells(layer) * (keys + values) // BLOCK + layer.state)


def llama_lines(
    metadata: Metadata,
    options: Mapping[str, Any],
    *,
    gpu: bool,
    mmproj: Metadata | None = None,
    embedding: bool = False,
    adapters: int = 0,
    draft: Metadata | None = None,
) -> tuple[list[Line], str]:
    """Return the lines of the sum, and what they rest on. Without `gpu` all of them are RAM.

    `embedding`: the model gives vectors. `adapters`: bytes of its LoRA adapters. `draft`: the model that
    guesses for it.
    """
    plan = _plan(metadata, options, gpu=gpu, embedding=embedding)
    slots = f"{plan.context} tokens × {plan.parallel}"
    lines = _model(metadata, plan, gpu=gpu, embedding=embedding)
    lines.append(Line("LoRA adapters", adapters, Where.GPU if plan.output_on_gpu else Where.RAM))
    if draft is not None:
        # It goes along with every slot, on the same tokens; its cache has types of its own.
        kept = {key: options[key] for key in ("n_ctx", "parallel", "n_batch") if key in options}
        layers = options.get("draft_n_gpu_layers")
        own = _plan(draft, {**kept, "n_gpu_layers": -1 if layers is None else layers}, gpu=gpu)
        lines += [
            Line(f"draft model: {line.label}", line.size, line.where)
            for line in (
                *_model(draft, own, gpu=gpu),
                Line("vocabulary", WORD_RAM * draft.vocabulary, Where.RAM),
            )
        ]
    if mmproj is not None:
        where = Where.GPU if plan.projector_on_gpu else Where.RAM
        lines += [
            Line("projector", mmproj.size, where),
            Line("projector, compute buffer", _projector_work(mmproj), where),
        ]
    if gpu:
        lines += [Line("GPU context and kernels", ENGINE_GPU, Where.GPU)]
        lines += [Line("GPU libraries", CUDA_RAM, Where.RAM)]
    lines += [Line("engine and vocabulary", ENGINE_RAM + WORD_RAM * metadata.vocabulary, Where.RAM)]
    if not metadata.layers:
        return lines, f"from the file's size ({metadata.size} bytes) alone"
    return lines, f"from the file's metadata: {len(metadata.layers)} layers, {slots}"


def _model(metadata: Metadata, plan: Plan, *, gpu: bool, embedding: bool = False) -> list[Line]:
    """Return what one model takes by itself."""
    slots = f"{plan.context} tokens × {plan.parallel}"
    lines = _weights(metadata, plan)
    # Most layers of a model are alike.
    kinds = {layer: plan.cache(layer) for layer in set(metadata.layers)}
    caches = [kinds[layer] for layer in metadata.layers]
    on_gpu = sum(caches[plan.first :]) if plan.cache_on_gpu else 0
    in_ram = sum(caches) - on_gpu
    types = " and ".join(dict.fromkeys((plan.key_type, plan.value_type)))
    has_state = any(layer.state for layer in kinds)
    label = f"KV cache{' and recurrent state' if has_state else ''}, {slots}, {types}"
    lines += [Line(label, on_gpu, Where.GPU), Line(label, in_ram, Where.RAM)]
    return lines + _compute(metadata, kinds, plan, gpu=gpu, embedding=embedding)


def _weights(metadata: Metadata, plan: Plan) -> list[Line]:
    if not metadata.layers:
        where = Where.GPU if plan.output_on_gpu else Where.RAM
        return [Line("weights", metadata.size, where)]
    count = len(metadata.layers)
    kept = sum(layer.experts for layer in metadata.layers[plan.first : plan.cpu_experts])
    above = sum(layer.weights for layer in metadata.layers[plan.first :]) - kept
    below = sum(layer.weights for layer in metadata.layers[: plan.first])
    lines = [
        Line(f"weights, {count - plan.first} of {count} layers", above, Where.GPU),
        Line(f"weights, {plan.first} of {count} layers", below, Where.RAM),
        Line("weights, experts kept in RAM", kept, Where.RAM),
        # Looking up a row needs no GPU: llama.cpp leaves the embedding in RAM always.
        Line("weights, token embedding", metadata.input_weights, Where.RAM),
    ]
    if plan.output_on_gpu:
        copy = metadata.input_weights if metadata.tied else 0
        return [*lines, Line("weights, output", metadata.output_weights + copy, Where.GPU)]
    return [*lines, Line("weights, output", metadata.output_weights, Where.RAM)]


def _compute(
    metadata: Metadata, kinds: Collection[Layer], plan: Plan, *, gpu: bool, embedding: bool
) -> list[Line]:
    inner = FLOATS_UNGATED if metadata.architecture == "bert" else FLOATS_INNER
    vectors = FLOATS_WIDE * metadata.embedding_length + inner * metadata.feed_forward_length
    logits = plan.parallel * (metadata.vocabulary + metadata.embedding_length) * 4
    remembers = any(layer.keys or layer.state for layer in kinds)
    full = plan.context if any(layer.keys and not layer.window for layer in kinds) else 0
    if metadata.layers and not remembers:
        full = plan.ubatch  # without a cache the tokens of a batch look at each other only
    last = logits
    if embedding and remembers:
        # A language model that gives vectors scores all words after each token, and drops that.
        last = plan.ubatch * (metadata.vocabulary + FLOATS_WIDE * metadata.embedding_length) * 4
    windowed = max((plan.cells(layer) for layer in kinds if layer.window), default=0)
    # One mask for each kind of layer: f16 for flash attention, f32 and the scores themselves without it.
    masks = plan.ubatch * (full + windowed) * (2 if plan.flash else 4)
    if not plan.flash:
        masks += metadata.n_head * plan.ubatch * max(full, windowed) * 4
    work = max(plan.ubatch * vectors * 4, last) + masks
    lines = [Line("answers", logits, Where.RAM)]
    if gpu:
        lines.append(Line("compute buffer", work, Where.GPU))
        # What goes into the graph is prepared on this side.
        inputs = plan.ubatch * metadata.embedding_length * 4 + masks
        return [*lines, Line("compute buffer", work if plan.first else min(inputs, work), Where.RAM)]
    return [*lines, Line("compute buffer", work, Where.RAM)]


def _projector_work(mmproj: Metadata) -> int:
    """Return the bytes of encoding one picture of the size that the projector is made for.

    Checked against llama.cpp's own figure with flash attention, which it takes where it can: at most a third
    too much. The feed-forward has no gate here.
    """
    vision = mmproj.vision
    if vision is None or not vision.patch_size:
        return 0
    patches = (vision.image_size // vision.patch_size) ** 2
    picture = 3 * vision.image_size**2
    return 4 * (patches * (2 * vision.embedding_length + vision.feed_forward_length) + picture)


def _plan(metadata: Metadata, options: Mapping[str, Any], *, gpu: bool, embedding: bool = False) -> Plan:
    flags = _from_flags(options.get("extra_args") or ())
    chosen = {**options, **flags}
    usual = BATCH
    if embedding:  # the loader makes room for whole inputs; only the owner's own flags come after that
        usual = embedding_batch(options)
        chosen = {**chosen, "n_batch": flags.get("n_batch"), "ubatch_size": flags.get("ubatch_size")}
    parallel = max(_whole(chosen.get("parallel"), 1), 1)
    # The flag counts all slots together, the option each of them.
    each = _whole(chosen.get("n_ctx"), DEFAULT_CONTEXT)
    if "context" in chosen:
        each = _whole(chosen["context"], 0) // parallel
    each = each if each > 0 else metadata.context_length or UNKNOWN_CONTEXT
    batch = max(_whole(chosen.get("n_batch"), usual), 1)
    ubatch = max(min(_whole(chosen.get("ubatch_size"), usual), batch, each * parallel), 1)
    count, wanted = len(metadata.layers), _whole(chosen.get("n_gpu_layers"), -1)
    # Counted from the end, and the output is one of them: llama.cpp fills the GPU from there.
    slots = (count + 1 if wanted < 0 else min(wanted, count + 1)) if gpu else 0
    first = min(count + 1 - slots, count)
    return Plan(
        context=_rounded(each),
        parallel=parallel,
        ubatch=ubatch,
        key_type=str(chosen.get("cache_type_k") or "f16"),
        value_type=str(chosen.get("cache_type_v") or "f16"),
        flash=str(chosen.get("flash_attn") or "auto") not in ("off", "0", "false", "disabled"),
        first=first,
        output_on_gpu=slots > 0,
        cache_on_gpu=gpu and not chosen.get("no_kv_offload"),
        projector_on_gpu=gpu and not chosen.get("no_mmproj_offload"),
        cpu_experts=count if chosen.get("all_cpu_moe") else _whole(chosen.get("cpu_moe"), 0),
        swa_full=bool(chosen.get("swa_full")),
    )


def _from_flags(extra: Any) -> dict[str, Any]:
    """Return the settings among llama-server's own flags; the last of two holds, as there."""
    found: dict[str, Any] = {}
    flags = [str(each) for each in extra]
    for flag, following in zip(flags, [*flags[1:], ""], strict=False):
        name, equals, value = flag.partition("=")
        if name in _FLAGS:
            found[_FLAGS[name]] = value if equals else following
        elif name in _SWITCHES:
            found[_SWITCHES[name]] = True
    return found


def _whole(value: object, default: int) -> int:
    try:
        return default if value is None else int(str(value))
    except ValueError:
        return default


def _rounded(cells: int) -> int:
    return -(-cells // CELLS) * CELLS
