"""The configuration file: settings, and the models by gateway. Every field says what it means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from modeld.config.model import Model as Model
from modeld.config.values import (
    NEVER,
    AnchoredPath,
    Duration,
    Listen,
    Number,
    PlainText,
    Program,
    Section,
    Size,
    Whole,
    Word,
    mistake,
)

LARGEST_BODY = 64 * 1024**2
"""Largest `max_request_body` in bytes: what still fits into one frame of the worker link."""

RESERVED_SLUGS = frozenset(
    {"v1", "health", "readyz", "metrics", "docs", "admin", "mass-llama-cpp", "mass-llama-cpp-v1"}
)
"""First steps of paths that are the daemon's own, or would be taken for them: no gateway can have them."""


def _api_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not text or not text.isascii() or not text.isprintable() or " " in text:
        raise mistake("an API key is printable ASCII without spaces, and not empty")
    return key


def _allowed_host(name: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._:\[\]-]+", name):
        raise mistake("expected a host name or address as it stands in a Host header, e.g. box.lan")
    return name


def _origin(origin: str) -> str:
    if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^\s/?#@]+", origin):
        raise mistake("expected * or an origin without a path, e.g. https://app.example:8443")
    return origin


class Log(Section):
    """How the daemon logs."""

    format: Annotated[Literal["console", "json"], Word] = Field(
        default="console", description="Form of a log line."
    )
    level: Annotated[Literal["debug", "info", "warning", "error"], Word] = Field(
        default="info", description="Least weight that is logged."
    )


_PYTHON = (
    "Python interpreter for this loader's workers: a path, or a name on PATH. "
    "It needs the engine and msgspec. Unset is the daemon's own, or the environment that "
    "`modeld engines install` has made."
)


class Engine(Section):
    """Where a loader's engine is."""

    python: Program | None = Field(default=None, description=_PYTHON)


class LlamaServerEngine(Engine):
    """The llama-server program, and the interpreter beside it."""

    binary: Program | None = Field(
        default=None,
        description="llama-server program for all models: a path, or a name on PATH. "
        "Unset looks for `llama-server` on PATH, then in the xllamacpp package.",
    )


class Engines(Section):
    """Engines, for all models that use them."""

    llama_server: LlamaServerEngine = Field(
        default=LlamaServerEngine(), description="The llama-server program."
    )
    vllm: Engine = Field(default=Engine(), description="vLLM.")
    diffusers: Engine = Field(default=Engine(), description="diffusers.")
    stable_diffusion_cpp: Engine = Field(default=Engine(), description="stable-diffusion.cpp.")
    whispercpp: Engine = Field(default=Engine(), description="whisper.cpp.")
    sherpa_onnx: Engine = Field(default=Engine(), description="sherpa-onnx.")

    def named(self) -> dict[str, str]:
        """Return the interpreters that are named here, by loader."""
        return {loader: str(engine.python) for loader, engine in self if engine.python is not None}

    def python_of(self, loader: str) -> Path | None:
        """Return the interpreter that is named for a loader's workers."""
        engine: Engine | None = getattr(self, loader, None)
        return None if engine is None else engine.python


class Memory(Section):
    """What models may take of the machine's memory."""

    ram: Size | None = Field(
        default=None, description="RAM that models may take of this machine in all; unset is all there is."
    )
    vram: Size | None = Field(
        default=None, description="Memory that models may take of each GPU; unset is all there is."
    )
    headroom: Number = Field(default=0.1, ge=0, le=0.9, description="Share of each memory that is left free.")


class Media(Section):
    """The most that callers' pictures and recordings may be, and where pictures are fetched from."""

    audio_seconds: Number = Field(
        default=14_400.0, gt=0, description="Longest recording that is transcribed, in seconds."
    )
    speech_characters: Whole = Field(default=4096, ge=1, description="Longest text that is spoken.")
    images: Whole = Field(default=16, ge=0, description="Pictures in one request to a model that sees.")
    image_bytes: Size = Field(
        default=20 * 1024**2, gt=0, description="Largest picture file, sent inside a request or fetched."
    )
    image_pixels: Whole = Field(
        default=16 * 1024**2, ge=64, description="Pixels of a picture, taken in or drawn."
    )
    image_side: Whole = Field(
        default=4096, ge=8, description="Pixels along the longer side of a picture, taken in or drawn."
    )
    fetch: Annotated[Literal["public", "listed", "none"], Word] = Field(
        default="public",
        description="From where pictures that callers give as http URLs are fetched: public addresses and "
        "the hosts of fetch_hosts, only those hosts, or nowhere.",
    )
    fetch_hosts: tuple[Annotated[str, AfterValidator(_allowed_host)], ...] = Field(
        default=(), description="Hosts to fetch from although their addresses are private."
    )


