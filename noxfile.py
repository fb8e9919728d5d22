"""How modeld is checked: `nox` runs the default set, `nox -s NAME` one session, `nox -l` lists them.

All sessions share one environment, `.nox/dev`, made once from pyproject.toml and made anew when its
dependencies change. Arguments after `--` go to the session's tool: `nox -s unit -- -k lock`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import tomllib
from pathlib import Path
from typing import Any

import nox

nox.needs_version = ">=2026.10"
nox.options.default_venv_backend = "none"
nox.options.sessions = ["lint", "types", "imports", "unit", "component", "integration", "faults"]

ROOT = Path(__file__).parent
ENVIRONMENT = ROOT / ".nox" / "dev"
HEAVY_ENVIRONMENT = ROOT / ".nox" / "heavy"
HEAVY_ENGINES = ("stable_diffusion_cpp", "vllm")
HEAVY_BESIDE = ("diffusers==0.42.1", "accelerate==1.15.0")
"""One environment for three engines: those of `modeld engines`, vLLM last, since it wants an older numpy; and
diffusers, which takes the torch and the transformers that vLLM wants. accelerate reads the weights that a
test model is made of.
"""

PINS = ROOT / "src" / "modeld" / "engines" / "pins.py"

NPM = ROOT / "tests" / "conformance" / "npm"
SIDE_BY_SIDE = ("-n", "auto", "--maxprocesses", "4", "--dist", "worksteal")
"""For pytest: tests run in a process for each core, and one that has done its share takes from another's.
`-- -n 0` has them run in one process, for a debugger say.
"""

ENGINES_SIDE_BY_SIDE = ("-n", "auto", "--maxprocesses", "4", "--dist", "loadscope")
"""The same where an engine serves all tests of a module or class: those run in one process."""

IN_THREES = ("-n", "3", "--dist", "worksteal")
"""For tests that start daemons and wait for them most of the time: three at a time, however many cores there
are.
"""

IN_PAIRS = ("-n", "2", "--dist", "loadscope")
"""For engines that are large, and keep one core busy each."""

NOTHING_COLLECTED = 5
"""pytest's exit code."""


@nox.session
def lint(session: nox.Session) -> None:
    """Style: ruff's rules and its format."""
    tool(session, "ruff", "check", *session.posargs)
    tool(session, "ruff", "format", "--check")


@nox.session
def types(session: nox.Session) -> None:
    """Types: mypy, strict, on the package and the tests."""
    tool(session, "mypy", *session.posargs)


@nox.session
def imports(session: nox.Session) -> None:
    """Who may import whom."""
    tool(session, "lint-imports", *session.posargs)


@nox.session
def unit(session: nox.Session) -> None:
    """One room at a time."""
    pytest(session, "tests/unit")


@nox.session
def component(session: nox.Session) -> None:
    """Rooms together, with fakes at the edges; the fakes against their contracts."""
    contract = ["tests/contract"] if (ROOT / "tests" / "contract").exists() else []
    pytest(session, "tests/component", *contract)


@nox.session
def integration(session: nox.Session) -> None:
    """The daemon as a process, with a real engine and the demo model."""
    pytest(session, "tests/integration", how=IN_THREES)


@nox.session
def faults(session: nox.Session) -> None:
    """Kills, hangs, bad input, full queues."""
    pytest(session, "tests/faults", how=IN_THREES)


@nox.session
def engines(session: nox.Session) -> None:
    """Each loader against its real engine, as far as this machine has them. Not in the default set."""
    where = "tests/engines"
    if not (ROOT / where).exists():
        session.skip(f"there is no {where} yet")
    pytest(session, where, may_be_empty=True, how=ENGINES_SIDE_BY_SIDE)


@nox.session
def engines_heavy(session: nox.Session) -> None:
    """The loaders of large or compiled engines, in an environment of their own. Not in the default set."""
    npm_packages(session)
    python = str(heavy_environment(session) / "bin" / "python")
    where = () if any(arg.startswith("tests") for arg in session.posargs) else ("tests/engines_heavy",)
    session.run(python, "-m", "pytest", *IN_PAIRS, *where, *session.posargs, external=True)


