"""A tiny engine as a wheel, in a folder that stands in for a package index."""

from __future__ import annotations

import importlib.metadata
import io
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path

from modeld.engines.pins import Recipe, Step

NAME = "whispercpp"
"""The loader whose engine the tiny one pretends to be."""

MSGSPEC = f"msgspec=={importlib.metadata.version('msgspec')}"


def write_wheel(folder: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Write a wheel of pure Python."""
    path = folder / f"{name}-{version}-py3-none-any.whl"
    about = f"{name}-{version}.dist-info"
    files = {
        **files,
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = "".join(f"{file},,\n" for file in (*files, f"{about}/RECORD"))
    with zipfile.ZipFile(path, "w") as archive:
        for file, text in {**files, f"{about}/RECORD": record}.items():
            archive.writestr(file, text)
    return path


def repack(folder: Path, name: str) -> Path:
    """Write the wheel that an installed package came from."""
    found = importlib.metadata.distribution(name)
    tags = [line[5:] for line in (found.read_text("WHEEL") or "").splitlines() if line.startswith("Tag: ")]
    python, abi, _ = tags[0].split("-")
    platforms = ".".join(dict.fromkeys(tag.split("-")[2] for tag in tags))
    path = folder / f"{found.name}-{found.version}-{python}-{abi}-{platforms}.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for file in found.files or ():
            if ".." not in file.parts and "__pycache__" not in file.parts and file.name != "INSTALLER":
                archive.write(str(found.locate_file(file)), str(file))
    return path


def index(folder: Path) -> Path:
    """Make a folder with what a worker needs, for `engine` to add to."""
    folder.mkdir()
    repack(folder, "msgspec")
    return folder


def engine(packages: Path, version: str, code: str = "", name: str = "pywhispercpp") -> None:
    """Add a version of the tiny engine; `code` runs when it is imported."""
    write_wheel(packages, name, version, {f"{name}/__init__.py": code})


def source(packages: Path, version: str, code: str) -> None:
    """Add a version that has to be built from source; `code` is run in the place of a compiler."""
    name = f"pywhispercpp-{version}"
    files = {
        "PKG-INFO": f"Metadata-Version: 2.1\nName: pywhispercpp\nVersion: {version}\n",
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "builds"\nbackend-path = ["."]\n',
        "builds.py": "def build_wheel(folder, config_settings=None, metadata_directory=None):\n"
        + "".join(f"    {line}\n" for line in code.splitlines()),
    }
    with tarfile.open(packages / f"{name}.tar.gz", "w:gz") as archive:
        for file, text in files.items():
            entry = tarfile.TarInfo(f"{name}/{file}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))


def recipe(packages: Path, version: str, *names: str, disk: int = 1000) -> Recipe:
    """Return the recipe that installs it (`names`: other packages), from that folder alone.

    The last package is the one that is imported when it is tried out.
    """
    names = names or ("pywhispercpp",)
    options = ("--no-index", "--find-links", str(packages))
    pins = (*(f"{name}=={version}" for name in names), MSGSPEC)
    return Recipe((Step(pins, options),), names[0], names[-1:], disk)


_DRIVER = """
import sys
sys.path.insert(0, sys.argv.pop(1))
from modeld.cli.main import modeld
from modeld.engines.pins import RECIPES, Variant
from tests.harness.tiny_engine import recipe
from pathlib import Path
loader, packages, version, names = (sys.argv.pop(1) for _ in range(4))
RECIPES[loader] = {Variant.CPU: recipe(Path(packages), version, *names.split())}
modeld.main(prog_name="modeld")
"""


def command(packages: Path, version: str, *names: str, loader: str = NAME) -> list[str]:
    """Return the command `modeld engines`, whose table has `recipe` for the loader; arguments follow."""
    root = str(Path(__file__).parents[2])
    chosen = [loader, str(packages), version, " ".join(names)]
    return [sys.executable, "-c", _DRIVER, root, *chosen, "engines"]
