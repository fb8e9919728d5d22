"""The worker program under an interpreter that has an engine but not modeld: run as a file, by its path.

`/opt/engine/bin/python …/modeld/worker/elsewhere.py ARGUMENTS` is `python -m modeld.worker ARGUMENTS` with
this very package, and with `--module NAME` first, `python -m NAME ARGUMENTS`. Nothing else of the daemon's
environment can be imported: its libraries might be of other versions than the engine wants. What the worker
needs of the interpreter is Python 3.11 and msgspec; one that lacks them ends with the code UNFIT and says so
in its last line.
"""

from __future__ import annotations

import os
import sys

UNFIT = 78
"""Exit code: EX_CONFIG of sysexits.h."""

active = False
"""Whether this process was started so."""

_WORKER = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_WORKER)


def command(module: str) -> list[str]:
    """Return the command that runs a module of modeld under this process's interpreter, in the same way."""
    if active:
        return [sys.executable, os.path.abspath(__file__), "--module", module]
    return [sys.executable, "-m", module]


def _unfit(words: str) -> None:
    print(words, file=sys.stderr, flush=True)
    sys.exit(UNFIT)


def _main() -> None:
    if sys.path and os.path.abspath(sys.path[0]) == _WORKER:  # its modules are no top-level ones
        del sys.path[0]
    version = "{}.{}".format(*sys.version_info)
    if sys.version_info < (3, 11):  # noqa: UP036 - whose interpreter it is, is not known
        _unfit(sys.executable + " is Python " + version + "; a worker needs 3.11 or later")
    try:
        import msgspec  # noqa: F401
    except ImportError:
        _unfit(
            sys.executable + " lacks the package msgspec, which a worker needs; install it with: "
            "" + sys.executable + " -m pip install msgspec"
        )
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
