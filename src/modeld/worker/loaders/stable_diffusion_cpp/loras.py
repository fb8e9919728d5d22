"""LoRAs that a prompt names: `<lora:NAME:STRENGTH>` means a file of that name in the model's own folder.

The library's wrapper would take any path there, so a prompt could have any file of this machine opened. Here
a name is a name, of a file in the folder that the owner has given as `model_kwargs: {lora_model_dir: …}`.
"""

from __future__ import annotations

import math
import re
from pathlib import Path

from modeld.errors import BadRequest, EngineError, LoadFailed
from modeld.worker.loaders.stable_diffusion_cpp.weights import tensor_names

SUFFIXES = (".safetensors", ".gguf")
"""Files that are LoRAs."""

MOST = 16
"""LoRAs in one prompt."""

STRONGEST = 10.0

_TAG = re.compile(r"<lora:([^<>]*)>")
_NAME = re.compile(r"[\w.+ -]{1,200}")


def extract(prompt: str, folder: str | None) -> tuple[str, tuple[tuple[str, float], ...]]:
    """Return a prompt without its tags, and the file and strength of each LoRA, in their order.

    One that is named twice has both strengths. Raises BadRequest for a tag that cannot be honoured, and
    EngineError for a file that is no LoRA.
    """
    found: dict[str, float] = {}
    for match in _TAG.finditer(prompt):
        name, _, strength = match[1].partition(":")
        file = str(_file(name, folder))
        found[file] = found.get(file, 0.0) + _strength(strength or "1")
    if len(found) > MOST:
        raise _refused(f"{len(found)} LoRAs; {MOST} are the most")
    return _TAG.sub("", prompt), tuple(found.items())


def _file(name: str, folder: str | None) -> Path:
    if not folder:
        raise _refused(
            "this model has no LoRAs (its owner names their folder: lora_model_dir in model_kwargs)"
        )
    files = {each.stem: each for each in sorted(Path(folder).glob("*")) if each.suffix in SUFFIXES}
    if not _NAME.fullmatch(name) or name not in files:
        raise _refused(f"there is no LoRA {name[:50]!r}; there are {', '.join(files)[:500] or 'none'}")
    try:
        tensor_names(files[name])
    except LoadFailed as error:  # the library might end its process over it
        raise EngineError(f"the LoRA {name!r} cannot be used: {error}") from error
    return files[name]


def _strength(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not abs(value) <= STRONGEST:
        raise _refused(f"{text[:20]!r} is no strength of a LoRA; it is a number, up to {STRONGEST:g}")
    return value


def _refused(words: str) -> BadRequest:
    return BadRequest(f"the prompt cannot be drawn: {words}", code="invalid_value", param="prompt")
