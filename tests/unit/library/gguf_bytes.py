"""Writes GGUF headers byte by byte, right ones and wrong ones."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Any

CODES = {"B": 0, "b": 1, "H": 2, "h": 3, "I": 4, "i": 5, "f": 6, "?": 7, "Q": 10, "q": 11, "d": 12}


class As:
    """A number of a certain type, by its letter in `struct`; or a list of such."""

    def __init__(self, code: str, value: Any) -> None:
        self.code, self.value = code, value


def text(words: str | bytes) -> bytes:
    """Return a text with its length before it."""
    raw = words.encode() if isinstance(words, str) else words
    return struct.pack("<Q", len(raw)) + raw


def value(what: Any) -> bytes:
    """Return a value with its type before it."""
    match what:
        case bytes():
            return what
        case bool():
            return value(As("?", what))
        case int():
            return value(As("I", what))
        case str():
            return struct.pack("<I", 8) + text(what)
        case As(value=list() as many):
            return struct.pack(f"<IIQ{len(many)}{what.code}", 9, CODES[what.code], len(many), *many)
        case As():
            return struct.pack(f"<I{what.code}", CODES[what.code], what.value)
        case _:
            return struct.pack("<IIQ", 9, 8, len(what)) + b"".join(map(text, what))


def tensor(name: str | bytes, shape: Sequence[int], kind: int = 0, offset: int = 0) -> bytes:
    """Return a tensor's line."""
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


def header(
    keys: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Sequence[bytes] = (),
    *,
    version: int = 3,
    counts: tuple[int, int] | None = None,
) -> bytes:
    """Return a header; `counts` of tensors and of keys stand in the place of the true ones."""
    pairs = list(keys.items() if isinstance(keys, Mapping) else keys)
    announced = counts or (len(tensors), len(pairs))
    lines = [b"GGUF", struct.pack("<IQQ", version, *announced)]
    lines += [text(name) + value(what) for name, what in pairs]
    return b"".join([*lines, *tensors])


def whole(keys: Mapping[str, Any], tensors: Mapping[str, tuple[Sequence[int], int]]) -> bytes:
    """Return a file with tensors of zeros: name → shape and type's number (0: f32, 1: f16)."""
    lines, offset = [], 0
    for name, (shape, kind) in tensors.items():
        lines.append(tensor(name, shape, kind, offset))
        size = 4 if kind == 0 else 2
        for length in shape:
            size *= length
        offset += size + -size % 32
    head = header(keys, lines)
    return head + bytes(-len(head) % 32 + offset)


def chat_model(**more: Any) -> bytes:
    """Return a whole tiny model for chat."""
    keys = {
        "general.architecture": "llama",
        "general.name": "tiny",
        "general.file_type": 1,
        "general.languages": ["en", "de"],
        "general.license": "mit",
        "llama.context_length": 512,
        "llama.embedding_length": 8,
        "llama.block_count": 1,
        "llama.attention.head_count": 2,
        "llama.attention.head_count_kv": 1,
        "tokenizer.ggml.tokens": [f"w{number}" for number in range(300)],
        "tokenizer.ggml.scores": As("f", [0.5] * 300),
        "tokenizer.chat_template": "{% if tools %}{{ tools }}{% endif %}{{ messages }}",
        **more,
    }
    shapes = {
        "token_embd.weight": ((8, 300), 1),
        "blk.0.attn_k.weight": ((8, 4), 1),
        "output_norm.weight": ((8,), 0),
    }
    return whole(keys, shapes)
