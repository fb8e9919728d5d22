"""Which build of an engine suits a machine. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from modeld.engines.pins import RECIPES, Recipe, Variant
from modeld.errors import ModeldError, UsageError
from modeld.hardware.machine import Kind, Machine


def recipes_of(name: str) -> Mapping[Variant, Recipe]:
    """Return an engine's recipes. Raises UsageError naming those there are."""
    try:
        return RECIPES[name]
    except KeyError:
        raise UsageError(f"there is no engine {name!r}; there are: {', '.join(sorted(RECIPES))}") from None


def choose(name: str, wished: Variant | None, machine: Machine, has: Callable[[str], bool]) -> Variant:
    """Return the variant to install: the wished one, else the best for this machine.

    NVIDIA's GPUs want CUDA, Apple silicon Metal; an engine without such a build, or whose build needs a
    program that is not there (`has`), is taken for the CPU. Raises UsageError for a variant that the engine
    does not have, ModeldError for one whose programs are missing.
    """
    recipes = recipes_of(name)
    if wished is not None:
        if wished not in recipes:
            raise UsageError(
                f"there is no build of {name} for {wished} that modeld knows; "
                f"there is: {', '.join(f'--{variant}' for variant in recipes)}"
            )
        _check_programs(name, recipes[wished], has)
        return wished
    kinds = {device.kind for device in machine.devices}
    best = [
        *([Variant.CUDA] if Kind.GPU in kinds else []),
        *([Variant.METAL] if Kind.UNIFIED in kinds else []),
        Variant.CPU,
    ]
    there = [variant for variant in best if variant in recipes]
    if not there:
        raise UsageError(
            f"{name} has no build for this machine, which has no GPU that it knows; "
            f"to install one all the same: {', '.join(f'--{variant}' for variant in recipes)}"
        )
    for variant in there:
        if not lacking(recipes[variant], has):
            return variant
    _check_programs(name, recipes[there[-1]], has)
    raise AssertionError("unreachable")


def lacking(recipe: Recipe, has: Callable[[str], bool]) -> tuple[str, ...]:
    """Return the programs a build needs and this machine does not have."""
    return tuple(program for program in recipe.programs if not has(program))


_SOURCES = {
    "c++": "a C++ compiler (Debian: apt install build-essential; macOS: xcode-select --install)",
    "nvcc": "NVIDIA's CUDA toolkit (its nvcc must be on PATH)",
}


def _check_programs(name: str, recipe: Recipe, has: Callable[[str], bool]) -> None:
    missing: Iterable[str] = lacking(recipe, has)
    if missing:
        needs = " and ".join(_SOURCES.get(program, program) for program in missing)
        raise ModeldError(f"{name} is built from source, and needs {needs}", code="missing_program")
