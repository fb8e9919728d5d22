"""Which files of a repository are the model that a reference names. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Literal, TypeAlias

from modeld.errors import UsageError
from modeld.library.safetensors import plain_name
from modeld.library.walk import SHARD
from modeld.protocol.llama import projector_beside

PREFERENCE = ("Q4_K_M", "Q4_K_S", "Q5_K_M", "Q4_0", "IQ4_XS", "Q5_K_S", "Q6_K", "Q8_0", "F16", "BF16", "F32")
"""An order of quantisations for who states that one is to be chosen so: small, with little loss, first."""

Form: TypeAlias = Literal["gguf", "folder", "file"]

MOST_SHOWN = 20
"""Candidates that an error names."""

_WILD = frozenset("*?[")
_CONFIGS = ("config.json", "model_index.json")
_ASIDE = ("onnx/", "openvino/", "original/", "coreml/", "flax/", "metal/", "gguf/")
"""Folders of a repository that hold the same model for other programs."""

_OTHERS = (
    ".onnx",
    ".onnx_data",
    ".h5",
    ".msgpack",
    ".ot",
    ".tflite",
    ".gguf",
    ".pb",
    ".mlmodel",
    ".mlpackage",
)
_OLDER = (".bin", ".pt", ".pth", ".ckpt")


@dataclass(frozen=True, slots=True, order=True)
class RepoFile:
    """A file of a repository: its path there, and its bytes when they are known."""

    name: str
    size: int | None = None

    @property
    def base(self) -> str:
        """The name without folders."""
        return PurePosixPath(self.name).name


@dataclass(frozen=True, slots=True)
class Choice:
    """A model in a repository.

    `files` in their order: of a GGUF model the first is the one to open; of a folder all that it needs.
    `projector` is the one to have beside it. `form`: a GGUF model, a folder with a config, or one other file.
    """

    form: Form
    files: tuple[RepoFile, ...]
    projector: RepoFile | None = None

    @property
    def name(self) -> str:
        """What names it without doubt: its first file; "" for the whole repository."""
        return "" if self.form == "folder" else self.files[0].name

    @property
    def size(self) -> int | None:
        """Bytes of all its files, without the projector; None when one is not known."""
        sizes = [file.size for file in self.files]
        return None if None in sizes else sum(size for size in sizes if size is not None)


class NoClearChoice(UsageError):
    """Several models fit, or none: `candidates` are those to choose from."""

    default_code = "no_clear_choice"

    def __init__(self, message: str, candidates: tuple[Choice, ...] = ()) -> None:
        super().__init__(message)
        self.candidates = candidates


def choose(
    files: Iterable[RepoFile],
    glob: str | None = None,
    *,
    what: str,
    prefer: Sequence[str] = (),
    form: Form | None = None,
) -> Choice:
    """Return the one model that is meant. Raises NoClearChoice, with the candidates and their sizes.

    `glob` is a file's name, a pattern for it (`*Q4_K_M.gguf`; `*` goes beyond folders), or the name of a
    quantisation by itself (`Q4_K_M`, in any case of letters); of a model in several pieces each stands for
    all. `what` names the repository in errors. `prefer`: quantisations of which the first that fits one
    candidate decides, when nothing else does. `form`: what alone is wanted. A projector is never the model,
    and names that lead out of the repository's folder are passed over.
    """
    listed = sorted(file for file in set(files) if _is_plain(file.name))
    every = _candidates(listed)
    wanted = [each for each in every if form is None or each.form == form]
    if glob is not None:
        fitting = _matching(wanted, glob)
        if not fitting:
            raise _none(listed, every, what, glob)
    else:
        # A repository with GGUF files is a place of GGUF files, whatever lies beside them.
        ranks: tuple[Form, ...] = ("gguf", "folder", "file")
        fitting = next(
            (some for rank in ranks if (some := [each for each in wanted if each.form == rank])), []
        )
        if not fitting:
            raise _none(listed, every, what, None)
    if len(fitting) > 1:
        fitting = _preferred(fitting, prefer)
    if len(fitting) > 1:
        raise NoClearChoice(
            f"{what} holds {len(fitting)} models{f' that fit {glob!r}' if glob else ''}; choose one: "
            f"{_listed(fitting, what)}",
            tuple(fitting),
        )
    (chosen,) = fitting
    _check_whole(chosen, what)
    return Choice(chosen.form, chosen.files, _projector(chosen, listed))


def _is_plain(name: str) -> bool:
    """Return whether a name stays below a folder, and is not hidden; others belong to no model."""
    steps = name.split("/")
    return not any(step in ("", "..") or step.startswith(".") or "\\" in step for step in steps) and (
        name.isprintable()
    )


def words_for(size: int | None) -> str:
    """Return a size for people."""
    if size is None:
        return "size unknown"
    return f"{size / 1000**3:.2f} GB" if size >= 10**9 else f"{size / 1000**2:.1f} MB"


# --- candidates ---------------------------------------------------------------------------------------------


def _candidates(files: Sequence[RepoFile]) -> list[Choice]:
    found = [Choice("gguf", group) for group in _grouped(file for file in files if _is_model(file))]
    folder = _folder(files)
    if folder:
        found.append(Choice("folder", folder))
    in_folder = {file.name for file in folder}
    rest = (file for file in files if _is_single(file) and file.name not in in_folder)
    return [*found, *(Choice("file", group) for group in _grouped(rest))]


def _is_model(file: RepoFile) -> bool:
    name = file.base.lower()
    return name.endswith(".gguf") and "mmproj" not in name and "imatrix" not in name


def _is_single(file: RepoFile) -> bool:
    name = file.base.lower()
    return name.endswith(".safetensors") or (name.startswith("ggml-") and name.endswith(".bin"))


def _grouped(files: Iterable[RepoFile]) -> list[tuple[RepoFile, ...]]:
    """Put the pieces of each model together, in their order."""
    together: dict[tuple[str, str], list[RepoFile]] = {}
    for file in files:
        shard = SHARD.fullmatch(file.name)
        key = (shard[1], shard[3]) if shard and 0 < int(shard[2]) <= int(shard[3]) else (file.name, "")
        together.setdefault(key, []).append(file)
    return [tuple(group) for group in together.values()]


def _folder(files: Sequence[RepoFile]) -> tuple[RepoFile, ...]:
    """Return what of a repository with a config is needed to serve it; nothing for one without."""
    names = {file.name for file in files}
    if names.isdisjoint(_CONFIGS):
        return ()
    kept = [
        file
        for file in files
        if not file.name.lower().endswith(_OTHERS) and not file.name.lower().startswith(_ASIDE)
    ]
    if "model_index.json" in names:
        # Beside a pipeline's folders there may be all of it in one file, for other programs.
        kept = [
            file for file in kept if "/" in file.name or not file.name.endswith((".safetensors", *_OLDER))
        ]
    weights = {file.name for file in kept if file.name.endswith(".safetensors")}
    if weights:
        kept = [file for file in kept if not file.name.lower().endswith(_OLDER)]
    elif not any(file.name.endswith(_OLDER) for file in kept):
        return ()
    ours = any(PurePosixPath(name).name.startswith("model") for name in weights)
    return tuple(
        file
        for file in kept
        if file.name not in weights
        or not (
            (plain_name(file.name) != file.name and plain_name(file.name) in weights)
            or (ours and file.base.startswith("consolidated"))
        )
    )


def _check_whole(chosen: Choice, what: str) -> None:
    """Raise NoClearChoice when pieces are missing in the repository."""
    for group in _grouped(chosen.files):
        shard = SHARD.fullmatch(group[0].name)
        if shard and 0 < int(shard[2]) <= int(shard[3]) and len(group) != int(shard[3]):
            raise NoClearChoice(
                f"{what} has {len(group)} of the {int(shard[3])} pieces of {group[0].name}; "
                "the others are missing there"
            )


# --- which ones fit -----------------------------------------------------------------------------------------


def _matching(candidates: Sequence[Choice], glob: str) -> list[Choice]:
    named = [each for each in candidates if each.form != "folder"]
    if not _WILD.isdisjoint(glob):
        return [each for each in named if any(_fits(file, glob) for file in each.files)]
    exact = [each for each in named if any(glob == file.name for file in each.files)]
    exact = exact or [each for each in named if any(glob == file.base for file in each.files)]
    return exact or [each for each in named if _is_of(each, glob)]


def _fits(file: RepoFile, glob: str) -> bool:
    return fnmatchcase(file.name, glob) or ("/" not in glob and fnmatchcase(file.base, glob))


def _is_of(candidate: Choice, quantisation: str) -> bool:
    """Return whether a name holds that of a quantisation, whole: Q4_K is neither Q4_K_M nor IQ4_K."""
    word = rf"(?<![a-z0-9]){re.escape(quantisation.lower())}(?![a-z0-9]|_[a-z0-9])"
    return any(re.search(word, file.name.lower()) for file in candidate.files)


def _preferred(candidates: list[Choice], prefer: Sequence[str]) -> list[Choice]:
    for quantisation in prefer:
        fitting = [each for each in candidates if _is_of(each, quantisation)]
        if len(fitting) == 1:
            return fitting
    return candidates


def _projector(chosen: Choice, files: Sequence[RepoFile]) -> RepoFile | None:
    """Return the projector to have beside a model: in its folder, or in the repository's own."""
    if chosen.form != "gguf":
        return None
    model = chosen.files[0]
    for folder in dict.fromkeys((str(PurePosixPath(model.name).parent), ".")):
        there = {file.base: file for file in files if str(PurePosixPath(file.name).parent) == folder}
        names = [
            name for name in there if name.lower().startswith("mmproj") and name.lower().endswith(".gguf")
        ]
        # As the loader will see it: alone with its projector.
        found = _own(model, names) or projector_beside(model.base, [model.base, *names])
        if found:
            return there[found]
    return None


