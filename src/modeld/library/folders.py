"""Models that are folders: Hugging Face's transformers, adapters and diffusers, and sherpa-onnx."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from modeld.library import safetensors, template
from modeld.library.about import About
from modeld.library.metadata import Metadata
from modeld.library.template import Template

ADAPTER = "adapter_config.json"
CONFIG = "config.json"
PIPELINE = "model_index.json"
INDEX = "model.safetensors.index.json"

DESCRIBING = frozenset(
    {
        *(ADAPTER, CONFIG, PIPELINE, INDEX, "tokenizer_config.json", "chat_template.jinja", "README.md"),
        *(
            "modules.json",
            "sentence_bert_config.json",
            "tokens.txt",
            "voices.bin",
            "preprocessor_config.json",
        ),
    }
)
"""Files beside the weights that say what a folder is."""

MOST_BYTES = 16 * 1024**2
"""Of a list of weights, beyond which it is not read; the longest of today have 9 MB."""

MOST_TEXT = 1024**2
"""Of another file that describes a model."""

_SPEECH = ("voices.bin", "lexicon", "vocos", "hifigan", "vocoder", "espeak-ng-data")
_TRANSCRIPTION = ("encoder", "decoder", "joiner", "paraformer", "sense-voice", "ctc")
_EMBEDDERS = ("modules.json", "sentence_bert_config.json")
_FRONT = re.compile(r"\A---\r?\n(.*?)\n---", re.DOTALL)
_LICENCE = re.compile(r"^license(?:_name)?:[ \t]*[\"']?([\w.+-]{1,100})", re.MULTILINE)
_LANGUAGE = re.compile(r"^language:[ \t]*(.*(?:\n[ \t]*-[ \t].*)*)", re.MULTILINE)


class _Index(msgspec.Struct):
    """Which file each tensor is in."""

    weight_map: dict[str, str] = {}


def describe(folder: Path, names: Collection[str]) -> tuple[Metadata, About, tuple[str, ...]]:
    """Return what a folder with these files is, and the names of weights that it lacks.

    Raises LoadFailed (permanent) for weights that cannot be read.
    """
    if any(name.endswith(".onnx") for name in names) and not {CONFIG, PIPELINE} & set(names):
        return *_onnx(folder, names), ()
    metadata = safetensors.describe(folder, safetensors.weights_in(folder))
    licence, languages = _card(folder / "README.md")
    about = About(kind="model", licence=licence, languages=languages)
    if ADAPTER in names:
        return metadata, _with(about, kind="lora"), ()
    if PIPELINE in names:
        name = str(_json(folder / PIPELINE).get("_class_name", ""))[:100]
        return _with(metadata, architecture=name), _with(about, capabilities=("image",)), ()
    config = _json(folder / CONFIG)
    known = _template(folder)
    about = _with(
        about,
        template=known,
        capabilities=_capabilities(metadata.architecture, config, names, known),
        stored=metadata.quantization,
    )
    return metadata, about, _missing(folder, names)


def _with(struct: Any, **changes: Any) -> Any:
    from msgspec.structs import replace

    return replace(struct, **changes)


def _capabilities(
    architecture: str, config: Mapping[str, Any], names: Collection[str], known: Template | None
) -> tuple[str, ...]:
    if "Whisper" in architecture:
        return ("transcription", "translation")
    if architecture.endswith("ForSequenceClassification"):
        labels = config.get("id2label")
        return ("rerank", "tokenize") if isinstance(labels, dict) and len(labels) == 1 else ()
    writes = architecture.endswith(("ForCausalLM", "LMHeadModel", "ForConditionalGeneration"))
    if any(name in names for name in _EMBEDDERS) or (architecture.endswith("Model") and not writes):
        return ("embed", "tokenize")
    if not writes:
        return ()
    found = ["chat"] if known else []
    found.append("completion")
    found += ["tools"] if known and known.tools else []
    found += ["reasoning"] if known and known.reasoning else []
    found += ["vision"] if "vision_config" in config else []
    found += ["audio"] if "audio_config" in config else []
    return (*found, "tokenize")


def _onnx(folder: Path, names: Collection[str]) -> tuple[Metadata, About]:
    size = sum((folder / name).stat().st_size for name in names if name.endswith((".onnx", ".bin")))
    lower = " ".join(names).lower()
    able: tuple[str, ...] = ()
    if any(word in lower for word in _SPEECH) or ".onnx.json" in lower or (folder / _SPEECH[-1]).is_dir():
        able = ("speech",)
    elif any(word in lower for word in _TRANSCRIPTION):
        able = ("transcription",)
    return Metadata(format="other", size=size, name=folder.name), About(kind="model", capabilities=able)


def _missing(folder: Path, names: Collection[str]) -> tuple[str, ...]:
    try:
        with (folder / INDEX).open("rb") as stream:
            wanted = msgspec.json.decode(stream.read(MOST_BYTES), type=_Index).weight_map.values()
    except (OSError, ValueError, RecursionError):
        return ()
    return tuple(sorted(set(wanted) - set(names)))[:1000]


def _template(folder: Path) -> Template | None:
    texts = [_text(folder / "chat_template.jinja")]
    said = template.of_tokenizer(folder)
    texts = [text for text in (*texts, *(text for _, text in said)) if text]
    named = {name for name, _ in said} - {"", "default"}
    return template.read(texts, tuple(sorted(named))) if texts else None


def _card(path: Path) -> tuple[str, tuple[str, ...]]:
    """Return licence and languages from the lines before a model card, which are YAML of a simple form."""
    found = _FRONT.match(_text(path, 64 * 1024))
    if not found:
        return "", ()
    licence, language = _LICENCE.search(found[1]), _LANGUAGE.search(found[1])
    words = re.findall(r"[\w-]{2,20}", language[1]) if language else []
    return licence[1] if licence else "", tuple(words[:200])


def _json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(_text(path))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(path: Path, most: int = MOST_TEXT) -> str:
    """Return a file's text, or as much as is read of it; nothing for one that cannot be read."""
    try:
        with path.open("rb") as stream:
            return stream.read(most).decode("utf-8", "replace")
    except OSError:
        return ""
