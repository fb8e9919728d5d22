from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.library.architecture import LLAMA4_CHUNK, Tensor, described
from modeld.library.metadata import Layer, Metadata


def tensor(name: str, *shape: int, size: int = 0) -> Tensor:
    """Return a tensor of one byte for each element, or of `size` bytes."""
    made = Tensor(name, shape, "Q8_0", 0, 0)
    return Tensor(name, shape, "Q8_0", size or made.elements, 0)


def attention(index: int, *more: str) -> list[Tensor]:
    """Return the tensors of a layer with attention."""
    names = ("attn_q", "attn_k", "attn_v", "ffn_up", *more)
    return [tensor(f"blk.{index}.{name}.weight", 10) for name in names]


def read(arch: str, layers: int, tensors: list[Tensor] | None = None, **own: Any) -> Metadata:
    """Describe a file with 8 heads and a width of 512; keyword a__b is the key arch.a.b."""
    keys = {"general.architecture": arch, f"{arch}.block_count": layers, f"{arch}.embedding_length": 512}
    keys |= {f"{arch}.attention.head_count": 8}
    keys |= {f"{arch}.{name.replace('__', '.')}": value for name, value in own.items()}
    parts = [part for index in range(layers) for part in attention(index)] if tensors is None else tensors
    return described(keys, parts, 12345)


def test_weights_by_group() -> None:
    """What works on token ids comes before the layers, the rest after them; each block is summed."""
    found = read(
        "llama",
        2,
        [
            tensor("token_embd.weight", 512, 1000),
            tensor("output_norm.weight", 512),
            tensor("output.weight", 512, 1000),
            tensor("rope_freqs.weight", 64),
            *attention(0),
            *attention(1, "ffn_gate_exps"),
        ],
    )
    assert (found.input_weights, found.output_weights) == (512_000, 512_000 + 512 + 64)
    assert [layer.weights for layer in found.layers] == [40, 50]
    assert [layer.experts for layer in found.layers] == [0, 10]
    assert found.parameters == 512_000 * 2 + 512 + 64 + 90
    assert (found.vocabulary, found.tied, found.size) == (1000, False, 12345)


def test_a_tied_embedding() -> None:
    """Without an output matrix the embedding serves as one."""
    assert read("llama", 0, [tensor("token_embd.weight", 512, 1000)]).tied


def test_head_counts() -> None:
    """One number for all layers or one for each; without one, as many as there are query heads."""
    assert {layer.keys for layer in read("llama", 2).layers} == {8 * 64}
    assert {layer.keys for layer in read("llama", 2, attention__head_count_kv=2).layers} == {2 * 64}
    listed = read("llama", 3, attention__head_count_kv=[4, 0, 2])
    assert [layer.values for layer in listed.layers] == [256, 0, 128]
    wide = read("qwen3", 1, attention__head_count_kv=2, attention__key_length=128, attention__value_length=96)
    assert (wide.layers[0].keys, wide.layers[0].values) == (256, 192)


def test_latent_attention_keeps_no_values() -> None:
    """With multi-head latent attention one compressed vector is kept, and the values are a view of it."""
    keys = {"attention__head_count_kv": 1, "attention__key_length": 576, "attention__value_length": 512}
    parts = [tensor("blk.0.attn_kv_a_mqa.weight", 1), tensor("blk.0.attn_k_b.weight", 1)]
    found = read("deepseek2", 1, parts, attention__key_length_mla=192, **keys)
    assert (found.layers[0].keys, found.layers[0].values) == (576, 0)


@pytest.mark.parametrize(
    ("arch", "own", "windows"),
    [
        ("gemma3", {}, [512] * 5 + [0, 512]),
        ("gemma2", {}, [512, 0] * 3 + [512]),
        ("gpt-oss", {}, [512, 0] * 3 + [512]),
        ("new-kind", {}, [0] * 7),
        ("new-kind", {"attention__sliding_window_pattern": 3}, [512, 512, 0, 512, 512, 0, 512]),
        ("new-kind", {"attention__sliding_window_pattern": [True, False] + [True] * 5}, [512, 0] + [512] * 5),
        ("llama", {"attention__sliding_window": 0}, [0] * 7),
    ],
)
def test_sliding_windows(arch: str, own: dict[str, Any], windows: list[int]) -> None:
    """The pattern is the file's, else the architecture's; an unknown one counts as without a window."""
    found = read(arch, 7, **{"attention__sliding_window": 512, **own})
    assert [layer.window for layer in found.layers] == windows


def test_chunked_attention() -> None:
    """llama4's files do not name the length of its chunks."""
    assert [layer.window for layer in read("llama4", 4).layers] == [LLAMA4_CHUNK] * 3 + [0]


