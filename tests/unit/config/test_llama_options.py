"""What `llama_server_config` takes of adapters, drafts and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from modeld.config.engines import LlamaServerConfig


def options(base: Path | None = None, **given: Any) -> dict[str, Any]:
    """Return what the worker gets."""
    context = None if base is None else {"base": base}
    return LlamaServerConfig.model_validate(given, context=context).worker_options()


def test_adapters_are_files_or_mappings(tmp_path: Path) -> None:
    """A bare file is added in full; relative names are those beside the configuration."""
    given = options(tmp_path, lora=["a.gguf", {"path": "/b.gguf", "scale": -0.5}], draft_model="d.gguf")
    assert given["lora"] == [
        {"path": str(tmp_path / "a.gguf"), "scale": 1.0},
        {"path": "/b.gguf", "scale": -0.5},
    ]
    assert given["draft_model"] == str(tmp_path / "d.gguf")
    assert options()["lora"] == []


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lora": ["/a,b.gguf"]}, "rename it"),
        ({"lora": [{"path": "/a:b.gguf"}]}, "rename it"),
        ({"lora": [{"scale": 2}]}, "path"),
        ({"lora": [{"path": "/a.gguf", "scale": float("inf")}]}, "scale"),
        ({"draft_n_max": 4}, "no meaning without draft_model"),
        ({"draft_p_min": 0.5}, "no meaning without draft_model"),
        ({"draft_model": "/d", "draft_n_max": 2, "draft_n_min": 3}, "more than draft_n_max, which is 2"),
        ({"draft_model": "/d", "draft_n_max": 0}, "draft_n_max"),
        ({"draft_model": "/d", "draft_p_min": 1.5}, "draft_p_min"),
        ({"n_gpu_layers": -2}, "n_gpu_layers"),
        ({"cache_type_k": "q3_k"}, "cache_type_k"),
    ],
)
def test_what_cannot_be_is_refused(given: dict[str, Any], words: str) -> None:
    """With the field, and what is wrong with it."""
    with pytest.raises(ValidationError, match=words):
        options(**given)
