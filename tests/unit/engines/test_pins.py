from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.config.model import LoaderName
from modeld.engines.pins import MSGSPEC, RECIPES, Recipe, Variant
from modeld.engines.place import MANIFEST
from modeld.engines.variant import choose, lacking
from modeld.errors import ModeldError, UsageError
from modeld.hardware.machine import HOST, Device, Kind, Machine
from modeld.worker import elsewhere
from modeld.worker.capabilities import ENGINES

ROOT = Path(__file__).parents[3]
ALL = [(name, variant, recipe) for name, recipes in RECIPES.items() for variant, recipe in recipes.items()]
IDS = [f"{name}-{variant}" for name, variant, _ in ALL]

RAM = Device(HOST, Kind.HOST, "RAM", 1, 1)
GPU = Device("GPU-1", Kind.GPU, "NVIDIA", 1, 1, 0)
UNIFIED = Device(HOST, Kind.UNIFIED, "Apple", 1, 1)
MACHINES = {"plain": Machine((RAM,)), "nvidia": Machine((RAM, GPU)), "mac": Machine((UNIFIED,))}


def test_every_loader_has_recipes() -> None:
    """The table knows every engine that the configuration knows, and no other."""
    assert set(RECIPES) == set(get_args(LoaderName)) - {"fake"}


@pytest.mark.parametrize(("name", "variant", "recipe"), ALL, ids=IDS)
def test_every_pin_is_exact(name: str, variant: Variant, recipe: Recipe) -> None:
    """Each package is named with one version; the worker's msgspec is among them, once."""
    assert recipe.packages
    for package in recipe.packages:
        assert re.fullmatch(r"[A-Za-z0-9._-]+(\[[a-z,]+\])?==\d[A-Za-z0-9.+]*", package), package
    assert recipe.packages.count(MSGSPEC) == 1
    # A version that is pinned twice is pinned to the same.
    pins = dict(package.split("==") for package in recipe.packages)
    assert set(recipe.packages) == {f"{package}=={version}" for package, version in pins.items()}


@pytest.mark.parametrize(("name", "variant", "recipe"), ALL, ids=IDS)
def test_a_recipe_brings_what_the_loader_looks_for(name: str, variant: Variant, recipe: Recipe) -> None:
    """The engine's own package is pinned, and the modules that a worker looks for are tried in the end."""
    distributions = {package.partition("==")[0] for package in recipe.packages}
    assert recipe.distribution in distributions
    tried = {module.partition(".")[0] for module in recipe.modules}
    assert set(ENGINES[name].modules) <= tried
    assert recipe.disk >= 100 * 1000**2


def test_the_pins_are_what_the_extras_allow() -> None:
    """An engine has the same versions, whether pip brings it into the daemon's environment or modeld makes
    one for it.
    """
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for name, recipes in RECIPES.items():
        parts = [re.split(r">=|,<", wanted) for wanted in extras[ENGINES[name].extra]]
        allowed = {package: (_numbers(least), _numbers(below)) for package, least, below in parts}
        for recipe in recipes.values():
            pins = dict(package.split("==") for package in recipe.packages)
            for package in pins.keys() & allowed.keys():
                least, below = allowed[package]
                assert least <= _numbers(pins[package]) < below, package


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(map(int, version.split(".")))


def test_worker_and_room_agree() -> None:
    """The manifest that workers hold is the one that is looked at; msgspec is new enough for a worker."""
    assert elsewhere.MANIFEST == MANIFEST
    assert _numbers(MSGSPEC.partition("==")[2])[:2] >= elsewhere.MSGSPEC


# --- which build --------------------------------------------------------------------------------------------


@given(st.sampled_from(sorted(RECIPES)), st.sampled_from(sorted(MACHINES)), st.booleans())
def test_the_default_suits_the_machine(name: str, machine: str, compilers: bool) -> None:
    """CUDA only where NVIDIA's GPU is, Metal only on Apple silicon; a build from source only with what it
    needs; and what fits nothing is refused in words that name the ways out.
    """
    if Variant.CPU not in RECIPES[name] and machine != "nvidia":
        with pytest.raises(UsageError, match="--cuda"):
            choose(name, None, MACHINES[machine], lambda program: compilers)
        return
    if RECIPES[name].get(Variant.CPU, ALL[0][2]).programs and not compilers:
        with pytest.raises(ModeldError, match=r"C\+\+ compiler"):
            choose(name, None, MACHINES[machine], lambda program: compilers)
        return
    variant = choose(name, None, MACHINES[machine], lambda program: compilers)
    assert variant in RECIPES[name]
    assert not lacking(RECIPES[name][variant], lambda program: compilers)
    if machine == "plain":
        assert variant is Variant.CPU
    elif machine == "mac":
        assert variant is not Variant.CUDA
    else:
        assert variant is not Variant.METAL
    best = {"nvidia": Variant.CUDA, "mac": Variant.METAL, "plain": Variant.CPU}[machine]
    if compilers and best in RECIPES[name]:
        assert variant is best


@given(st.sampled_from(sorted(RECIPES)), st.sampled_from(Variant), st.sampled_from(sorted(MACHINES)))
def test_a_wish_is_granted_or_refused(name: str, wish: Variant, machine: str) -> None:
    """What is asked for is what is installed, whatever the machine; what there is not is refused by name."""
    if wish in RECIPES[name]:
        assert choose(name, wish, MACHINES[machine], lambda program: True) is wish
    else:
        with pytest.raises(UsageError, match=f"no build of {name} for {wish}"):
            choose(name, wish, MACHINES[machine], lambda program: True)


def test_an_unknown_engine_is_told_the_names() -> None:
    """A name that is none comes back with those there are."""
    with pytest.raises(UsageError, match="no engine 'whisper'; there are: diffusers, llama_server"):
        choose("whisper", None, MACHINES["plain"], lambda program: True)


def test_a_missing_toolkit_is_named() -> None:
    """CUDA from source without nvcc is refused before anything is fetched; else, the CPU build is taken."""
    with pytest.raises(ModeldError, match=r"built from source, and needs NVIDIA's CUDA toolkit"):
        choose("stable_diffusion_cpp", Variant.CUDA, MACHINES["nvidia"], lambda program: program != "nvcc")
    found = choose("stable_diffusion_cpp", None, MACHINES["nvidia"], lambda program: program != "nvcc")
    assert found is Variant.CPU
