"""What the configuration may ask of llama.cpp reaches the engine inside the wheel."""

from __future__ import annotations

import pytest
import xllamacpp

from modeld.config.engines import LlamaServerConfig
from modeld.worker.loaders.llama_server.xllama import configure


def configured(**options: object) -> xllamacpp.CommonParams:
    """Return the engine's parameters for a model with these options."""
    params = xllamacpp.CommonParams()
    worker = LlamaServerConfig.model_validate(options).worker_options()
    configure(params, {**worker, "model": "m.gguf", "socket": "s.sock"})
    return params


def test_cache_types_flash_attention_and_split_are_taken() -> None:
    """Options that llama-server takes as flags are not refused by the wheel's engine."""
    params = configured(
        cache_type_k="q8_0", cache_type_v="q4_0", flash_attn="on", tensor_split=[3, 1], ubatch_size=128
    )
    assert params.cache_type_k == xllamacpp.ggml_type.GGML_TYPE_Q8_0
    assert params.cache_type_v == xllamacpp.ggml_type.GGML_TYPE_Q4_0
    assert params.flash_attn_type == xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_ENABLED
    assert list(params.tensor_split)[:3] == [3.0, 1.0, 0.0]
    assert params.n_ubatch == 128


@pytest.mark.parametrize("kind", ["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"])
def test_every_cache_type_of_the_schema_is_one_of_the_engines(kind: str) -> None:
    """No type that the configuration accepts is unknown to the engine."""
    params = configured(cache_type_k=kind)
    assert params.cache_type_k == getattr(xllamacpp.ggml_type, f"GGML_TYPE_{kind.upper()}")


def test_adapters_and_a_draft_model_are_taken() -> None:
    """With their numbers, and only when there are any."""
    params = configured(
        lora=["/a.gguf", {"path": "/b.gguf", "scale": 0.5}],
        draft_model="/d.gguf",
        draft_n_max=8,
        draft_n_min=2,
        draft_p_min=0.25,
        draft_n_gpu_layers=0,
        mmproj="/p.gguf",
    )
    assert [(each.path, each.scale) for each in params.lora_adapters] == [("/a.gguf", 1.0), ("/b.gguf", 0.5)]
    draft = params.speculative.draft
    assert (draft.mparams.path, draft.n_max, draft.n_min, draft.p_min) == ("/d.gguf", 8, 2, 0.25)
    assert draft.n_gpu_layers == 0
    kinds = xllamacpp.common_speculative_type
    assert list(params.speculative.types) == [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_SIMPLE]
    assert params.mmproj.path == "/p.gguf"
    plain = configured(mmproj="none")
    assert list(plain.speculative.types) == [kinds.COMMON_SPECULATIVE_TYPE_NONE]
    assert (list(plain.lora_adapters), plain.mmproj.path) == ([], "")


@pytest.mark.parametrize(("asked", "layers"), [(-1, -1), (0, 0), (7, 7)])
def test_layers_on_the_gpu(asked: int, layers: int) -> None:
    """-1 is the engine's own word for as many as it can."""
    assert configured(n_gpu_layers=asked).n_gpu_layers == layers


def test_an_unknown_flag_is_refused_with_its_name() -> None:
    """A flag dropped in silence would be worse."""
    with pytest.raises(ValueError, match="--no-such-flag"):
        configured(extra_args=["--no-such-flag", "1"])
