from __future__ import annotations

import importlib.util
import subprocess
import sys

import pytest

from modeld.errors import LoadFailed
from modeld.worker import registry


@pytest.mark.parametrize("name", sorted(registry.LOADERS))
def test_every_loader_in_the_table_is_there(name: str) -> None:
    """Each name leads to a module with a `load` function."""
    assert importlib.util.find_spec(registry.LOADERS[name]) is not None
    assert callable(registry.find(name).load)


def test_an_unknown_loader_is_refused_with_the_names_there_are() -> None:
    """The refusal is permanent, has a code of its own, and does not advertise the fake."""
    with pytest.raises(LoadFailed, match=r"no loader 'nope'; it has: .*llama_server") as caught:
        registry.find("nope")
    assert caught.value.permanent
    assert caught.value.code == "unknown_loader"
    assert "fake" not in str(caught.value)


def test_the_table_imports_no_engine() -> None:
    """Reading the table costs nothing: no loader is imported by it."""
    code = "import sys, modeld.worker.registry; print([n for n in sys.modules if 'loaders' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
