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
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, MutableMapping
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from aiohttp import web

import modeld
from modeld.admin.app import build_admin_app
from modeld.admin.listen import serve_admin
from modeld.admin.schemas import DaemonInfo, MemoryLimits
from modeld.clock import Clock, SystemClock
from modeld.config import paths
from modeld.config.diff import Wanted
from modeld.config.schema import Config
from modeld.config.values import NEVER
from modeld.control import Control, media_limits, restored, specs_of, starting_models
from modeld.control.files import ModelFiles
from modeld.engines.place import Place
from modeld.errors import ConfigError, ModeldError, StartupError
from modeld.gateway import routing
from modeld.gateway.app import GatewayRunner, build_app
from modeld.gateway.egress import Egress, Policy
from modeld.gateway.families import models, models_pull
from modeld.gateway.settings import GatewaySettings, MediaSettings
from modeld.hardware import host
from modeld.hardware.machine import Probe
from modeld.hardware.probe import system_probe
from modeld.ids import new_id
from modeld.jobs.app import Room
from modeld.jobs.batches.app import serving_jobs_and_batches
from modeld.jobs.files.limits import FileLimits
from modeld.jobs.limits import JobLimits
from modeld.jobs.mass.routes import DESCRIBE
from modeld.library import checksums
from modeld.library.estimate import estimate_file
from modeld.library.known import KnownFiles
from modeld.library.listing import Listing
from modeld.library.resolve import Resolver
from modeld.responses.app import add_routes as add_responses
from modeld.responses.background import Background
from modeld.responses.context import Context
from modeld.responses.mcp.servers import policy as mcp_policy
from modeld.responses.mcp.session import McpLimits
from modeld.responses.sealed import Seal
from modeld.service.lock import instance_lock
from modeld.service.notify import Notifier
from modeld.service.signals import StopSignals, stop_signals
from modeld.store.approvals import Approvals
from modeld.store.conversations import Conversations
from modeld.store.db import Database
from modeld.store.effective import EffectiveConfig, StoredModel
from modeld.store.footprints import Footprints
from modeld.store.responses import Responses
from modeld.supervisor import leftovers
from modeld.supervisor.capabilities import Capabilities, override_from
from modeld.supervisor.events import EventFeed
from modeld.supervisor.observation import Limits
from modeld.supervisor.pool import Pool
from modeld.supervisor.sizing import Sizing
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State
from modeld.telemetry.metrics import DeviceSample, Metrics

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
    config: Config,
    env: MutableMapping[str, str],
    *,
    base: Path,
    file: Path | None = None,
    resume: bool = False,
    front_end: FrontEnd,
) -> None:
    """Run the daemon until a signal stops it.

    `base` anchors relative model references: the folder of the configuration file `file` if there is one.
    With `resume` the models are those of the last effective configuration. Raises StartupError or ConfigError
    when it cannot start; models that do not load are states, not errors.
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
        database = await stack.enter_async_context(Database.open(state / "modeld.sqlite3", clock))
        effective = EffectiveConfig(database)
        wanted = await _starting(config, base, effective, resume=resume)
        capabilities = Capabilities(clock=clock, override=override_from(env), managed=Place(state).python)
        metrics = Metrics()
        cache = paths.cache_dir(config.cache_dir, env)
        resolver = Resolver(cache, base)
        pool = _pool(
            config,
            specs_of(wanted, config).values(),
            probe=system_probe(env),
            sizing=Sizing(estimate_file, Footprints(database)),
            resolver=resolver,
            engines=capabilities,
            metrics=metrics,
            clock=clock,
            runtime=runtime,
        )
        started = clock.monotonic()

        def info() -> DaemonInfo:
            up = clock.monotonic() - started
            given = MemoryLimits(config.memory.ram, config.memory.vram, config.memory.headroom)
            return DaemonInfo(modeld.__version__, os.getpid(), up, address, str(cache), given)

        gateway = build_app(pool, _gateway_settings(config), metrics, clock)
        files = ModelFiles(pool.specs, KnownFiles(resolver, Listing(cache)), resolver.pulls)
        gateway[models.FILES], gateway[DESCRIBE] = files.of, files.properties
        gateway[models.SUMS] = lambda entry: asyncio.to_thread(checksums.told, cache, entry)
        gateway[models_pull.WATCH] = files.watch
        metrics.watch_devices(lambda: _device_samples(pool))
        await stack.enter_async_context(pool)
        await stack.enter_async_context(_responses(config, state, database, pool, gateway, clock))
        jobs = await stack.enter_async_context(_jobs(config, state, database, pool, gateway, clock))
        control = await stack.enter_async_context(
            Control(
                pool,
                config=config,
                file=file,
                env=env,
                wanted=wanted,
                store=effective,
                loaders=capabilities,
                counted=metrics.changed,
            )
        )
        # A terminal that goes away ends a daemon without a file to reload, as it ends any other program.
        reload = None if file is None else lambda: control.reload("SIGHUP")
        signals = stack.enter_context(stop_signals(reload))
        admin = build_admin_app(pool, control, info, jobs.queue)
        await stack.enter_async_context(serve_admin(admin, paths.admin_socket(state)))
        site = await stack.enter_async_context(_serve_gateway(gateway, listener))
        notifier.ready(f"listening on {address}")
        _log.info("listening on %s", address)
        async with asyncio.TaskGroup() as group:
            shown = group.create_task(_show(front_end, Running(address, bool(config.api_keys), pool)))
            told = group.create_task(_tell_manager(notifier, address, pool))
            await signals.stop.wait()
            notifier.stopping(f"stopping after {signals.cause}")
            _log.info("stopping after %s; open requests get %g s", signals.cause, config.drain_timeout)
            shown.cancel()  # it would tell of models that stop, as if that were news
            await site.stop()  # nobody new; the connections there are go on
            await jobs.runner.stop()  # it goes on in the next life
            await _drain(pool, signals, config.drain_timeout)
            told.cancel()
    _log.info("stopped")


async def _starting(
    config: Config, base: Path, effective: EffectiveConfig, *, resume: bool
) -> tuple[Wanted, ...]:
    """Return the models to start with."""
    try:
        stored = await effective.load()
    except ModeldError as error:
        _log.warning("the last effective configuration cannot be read: %s", error)
        stored = None
    if resume:
        if stored is None:
            raise StartupError(
                "nothing to serve: there is no configuration from an earlier run in this state directory; "
                "give --config FILE, or try --demo"
            )
        return tuple(_readable(stored, config))
    wanted, notes = starting_models(config, base, stored)
    for note in notes:
        _log.warning("%s", note)
    return wanted


def _readable(stored: Iterable[StoredModel], config: Config) -> Iterator[Wanted]:
    """Restore what this version can read of the last models; the others are named in the log."""
    for entry in stored:
        try:
            yield restored(entry, config)
        except ModeldError as error:
            _log.warning("%s cannot be served again: %s", entry.key, error)


def _pool(
    config: Config,
    specs: Iterable[ModelSpec],
    *,
    probe: Probe,
    sizing: Sizing,
    resolver: Resolver,
    engines: Capabilities,
    metrics: Metrics,
    clock: Clock,
    runtime: Path,
) -> Pool:
    return Pool(
        specs,
        resolve=resolver.resolve,
        sizing=sizing,
        probe=probe,
        engines=engines,
        observer=metrics,
        feed=EventFeed(clock),
        clock=clock,
        runtime_dir=runtime,
        drain_s=config.drain_timeout,
        limits=Limits(config.memory.ram, config.memory.vram, config.memory.headroom),
        cores=host.cores(),
        queue_timeout_s=config.queue_timeout,
    )


def _device_samples(pool: Pool) -> list[DeviceSample]:
    """Return what a scrape reads of the devices: the last look at them."""
    usable = {space.id: space.usable for space in pool.memory.spaces()}
    return [
        DeviceSample(
            device.id,
            device.total,
            usable[device.id],
            sum(pool.memory.held(device.id).values()),
            device.free,
        )
        for device in pool.memory.machine.devices
    ]


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


def _gateway_settings(config: Config) -> GatewaySettings:
    return GatewaySettings(
        api_keys=tuple(key.get_secret_value() for key in config.api_keys),
        allowed_hosts=config.allowed_hosts,
        cors_origins=config.cors_origins,
        loopback=config.listen.is_loopback,
        max_request_body=config.max_request_body,
        keepalive_interval=config.keepalive_interval,
        request_timeout=config.request_timeout,
        media=MediaSettings(
            limits=media_limits(config),
            speech_characters=config.media.speech_characters,
            images=config.media.images,
            image_bytes=config.media.image_bytes,
            fetch=config.media.fetch,
            fetch_hosts=config.media.fetch_hosts,
        ),
    )


@asynccontextmanager
async def _responses(
    config: Config, state: Path, database: Database, pool: Pool, gateway: web.Application, clock: Clock
) -> AsyncIterator[None]:
    """Add the Responses API to the gateway; what runs in the background ends with the block."""
    seal = Seal(state / "seal.key")
    seal.check()
    life = new_id("life_")
    media = config.media
    servers = mcp_policy(config.mcp.allowed_hosts, require_https=config.mcp.require_https)
    context = Context(
        pool=pool,
        settings=gateway[routing.KEY].settings,
        responses=Responses(database, life),
        conversations=Conversations(database),
        approvals=Approvals(database),
        seal=seal,
        pictures=Egress(Policy(media.fetch, media.fetch_hosts)),
        mcp=Egress(servers),
        mcp_policy=servers,
        mcp_limits=McpLimits(
            list_s=config.mcp.list_timeout,
            call_s=config.mcp.call_timeout,
            result_bytes=config.mcp.result_bytes,
        ),
        clock=clock,
        keep_s=None if config.responses.keep == NEVER else config.responses.keep,
        replay_s=config.responses.replay,
        most_background=config.responses.background,
        metrics=gateway[routing.KEY].metrics,
    )
    async with Background(context) as background:
        add_responses(gateway, context, background)
        yield


def _jobs(
    config: Config, state: Path, database: Database, pool: Pool, gateway: web.Application, clock: Clock
) -> AbstractAsyncContextManager[Room]:
    """Add jobs, files and batches to the gateway; what is at work at the end of the block is given back."""
    limits = JobLimits(
        keep_s=_seconds(config.jobs.keep),
        patience_s=_seconds(config.jobs.patience),
        most=config.jobs.unfinished,
        wait_s=config.jobs.wait,
    )
    files = FileLimits(
        largest=config.files.largest, together=config.files.together, keep_s=_seconds(config.files.keep)
    )
    return serving_jobs_and_batches(
        gateway, database, new_id("life_"), pool, limits, files, state / "files", clock
    )


def _seconds(duration: float) -> float | None:
    return None if duration == NEVER else duration


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
