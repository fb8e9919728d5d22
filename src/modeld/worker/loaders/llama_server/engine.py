"""The llama.cpp server as a child process: found, started on a Unix socket, watched, stopped.

The engine is `llama-server` when one is configured or on PATH, else the server inside the `xllamacpp` wheel,
run by `xllama`. It listens on a socket in the worker's private directory: no TCP port, no race, no impostor.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib.util
import json
import os
import shutil
import signal
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker import elsewhere
from modeld.worker.lifeline import tied
from modeld.worker.loader import Report
from modeld.worker.loaders.llama_server.pooling import own_pooling

POLL_S = 0.025
"""Seconds between two looks at an engine that is loading."""

TERM_S = 5.0
"""Seconds an engine gets between SIGTERM and SIGKILL."""

LAST_WORDS = 12
"""Lines of the engine's log that an error shows."""

DEFAULT_CONTEXT = 2048
"""Tokens of context for each request when the configuration says nothing."""

OWN_CONTEXT_BATCH = 8192
"""Tokens in one physical batch of an embedding model whose context is its own (n_ctx 0), so not known yet."""

GROWTH_STEP = 1 << 20
"""Bytes of new resident memory that count as progress."""


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
        more = {"embeddings": True, "pooling": pooling(spec, model)} if spec.usecase == "embed" else {}
        settings = json.dumps({"model": str(model), "socket": str(sock), **options, **more})
        return [*elsewhere.command("modeld.worker.loaders.llama_server.xllama"), settings], "xllamacpp"
    raise LoadFailed(
        "no llama.cpp engine on this machine: put llama-server on PATH, "
        "name it in engines.llama_server.binary, "
        "or install the prebuilt one with: pip install 'modeld[gguf]'",
        code="no_engine",
        permanent=True,
    )


def pooling(spec: LoadSpec, model: Path) -> str | None:
    """Return how the model makes one vector of its tokens': as configured, else as its file says."""
    chosen: str | None = spec.options.get("pooling")
    return chosen or own_pooling(model)


def embedding_batch(options: dict[str, Any]) -> int:
    """Return how many tokens an embedding model must take at once: an input cannot be split.

    Whole inputs of the context's length must fit into a physical batch, or the engine fails on them.
    """
    context = int(options.get("n_ctx", DEFAULT_CONTEXT)) or OWN_CONTEXT_BATCH
    return max(int(options.get("n_batch") or 0), context)


def _flags(spec: LoadSpec, model: Path, sock: Path) -> list[str]:
    options = spec.options
    parallel = int(options.get("parallel") or 1)
    flags = ["-m", str(model), "--host", str(sock), "--jinja", "-np", str(parallel)]
    # 0 is "what the model was trained for", and goes through as it is.
    flags += ["-c", str(int(options.get("n_ctx", DEFAULT_CONTEXT)) * parallel)]
    for key, flag in (
        ("n_batch", "-b"),
        ("threads", "-t"),
        ("mmproj", "--mmproj"),
        ("cache_reuse", "--cache-reuse"),
        ("cache_ram_mib", "--cache-ram"),
    ):
        if options.get(key) is not None:
            flags += [flag, str(options[key])]
    # -1 is llama.cpp's own default: as many layers as fit.
    if options.get("n_gpu_layers", -1) != -1:
        flags += ["-ngl", str(options["n_gpu_layers"])]
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


class Engine:
    """A running llama.cpp server. Made by `start`; `socket` is where it answers."""

    def __init__(self, process: asyncio.subprocess.Process, socket: Path, name: str) -> None:
        self.socket = socket
        self.name = name
        self.died: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._process = process
        self._lines: deque[str] = deque(maxlen=200)
        self.last_sign = time.monotonic()
        self._stopping = False
        # These two live exactly as long as the process; `stop` awaits them.
        self._log = asyncio.ensure_future(self._read_log())
        self._exit = asyncio.ensure_future(self._wait())

    @classmethod
    async def start(cls, argv: list[str], sock: Path, name: str) -> Engine:
        """Start the process; it is loading when this returns."""
        process = await asyncio.create_subprocess_exec(
            *tied(argv),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
        )
        return cls(process, sock, name)

    @property
    def pid(self) -> int:
        """The engine's process id."""
        return self._process.pid

    def last_words(self) -> str:
        """Return the engine's last log lines, or a word that it said nothing."""
        return "\n".join(list(self._lines)[-LAST_WORDS:]) or "(the engine wrote nothing)"

    async def ready(self, probe: Callable[[], Any], report: Report, stall_s: float, size: int) -> None:
        """Wait until `probe()` is true. `size` is the model's in bytes, for the progress fraction.

        A log line or growing memory is progress; `stall_s` seconds without any, or the engine's end, raise
        LoadFailed with its last words.
        """
        resident = 0
        while not await probe():
            if self.died.done():
                raise LoadFailed(await self.died, permanent=self._process.returncode != -signal.SIGKILL)
            now = resident_bytes(self.pid)
            if now >= resident + GROWTH_STEP:
                resident = now
                self.last_sign = time.monotonic()
                report(f"loading {_mib(min(now, size))} of {_mib(size)}", min(now / max(size, 1), 0.99))
            if time.monotonic() - self.last_sign > stall_s:
                raise LoadFailed(
                    f"{self.name} made no progress for {stall_s:g} s while loading; its last words:\n"
                    + self.last_words()
                )
            await asyncio.sleep(POLL_S)

    async def stop(self) -> None:
        """End the process: SIGTERM, then SIGKILL after TERM_S seconds; returns when it is reaped."""
        self._stopping = True
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
            done, _ = await asyncio.wait({self._exit}, timeout=TERM_S)
            if not done:
                with contextlib.suppress(ProcessLookupError):
                    self._process.kill()
        await asyncio.wait({self._exit, self._log})

    async def _read_log(self) -> None:
        stream = self._process.stdout
        assert stream is not None
        while True:
            try:
                line = await stream.readline()
            except ValueError:  # a line over the limit; its start is lost, the stream goes on
                continue
            if not line:
                return
            text = line.decode("utf-8", "replace").rstrip()
            self._lines.append(text)
            self.last_sign = time.monotonic()
            print(text, flush=True)

    async def _wait(self) -> None:
        code = await self._process.wait()
        # A grandchild may hold the pipe open; the words that matter are there long before this limit.
        await asyncio.wait({self._log}, timeout=0.5)
        if not self.died.done():
            self.died.set_result(f"{self.name} {_exit_words(code)}; its last words:\n{self.last_words()}")


def _exit_words(code: int) -> str:
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was killed by signal {-code} ({name})"


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


def resident_bytes(pid: int) -> int:
    """Return a process's resident memory in bytes, 0 where the system does not tell cheaply."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0
