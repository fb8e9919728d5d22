"""From a request's path, model name and headers to a model that can serve it; the handlers' shared parts.

Every route under /v1 answers twice: at /v1 for the default gateway, and at /NAME/v1 for the gateway of that
name. Gateways and models come and go in a running daemon, so the path only carries the name, and which ones
there are is asked at each request.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import TypeAlias

from aiohttp import web

from modeld.clock import Clock
from modeld.errors import BadRequest, NotFound
from modeld.gateway import exchange as exchanges
from modeld.gateway import keep_alive
from modeld.gateway.exchange import Exchange
from modeld.gateway.ports import Pool, Stream
from modeld.gateway.settings import GatewaySettings
from modeld.protocol.tasks import Task
from modeld.supervisor.admission import Priority
from modeld.supervisor.states import Status
from modeld.telemetry.metrics import Metrics

SEGMENT = "/{gateway}"
"""How the path of a route at a named gateway begins."""

PRIORITY = "X-Modeld-Priority"
"""Header that says whether somebody waits for the answer: "interactive" (the default) or "background"."""

LONGEST_COMPARED = 200
MOST_COMPARED = 100
"""Longer names, and more of them, are not searched for one that is spelled nearly so: 60 µs each."""

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class Gateway:
    """What every handler needs."""

    pool: Pool
    settings: GatewaySettings
    metrics: Metrics
    clock: Clock
    started: float
    """Monotonic time of the daemon's start."""

    created: int
    """The same in UTC seconds."""


KEY = web.AppKey("gateway", Gateway)
"""Where the application carries it."""


def add_get(app: web.Application, path: str, handler: Handler) -> None:
    """Register a GET route under /v1 at all gateways."""
    app.router.add_get(path, handler)
    app.router.add_get(SEGMENT + path, handler)


def add_delete(app: web.Application, path: str, handler: Handler) -> None:
    """Register a DELETE route under /v1 at all gateways."""
    app.router.add_delete(path, handler)
    app.router.add_delete(SEGMENT + path, handler)


def add_post(
    app: web.Application,
    path: str,
    handler: Handler,
    expect_handler: Callable[[web.Request], Awaitable[web.StreamResponse | None]],
) -> None:
    """Register a POST route under /v1 at all gateways."""
    app.router.add_post(path, handler, expect_handler=expect_handler)
    app.router.add_post(SEGMENT + path, handler, expect_handler=expect_handler)


def gateway_name(request: web.Request, pool: Pool) -> str:
    """Return the name of the gateway that a request is for, "" for the default one. Raises NotFound."""
    name = request.match_info.get("gateway", "")
    if name and name not in (known := pool.gateways()):
        raise NotFound(
            f"there is no gateway {name[:200]!r} here; "
            f"there is the default one at /v1{''.join(f', {other!r} at {base(other)}' for other in known)}",
            code="gateway_not_found",
        )
    return name


def flag(request: web.Request, name: str) -> bool:
    """Return a parameter of the query that is 0 (the default) or 1. Raises BadRequest."""
    value = request.query.get(name, "0")
    if value not in ("0", "1"):
        raise BadRequest(f"{name} is 0 or 1, not {value[:40]!r}", code="invalid_value", param=name)
    return value == "1"


def base(gateway: str) -> str:
    """Return the path under which a gateway's routes begin."""
    return f"/{gateway}/v1" if gateway else "/v1"


def find(pool: Pool, gateway: str, name: str, *, param: str | None = "model") -> Status:
    """Return the snapshot of a gateway's model, by its served name or an alias.

    Names are compared exactly: upper and lower case are different. What nearly fits is named in the error,
    and never served in its place. Raises NotFound with OpenAI's code.
    """
    status = pool.find(gateway, name)
    if status is None:
        raise NotFound(
            f"the model {name[:200]!r} does not exist{_hint(pool, gateway, name)}; "
            f"GET {base(gateway)}/models lists those that do",
            code="model_not_found",
            param=param,
        )
    return status


def _hint(pool: Pool, gateway: str, name: str) -> str:
    """Return what a caller who got a name wrong may have meant, "" when nothing is near."""
    for other in ("", *pool.gateways()):
        if other != gateway and pool.find(other, name) is not None:
            where = f"at the gateway {gateway!r}" if gateway else "at the default gateway"
            return f" {where}, but at {base(other)}"
    if len(name) > LONGEST_COMPARED:
        return ""
    names: dict[str, str] = {}
    for status in pool.statuses():
        if status.gateway == gateway:
            for known in (status.served_name, *status.aliases):
                names.setdefault(_folded(known), known)
    asked = _folded(name)
    if asked not in names:
        near = difflib.get_close_matches(asked, list(names)[:MOST_COMPARED], n=1, cutoff=0.75)
        return f" (did you mean {names[near[0]]!r}?)" if near else ""
    rule = " upper and lower case count" if names[asked].casefold() == name.casefold() else ""
    return f" (did you mean {names[asked]!r}?{rule})"


def _folded(name: str) -> str:
    """Return a name without what people get wrong: case and punctuation."""
    return re.sub(r"[\W_]+", "", name[:LONGEST_COMPARED]).casefold()


def resolve(request: web.Request, name: str, usecase: str, exchange: Exchange) -> Status:
    """Return the snapshot of a model that serves this use at the request's gateway.

    Raises NotFound, BadRequest.
    """
    pool = request.app[KEY].pool
    status = find(pool, gateway_name(request, pool), name)
    exchange.model = status.name
    if status.usecase != usecase:
        raise wrong_use(name, status)
    return status


_USES = {
    "generate": "it writes text: POST {base}/chat/completions or {base}/completions",
    "embed": "it makes vectors or scores: POST {base}/embeddings or {base}/rerank",
    "transcription": "it writes down speech: POST {base}/audio/transcriptions",
    "translation": "it writes down speech in English: POST {base}/audio/translations",
    "tts": "it speaks: POST {base}/audio/speech",
    "image": "it draws: POST {base}/images/generations",
}
"""By usecase: what a model of it is asked for, and where."""


def wrong_use(name: str, status: Status) -> BadRequest:
    """Return the error of a call to a model that is for something else; it names what the model can do."""
    use = _USES[status.usecase].format(base=base(status.gateway))
    return BadRequest(
        f"the model {name[:200]!r} cannot do this: {use}", code="unsupported_task", param="model"
    )


def opening(
    request: web.Request, status: Status, task: Task, keep: float | str | None
) -> AbstractAsyncContextManager[Stream]:
    """Return the call of a model for a request: under its identity, its priority and its own keep-alive.

    `keep` is the body's `keep_alive` field. Raises BadRequest for a priority or keep-alive that is none.
    """
    return request.app[KEY].pool.open(
        status.name,
        task,
        request[exchanges.KEY].identity,
        priority=priority(request),
        keep_alive=keep_alive.seconds(keep),
    )


def priority(request: web.Request) -> Priority:
    """Return how urgent a request says it is. Raises BadRequest."""
    word = request.headers.get(PRIORITY)
    if word is None:
        return Priority.INTERACTIVE
    found = _PRIORITIES.get(word.strip().lower())
    if found is None:
        raise BadRequest(
            f"invalid value for the header {PRIORITY}: {word[:40]!r}; it is interactive or background",
            code="invalid_value",
            param=PRIORITY,
        )
    return found


def sees(status: Status) -> bool | None:
    """Say whether a model takes images, None when that is not known before it is loaded."""
    return None if status.facts is None else "vision" in status.facts.capabilities
