from __future__ import annotations

import json
import tracemalloc
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from modeld.errors import LoadFailed
from modeld.library import safetensors
from modeld.library.metadata import Layer
from modeld.library.safetensors import about, describe, weights_in


def write(path: Path, *tensors: tuple[str, str, list[int], int], cut: int = 0) -> Path:
    """Write a file with tensors (name, dtype, shape, bytes), `cut` bytes short."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, dtype, shape, size in tensors:
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes((len(text).to_bytes(8, "little") + text + bytes(end))[: -cut or None])
    return path


def config(folder: Path, **fields: Any) -> None:
    """Write a config.json."""
    (folder / "config.json").write_text(json.dumps(fields))


def test_a_folder(tmp_path: Path) -> None:
    """Shards are summed; config.json gives the layers, and the template's presence is seen."""
    files = [
        write(tmp_path / "model-00001-of-00002.safetensors", ("a", "BF16", [10, 10], 200)),
        write(tmp_path / "model-00002-of-00002.safetensors", ("b", "BF16", [5], 10), ("c", "F32", [1], 4)),
    ]
    config(
        tmp_path,
        architectures=["LlamaForCausalLM"],
        num_hidden_layers=2,
        hidden_size=512,
        intermediate_size=2048,
        num_attention_heads=8,
        num_key_value_heads=2,
        max_position_embeddings=4096,
        vocab_size=1000,
        tie_word_embeddings=True,
    )
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    found = describe(tmp_path, weights_in(tmp_path))
    assert found.size == sum(file.stat().st_size for file in files)
    assert (found.parameters, found.quantization, found.architecture) == (106, "BF16", "LlamaForCausalLM")
    assert found.layers == (Layer(keys=128, values=128),) * 2
    assert (found.context_length, found.vocabulary, found.tied) == (4096, 1000, True)
    assert found.has_chat_template


def test_kinds_of_layers(tmp_path: Path) -> None:
    """A list of kinds tells windows and linear attention apart; nested text models are read too."""
    kinds = ["sliding_attention", "full_attention", "linear_attention"]
    text = {"num_hidden_layers": 3, "num_attention_heads": 4, "head_dim": 32, "sliding_window": 512}
    config(tmp_path, text_config={**text, "layer_types": kinds}, quantization_config={"quant_method": "awq"})
    found = describe(tmp_path, [])
    assert found.layers == (Layer(keys=128, values=128, window=512), Layer(keys=128, values=128), Layer())
    assert found.quantization == "awq"


def test_latent_attention(tmp_path: Path) -> None:
    """One compressed vector and the rotary part are kept for each token."""
    config(tmp_path, num_hidden_layers=1, num_attention_heads=16, kv_lora_rank=512, qk_rope_head_dim=64)
    assert describe(tmp_path, []).layers == (Layer(keys=576),)


def test_a_pipeline_counts_each_file_once(tmp_path: Path) -> None:
    """Of a part in two precisions one counts, in all subfolders; other formats only on their own."""
    plain = write(tmp_path / "unet" / "model.safetensors", ("a", "F32", [1], 4))
    write(tmp_path / "unet" / "model.fp16.safetensors", ("a", "F16", [1], 2))
    only = write(tmp_path / "vae" / "model.fp16.safetensors", ("a", "F16", [1], 2))
    (tmp_path / "unet" / "model.bin").write_bytes(b"x" * 100)
    assert weights_in(tmp_path) == [plain, only]


@pytest.mark.parametrize(
    "content",
    [
        *(b"", b"\x00" * 7, b"\xff" * 20, (5).to_bytes(8, "little") + b"abcde"),
        *((2).to_bytes(8, "little") + b"[]", (14).to_bytes(8, "little") + b'{"a": {"b":1}}'),
    ],
)
def test_a_damaged_file_is_told(tmp_path: Path, content: bytes) -> None:
    """A header that is missing, too long, no JSON or of another form is one sentence, for good."""
    path = tmp_path / "m.safetensors"
    path.write_bytes(content)
    with pytest.raises(
        LoadFailed, match=r"m\.safetensors is cut short or damaged: .*; fetch it again"
    ) as caught:
        describe(path, [path])
    assert caught.value.permanent


def only_told(path: Path, content: bytes) -> bool:
    """Return whether a file is read; anything but a refusal in words comes through."""
    path.write_bytes(content)
    try:
        msgspec.json.encode((describe(path, [path]), about(path)))
    except LoadFailed:
        return False
    return True


def test_a_header_cut_short_anywhere_is_told(tmp_path: Path) -> None:
    """Wherever the file ends before its tensors do."""
    content = write(
        tmp_path / "m.safetensors", ("a", "F32", [10], 40), ("b", "BF16", [2, 5], 20)
    ).read_bytes()
    assert only_told(tmp_path / "m.safetensors", content)
    assert not any(only_told(tmp_path / "m.safetensors", content[:end]) for end in range(len(content)))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_header_damaged_anywhere_is_read_or_told(tmp_path: Path, data: st.DataObject) -> None:
    """Whatever bytes are changed, there is metadata that can be written down, or a refusal."""
    content = bytearray(write(tmp_path / "m.safetensors", ("a", "F32", [10], 40)).read_bytes())
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(content) - 1))
        content[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=6))
    only_told(tmp_path / "m.safetensors", bytes(content))


@pytest.mark.parametrize(
    "shape", ["9007199254740991," * 200_000 + "1", "1" * 4000, "-1", "0.5", "[" * 100_000, '"x"', "null"]
)
def test_absurd_shapes_are_told(tmp_path: Path, shape: str) -> None:
    """Nothing is worked out of them: the product of many large numbers takes for ever."""
    header = f'{{"a": {{"dtype": "F32", "shape": [{shape}], "data_offsets": [0, 0]}}}}'.encode()
    assert not only_told(tmp_path / "m.safetensors", len(header).to_bytes(8, "little") + header)


@pytest.mark.parametrize("size", [safetensors.MOST_READ, 8 * safetensors.MOST_READ])
def test_reading_a_header_takes_bounded_memory(tmp_path: Path, size: int) -> None:
    """One that is too long is not read, and one as long as it may be takes a few times that."""
    one = b'"%07d": {"dtype": "F32", "shape": [], "data_offsets": [0, 0]},'
    count = safetensors.MOST_READ // len(one % 0) - 10
    header = b"{" + b"".join(one % at for at in range(count)) + b'"z": {}}'
    path = tmp_path / "m.safetensors"
    header = header.ljust(size)
    path.write_bytes(len(header).to_bytes(8, "little") + header)
    tracemalloc.start()
    try:
        with suppress(LoadFailed):
            describe(path, [path])
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 16 * safetensors.MOST_READ


def test_a_file_cut_short_is_told_with_the_numbers(tmp_path: Path) -> None:
    """Both sizes are named."""
    path = write(tmp_path / "m.safetensors", ("a", "F32", [100], 400), cut=1)
    size = path.stat().st_size
    with pytest.raises(LoadFailed, match=rf"its tensors take {size + 1} bytes, the file has {size}"):
        describe(path, [path])


@pytest.mark.parametrize("text", ["", "[]", "nonsense", '{"num_hidden_layers": -3, "vocab_size": "many"}'])
def test_an_odd_config_is_unknown(tmp_path: Path, text: str) -> None:
    """What cannot be read counts as not there."""
    (tmp_path / "config.json").write_text(text)
    found = describe(tmp_path, [])
    assert (found.layers, found.vocabulary, found.context_length) == ((), 0, None)
