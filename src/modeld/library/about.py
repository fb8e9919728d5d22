"""What a model file is: its kind, what it can do, and who made it. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, TypeAlias

import msgspec

from modeld.library.architecture import Tensor
from modeld.library.metadata import Metadata
from modeld.library.template import Template, template_of

Kind: TypeAlias = Literal[
    "model", "mmproj", "lora", "control_vector", "imatrix", "vocabulary", "piece", "unknown"
]
"""model: an engine serves it by itself. mmproj: sees or hears for a language model. lora, control_vector:
change one. imatrix: figures for quantising. vocabulary: a tokenizer without weights. piece: a part of a model
whose first part is elsewhere."""

POOLING = ("none", "mean", "cls", "last", "rank")
"""By the number that files carry."""

EMBEDDING = frozenset(
    {
        *("bert", "modern-bert", "nomic-bert", "nomic-bert-moe", "neo-bert", "eurobert"),
        *("jina-bert-v2", "jina-bert-v3", "gemma-embedding", "llama-embed", "t5encoder"),
    }
)
"""Architectures that only embed."""

IMAGE = frozenset(
    {
        *("sd1", "sd2", "sd3", "sdxl", "flux", "flux2", "aura", "hidream", "cosmos", "ltxv", "hyvid", "wan"),
        *("lumina2", "qwen_image", "pixart", "chroma", "z_image", "ovis_image"),
    }
)
"""Architectures that make pictures, by the names that converters give them."""

IMAGE_TENSORS = (
    "model.diffusion_model.",
    "double_blocks.",
    "joint_blocks.",
    "first_stage_model.",
    "input_blocks.",
)
"""How the tensors of models that make pictures begin, when the file names no architecture."""

_SOUND = frozenset({"wavtokenizer-dec"})

_GENERAL = (
    *("name", "basename", "size_label", "finetune", "version", "organization", "quantized_by"),
    *("file_type", "parameter_count", "architecture", "author", "license", "license.name", "license.link"),
    *("type", "url", "repo_url", "source.url", "base_model.0.name", "base_model.0.organization"),
)
_OF_ARCHITECTURE = (
    *("context_length", "block_count", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "expert_count", "expert_used_count", "pooling_type"),
    *("vision.patch_size", "vision.spatial_merge_size", "vision.image_size", "projector_type"),
)
_LONGEST = 500
"""Characters of a value that is shown."""


class About(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a file is; a field left at its default is unknown.

    `capabilities` in the words of `protocol.messages.Facts`: what the file can do by itself. `stored`: the
    type of tensor that takes the most bytes; `bits`: bits of the file's tensors for a parameter.
    `active_parameters`: those that work on one token, fewer than all in a mixture of experts. `part` of
    `parts`: which piece, by the file itself (from 1; 0 when it does not say). `keys`: what it says of
    itself, under the file's own names; of `tokenizer.ggml.tokens` the length, of `tokenizer.chat_template`
    that it is there.
    """

    kind: Kind = "unknown"
    capabilities: tuple[str, ...] = ()
    stored: str = ""
    bits: float = 0.0
    active_parameters: int | None = None
    heads_kv: int = 0
    pooling: str = ""
    template: Template | None = None
    tensors: int = 0
    languages: tuple[str, ...] = ()
    tags: tuple[str, ...] = ()
    licence: str = ""
    author: str = ""
    part: int = 0
    parts: int = 0
    keys: dict[str, str | int | float | bool] = {}


class Answer(msgspec.Struct, frozen=True, omit_defaults=True):
    """What the reader of GGUF files says of one model: what its files hold, or why not.

    `error`: no engine will load it. `unknown`: it may be sound, but its form is not known here, or the reader
    did not live to tell. `trouble`: the system does not let it be read; the next time this may be otherwise.
    """

    metadata: Metadata | None = None
    about: About | None = None
    error: str = ""
    unknown: str = ""
    trouble: str = ""


def about(keys: Mapping[str, Any], lengths: Mapping[str, int], tensors: Sequence[Tensor]) -> About:
    """Return what a GGUF file is, from its keys, the lengths of its lists, and its tensors."""
    arch = str(keys.get("general.architecture", ""))
    part, parts = _whole(keys.get("split.no")), _whole(keys.get("split.count"))
    kind = _kind(keys, lengths, arch, tensors, parts)
    template = template_of(keys, lengths)
    pooling = _pooling(keys.get(f"{arch}.pooling_type"))
    elements = sum(tensor.elements for tensor in tensors)
    size = sum(tensor.size for tensor in tensors)
    return About(
        kind=kind,
        capabilities=_capabilities(arch, pooling, template, tensors) if kind == "model" else (),
        stored=_stored(tensors),
        bits=round(size * 8 / elements, 2) if elements else 0.0,
        active_parameters=_active(keys, arch, tensors, elements),
        heads_kv=_greatest(keys.get(f"{arch}.attention.head_count_kv")),
        pooling=pooling,
        template=template,
        tensors=len(tensors),
        languages=_words(keys.get("general.languages")),
        tags=_words(keys.get("general.tags")),
        licence=_text(keys.get("general.license.name")) or _text(keys.get("general.license")),
        author=_text(keys.get("general.author")) or _text(keys.get("general.organization")),
        part=part + 1 if parts > 1 else 0,
        parts=parts if parts > 1 else 0,
        keys=_shown(keys, lengths, arch),
    )


