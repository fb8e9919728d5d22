from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.library.about import About, about, properties
from modeld.library.architecture import Tensor, described
from modeld.library.template import Template, read, template_of

ONE = [Tensor("blk.0.attn_q.weight", (64, 64), "Q4_K", 2304, 2304)]
LLAMA = {"general.architecture": "llama", "tokenizer.chat_template": "{{ messages }}"}


@pytest.mark.parametrize(
    ("keys", "lengths", "tensors", "kind"),
    [
        (LLAMA, {}, ONE, "model"),
        ({"general.architecture": "clip"}, {}, ONE, "mmproj"),
        ({"general.architecture": "x", "general.type": "mmproj"}, {}, ONE, "mmproj"),
        (
            {"general.architecture": "llama", "general.type": "adapter", "adapter.type": "lora"},
            {},
            ONE,
            "lora",
        ),
        ({"general.architecture": "llama", "adapter.type": "lora"}, {}, ONE, "lora"),
        ({"general.architecture": "llama", "adapter.type": "other"}, {}, ONE, "unknown"),
        ({"general.architecture": "controlvector"}, {}, ONE, "control_vector"),
        ({"general.type": "imatrix", "imatrix.chunk_count": 5}, {}, ONE, "imatrix"),
        (LLAMA, {"tokenizer.ggml.tokens": 300}, [], "vocabulary"),
        ({"general.architecture": "llama", "split.count": 3, "split.no": 0}, {}, [], "model"),
        ({"split.count": 3, "split.no": 2}, {}, ONE, "piece"),
        ({}, {}, [], "unknown"),
    ],
)
def test_kinds(keys: dict[str, Any], lengths: dict[str, int], tensors: list[Tensor], kind: str) -> None:
    """What a file is follows from what it says, and, without that, from what it holds."""
    found = about(keys, lengths, tensors)
    assert found.kind == kind
    assert (found.capabilities == ()) == (kind != "model")


@pytest.mark.parametrize(
    ("keys", "names", "capabilities"),
    [
        ({"general.architecture": "llama"}, [], ("completion", "tokenize")),
        (LLAMA, [], ("chat", "completion", "tokenize")),
        ({"general.architecture": "nomic-bert"}, [], ("embed", "tokenize")),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 3}, [], ("embed", "tokenize")),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 0}, [], ("completion", "tokenize")),
        ({"general.architecture": "qwen3", "qwen3.pooling_type": 4}, [], ("rerank", "tokenize")),
        ({"general.architecture": "bert"}, ["cls.output.weight"], ("rerank", "tokenize")),
        ({"general.architecture": "flux"}, [], ("image",)),
        ({}, ["model.diffusion_model.input_blocks.0.0.weight"], ("image",)),
        ({}, ["a.weight"], ()),
        (
            {
                "general.architecture": "qwen3",
                "tokenizer.chat_template": "{% if tools %}…{% endif %}{{ enable_thinking }}<think>",
            },
            [],
            ("chat", "completion", "tools", "reasoning", "tokenize"),
        ),
    ],
)
def test_capabilities(keys: dict[str, Any], names: list[str], capabilities: tuple[str, ...]) -> None:
    """What a model can do follows from architecture, pooling, template and tensors."""
    tensors = [Tensor(name, (8, 8), "F16", 128, 128) for name in names] or ONE
    assert about(keys, {}, tensors).capabilities == capabilities


def test_figures() -> None:
    """Bits, the type that takes the most, the parameters at work in a mixture, and what people say of it."""
    keys = {
        **LLAMA,
        "llama.expert_count": 8,
        "llama.expert_used_count": 2,
        "llama.attention.head_count_kv": [2, 4],
        "general.license": "mit",
        "general.author": "Ada",
        "general.languages": ["en", "fr"],
        "general.size_label": "8x1B",
        "general.name": "x" * 1000,
        "split.count": 4,
        "split.no": 1,
    }
    tensors = [
        Tensor("blk.0.ffn_up_exps.weight", (8, 8, 8), "Q4_0", 288, 288),
        Tensor("token_embd.weight", (8, 16), "F16", 256, 544),
    ]
    found = about(keys, {"tokenizer.ggml.tokens": 16}, tensors)
    assert (found.stored, found.bits) == ("Q4_0", 6.8)
    assert found.active_parameters == 128 + 512 * 2 // 8
    assert (found.heads_kv, found.tensors) == (4, 2)
    assert (found.part, found.parts) == (2, 4)
    assert (found.licence, found.author, found.languages) == ("mit", "Ada", ("en", "fr"))
    assert found.keys["tokenizer.ggml.tokens"] == 16
    assert found.keys["tokenizer.chat_template"] is True
    assert found.keys["llama.attention.head_count_kv"] == 4
    assert len(str(found.keys["general.name"])) == 500


