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


def test_an_unknown_flag_is_refused_with_its_name() -> None:
    """A flag dropped in silence would be worse."""
    with pytest.raises(ValueError, match="--no-such-flag"):
        configured(extra_args=["--no-such-flag", "1"])
