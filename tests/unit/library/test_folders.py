from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import LoadFailed
from modeld.library import safetensors
from modeld.library.about import About
from modeld.library.folders import describe


def weights(path: Path, header: Any = None) -> Path:
    """Write a file of weights with this header, or one tensor."""
    text = header if isinstance(header, bytes) else b""
    if not text:
        text = json.dumps(header or {"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]}}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(4))
    return path


def about(folder: Path, config: dict[str, Any], **files: str) -> About:
    """Return what a folder with this config is; further files by name, with _ for a dot."""
    weights(folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(config))
    for name, text in files.items():
        (folder / ".".join(name.rsplit("_", 1))).write_text(text)
    return describe(folder, [path.name for path in folder.iterdir()])[1]


TOKENIZER = json.dumps(
    {"chat_template": [{"name": "default", "template": "x"}, {"name": "tool_use", "template": "y"}]}
)


@pytest.mark.parametrize(
    ("config", "files", "capabilities"),
    [
        ({"architectures": ["LlamaForCausalLM"]}, {}, ("completion", "tokenize")),
        (
            {"architectures": ["LlamaForCausalLM"]},
            {"chat_template_jinja": "{{ tools }}<think>"},
            ("chat", "completion", "tools", "reasoning", "tokenize"),
        ),
        (
            {"architectures": ["LlamaForCausalLM"]},
            {"tokenizer_config_json": TOKENIZER},
            ("chat", "completion", "tools", "tokenize"),
        ),
        (
            {"architectures": ["Qwen2VLForConditionalGeneration"], "vision_config": {}},
            {"tokenizer_config_json": '{"chat_template": "x"}'},
            ("chat", "completion", "vision", "tokenize"),
        ),
        ({"architectures": ["BertModel"]}, {}, ("embed", "tokenize")),
        ({"architectures": ["Qwen3ForCausalLM"]}, {"modules_json": "[]"}, ("embed", "tokenize")),
        (
            {"architectures": ["XForSequenceClassification"], "id2label": {"0": "x"}},
            {},
            ("rerank", "tokenize"),
        ),
        ({"architectures": ["XForSequenceClassification"], "id2label": {"0": "x", "1": "y"}}, {}, ()),
        ({"architectures": ["WhisperForConditionalGeneration"]}, {}, ("transcription", "translation")),
        ({"architectures": "odd"}, {}, ()),
        ({}, {"tokenizer_config_json": "[1]"}, ()),
    ],
)
def test_capabilities(
    tmp_path: Path, config: dict[str, Any], files: dict[str, str], capabilities: tuple[str, ...]
) -> None:
    """What a folder's model can do follows from its architecture, its template and what lies beside it."""
    assert about(tmp_path, config, **files).capabilities == capabilities


@pytest.mark.parametrize(
    ("card", "licence", "languages"),
    [
        ("---\nlicense: apache-2.0\nlanguage:\n- en\n- de\ntags:\n- x\n---\n", "apache-2.0", ("en", "de")),
        ("---\r\nlanguage: [en, zh]\r\nlicense: 'other'\r\n---\r\n", "other", ("en", "zh")),
        ("---\nlanguage: fr\n---\n", "", ("fr",)),
        ("# no lines\nlicense: mit\n", "", ()),
        ("---\nlicense: mit\n", "", ()),
    ],
)
def test_model_cards(tmp_path: Path, card: str, licence: str, languages: tuple[str, ...]) -> None:
    """Licence and languages are taken from the lines before a model card, and from nowhere else."""
    found = about(tmp_path, {}, README_md=card)
    assert (found.licence, found.languages) == (licence, languages)


@given(st.text(alphabet="-\nlicensaguge: []'en", max_size=80))
def test_any_card(tmp_path_factory: pytest.TempPathFactory, card: str) -> None:
    """No card is an error."""
    folder = tmp_path_factory.getbasetemp() / "card"
    folder.mkdir(exist_ok=True)
    about(folder, {}, README_md=f"---\n{card}")


@pytest.mark.parametrize(
    ("names", "capabilities"),
    [
        (["model.onnx", "tokens.txt", "voices.bin"], ("speech",)),
        (["en.onnx", "en.onnx.json"], ("speech",)),
        (["model.onnx", "tokens.txt", "lexicon-us.txt"], ("speech",)),
        (["encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt"], ("transcription",)),
        (["model.onnx", "tokens.txt"], ()),
    ],
)
def test_onnx_folders(tmp_path: Path, names: list[str], capabilities: tuple[str, ...]) -> None:
    """Speech and transcription are told apart by the files beside the graph."""
    for name in names:
        (tmp_path / name).write_bytes(b"x" * 10)
    metadata, found, missing = describe(tmp_path, names)
    assert (metadata.format, found.capabilities, missing) == ("other", capabilities, ())


HOSTILE: list[tuple[Any, str]] = [
    (
        {"a": {"dtype": "F16", "shape": [2**40], "data_offsets": [0, 4]}},
        "it would hold 1099511627776 numbers",
    ),
    ({"a": {"dtype": "F16", "shape": [-1], "data_offsets": [0, 4]}}, "its header cannot be read"),
    ({"a": {"dtype": "F16", "shape": [2], "data_offsets": [0, 2**60]}}, "its tensors take"),
    ({"a": {"dtype": 5, "shape": [2], "data_offsets": [0, 4]}}, "its header cannot be read"),
    (b"[" * 100_000, "its header cannot be read"),
    (b'{"a": ' * 100_000, "its header cannot be read"),
]


@pytest.mark.parametrize(("header", "words"), HOSTILE)
def test_hostile_weights(tmp_path: Path, header: Any, words: str) -> None:
    """A header that makes no sense is refused in words."""
    path = weights(tmp_path / "x.safetensors", header)
    with pytest.raises(LoadFailed, match=words):
        safetensors.describe(path, [path])


def test_a_header_too_long_to_read_leaves_the_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What would take much memory to read is known by its size; it may be sound."""
    monkeypatch.setattr(safetensors, "MOST_READ", 10)
    path = weights(tmp_path / "x.safetensors")
    found = safetensors.describe(path, [path])
    assert (found.parameters, found.size) == (None, path.stat().st_size)


@given(st.binary(max_size=120))
def test_any_weights(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """Whatever the bytes, there is a model or a sentence."""
    path = tmp_path_factory.getbasetemp() / "any.safetensors"
    path.write_bytes(struct.pack("<Q", max(len(content) - 8, 0)) + content)
    refusal = None
    try:
        assert safetensors.describe(path, [path]).size == path.stat().st_size
        safetensors.about(path)
    except LoadFailed as error:
        refusal = error
    assert refusal is None or refusal.permanent