def test_properties() -> None:
    """The short names, all as text, without what is unknown."""
    keys = {
        **LLAMA,
        "general.name": "Tiny",
        "general.file_type": "Q4_K_M",
        "general.size_label": "1B",
        "llama.context_length": 4096,
        "llama.embedding_length": 64,
        "llama.attention.head_count": 4,
        "llama.pooling_type": 0,
    }
    found = about(keys, {"tokenizer.ggml.tokens": 300}, ONE)
    assert properties(described(keys, ONE, 5000), found) == {
        "architecture": "llama",
        "name": "Tiny",
        "size_label": "1B",
        "quant": "Q4_K_M",
        "context": "4096",
        "embedding": "64",
        "layers": "1",
        "head_count": "4",
        "vocab": "300",
        "chat_template_present": "true",
        "pooling_type_present": "true",
        "tensors": "1",
    }
    projector = {
        "general.architecture": "clip",
        "clip.vision.patch_size": 14,
        "clip.vision.spatial_merge_size": 2,
    }
    seen = properties(described(projector, ONE, 1), about(projector, {}, ONE))
    assert (seen["vision_patch_size"], seen["vision_merge_size"]) == ("14", "2")


@pytest.mark.parametrize(
    ("text", "template"),
    [
        ("{{ messages }}", Template()),
        ("You have no tools. {% for m in messages %}{{ m }}{% endfor %}", Template()),
        ("{%- if tools is defined -%}x{% endif %}", Template(tools=True)),
        ("{{ tools | tojson }}", Template(tools=True)),
        ("{% set builtin_tools = 1 %}", Template()),
        ("{% if message.tool_calls %}{% endif %}", Template()),
        ("{{ '<think>' }}", Template(reasoning=True)),
        ("{% if thinking %}a{% endif %}[THINK]", Template(reasoning=True, switch=True)),
        ("{% set x = reasoning_effort %}", Template(reasoning=True, switch=True)),
        ("{% if tools", Template()),
        ("{{ a {% if tools %}", Template(tools=True)),
    ],
)
def test_templates(text: str, template: Template) -> None:
    """What a template knows is told from its code, not from the words of its prompt."""
    assert read([text]) == template


def test_named_templates_and_ones_too_long() -> None:
    """Templates for special uses count too; one that was too long to be kept is there all the same."""
    keys = {"tokenizer.chat_template": "x", "tokenizer.chat_template.tool_use": "y"}
    assert template_of(keys, {}) == Template(tools=True, named=("tool_use",))
    assert template_of({}, {"tokenizer.chat_template": 10**6}) == Template()
    assert template_of({}, {}) is None


@given(st.text(alphabet="{}%tols <think>", max_size=200))
def test_any_text_is_a_template(text: str) -> None:
    """No text is an error."""
    read([text])


ANY = st.one_of(
    st.integers(-(2**63), 2**64 - 1),
    st.floats(),
    st.booleans(),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(0, 2**64 - 1), st.text(max_size=3), st.floats()), max_size=4),
)
NAMES = st.sampled_from(
    [
        *("general.architecture", "general.type", "general.name", "general.languages", "general.license"),
        *("llama.block_count", "llama.attention.head_count_kv", "llama.pooling_type", "llama.expert_count"),
        *("split.no", "split.count", "tokenizer.chat_template", "tokenizer.chat_template.a", "adapter.type"),
        *("llama.embedding_length", "llama.attention.sliding_window", "llama.ssm.inner_size"),
    ]
)


@given(st.dictionaries(NAMES, ANY), st.sampled_from(["llama", "clip", "bert", ""]))
def test_any_keys_are_taken(keys: dict[str, Any], arch: str) -> None:
    """Whatever the types and sizes of values, nothing is raised."""
    keys = {"general.architecture": arch, **keys}
    found = about(keys, {}, ONE)
    assert isinstance(found, About)
    properties(described(keys, ONE, 10), found)