def _own(model: RepoFile, names: Sequence[str]) -> str | None:
    shard = SHARD.fullmatch(model.base)
    own = f"mmproj-{shard[1] + shard[4] if shard else model.base}".lower()
    return next((name for name in names if name.lower() == own), None)


# --- errors -------------------------------------------------------------------------------------------------


def _none(files: Sequence[RepoFile], every: Sequence[Choice], what: str, glob: str | None) -> NoClearChoice:
    if glob is None or not every:
        seen = ", ".join(file.name for file in files[:5]) + (", …" if len(files) > 5 else "")
        return NoClearChoice(f"{what} holds no model that is known here; it has {seen or 'no files'}")
    if any("mmproj" in file.base.lower() and _fits_or_is(file, glob) for file in files):
        return NoClearChoice(
            f"{what}: {glob!r} names a projector, which serves only beside a model; choose one: "
            f"{_listed(every, what)}",
            tuple(every),
        )
    return NoClearChoice(
        f"{what}: nothing there fits {glob!r}; choose one: {_listed(every, what)}", tuple(every)
    )


def _fits_or_is(file: RepoFile, glob: str) -> bool:
    return glob in (file.name, file.base) or _fits(file, glob)


def _listed(candidates: Sequence[Choice], what: str) -> str:
    shown = [
        f"{what}{':' if each.name else ''}{each.name} ({words_for(each.size)})"
        for each in candidates[:MOST_SHOWN]
    ]
    left = len(candidates) - len(shown)
    return ", ".join(shown) + (f" and {left} more" if left else "")