@nox.session
def conformance(session: nox.Session) -> None:
    """The stock OpenAI SDKs, Python and npm, against the daemon. Not in the default set."""
    npm_packages(session)
    pytest(session, "tests/conformance", how=ENGINES_SIDE_BY_SIDE)


@nox.session
def bench(session: nox.Session) -> None:
    """Figures: what modeld adds to the raw engine, what the gateway does alone. Not in the default set."""
    # modeld is measured as pip installs it: with its byte code, also where Python is told to write none.
    tool(session, "python", "-m", "compileall", "-q", "src/modeld")
    tool(session, "python", "-m", "tests.bench", *session.posargs)


# --- one environment ----------------------------------------------------------------------------------------


def pytest(
    session: nox.Session, *where: str, may_be_empty: bool = False, how: tuple[str, ...] = SIDE_BY_SIDE
) -> None:
    """Run the tests under `where`; none collected is a failure unless `may_be_empty`."""
    codes = [0, NOTHING_COLLECTED] if may_be_empty else [0]
    paths = () if any(arg.startswith("tests") for arg in session.posargs) else where
    tool(
        session,
        "pytest",
        *how,
        *paths,
        *session.posargs,
        success_codes=codes,
    )


def tool(session: nox.Session, name: str, *args: str, success_codes: list[int] | None = None) -> None:
    """Run a program of the shared environment."""
    program = str(environment(session) / "bin" / name)
    session.run(program, *args, external=True, success_codes=success_codes or [0])


def environment(session: nox.Session) -> Path:
    """Return the shared environment, made first if missing or if pyproject.toml asks for something else."""
    return _made(session, ENVIRONMENT, ("-e", ".[demo,stt,tts]"))


def heavy_environment(session: nox.Session) -> Path:
    """Return the environment of the heavy engines, made as the shared one is."""
    own_index = "index-url" in str(
        session.run_install(sys.executable, "-m", "pip", "config", "list", external=True, silent=True)
    )
    steps: list[tuple[str, ...]] = []
    for engine in HEAVY_ENGINES:
        for step in _pins().RECIPES[engine]["cpu"].steps:
            index = () if own_index or not step.index else ("--extra-index-url", step.index)
            steps.append((*step.options, *index, *step.packages))
    return _made(session, HEAVY_ENVIRONMENT, *steps, ("-e", ".", *HEAVY_BESIDE))


def _pins() -> Any:
    """Return the table of pins; the package itself is not there where nox runs."""
    spec = importlib.util.spec_from_file_location("pins", PINS)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["pins"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _made(session: nox.Session, folder: Path, *steps: tuple[str, ...]) -> Path:
    """Return an environment that `pip install` makes in these steps, with the dev group in the last."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    parts = [sys.version, project["build-system"], project["project"], project["dependency-groups"], steps]
    wanted = hashlib.sha256(json.dumps(parts).encode()).hexdigest()
    stamp = folder / "modeld-stamp"
    if stamp.exists() and stamp.read_text() == wanted:
        return folder
    session.log(f"making {folder} (once)")
    session.run_install(sys.executable, "-m", "venv", "--clear", str(folder), external=True, log=False)
    pip = (str(folder / "bin" / "python"), "-m", "pip", "install", "-q", "--disable-pip-version-check")
    *first, last = steps
    for step in (*first, (*last, *nox.project.dependency_groups(project, "dev"))):
        session.run_install(*pip, *step, external=True)
    stamp.write_text(wanted)
    return folder


def npm_packages(session: nox.Session) -> None:
    """Install the npm clients that tests run."""
    if shutil.which("npm") is None:
        session.error("this session needs npm (Node.js 20 or later) on PATH")
    if not _npm_installed():
        session.run_install("npm", "ci", "--no-audit", "--no-fund", "--prefix", str(NPM), external=True)


def _npm_installed() -> bool:
    lock, mark = NPM / "package-lock.json", NPM / "node_modules" / ".package-lock.json"
    return mark.exists() and lock.exists() and mark.stat().st_mtime >= lock.stat().st_mtime
