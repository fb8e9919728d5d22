"""Which llama.cpp server to start, on which files, with which flags.

The engine is `llama-server` when one is configured or on PATH, else the server inside the `xllamacpp` wheel,
run by `xllama`.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed
from modeld.protocol.llama import DEFAULT_CONTEXT, NO_PROJECTOR, embedding_batch, projector_beside
from modeld.protocol.messages import LoadSpec
from modeld.worker import elsewhere
from modeld.worker.loaders.llama_server.pooling import own_pooling


def model_file(spec: LoadSpec) -> Path:
    """Return the GGUF file to load: `spec.path`, or the only one in that folder.

    Raises LoadFailed (permanent) with what is wrong: missing, ambiguous, or not a GGUF file.
    """
    path = Path(spec.path)
    if path.is_dir():
        found = sorted(f for f in path.glob("*.gguf") if "mmproj" not in f.name and not _later_shard(f.name))
        if len(found) != 1:
            names = ", ".join(f.name for f in found) or "none"
            raise LoadFailed(
                f"{path} must hold exactly one GGUF model, it holds: {names}; name the file itself",
                permanent=True,
            )
        path = found[0]
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as error:
        raise LoadFailed(f"cannot read the model file {path}: {error.strerror}", permanent=True) from error
    if magic != b"GGUF":
        raise LoadFailed(
            f"{path} is not a GGUF file: it begins with {magic!r}, not b'GGUF'",
            code="not_gguf",
            permanent=True,
        )
    return path


def _later_shard(name: str) -> bool:
    stem, _, rest = name.partition("-of-")
    return bool(rest) and stem.rpartition("-")[2].isdigit() and int(stem.rpartition("-")[2]) > 1


def command(spec: LoadSpec, model: Path, sock: Path) -> tuple[list[str], str]:
    """Return the engine's command line and its name for people. Raises LoadFailed (permanent)."""
    options = spec.options
    binary = options.get("binary")
    if binary:
        found = shutil.which(binary)  # a bare name is looked up on PATH, a path is taken as it is
        if found is None:
            raise LoadFailed(f"binary: {binary} is not an executable file, nor on PATH", permanent=True)
        binary = found
    else:
        binary = shutil.which("llama-server")
    if binary:
        return [binary, *_flags(spec, model, sock)], f"llama-server ({binary})"
    if importlib.util.find_spec("xllamacpp") is not None:
        seeing = projector(spec, model)
        more: dict[str, Any] = {"mmproj": str(seeing) if seeing else None}
        if spec.usecase == "embed":
            more |= {"embeddings": True, "pooling": pooling(spec, model)}
        settings = json.dumps({"model": str(model), "socket": str(sock), **options, **more})
        return [*elsewhere.command("modeld.worker.loaders.llama_server.xllama"), settings], "xllamacpp"
    raise LoadFailed(
        "no llama.cpp engine on this machine: put llama-server on PATH, "
        "name it in engines.llama_server.binary, "
        "or install the prebuilt one with: modeld engines install llama_server",
        code="no_engine",
        permanent=True,
    )


def pooling(spec: LoadSpec, model: Path) -> str | None:
    """Return how the model makes one vector of its tokens': as configured, else as its file says."""
    chosen: str | None = spec.options.get("pooling")
    return chosen or own_pooling(model)


def projector(spec: LoadSpec, model: Path) -> Path | None:
    """Return the file that makes the model see: the configured one, else one beside it; None for none."""
    chosen: str | None = spec.options.get("mmproj")
    if chosen:
        return None if chosen == NO_PROJECTOR else Path(chosen)
    if spec.usecase != "generate":
        return None
    try:
        found = projector_beside(model.name, os.listdir(model.parent))
    except OSError:
        return None  # a folder that may be entered and not read
    return model.parent / found if found else None


def _flags(spec: LoadSpec, model: Path, sock: Path) -> list[str]:
    options = spec.options
    parallel = int(options.get("parallel") or 1)
    flags = ["-m", str(model), "--host", str(sock), "--jinja", "-np", str(parallel)]
    # 0 is "what the model was trained for", and goes through as it is.
    flags += ["-c", str(int(options.get("n_ctx", DEFAULT_CONTEXT)) * parallel)]
    for key, flag in (
        ("n_batch", "-b"),
        ("threads", "-t"),
        ("cache_reuse", "--cache-reuse"),
        ("cache_ram_mib", "--cache-ram"),
    ):
        if options.get(key) is not None:
            flags += [flag, str(options[key])]
    # -1 is llama.cpp's own default: as many layers as fit.
    if options.get("n_gpu_layers", -1) != -1:
        flags += ["-ngl", str(options["n_gpu_layers"])]
    if seeing := projector(spec, model):
        flags += ["--mmproj", str(seeing)]
    flags += _adapters(options.get("lora") or ()) + _drafting(options)
    template = options.get("chat_template")
    if template:
        flags += ["--chat-template-file" if Path(template).is_file() else "--chat-template", str(template)]
    if spec.usecase == "embed":
        flags += ["--embeddings", "-b", str(embedding_batch(options)), "-ub", str(embedding_batch(options))]
        kind = pooling(spec, model)
        flags += ["--pooling", kind] if kind else []
    if options.get("context_shift"):
        flags.append("--context-shift")
    return [*flags, *map(str, options.get("extra_args") or ())]


def _adapters(adapters: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the flags of LoRA adapters: commas part them, and a colon comes before the scale."""
    scaled = ",".join(f"{each['path']}:{each['scale']:g}" for each in adapters)
    return ["--lora-scaled", scaled] if scaled else []


def _drafting(options: Mapping[str, Any]) -> list[str]:
    """Return the flags of a draft model."""
    if not options.get("draft_model"):
        return []
    flags = ["--spec-draft-model", str(options["draft_model"]), "--spec-type", "draft-simple"]
    for key, flag in (
        ("draft_n_max", "--spec-draft-n-max"),
        ("draft_n_min", "--spec-draft-n-min"),
        ("draft_p_min", "--spec-draft-p-min"),
    ):
        if options.get(key) is not None:
            flags += [flag, str(options[key])]
    if options.get("draft_n_gpu_layers", -1) != -1:
        flags += ["--spec-draft-ngl", str(options["draft_n_gpu_layers"])]
    return flags
