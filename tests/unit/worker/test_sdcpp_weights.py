"""What model files hold: read from headers, and never trusted."""

from __future__ import annotations

import contextlib
import json
import struct
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.stable_diffusion_cpp import weights

WHOLE = (
    "model.diffusion_model.input_blocks.0.0.weight",
    "cond_stage_model.transformer.text_model.embeddings.position_embedding.weight",
    "first_stage_model.decoder.conv_in.weight",
)
ENCODER = "first_stage_model.encoder.conv_in.weight"
FLUX = ("double_blocks.0.img_attn.qkv.weight", "img_in.weight")


def gguf(path: Path, names: Iterable[str], *, keys: bytes = b"", count: int = 0) -> Path:
    """Write the header of a GGUF file with these tensors; `keys` are its `count` coded key-value pairs."""
    names = list(names)
    out = b"GGUF" + struct.pack("<IQQ", 3, len(names), count) + keys
    for name in names:
        data = name.encode()
        out += struct.pack("<Q", len(data)) + data + struct.pack("<IQIQ", 1, 1, 0, 0)
    path.write_bytes(out)
    return path


def safetensors(path: Path, names: Sequence[str], body: int = 4) -> Path:
    """Write a safetensors file with these tensors of four bytes, one after the other."""
    header = {
        name: {"dtype": "F32", "shape": [1], "data_offsets": [4 * at, 4 * at + 4]}
        for at, name in enumerate(names)
    }
    text = json.dumps({"__metadata__": {"a": "b"}, **header}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(body * len(names)))
    return path


def spec(path: Path, **options: Any) -> LoadSpec:
    """Return a load for this path."""
    return LoadSpec("m", "stable_diffusion_cpp", "image", str(path), "/run/x", options)


def text(value: str) -> bytes:
    """Return a string as GGUF has it."""
    return struct.pack("<Q", len(value)) + value.encode()


def test_names_are_read_over_keys_of_every_kind(tmp_path: Path) -> None:
    """Numbers, strings and arrays of both stand before the tensors and are passed over."""
    keys = text("a") + struct.pack("<II", 4, 7) + text("b") + struct.pack("<I", 8) + text("words")
    keys += text("c") + struct.pack("<IIQ", 9, 8, 2) + text("x") + text("yy")
    keys += text("d") + struct.pack("<IIQ", 9, 6, 3) + bytes(12)
    assert weights.tensor_names(gguf(tmp_path / "a", WHOLE, keys=keys, count=4)) == list(WHOLE)
    assert weights.tensor_names(safetensors(tmp_path / "b", WHOLE)) == list(WHOLE)


@pytest.mark.parametrize("head", [b"PK\x03\x04", b"\x80\x02}q"])
def test_a_pickled_checkpoint_is_left_to_the_engine(tmp_path: Path, head: bytes) -> None:
    """It cannot be looked into without unpickling; an encoder is assumed, as old checkpoints have one."""
    (tmp_path / "a.ckpt").write_bytes(head + bytes(100))
    found = weights.arguments(spec(tmp_path / "a.ckpt"))
    assert found["model_path"] == str(tmp_path / "a.ckpt")
    assert found["vae_decode_only"] is False


@given(st.binary(max_size=300), st.sampled_from([b"GGUF\x03\0\0\0", b"GGUF", b"\x40\0\0\0\0\0\0\0", b""]))
def test_whatever_is_in_a_file_it_is_names_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, data: bytes, head: bytes
) -> None:
    """No bytes bring about another error, or a long search."""
    path = tmp_path_factory.getbasetemp() / "any"
    path.write_bytes(head + data)
    with contextlib.suppress(LoadFailed):
        names = weights.tensor_names(path)
        assert names is None or all(isinstance(name, str) for name in names)


def test_arrays_in_arrays_without_end_are_a_refusal(tmp_path: Path) -> None:
    """Deep nesting costs nothing but the file."""
    keys = text("a") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000
    with pytest.raises(LoadFailed, match="broken") as caught:
        weights.tensor_names(gguf(tmp_path / "a", (), keys=keys, count=1))
    assert caught.value.permanent


@given(st.lists(st.text(max_size=20), max_size=5), st.data())
def test_a_header_that_is_cut_off_is_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], data: st.DataObject
) -> None:
    """Every true beginning of a GGUF file's header is told from a whole one."""
    path = gguf(tmp_path_factory.getbasetemp() / "cut", names)
    whole = path.read_bytes()
    assert weights.tensor_names(path) == names
    path.write_bytes(whole[: data.draw(st.integers(0, len(whole) - 1))])
    with pytest.raises(LoadFailed, match="broken"):
        weights.tensor_names(path)