def test_recurrent_layers() -> None:
    """A layer with a state-space part keeps a state; with attention beside it, both."""
    own = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16, "ssm__group_count": 1}
    parts = [
        tensor("blk.0.ssm_conv1d.weight", 1),
        tensor("blk.0.attn_qkv.weight", 1),  # linear attention: joint, and nothing that grows
        *attention(1),
        *attention(2, "ssm_in"),
        tensor("blk.3.attn_qkv.weight", 1),
    ]
    found = read("hybrid", 4, parts, attention__head_count_kv=2, **own)
    state = (3 * (1024 + 2 * 16) + 16 * 1024) * 4
    assert [layer.state for layer in found.layers] == [state, 0, state, 0]
    assert [layer.keys for layer in found.layers] == [0, 128, 128, 128]


def test_other_kinds_of_state() -> None:
    """Short convolutions and RWKV's matrices, by llama.cpp's own sizes in f32."""
    conv = read("lfm2", 1, [tensor("blk.0.shortconv.conv.weight", 1)], shortconv__l_cache=3)
    assert conv.layers[0].state == 512 * 2 * 4
    rwkv = read("rwkv7", 1, [tensor("blk.0.time_mix_w0.weight", 1)], wkv__head_size=64, token_shift_count=2)
    assert rwkv.layers[0].state == (2 * 512 + 512 * 64) * 4


def test_layers_without_a_cache_of_their_own() -> None:
    """Layers that use an earlier one's cache, or that only predict ahead, add nothing; nor do encoders."""
    assert [bool(layer.keys) for layer in read("gemma3n", 4, attention__shared_kv_layers=2).layers] == [
        *(True, True),
        *(False, False),
    ]
    assert [bool(layer.keys) for layer in read("glm4moe", 3, nextn_predict_layers=1).layers] == [
        *(True, True),
        False,
    ]
    assert read("bert", 2).layers == read("other", 2, attention__causal=False).layers == (Layer(40),) * 2


def test_a_projector() -> None:
    """A projector file tells of its encoder, and has no layers with a cache."""
    keys = {
        "general.architecture": "clip",
        "clip.projector_type": "gemma3",
        "clip.has_vision_encoder": True,
        "clip.vision.image_size": 896,
        "clip.vision.patch_size": 14,
        "clip.vision.embedding_length": 1152,
    }
    found = described(keys, [tensor("v.blk.0.attn_q.weight", 9), tensor("mm.0.weight", 5)], 99)
    assert found.vision is not None
    assert (found.vision.projector, found.vision.image_size, found.vision.images) == ("gemma3", 896, True)
    assert (found.layers, found.output_weights) == ((), 14)


def test_facts_for_people() -> None:
    """Name, type of the weights, context, mixture, and whether there is a chat template."""
    keys = {
        "general.architecture": "m",
        "general.name": "Model M",
        "general.file_type": "Q4_K_M",
        "m.context_length": 4096,
        "m.expert_count": 64,
        "m.expert_used_count": 8,
        "m.expert_feed_forward_length": 100,
        "m.feed_forward_length": [0, 300],
        "tokenizer.chat_template": "{{ messages }}",
    }
    found = described(keys, [], 0)
    assert (found.name, found.quantization, found.context_length) == ("Model M", "Q4_K_M", 4096)
    assert (found.n_experts, found.n_experts_used, found.feed_forward_length) == (64, 8, 800)
    assert found.has_chat_template
    assert described({}, [tensor("a", 3), Tensor("b", (9,), "F16", 18, 0)], 0).quantization == "F16"


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**64), 2**64) | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=4),
    max_leaves=5,
)
NAMES = st.sampled_from(
    [
        *("block_count", "embedding_length", "context_length", "nextn_predict_layers", "expert_count"),
        *("attention.head_count", "attention.head_count_kv", "attention.key_length"),
        *("attention.sliding_window", "attention.sliding_window_pattern"),
        *("ssm.state_size", "shortconv.l_cache", "wkv.head_size"),
    ]
)


@given(
    own=st.dictionaries(NAMES, VALUES),
    names=st.lists(st.sampled_from(["blk.0.attn_k.weight", "blk.3.ssm_in.weight", "token_embd.weight", "x"])),
)
def test_nonsense_is_no_error(own: dict[str, Any], names: list[str]) -> None:
    """Whatever stands under a key, there is a description without a negative figure."""
    keys = {"general.architecture": "a", **{f"a.{name}": value for name, value in own.items()}}
    found = described(keys, [tensor(name, 3) for name in names], 1)
    figures = [found.embedding_length, found.vocabulary, found.n_head, found.context_length or 0]
    for layer in found.layers:
        figures += [layer.weights, layer.keys, layer.values, layer.window, layer.state]
    assert min(figures) >= 0
