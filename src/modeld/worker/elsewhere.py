"""The worker program under an interpreter that has an engine but not modeld: run as a file, by its path.

`/opt/engine/bin/python …/modeld/worker/elsewhere.py ARGUMENTS` is `python -m modeld.worker ARGUMENTS` with
this very package, and with `--module NAME` first, `python -m NAME ARGUMENTS`. Nothing else of the daemon's
environment can be imported: its libraries might be of other versions than the engine wants. What the worker
needs of the interpreter is Python 3.11 and msgspec; one that lacks them ends with the code UNFIT and says so
in its last line.

In an environment that `modeld engines install` has made, the process holds a shared lock on the manifest for
as long as it lives, by which `modeld engines remove` knows that the environment is in use.
"""

from __future__ import annotations

import os
import sys
from typing import NoReturn

UNFIT = 78
"""Exit code: EX_CONFIG of sysexits.h."""

PYTHON = (3, 11)
MSGSPEC = (0, 23)
"""The oldest versions that a worker runs on."""

MANIFEST = "modeld-engine.json"
"""In the folder of an environment that modeld has made."""

active = False
"""Whether this process was started so."""

_WORKER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_WORKER)


def command(module: str) -> list[str]:
    """Return the command that runs a module of modeld under this process's interpreter, in the same way."""
    if active:
        return [sys.executable, os.path.abspath(__file__), "--module", module]
    return [sys.executable, "-m", module]


def _unfit(words: str) -> NoReturn:
    print(words, file=sys.stderr, flush=True)
    sys.exit(UNFIT)


def _check() -> None:
    """End here unless a worker can run under this interpreter."""
    if sys.version_info < PYTHON:
        version = "{}.{}".format(*sys.version_info)
        _unfit(
            sys.executable + " is Python " + version + "; a worker needs 3.11 or later: "
            "name a newer one, with the engine in its environment"
        )
    wanted = ".".join(map(str, MSGSPEC))
    install = "; install it with: " + sys.executable + " -m pip install 'msgspec>=" + wanted + "'"
    try:
        import msgspec
    except ImportError:
        _unfit(sys.executable + " lacks the package msgspec, which a worker needs" + install)
    numbers = tuple(int(part) for part in msgspec.__version__.split(".")[:2] if part.isdigit())
    if numbers < MSGSPEC:
        _unfit(
            sys.executable + " has msgspec " + msgspec.__version__ + ", and a worker needs " + wanted + ""
            " or later" + install
        )


def _hold(manifest: str) -> None:
    """Hold the environment, if it is one of modeld's; end here if it is being removed."""
    try:
        handle = os.open(manifest, os.O_RDONLY)
    except OSError:
        return
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)  # until this process ends
    except OSError:
        _unfit(sys.executable + " is in an environment that is being removed")


def _main() -> None:
    if sys.path and os.path.abspath(sys.path[0]) == _WORKER:  # its modules are no top-level ones
        del sys.path[0]
    _check()
    _hold(os.path.join(sys.prefix, MANIFEST))
    import importlib.util
    import runpy

    spec = importlib.util.spec_from_file_location(
        "modeld", os.path.join(_PACKAGE, "__init__.py"), submodule_search_locations=[_PACKAGE]
    )
    assert spec is not None
    assert spec.loader is not None
    package = importlib.util.module_from_spec(spec)
    sys.modules["modeld"] = package
    spec.loader.exec_module(package)
    importlib.import_module("modeld.worker.elsewhere").active = True  # type: ignore[attr-defined]
    module = "modeld.worker"
    if sys.argv[1:2] == ["--module"]:
        module = sys.argv[2]
        del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _main()
