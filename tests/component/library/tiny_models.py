"""Tiny GGUF models of random weights that llama.cpp loads: one for each way of remembering."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np

WORDS = [f"w{number}" for number in range(253)] + ["<s>", "</s>", "a"]


class Builder:
    """Writes one model; every layer has `embedding` wide norms before attention and feed-forward."""

    def __init__(self, path: Path, arch: str, *, embedding: int, layers: int, inner: int, heads: int) -> None:
        self.out = gguf.GGUFWriter(path, arch)
        self.embedding, self.layers, self.inner, self.heads = embedding, layers, inner, heads
        self.width = embedding // heads
        self._random = np.random.default_rng(1)
        out = self.out
        out.add_name(f"tiny {arch}")
        out.add_context_length(4096)
        out.add_embedding_length(embedding)
        out.add_block_count(layers)
        out.add_feed_forward_length(inner)
        out.add_head_count(heads)
        out.add_layer_norm_rms_eps(1e-5)
        out.add_vocab_size(len(WORDS))
        out.add_tokenizer_model("gpt2")
        out.add_tokenizer_pre("gpt-2")
        out.add_token_list(WORDS)
        out.add_token_types([gguf.TokenType.NORMAL] * len(WORDS))
        out.add_token_merges(["a a"])
        out.add_bos_token_id(253)
        out.add_eos_token_id(254)
        out.add_file_type(gguf.LlamaFileType.MOSTLY_F16)

    def matrix(self, name: str, rows: int, columns: int, kind: Any = np.float16) -> None:
        """Add a random matrix."""
        self.out.add_tensor(f"{name}.weight", self._random.normal(0, 0.1, (rows, columns)).astype(kind))

    def ones(self, name: str, length: int) -> None:
        """Add a norm."""
        self.out.add_tensor(f"{name}.weight", np.ones(length, np.float32))

    def attention(self, block: str, kv_heads: int) -> None:
        """Add the four matrices of attention."""
        for name, rows in (("q", self.embedding), ("k", kv_heads * self.width), ("v", kv_heads * self.width)):
            self.matrix(f"{block}.attn_{name}", rows, self.embedding)
        self.matrix(f"{block}.attn_output", self.embedding, self.embedding)

    def feed_forward(self, block: str) -> None:
        """Add the norm and the three matrices of a gated feed-forward."""
        self.ones(f"{block}.ffn_norm", self.embedding)
        self.matrix(f"{block}.ffn_gate", self.inner, self.embedding)
        self.matrix(f"{block}.ffn_up", self.inner, self.embedding)
        self.matrix(f"{block}.ffn_down", self.embedding, self.inner)

    def finish(self, norm: str = "output_norm") -> None:
        """Add what surrounds the layers, and write."""
        self.matrix("token_embd", len(WORDS), self.embedding)
        self.ones(norm, self.embedding)
        self.out.write_header_to_file()
        self.out.write_kv_data_to_file()
        self.out.write_tensors_to_file()
        self.out.close()


def grouped(path: Path, *, embedding: int = 256, inner: int = 1024, layers: int = 3) -> Path:
    """Write a llama with fewer key than query heads."""
    model = Builder(path, "llama", embedding=embedding, layers=layers, inner=inner, heads=4)
    model.out.add_head_count_kv(2)
    model.out.add_rope_dimension_count(model.width)
    for block in (f"blk.{index}" for index in range(layers)):
        model.ones(f"{block}.attn_norm", embedding)
        model.attention(block, 2)
        model.feed_forward(block)
    model.finish()
    return path


def split(stem: Path) -> list[Path]:
    """Write the same as `grouped` in two pieces, NAME-00001-of-00002.gguf and so on."""
    pieces = [stem.with_name(f"{stem.name}-{number:05}-of-00002.gguf") for number in (1, 2)]
    reader = gguf.GGUFReader(grouped(stem.with_name("source")))
    writers = [Builder(pieces[0], "llama", embedding=256, layers=3, inner=1024, heads=4).out]
    writers[0].add_head_count_kv(2)
    writers.append(gguf.GGUFWriter(pieces[1], "llama"))
    for index, tensor in enumerate(reader.tensors):
        writers[index % 2].add_tensor(tensor.name, tensor.data)
    for writer in writers:
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_tensors_to_file()
        writer.close()
    stem.with_name("source").unlink()
    return pieces


def windowed(path: Path, *, embedding: int = 256, inner: int = 512, layers: int = 7) -> Path:
    """Write a gemma3: of its layers every sixth looks back over everything, the others 300 tokens."""
    model = Builder(path, "gemma3", embedding=embedding, layers=layers, inner=inner, heads=4)
    model.out.add_head_count_kv(1)
    model.out.add_key_length(model.width)
    model.out.add_value_length(model.width)
    model.out.add_sliding_window(300)
    for block in (f"blk.{index}" for index in range(layers)):
        for name in ("attn_norm", "post_attention_norm", "post_ffw_norm"):
            model.ones(f"{block}.{name}", embedding)
        for name in ("attn_q_norm", "attn_k_norm"):
            model.ones(f"{block}.{name}", model.width)
        model.attention(block, 1)
        model.feed_forward(block)
    model.finish()
    return path


def hybrid(path: Path, *, embedding: int = 256, inner: int = 512) -> Path:
    """Write an lfm2: two layers with a short convolution, one with attention, one more of the first kind."""
    kv_heads = [0, 0, 2, 0]
    model = Builder(path, "lfm2", embedding=embedding, layers=len(kv_heads), inner=inner, heads=4)
    model.out.add_head_count_kv(kv_heads)
    model.out.add_shortconv_l_cache(3)
    for index, heads in enumerate(kv_heads):
        block = f"blk.{index}"
        model.ones(f"{block}.attn_norm", embedding)
        if heads:
            for name in ("attn_q_norm", "attn_k_norm"):
                model.ones(f"{block}.{name}", model.width)
            model.attention(block, heads)
        else:
            model.matrix(f"{block}.shortconv.conv", embedding, 3, np.float32)
            model.matrix(f"{block}.shortconv.in_proj", 3 * embedding, embedding)
            model.matrix(f"{block}.shortconv.out_proj", embedding, embedding)
        model.feed_forward(block)
    model.finish("token_embd_norm")
    return path
