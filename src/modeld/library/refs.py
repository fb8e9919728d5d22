"""What people write after `model:`, as data. Only the test for an existing relative path sees the disk."""

from __future__ import annotations

import os
import re
import urllib.parse
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TypeAlias

from modeld.errors import UsageError
from modeld.library.built.catalogue import CATALOGUE

FORMS = (
    "a path (/models/x.gguf, ./x.gguf), file:///models/x.gguf, org/repo, org/repo:glob, "
    "pypi:package==version/path/in/wheel or demo:name"
)

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# PEP 508 names and PEP 440 versions, without anything that means something to a path or to pip.
_PACKAGE = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)
_VERSION = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9.!+_-]*[A-Za-z0-9])?", re.ASCII)
_REPOSITORY = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}", re.ASCII)
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
_LONGEST = 4096


@dataclass(frozen=True, slots=True)
class LocalRef:
    """A file or folder on this disk; relative only when no base was given."""

    path: Path

    def __str__(self) -> str:
        text = str(self.path)
        return text if self.path.is_absolute() or text.startswith("..") else f"./{text}"


@dataclass(frozen=True, slots=True)
class HubRef:
    """A repository on a model hub, and which of its files."""

    repo: str
    glob: str | None = None

    def __str__(self) -> str:
        return self.repo if self.glob is None else f"{self.repo}:{self.glob}"


@dataclass(frozen=True, slots=True)
class PackageRef:
    """A file inside a Python package's wheel; `package` is in its normal form (PEP 503)."""

    package: str
    version: str
    member: str

    def __str__(self) -> str:
        return f"pypi:{self.requirement}/{self.member}"

    @property
    def requirement(self) -> str:
        """What pip is asked for: name==version."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class BuiltRef:
    """A model that is built from the weights in packages; `name` is one of the catalogue's."""

    name: str

    def __str__(self) -> str:
        return f"demo:{self.name}"


Ref: TypeAlias = LocalRef | HubRef | PackageRef | BuiltRef


def parse(ref: str, base: Path | None) -> Ref:
    """Read a reference; relative paths are taken from `base` when it is given.

    Raises UsageError, which names the form wanted, for everything else.
    """
    if not ref.strip():
        raise UsageError(f"the reference is empty; expected {FORMS}")
    if len(ref) > _LONGEST:
        raise UsageError(f"the reference has {len(ref)} characters, at most {_LONGEST} are read")
    if _CONTROL.search(ref) or not _encodable(ref):
        raise UsageError(f"the reference {ref!a} holds control characters; expected {FORMS}")
    if ref.startswith("pypi:"):
        return _package(ref)
    if ref.startswith("demo:"):
        return _built(ref)
    if ref.startswith("file://"):
        return _file_url(ref)
    if _SCHEME.match(ref):
        raise UsageError(f"{_shown(ref)}: addresses are not read here; expected {FORMS}")
    if ref.startswith(("/", "./", "../", "~")) or ref in (".", ".."):
        return _local(ref, base)
    if base is not None and os.path.exists(base / ref):
        return LocalRef(base / ref)
    repo, colon, glob = ref.partition(":")
    if _REPOSITORY.fullmatch(repo) and (colon or not ref.endswith(".gguf")):
        return HubRef(repo, _glob(ref, glob) if colon else None)
    if ref.endswith(".gguf"):
        return _local(ref, base)
    raise UsageError(f"{_shown(ref)} names no model; expected {FORMS}")


def _encodable(text: str) -> bool:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return False
    return True


def _shown(ref: str) -> str:
    # An address may carry a password: user:password@host.
    return repr(re.sub(r"//[^/@]*@", "//…@", ref))


def _local(ref: str, base: Path | None) -> LocalRef:
    path = Path(ref)
    if ref.startswith("~"):
        try:
            path = path.expanduser()
        except RuntimeError:
            raise UsageError(f"{ref!r}: that home directory is not known; write the whole path") from None
    return LocalRef(path if base is None else base / path)


def _file_url(ref: str) -> LocalRef:
    host, slash, rest = ref.removeprefix("file://").partition("/")
    try:
        path = urllib.parse.unquote("/" + rest, errors="strict")
    except UnicodeDecodeError:
        path = ""
    if host not in ("", "localhost") or not slash or not rest or not path or _CONTROL.search(path):
        raise UsageError(f"{_shown(ref)}: expected file:/// and an absolute path, e.g. file:///models/x.gguf")
    return LocalRef(Path(path))


def _glob(ref: str, glob: str) -> str:
    if not glob or glob.startswith("/") or "\\" in glob or ".." in glob.split("/"):
        raise UsageError(
            f"{ref!r}: expected a file's name, a pattern or a quantisation after the colon, e.g. "
            "org/repo:*Q4_K_M.gguf or org/repo:Q4_K_M"
        )
    return glob


def _built(ref: str) -> BuiltRef:
    name = ref.removeprefix("demo:")
    if name not in CATALOGUE:
        known = ", ".join(f"demo:{each}" for each in sorted(CATALOGUE))
        raise UsageError(f"{ref!r}: there is no demo model of that name; there are {known}")
    return BuiltRef(name)


def _package(ref: str) -> PackageRef:
    form = "expected pypi:package==version/path/in/wheel, e.g. pypi:some-model==1.0/some_model/model.gguf"
    requirement, slash, member = ref.removeprefix("pypi:").partition("/")
    package, equals, version = requirement.partition("==")
    if not _PACKAGE.fullmatch(package):
        raise UsageError(f"{ref!r}: {package!r} is not a package name; {form}")
    if not equals or not _VERSION.fullmatch(version):
        raise UsageError(f"{ref!r}: one exact version is needed; {form}")
    if not slash or not member:
        raise UsageError(f"{ref!r}: the file in the wheel is missing; {form}")
    steps = member.split("/")
    # Hidden names are the cache's own (lock and partial files).
    if "\\" in member or any(not step or step.startswith(".") for step in steps):
        raise UsageError(f"{ref!r}: {member!r} is not a plain path in a wheel (no .., no leading /); {form}")
    if max(len(os.fsencode(step)) for step in (*steps, package, version)) > 200:
        raise UsageError(f"{ref!r}: a name in it is over 200 bytes; {form}")
    return PackageRef(re.sub(r"[-_.]+", "-", package).lower(), version, str(PurePosixPath(member)))