class Responses(Section):
    """The Responses API: what is kept of it, and for how long."""

    keep: Duration = Field(
        default=30 * 86400.0,
        description="How long a stored response can be fetched and continued: seconds, 12h, 30d or never "
        "(for ever). Conversations stay until they are deleted.",
    )
    replay: Duration = Field(
        default=600.0, description="How long a background stream can be read again after its end."
    )
    background: Whole = Field(
        default=1000, ge=0, description="Background responses that may be unfinished; more get 429."
    )


class Jobs(Section):
    """Work that is submitted and fetched later: how much of it, and for how long."""

    keep: Duration = Field(
        default=86400.0,
        description="How long a job that is over can be fetched: seconds, 12h, 7d or never (for ever).",
    )
    patience: Duration = Field(
        default=7 * 86400.0,
        description="How long a job may take from its submission, waiting included; then it is an error.",
    )
    unfinished: Whole = Field(default=100_000, ge=0, description="Jobs that may be unfinished; more get 429.")
    wait: Number = Field(
        default=60.0, ge=0, description="Seconds that one request may wait for a job's end; then it gets 202."
    )


class Files(Section):
    """Files that callers upload and batches write: how much of them, and for how long."""

    largest: Size = Field(default=512 * 1024**2, gt=0, description="Largest file that can be uploaded.")
    together: Size = Field(
        default=10 * 1024**3, gt=0, description="Bytes that all files of one caller may have."
    )
    keep: Duration = Field(
        default=30 * 86400.0,
        description="How long a batch's input, its output and the batch itself are kept: seconds, 12h, 30d "
        "or never (for ever). Other files stay until they are deleted.",
    )


class Mcp(Section):
    """MCP servers that callers of the Responses API name, and what modeld lets them do."""

    allowed_hosts: tuple[Annotated[str, AfterValidator(_allowed_host)], ...] = Field(
        default=(),
        description="Hosts whose MCP servers may be asked; none given lets all be asked, but never a "
        "cloud's metadata.",
    )
    require_https: bool = Field(default=False, description="Ask MCP servers over https only.")
    list_timeout: Number = Field(
        default=30.0, gt=0, description="Seconds for connecting to a server and listing its tools."
    )
    call_timeout: Number = Field(default=60.0, gt=0, description="Seconds for one call of a tool.")
    result_bytes: Size = Field(
        default=1024**2, gt=0, description="Largest answer of a tool; what is over it is an error."
    )


class Gateway(Section):
    """A further set of models with a route of its own."""

    name: Annotated[PlainText, Field(max_length=100)] = Field(
        description="Its name; the route is /NAME/v1, in lower case, with - for all but letters and digits."
    )
    models: tuple[Model, ...] = Field(
        default=(), description="Its models, as under the top level's `models`."
    )


