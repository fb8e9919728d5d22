"""The composition root: everything is built here, in one nest of `with` blocks, and taken down in reverse.

The order matters. The lock comes first, so that two daemons never share a state directory; the port is bound
before any worker is started, so that a taken port costs nothing; the address answers before any model is
loaded, so that a client sees states instead of refused connections.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import shutil
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, MutableMapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

import modeld
from modeld.admin.app import build_admin_app, serve_admin
from modeld.admin.schemas import DaemonInfo
from modeld.clock import SystemClock
from modeld.config import paths
from modeld.config.schema import Config, Model
from modeld.errors import ConfigError, StartupError
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.settings import GatewaySettings
from modeld.hardware import host
from modeld.library.resolve import Resolver
from modeld.service.lock import instance_lock
from modeld.service.notify import Notifier
from modeld.service.signals import StopSignals, stop_signals
from modeld.supervisor import leftovers
from modeld.supervisor.events import EventFeed
from modeld.supervisor.pool import Pool
from modeld.supervisor.spec import ModelSpec, Resources
from modeld.supervisor.states import State
from modeld.telemetry.metrics import Metrics

_log = logging.getLogger("modeld")

BACKLOG = 1024
"""Connections the kernel may hold for us while the event loop is busy."""

LAST_WRITES_S = 2.0
"""Seconds that answers get to leave after the models have stopped."""


@dataclass(frozen=True)
class Running:
    """What a front end may look at while the daemon runs."""

    address: str
    keyed: bool
    pool: Pool


FrontEnd = Callable[[Running], Awaitable[None]]
"""Shows the daemon's progress to somebody; runs beside it and is cancelled at its end."""


async def run(
    config: Config, env: MutableMapping[str, str], *, base: Path | None, front_end: FrontEnd
) -> None:
    """Run the daemon until a signal stops it.

    `base` anchors relative model references (the configuration file's folder). Raises StartupError or
    ConfigError when it cannot start; models that do not load are states, not errors.
    """
    check_exposure(config)
    state = paths.state_dir(config.state_dir, env)
    clock = SystemClock()
    notifier = Notifier.from_environment(env)
    async with AsyncExitStack() as stack:
        stack.enter_context(instance_lock(state))
        listener = stack.enter_context(bind(config.listen.host, config.listen.port))
        address = _address(listener)
        runtime = _fresh_runtime_dir(paths.runtime_dir(state))
        await leftovers.reap(runtime / "workers")
        signals = stack.enter_context(stop_signals())
        feed = EventFeed(clock)
        resolver = Resolver(paths.cache_dir(config.cache_dir, env), base)
        pool = Pool(
            (_spec(config, model) for model in config.models),
            resolve=resolver.resolve,
            feed=feed,
            clock=clock,
            runtime_dir=runtime,
            capacity=host.total_memory(),
            drain_s=config.drain_timeout,
        )
        started = clock.monotonic()

        def info() -> DaemonInfo:
            return DaemonInfo(modeld.__version__, os.getpid(), clock.monotonic() - started, address)

        gateway = build_app(pool, _gateway_settings(config), Metrics(), clock)
        await stack.enter_async_context(pool)
        await stack.enter_async_context(serve_admin(build_admin_app(pool, info), paths.admin_socket(state)))
        site = await stack.enter_async_context(_serve_gateway(gateway, listener))
        notifier.ready(f"listening on {address}")
        _log.info("listening on %s", address)
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(_show(front_end, Running(address, bool(config.api_keys), pool)))
            told = group.create_task(_tell_manager(notifier, address, pool))
            await signals.stop.wait()
            notifier.stopping(f"stopping after {signals.cause}")
            _log.info("stopping after %s; open requests get %g s", signals.cause, config.drain_timeout)
            await site.stop()  # nobody new; the connections there are go on
            await _drain(pool, signals, config.drain_timeout)
            shown.cancel()
            told.cancel()
    _log.info("stopped")


def check_exposure(config: Config) -> None:
    """Raise ConfigError when the API would be open to other machines without a key."""
    if not config.listen.is_loopback and not config.api_keys:
        raise ConfigError(
            f"listen: {config.listen.host} can be reached from other machines, and there are no API keys: "
            "set api_keys (or MODELD_API_KEYS), or listen on 127.0.0.1"
        )


