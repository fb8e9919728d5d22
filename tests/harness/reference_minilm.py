"""What all-MiniLM-L6-v2's vectors must be: the original weights, computed in numpy as the model is defined.

A BERT encoder, the mean over its tokens' last states, scaled to length 1. It shares no code with any engine.
"""

from __future__ import annotations

import math
import re
from functools import cache
from typing import Any

from modeld.library.built.minilm import safetensors
from tests.harness.models_minilm import original

LAYERS, HEADS, EPSILON = 6, 12, 1e-12


@cache
def _weights() -> dict[str, Any]:
    raw = original("model.safetensors").read_bytes()
    return {name.removeprefix("bert."): array for name, array in safetensors(raw)}


@cache
def _words() -> dict[str, int]:
    lines = original("vocab.txt").read_text("utf-8").splitlines()
    return {word: number for number, word in enumerate(lines)}


def tokens(text: str) -> list[int]:
    """Split plain ASCII text as WordPiece does: lower case, punctuation apart, longest known piece first."""
    words = _words()
    found = [words["[CLS]"]]
    for word in re.findall(r"[a-z0-9]+|[^a-z0-9\s]", text.lower()):
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            end = next(end for end in range(len(word), start, -1) if mark + word[start:end] in words)
            found.append(words[mark + word[start:end]])
            start = end
    return [*found, words["[SEP]"]]


def vector(ids: list[int]) -> list[float]:
    """Return the 384 values for these tokens."""
    import numpy as np

    weights = _weights()
    erf = np.vectorize(math.erf, otypes=[float])

    def normed(values: Any, name: str) -> Any:
        centred = values - values.mean(-1, keepdims=True)
        scale = np.sqrt((centred**2).mean(-1, keepdims=True) + EPSILON)
        return centred / scale * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(values: Any, name: str) -> Any:
        return values @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    def heads(values: Any) -> Any:
        return values.reshape(len(ids), HEADS, -1).transpose(1, 0, 2)

    state = weights["embeddings.word_embeddings.weight"][ids].astype(np.float64)
    state = state + weights["embeddings.position_embeddings.weight"][: len(ids)]
    state = normed(state + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    for number in range(LAYERS):
        at = f"encoder.layer.{number}"
        query, key, value = (
            heads(linear(state, f"{at}.attention.self.{name}")) for name in ("query", "key", "value")
        )
        scores = query @ key.transpose(0, 2, 1) / math.sqrt(query.shape[-1])
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        seen = (shares @ value).transpose(1, 0, 2).reshape(len(ids), -1)
        seen = linear(seen, f"{at}.attention.output.dense")
        state = normed(state + seen, f"{at}.attention.output.LayerNorm")
        inner = linear(state, f"{at}.intermediate.dense")
        inner = inner * 0.5 * (1 + erf(inner / math.sqrt(2)))
        state = normed(state + linear(inner, f"{at}.output.dense"), f"{at}.output.LayerNorm")
    mean = state.mean(0)
    values: list[float] = (mean / np.linalg.norm(mean)).tolist()
    return values
