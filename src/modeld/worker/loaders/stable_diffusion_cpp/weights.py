"""What model files hold, read from their headers: which part a file is, and whether it can take pictures in.

The library guesses too, but what it guesses wrong ends its process.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Iterable
from pathlib import Path
from typing import Any, BinaryIO

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker import gguf_header

SUFFIXES = (".gguf", ".safetensors", ".ckpt", ".pth", ".pt")
"""Files that the library reads, the ones looked for first in front."""

PARTS = ("diffusion_model_path", "clip_l_path", "clip_g_path", "t5xxl_path", "vae_path")
"""Options that name a file of a split checkpoint; the library's arguments have the same names."""

_MOST_HEADER = 512 * 1024**2
_MOST_TENSORS = 1_000_000

_ENCODER = re.compile(r"(?:first_stage_model\.|vae\.)?encoder\.(?:conv_in|conv1|down)")
_WHOLE = re.compile(
    r"(?:model\.diffusion_model|first_stage_model|cond_stage_model|conditioner|vae|text_encoders)\."
)
_DIFFUSION = re.compile(
    r"(?:diffusion_model\.)?(?:double_blocks|joint_blocks|input_blocks|transformer_blocks|blocks|layers)\.\d"
)


def arguments(spec: LoadSpec) -> dict[str, Any]:
    """Return the library's arguments for a model. Raises LoadFailed (permanent).

    A file that holds a diffusion model alone is named so; without the VAE's encoder only its decoder is
    loaded, and the model draws from words only. `model_kwargs` come last and win.
    """
    options = spec.options
    given = {part: _readable(Path(path), part) for part in PARTS if (path := options.get(part))}
    whole = _readable(model_file(Path(spec.path)), "model")
    names = tensor_names(whole)
    found: dict[str, Any] = {part: str(path) for part, path in given.items()}
    alone = "diffusion_model_path" not in given and is_diffusion_alone(names)
    if alone:
        found["diffusion_model_path"] = str(whole)
    elif given.get("diffusion_model_path") != whole:
        found["model_path"] = str(whole)
    vae = tensor_names(given["vae_path"]) if "vae_path" in given else names
    found["vae_decode_only"] = not has_encoder(vae)
    for part in PARTS[1:4]:
        if part in given:
            tensor_names(given[part])  # that it is what its name says, or words why not
    found["n_threads"] = int(options.get("n_threads") or -1)
    found["wtype"] = options.get("wtype") or "default"
    return found | dict(options.get("model_kwargs") or {})


def model_file(path: Path) -> Path:
    """Return the file to load: `path`, or the only one of its kind in that folder. Raises LoadFailed."""
    if not path.is_dir():
        return path
    for suffix in SUFFIXES:
        found = sorted(each for each in path.iterdir() if each.suffix == suffix)
        if len(found) == 1:
            return found[0]
        if found:
            names = ", ".join(each.name for each in found)
            raise _refused(f"{path} holds several models: {names}; name the file itself")
    raise _refused(
        f"{path} holds no model file ({', '.join(SUFFIXES)}); "
        "pipeline folders with model_index.json are for the loader diffusers"
    )


def _readable(path: Path, option: str) -> Path:
    if not path.is_file():
        raise _refused(f"{option}: there is no file {path}")
    return path


def tensor_names(path: Path) -> list[str] | None:
    """Return the names of a file's tensors, None for a pickled checkpoint. Raises LoadFailed (permanent)."""
    try:
        with path.open("rb") as file:
            head = file.read(8)
            file.seek(0)
            if head[:4] == b"GGUF":
                return _gguf(file)
            if head[:2] in (b"PK", b"\x80\x02"):
                return None
            return _safetensors(file, path.stat().st_size)
    except OSError as error:
        raise _refused(f"cannot read {path}: {error.strerror}") from error
    except (struct.error, KeyError, ValueError, AttributeError, OverflowError, RecursionError) as error:
        raise _refused(f"{path} is no GGUF, safetensors or checkpoint file, or broken: {error}") from error


def is_diffusion_alone(names: Iterable[str] | None) -> bool:
    """Say whether these are a diffusion model's tensors without anything around it."""
    some = list(names or ())
    return any(map(_DIFFUSION.match, some)) and not any(map(_WHOLE.match, some))


def has_encoder(names: Iterable[str] | None) -> bool:
    """Say whether a VAE's encoder is among these tensors; of a pickled checkpoint it is assumed."""
    return names is None or any(map(_ENCODER.match, names))


def _gguf(file: BinaryIO) -> list[str]:
    _magic, _version, tensors, keys = struct.unpack("<4sIQQ", file.read(24))
    if max(tensors, keys) > _MOST_TENSORS:
        raise ValueError(f"it announces {tensors} tensors and {keys} keys")
    for _ in range(keys):
        _text(file)
        gguf_header.skip(file, gguf_header.number(file))
    names = []
    for _ in range(tensors):
        names.append(_text(file))
        dimensions = gguf_header.number(file)
        if dimensions > 8:
            raise ValueError(f"a tensor of {dimensions} dimensions")
        rest = 8 * dimensions + 4 + 8
        if len(file.read(rest)) != rest:
            raise ValueError("it ends in the middle")
    return names


def _text(file: BinaryIO) -> str:
    length = gguf_header.length(file)
    if length > 65_535:
        raise ValueError(f"a name of {length} bytes")
    data = file.read(length)
    if len(data) != length:
        raise ValueError("it ends in the middle")
    return data.decode()


def _safetensors(file: BinaryIO, size: int) -> list[str]:
    length = gguf_header.length(file)
    if not 2 <= length <= min(_MOST_HEADER, size - 8):
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length))
    tensors = {name: entry for name, entry in header.items() if name != "__metadata__"}
    end = max((int(entry["data_offsets"][1]) for entry in tensors.values()), default=0)
    if 8 + length + end > size:
        raise ValueError(f"{8 + length + end} bytes are announced, {size} are there")
    return list(tensors)


def _refused(words: str) -> LoadFailed:
    return LoadFailed(words, permanent=True)