def test_a_safetensors_file_without_its_weights_is_a_refusal(tmp_path: Path) -> None:
    """The header says where the last tensor ends; a file that ends before is a broken download."""
    with pytest.raises(LoadFailed, match="are announced"):
        weights.tensor_names(safetensors(tmp_path / "a.safetensors", WHOLE, body=3))


@pytest.mark.parametrize(
    ("names", "alone", "encoder"),
    [
        (WHOLE, False, False),
        ((*WHOLE, ENCODER), False, True),
        (FLUX, True, False),
        (("model.diffusion_model.double_blocks.0.x.weight",), False, False),
        (("joint_blocks.0.x.weight",), True, False),
        (("encoder.conv_in.weight", "decoder.conv_in.weight"), False, True),
        (("encoder.block.0.layer.0.SelfAttention.q.weight",), False, False),  # T5, which is no VAE
        ((), False, False),
        (None, False, True),
    ],
)
def test_parts_are_told_by_the_names_of_their_tensors(
    names: Sequence[str] | None, alone: bool, encoder: bool
) -> None:
    """A transformer without anything around it, and a VAE's encoder."""
    assert weights.is_diffusion_alone(names) is alone
    assert weights.has_encoder(names) is encoder


def test_a_whole_model_is_loaded_as_one(tmp_path: Path) -> None:
    """Only what it has is loaded; the library's other arguments are left to it."""
    found = weights.arguments(spec(gguf(tmp_path / "a.gguf", WHOLE), n_threads=-1))
    assert found == {
        "model_path": str(tmp_path / "a.gguf"),
        "vae_decode_only": True,
        "n_threads": -1,
        "wtype": "default",
    }
    assert not weights.arguments(spec(gguf(tmp_path / "b.gguf", (*WHOLE, ENCODER))))["vae_decode_only"]


def test_a_split_model_is_put_together(tmp_path: Path) -> None:
    """The parts go by their options' names, whether the transformer is named there, as the model, or both."""
    flux = gguf(tmp_path / "flux.gguf", FLUX)
    clip = safetensors(tmp_path / "clip.safetensors", ("text_model.x",))
    vae = safetensors(tmp_path / "ae.safetensors", ("encoder.conv_in.weight",))
    options: dict[str, Any] = {
        "clip_l_path": str(clip),
        "clip_g_path": None,
        "vae_path": str(vae),
        "wtype": "q4_0",
        "n_threads": 4,
        "model_kwargs": {"keep_clip_on_cpu": True},
    }
    expected = {
        "diffusion_model_path": str(flux),
        "clip_l_path": str(clip),
        "vae_path": str(vae),
        "vae_decode_only": False,
        "n_threads": 4,
        "wtype": "q4_0",
        "keep_clip_on_cpu": True,
    }
    assert weights.arguments(spec(flux, **options)) == expected
    assert weights.arguments(spec(flux, **options, diffusion_model_path=str(flux))) == expected
    base = gguf(tmp_path / "base.gguf", WHOLE)
    both = weights.arguments(spec(base, **options, diffusion_model_path=str(flux)))
    assert both == {**expected, "model_path": str(base)}


def test_the_owners_arguments_win(tmp_path: Path) -> None:
    """`model_kwargs` come last."""
    model = gguf(tmp_path / "a.gguf", WHOLE)
    assert weights.arguments(spec(model, model_kwargs={"wtype": "f16"}))["wtype"] == "f16"


def test_a_folder_is_the_one_model_in_it(tmp_path: Path) -> None:
    """GGUF files are looked for first; several of a kind, and none, are refused with what is there."""
    with pytest.raises(LoadFailed, match="holds no model file"):
        weights.model_file(tmp_path)
    safetensors(tmp_path / "a.safetensors", WHOLE)
    assert weights.model_file(tmp_path) == tmp_path / "a.safetensors"
    gguf(tmp_path / "b.gguf", WHOLE)
    assert weights.model_file(tmp_path) == tmp_path / "b.gguf"
    gguf(tmp_path / "c.gguf", WHOLE)
    with pytest.raises(LoadFailed, match=r"b.gguf, c.gguf; name the file") as caught:
        weights.model_file(tmp_path)
    assert caught.value.permanent


def test_a_part_that_is_not_there_is_named(tmp_path: Path) -> None:
    """The refusal has the option and the path; so has that of the model itself."""
    model = gguf(tmp_path / "a.gguf", WHOLE)
    with pytest.raises(LoadFailed, match=r"t5xxl_path: there is no file /nowhere/t5"):
        weights.arguments(spec(model, t5xxl_path="/nowhere/t5"))
    with pytest.raises(LoadFailed, match=r"model: there is no file .*none"):
        weights.arguments(spec(tmp_path / "none"))