def bind(name: str, port: int) -> socket.socket:
    """Return a listening TCP socket. Raises StartupError, in one line, with what is in the way."""
    try:
        family, kind, proto, _, where = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise StartupError(f"cannot listen on {name}: {error.strerror or error}") from error
    sock = socket.socket(family, kind, proto)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(where)
        sock.listen(BACKLOG)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise StartupError(
                f"port {port} on {name} is taken by another program; stop that one, "
                "or choose another port with --port or listen:"
            ) from error
        raise StartupError(f"cannot listen on {name}:{port}: {error.strerror}") from error
    return sock


def _address(listener: socket.socket) -> str:
    name, port = listener.getsockname()[:2]
    return f"http://[{name}]:{port}" if ":" in name else f"http://{name}:{port}"


def _fresh_runtime_dir(runtime: Path) -> Path:
    """Return the directory for this life's workers, emptied of an earlier life's but for its records."""
    try:
        runtime.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = runtime.stat()
        if found.st_uid != os.geteuid() or found.st_mode & 0o077:
            raise StartupError(
                f"{runtime} must belong to uid {os.geteuid()} alone (mode 0700); it has uid {found.st_uid}, "
                f"mode {found.st_mode & 0o777:04o}: remove it"
            )
        for left in runtime.iterdir():
            if left.name != "workers":
                shutil.rmtree(left, ignore_errors=True)
        (runtime / "workers").mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise StartupError(f"cannot use {runtime} for the workers' sockets: {error.strerror}") from error
    return runtime


def _spec(config: Config, model: Model) -> ModelSpec:
    sizes = [size for size in (model.ram, model.vram) if size is not None]
    return ModelSpec(
        name=model.name,
        usecase=model.usecase,
        loader=model.loader,
        reference=None if model.loader == "fake" else model.model,
        options=config.options_for(model),
        template_kwargs=model.chat_template_kwargs,
        resources=Resources(ram=sum(sizes) if sizes else None),
        start_timeout_s=model.start_timeout,
        max_queue=config.max_queue,
        max_ongoing=model.max_ongoing_requests,
    )


def _gateway_settings(config: Config) -> GatewaySettings:
    return GatewaySettings(
        api_keys=tuple(key.get_secret_value() for key in config.api_keys),
        allowed_hosts=config.allowed_hosts,
        cors_origins=config.cors_origins,
        loopback=config.listen.is_loopback,
        max_request_body=config.max_request_body,
        keepalive_interval=config.keepalive_interval,
        request_timeout=config.request_timeout,
    )


@asynccontextmanager
async def _serve_gateway(app: web.Application, listener: socket.socket) -> AsyncIterator[web.SockSite]:
    runner = GatewayRunner(app, shutdown_timeout=LAST_WRITES_S)
    await runner.setup()
    try:
        site = web.SockSite(runner, listener, backlog=BACKLOG)
        await site.start()
        yield site
    finally:
        await runner.cleanup()


async def _show(front_end: FrontEnd, running: Running) -> None:
    """Run the front end; its reader's leaving (a closed pipe or terminal) is no reason to stop serving."""
    try:
        await front_end(running)
    except OSError as error:
        _log.info("nobody reads standard output any more: %s", error)


async def _tell_manager(notifier: Notifier, address: str, pool: Pool) -> None:
    """Keep the service manager's status line true."""
    with pool.feed.subscribe() as events:
        async for event in events:
            if event.kind == "state":
                statuses = pool.statuses()
                ready = sum(status.state is State.READY for status in statuses)
                notifier.status(f"listening on {address}; {ready} of {len(statuses)} models ready")


async def _drain(pool: Pool, signals: StopSignals, drain_s: float) -> None:
    """Stop the models; a second signal cuts the waiting short."""
    async with asyncio.TaskGroup() as group:
        stopping = group.create_task(pool.stop(drain_s))
        forced = group.create_task(signals.force.wait())
        either: set[asyncio.Task[Any]] = {stopping, forced}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if not stopping.done():
            _log.warning("a second signal: stopping at once")
            pool.abandon()
            await stopping
        forced.cancel()