def slug(name: str) -> str:
    """Return a gateway's name as it stands in its route: lower case, `-` for all but [a-z0-9]; may be ""."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


class Config(Section):
    """A whole configuration file. An empty one is valid."""

    listen: Listen = Field(
        default=Listen(), description='Address of the API, also as text: "127.0.0.1:8000", "[::1]:8000".'
    )
    api_keys: tuple[Annotated[SecretStr, AfterValidator(_api_key)], ...] = Field(
        default=(), description="Keys that callers must present; none leaves the API open to this machine."
    )
    allowed_hosts: tuple[Annotated[str, AfterValidator(_allowed_host)], ...] = Field(
        default=(), description="More names by which callers may address the API (Host header)."
    )
    cors_origins: tuple[Annotated[str, AfterValidator(_origin)], ...] = Field(
        default=(), description="Web origins that may call the API from a browser; * is all."
    )
    state_dir: AnchoredPath | None = Field(
        default=None,
        description="Directory for state and the admin socket; unset follows the system's conventions.",
    )
    cache_dir: AnchoredPath | None = Field(
        default=None, description="Directory for fetched models; unset follows the system's conventions."
    )
    allow_fake: bool = Field(default=False, description="Allow models with the loader `fake`.")
    max_request_body: Size = Field(
        default=50 * 1024**2, gt=0, le=LARGEST_BODY, description="Largest request body; at most 64MiB."
    )
    max_queue: Whole = Field(
        default=128, ge=0, description="Requests that may wait for one model; more get 429."
    )
    drain_timeout: Number = Field(
        default=30.0, ge=0, description="Seconds that open requests get when the daemon stops."
    )
    keepalive_interval: Number = Field(
        default=10.0, gt=0, description="Seconds of silence on a stream before a comment keeps it alive."
    )
    request_timeout: Number | None = Field(
        default=None, gt=0, description="Seconds one request may take; unset is no limit."
    )
    queue_timeout: Number | None = Field(
        default=None,
        gt=0,
        description="Seconds a request may wait for a model before it gets 503; unset is no limit.",
    )
    keep_alive: Duration = Field(
        default=NEVER,
        description="How long a model stays loaded without a request, where it says nothing itself: "
        "seconds, 10m, 1h30m, 0 or never.",
    )
    replace_strategy: Annotated[Literal["blue_green", "stop_start"], Word] = Field(
        default="blue_green",
        description="How a changed model is replaced: the new one is up before the old one goes "
        "(when both fit), or after.",
    )
    watch: bool = Field(default=False, description="Read this file again whenever it changes.")
    memory: Memory = Field(default=Memory(), description="What models may take of the machine's memory.")
    media: Media = Field(default=Media(), description="Limits of pictures, recordings and speech.")
    responses: Responses = Field(
        default=Responses(), description="What is kept of the Responses API, and for how long."
    )
    jobs: Jobs = Field(default=Jobs(), description="Limits of work that is submitted and fetched later.")
    files: Files = Field(default=Files(), description="Limits of callers' files and of what batches write.")
    mcp: Mcp = Field(default=Mcp(), description="Limits of the MCP servers that callers name.")
    log: Log = Field(default=Log(), description="How the daemon logs.")
    engines: Engines = Field(default=Engines(), description="Engines, for all models that use them.")
    models: tuple[Model, ...] = Field(default=(), description="The models of the default gateway, at /v1.")
    gateways: tuple[Gateway, ...] = Field(
        default=(), description="More gateways, each with its own models and route."
    )

    @model_validator(mode="after")
    def _together(self) -> Config:
        routes: dict[str, int] = {}
        for index, gateway in enumerate(self.gateways):
            route, field = slug(gateway.name), f"gateways.{index}.name"
            if not route:
                raise mistake("expected a name with a letter a-z or a digit in it, for the route", field)
            if route in RESERVED_SLUGS:
                raise mistake(f"the route /{route} is the daemon's own; choose another name", field)
            if route in routes:
                other = f"gateways[{routes[route]}]"
                raise mistake(f"the route /{route} is taken by {other}; choose another name", field)
            routes[route] = index
        self._model_names(self.models, "models")
        for index, gateway in enumerate(self.gateways):
            self._model_names(gateway.models, f"gateways.{index}.models")
        self._keys_are_unique()
        return self

    def _model_names(self, models: tuple[Model, ...], field: str) -> None:
        """Check what holds within one gateway."""
        taken: dict[str, int] = {}
        for index, model in enumerate(models):
            if model.loader == "fake" and not self.allow_fake:
                raise mistake(
                    "the loader fake is a stand-in for tests; set allow_fake: true to use it",
                    f"{field}.{index}.loader",
                )
            names = [(model.name, "name")]
            names += [(alias, f"aliases.{place}") for place, alias in enumerate(model.aliases)]
            for name, below in names:
                if name in taken:
                    other = taken[name]
                    whose = (
                        "this model"
                        if other == index
                        else f"the model {models[other].name!r} ({_shown(field, other)})"
                    )
                    what = "the name" if below == "name" else f"the alias of {model.name!r},"
                    raise mistake(
                        f"{what} {name!r} is taken by {whose}; names and aliases are unique in a gateway",
                        f"{field}.{index}.{below}",
                    )
                taken[name] = index

    def _keys_are_unique(self) -> None:
        # Only a "/" in a default gateway's name can be mistaken for a gateway.
        own = {model.name: index for index, model in enumerate(self.models)}
        for index, gateway in enumerate(self.gateways):
            for place, model in enumerate(gateway.models):
                key = f"{slug(gateway.name)}/{model.name}"
                if key in own:
                    raise mistake(
                        f"the model {model.name!r} of the gateway {gateway.name!r} is known as {key!r} to "
                        f"modeld, which is the name of models[{own[key]}]; rename one of them",
                        f"gateways.{index}.models.{place}.name",
                    )

    def keyed_models(self) -> Iterator[tuple[str, str, Model]]:
        """Give (key, gateway's slug, model) of every model, in the file's order.

        The key is unique in the file: the model's name, outside the default gateway (slug "") "slug/name".
        """
        for model in self.models:
            yield model.name, "", model
        for gateway in self.gateways:
            route = slug(gateway.name)
            for model in gateway.models:
                yield f"{route}/{model.name}", route, model

    def keep_alive_for(self, model: Model) -> float | None:
        """Return the seconds after which `model` is unloaded when idle; None is never.

        `pin` comes before the model's own `keep_alive`, and that before the file's.
        """
        seconds = self.keep_alive if model.keep_alive is None else model.keep_alive
        return None if model.pin or seconds == NEVER else seconds

    def options_for(self, model: Model) -> dict[str, Any]:
        """Return `model.options()` with what `engines` says filled in where the model says nothing.

        `python` is among them only when an interpreter is named for the model or for its loader.
        """
        options = model.options()
        if model.loader == "llama_server" and options["binary"] is None:
            binary: Path | None = self.engines.llama_server.binary
            options["binary"] = None if binary is None else str(binary)
        python = model.python or self.engines.python_of(model.loader)
        if python is not None:
            options["python"] = str(python)
        return options


def _shown(field: str, index: int) -> str:
    return re.sub(r"\.(\d+)", r"[\1]", f"{field}.{index}")
