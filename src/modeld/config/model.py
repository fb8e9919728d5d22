"""One model of the configuration. Every field says what it means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from modeld.config.engines import (
    AutoscalingConfig,
    DiffusersConfig,
    FakeConfig,
    LlamaServerConfig,
    StableDiffusionCppConfig,
    VllmEngineKwargs,
    WhispercppConfig,
)
from modeld.config.ray import DEPLOYMENT_OPTIONS
from modeld.config.values import (
    NEVER,
    Duration,
    FreeForm,
    Number,
    PlainText,
    Program,
    Section,
    Size,
    Whole,
    Word,
    mistake,
)

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

_EMPTY_BLOCKS: dict[str, Section] = {
    "vllm": VllmEngineKwargs(),
    "diffusers": DiffusersConfig(),
    "llama_server": LlamaServerConfig(),
    "stable_diffusion_cpp": StableDiffusionCppConfig(),
    "whispercpp": WhispercppConfig(),
    "fake": FakeConfig(),
}

IMAGE_LOADERS = ("diffusers", "stable_diffusion_cpp")
"""Loaders that only make images: `usecase` may be left out."""

Name = Annotated[PlainText, Field(max_length=200)]


class Model(Section):
    """One model."""

    ignored: ClassVar[Mapping[str, str]] = DEPLOYMENT_OPTIONS

    name: Name = Field(description="Name that callers ask for; unique in its gateway, aliases included.")
    model: PlainText = Field(
        description="What to load: a path, `repo`, `repo:glob`, `pypi:package==version/path/in/wheel`, or "
        "`demo:name` for a model of the demo."
    )
    usecase: Usecase = Field(description="What the model is for; the image loaders may leave it out.")
    loader: LoaderName = Field(description="Engine that runs it.")
    aliases: tuple[Name, ...] = Field(default=(), description="More names that callers may ask for.")
    python: Program | None = Field(
        default=None,
        description="Python interpreter for its workers, in the place of the loader's under `engines`.",
    )
    load: Annotated[Literal["eager", "on_demand"], Word] = Field(
        default="eager", description="Loaded when the daemon starts, or when the first request comes."
    )
    keep_alive: Duration | None = Field(
        default=None,
        description="How long it stays loaded without a request: seconds, 10m, 1h30m, 0 (unloaded at once) "
        "or never (not unloaded for being idle). Unset is the top level's.",
    )
    pin: bool = Field(default=False, description="Never unload it, neither for being idle nor for another.")
    priority: Whole = Field(
        default=0,
        ge=-100,
        le=100,
        description="Where models compete for memory, the higher goes first and is unloaded last.",
    )
    num_gpus: Number | None = Field(
        default=None,
        ge=0,
        description="GPUs: a share of one below 1, else a whole number; 0 keeps it on the CPU, unset leaves "
        "it to modeld.",
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
    chat_template_kwargs: FreeForm = Field(default={}, description="Values for the model's chat template.")
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
    ram: Size | None = Field(
        default=None, gt=0, description="RAM one copy needs, e.g. 6GiB; unset is measured or estimated."
    )
    vram: Size | None = Field(
        default=None,
        gt=0,
        description="GPU memory one copy needs, e.g. 6GiB; unset is measured or estimated.",
    )
    start_timeout: Number = Field(default=120, gt=0, description="Seconds a load may go without progress.")

    @model_validator(mode="before")
    @classmethod
    def _implied(cls, data: Any) -> Any:
        if isinstance(data, dict):
            implied = {}
            if data.get("loader") in IMAGE_LOADERS:
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
        if self.num_gpus is not None and self.num_gpus > 1 and self.num_gpus != int(self.num_gpus):
            raise mistake(
                f"is {self.num_gpus:g}: expected a share of one GPU below 1, or a whole number of GPUs",
                "num_gpus",
            )
        if self.autoscaling_config is not None and "num_replicas" in self.model_fields_set:
            raise mistake(
                "cannot be set together with autoscaling_config; remove one of them", "num_replicas"
            )
        if self.loader in IMAGE_LOADERS and self.usecase != "image":
            raise mistake(f"is {self.usecase}, but the loader {self.loader} makes images only", "usecase")
        if self.loader == "vllm":
            self._parallel_rules(self.vllm_engine_kwargs or VllmEngineKwargs())
        if self.pin:
            self._pin_rules()
        return self

    def _pin_rules(self) -> None:
        if self.load == "on_demand":
            raise mistake("cannot be on_demand for a pinned model, which is always loaded", "load")
        if self.keep_alive not in (None, NEVER):
            raise mistake(
                f"cannot be {self.keep_alive:g} s for a pinned model, which is never unloaded; "
                "remove one of the two",
                "keep_alive",
            )
        if self.autoscaling_config is not None and self.autoscaling_config.min_replicas == 0:
            raise mistake(
                "is 0, but a pinned model is never unloaded; set it to 1, or remove pin",
                "autoscaling_config.min_replicas",
            )

    def _parallel_rules(self, options: VllmEngineKwargs) -> None:
        gpus, tp, pp = self.num_gpus, options.tensor_parallel_size, options.pipeline_parallel_size
        if tp * pp == 1 or not gpus:
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

    @property
    def gpus(self) -> float | None:
        """What is asked for in GPUs: `num_gpus`, or as many as vLLM is told to spread over; None: no wish."""
        if self.num_gpus is None and self.loader == "vllm" and self.vllm_engine_kwargs is not None:
            block = self.vllm_engine_kwargs
            spread = block.tensor_parallel_size * block.pipeline_parallel_size
            return float(spread) if spread > 1 else None
        return self.num_gpus

    @property
    def block(self) -> Section | None:
        """The loader's own options, defaults filled in; None for a loader that has none."""
        if self.loader not in OPTION_BLOCKS:
            return None
        written: Section | None = getattr(self, OPTION_BLOCKS[self.loader])
        return _EMPTY_BLOCKS[self.loader] if written is None else written

    def options(self) -> dict[str, Any]:
        """Return the loader's own options as JSON-able values, defaults filled in, paths as text."""
        block = self.block
        if isinstance(block, LlamaServerConfig):
            return block.worker_options()
        if isinstance(block, VllmEngineKwargs):
            options = block.model_dump(mode="json", exclude={"model"})
            alone = block.tensor_parallel_size * block.pipeline_parallel_size == 1
            if alone and self.num_gpus is not None and self.num_gpus >= 2:
                options["tensor_parallel_size"] = int(self.num_gpus)
            return options
        return {} if block is None else block.model_dump(mode="json")


def plain(model: Model) -> dict[str, Any]:
    """Return what was written of `model` as JSON-able values, paths absolute.

    `Model.model_validate` makes an equal model of it, after a trip through JSON too.
    """
    return model.model_dump(mode="json", exclude_unset=True)