def properties(metadata: Metadata, known: About) -> dict[str, str]:
    """Return a model's properties by the short names that the MASS gateway lists them under, all as text.

    They are architecture, name, basename, size_label, finetune, version, organization, quantized_by, quant,
    context, embedding, layers, head_count, head_count_kv, vocab, vision_patch_size, vision_merge_size,
    chat_template_present, thinking, pooling_type_present and tensors; what is unknown is missing.
    """
    keys, arch = known.keys, metadata.architecture
    found: dict[str, object] = {"architecture": arch}
    for name in ("name", "basename", "size_label", "finetune", "version", "organization", "quantized_by"):
        found[name] = keys.get(f"general.{name}")
    found |= {
        "quant": metadata.quantization,
        "context": metadata.context_length,
        "embedding": metadata.embedding_length,
        "layers": len(metadata.layers),
        "head_count": metadata.n_head,
        "head_count_kv": known.heads_kv,
        "vocab": keys.get("tokenizer.ggml.tokens"),
        "vision_patch_size": keys.get("clip.vision.patch_size"),
        "vision_merge_size": keys.get("clip.vision.spatial_merge_size"),
        "chat_template_present": "true" if known.template else None,
        "thinking": "true" if known.template and known.template.reasoning else None,
        "pooling_type_present": "true" if f"{arch}.pooling_type" in keys else None,
        "tensors": known.tensors,
    }
    return {name: str(value) for name, value in found.items() if value}


def _kind(
    keys: Mapping[str, Any], lengths: Mapping[str, int], arch: str, tensors: Sequence[Tensor], parts: int
) -> Kind:
    said = keys.get("general.type")
    if said == "mmproj" or arch == "clip":
        return "mmproj"
    if arch == "controlvector":
        return "control_vector"
    if said == "adapter" or "adapter.type" in keys:
        return "lora" if keys.get("adapter.type", "lora") == "lora" else "unknown"
    if said == "imatrix" or arch == "imatrix" or "imatrix.chunk_count" in keys:
        return "imatrix"
    if parts > 1 and not arch:
        return "piece"
    if tensors or parts > 1:
        return "model"
    return "vocabulary" if "tokenizer.ggml.tokens" in lengths else "unknown"


def _capabilities(
    arch: str, pooling: str, template: Template | None, tensors: Sequence[Tensor]
) -> tuple[str, ...]:
    ranks = pooling == "rank" or any(tensor.name in ("cls.weight", "cls.output.weight") for tensor in tensors)
    if ranks:
        return ("rerank", "tokenize")
    if arch in EMBEDDING or pooling in ("mean", "cls", "last"):
        return ("embed", "tokenize")
    if arch in IMAGE or (not arch and any(tensor.name.startswith(IMAGE_TENSORS) for tensor in tensors)):
        return ("image",)
    if arch in _SOUND:
        return ("speech",)
    if not arch:
        return ()
    found = ["chat"] if template else []
    found.append("completion")
    if template and template.tools:
        found.append("tools")
    if template and template.reasoning:
        found.append("reasoning")
    return (*found, "tokenize")


def _active(keys: Mapping[str, Any], arch: str, tensors: Sequence[Tensor], total: int) -> int | None:
    """Return the parameters that work on one token: of the routed experts only those that are chosen."""
    count, used = (_greatest(keys.get(f"{arch}.{name}")) for name in ("expert_count", "expert_used_count"))
    if not 0 < used < count:
        return total or None
    routed = sum(tensor.elements for tensor in tensors if "_exps." in tensor.name)
    return total - routed // count * (count - used)


def _stored(tensors: Sequence[Tensor]) -> str:
    sizes: dict[str, int] = {}
    for tensor in tensors:
        sizes[tensor.type] = sizes.get(tensor.type, 0) + tensor.size
    return max(sizes, key=lambda name: sizes[name], default="")


def _pooling(value: object) -> str:
    if isinstance(value, int) and not isinstance(value, bool):
        return POOLING[value] if 0 <= value < len(POOLING) else str(value)[:20]
    return ""


def _shown(
    keys: Mapping[str, Any], lengths: Mapping[str, int], arch: str
) -> dict[str, str | int | float | bool]:
    names = [f"general.{name}" for name in _GENERAL]
    names += [f"{arch}.{name}" for name in _OF_ARCHITECTURE] if arch else []
    shown: dict[str, str | int | float | bool] = {}
    for name in (*names, "tokenizer.ggml.model", "tokenizer.ggml.pre"):
        value = keys.get(name)
        if isinstance(value, list):
            value = max((each for each in value if isinstance(each, int | float)), default=None)
        if isinstance(value, float) and not math.isfinite(value):
            continue
        if isinstance(value, str):
            value = value[:_LONGEST]
        if value is not None and value != "":
            shown[name] = value
    if "tokenizer.ggml.tokens" in lengths:
        shown["tokenizer.ggml.tokens"] = lengths["tokenizer.ggml.tokens"]
    if "tokenizer.chat_template" in keys or "tokenizer.chat_template" in lengths:
        shown["tokenizer.chat_template"] = True
    return shown


def _text(value: object) -> str:
    return value[:_LONGEST] if isinstance(value, str) else ""


def _words(value: object) -> tuple[str, ...]:
    if isinstance(value, str):
        value = [value]
    return tuple(word[:100] for word in value if isinstance(word, str)) if isinstance(value, list) else ()


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0


def _greatest(value: object) -> int:
    """Return a number, the greatest where there is one for each layer."""
    return max(map(_whole, value if isinstance(value, list) else [value]), default=0)
