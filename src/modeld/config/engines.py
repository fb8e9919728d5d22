"""Options of each engine, named as in Modelship's models.yaml, so that such a file loads unchanged."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from modeld.config.ray import AUTOSCALING_OPTIONS
from modeld.config.values import (
    AnchoredText,
    FileOrText,
    FreeForm,
    Number,
    PlainText,
    Program,
    Section,
    Size,
    Whole,
    mistake,
)

CacheType = Literal["f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1"]


class VllmEngineKwargs(Section):
    """Options of the vllm loader."""

    model: str | None = Field(
        default=None, description="Read for compatibility; the model's own `model` is what loads."
    )
    tensor_parallel_size: Whole = Field(default=1, ge=1, description="GPUs that share each layer.")
    pipeline_parallel_size: Whole = Field(
        default=1, ge=1, description="GPUs that share the layers between them."
    )
    max_model_len: Whole | None = Field(default=None, ge=1, description="Context length in tokens.")
    dtype: str = Field(default="auto", description="Type of the weights in memory.")
    tokenizer: str | None = Field(default=None, description="Tokenizer, when it is not the model's own.")
    trust_remote_code: bool = Field(default=False, description="Run Python code that comes with the model.")
    task: str = Field(default="auto", description="vLLM's task.")
    model_impl: str | None = Field(default=None, description="Implementation: auto, vllm or transformers.")
    enable_log_requests: bool = Field(default=False, description="Let vLLM log each request.")
    disable_log_stats: bool = Field(default=False, description="Keep vLLM from logging its statistics.")
    kv_cache_dtype: str | None = Field(default=None, description="Type of the KV cache.")
    quantization: str | None = Field(default=None, description="Quantisation method of the weights.")
    enable_auto_tool_choice: bool | None = Field(
        default=None, description="Let the model decide on tool calls."
    )
    tool_call_parser: str | None = Field(default=None, description="Parser of the model's tool calls.")
    enable_reasoning: bool | None = Field(default=None, description="Separate reasoning from the answer.")
    reasoning_parser: str | None = Field(default=None, description="Parser of the model's reasoning.")
    chat_template_content_format: Literal["auto", "string", "openai"] = Field(
        default="auto", description="How message content is given to the chat template."
    )
    enforce_eager: bool | None = Field(default=None, description="Do without CUDA graphs.")
    enable_prefix_caching: bool | None = Field(
        default=None, description="Keep the KV cache of shared prefixes."
    )
    max_num_batched_tokens: Whole | None = Field(default=None, ge=1, description="Tokens in one step.")
    max_num_seqs: Whole | None = Field(default=None, ge=1, description="Sequences in one step.")
    limit_mm_per_prompt: FreeForm | None = Field(
        default=None, description="Media items allowed in a prompt, by kind."
    )
    mm_processor_kwargs: FreeForm | None = Field(default=None, description="Options of the media processor.")
    distributed_executor_backend: Literal["mp", "ray", "external_launcher", "uni"] | None = Field(
        default=None, description="What spreads the model over GPUs; ray also over machines."
    )
    kv_cache_memory_bytes: Size | None = Field(
        default=None,
        gt=0,
        description="Memory of the KV cache, e.g. 4GiB; unset is what the share leaves, 4 GiB on a CPU.",
    )

    @model_validator(mode="before")
    @classmethod
    def _memory_share_is_derived(cls, data: Any) -> Any:
        if isinstance(data, dict) and data.get("gpu_memory_utilization") is not None:
            raise mistake(
                "follows from num_gpus and cannot be set; remove it, or set num_gpus to the share wanted",
                "gpu_memory_utilization",
            )
        if isinstance(data, dict):
            return {key: value for key, value in data.items() if key != "gpu_memory_utilization"}
        return data


class DiffusersConfig(Section):
    """Options of the diffusers loader."""

    torch_dtype: str = Field(
        default="float16",
        description="Type of the weights in memory: float16 (float32 on the CPU), bfloat16, float32, auto.",
    )
    num_inference_steps: Whole = Field(default=30, ge=1, description="Denoising steps for an image.")
    guidance_scale: Number = Field(default=7.5, description="How closely an image follows its prompt.")
    offload: Literal["none", "model", "sequential"] = Field(
        default="none",
        description="Keep idle parts (model) or layers (sequential) in RAM; needs a GPU and accelerate.",
    )
    vae_tiling: bool = Field(default=False, description="Decode in tiles, to save memory.")


class LoraAdapter(Section):
    """A LoRA adapter that goes on top of a model."""

    path: AnchoredText = Field(description="GGUF file of the adapter.")
    scale: Number = Field(default=1.0, description="How much of it is added to the weights.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return {"path": data} if isinstance(data, str) else data

    @field_validator("path")
    @classmethod
    def _separators(cls, path: str) -> str:
        if "," in path or ":" in path:
            raise mistake(f"llama-server takes no adapter with , or : in its name, as in {path}; rename it")
        return path


class LlamaServerConfig(Section):
    """Options of the llama_server loader."""

    n_ctx: Whole = Field(
        default=2048, ge=0, description="Context length in tokens for each slot; 0 is the model's own."
    )
    n_batch: Whole = Field(default=512, ge=1, description="Prompt tokens worked on in one batch.")
    n_gpu_layers: Whole = Field(
        default=-1, ge=-1, description="Layers kept on the GPU; -1 is as many as the engine can."
    )
    threads: Whole | None = Field(
        default=None, ge=1, description="CPU threads; unset leaves it to the engine."
    )
    parallel: Whole = Field(default=1, ge=1, le=256, description="Requests worked on at once (slots).")
    chat_template: FileOrText | None = Field(
        default=None, description="A chat template in place of the model's own: its text or a file."
    )
    mmproj: FileOrText | None = Field(
        default=None,
        description="Projector file of a model that sees pictures; unset takes an mmproj*.gguf beside the "
        "model, none takes none.",
    )
    lora: tuple[LoraAdapter, ...] = Field(
        default=(), description="LoRA adapters of the model: files, or mappings of path and scale."
    )
    draft_model: AnchoredText | None = Field(
        default=None,
        description="GGUF file of a small model with the same vocabulary, whose guesses the model checks.",
    )
    draft_n_max: Whole | None = Field(
        default=None, ge=1, le=64, description="Most tokens guessed at once; unset leaves it to the engine."
    )
    draft_n_min: Whole | None = Field(
        default=None, ge=0, le=64, description="Fewest tokens guessed; shorter guesses are dropped."
    )
    draft_p_min: Annotated[Number, Field(ge=0, le=1)] | None = Field(
        default=None, description="How sure the draft model must be to go on guessing."
    )
    draft_n_gpu_layers: Whole | None = Field(
        default=None, ge=-1, description="Layers of the draft model on the GPU; as with n_gpu_layers."
    )
    cache_reuse: Whole = Field(
        default=0, ge=0, description="Shortest piece of the cache to reuse by shifting, in tokens."
    )
    context_shift: bool = Field(default=False, description="Drop the oldest tokens when the context is full.")
    cache_ram_mib: Whole | None = Field(
        default=None, ge=-1, description="RAM for prompts put aside, in MiB; -1 is no limit."
    )
    extra_args: tuple[str, ...] = Field(
        default=(), description="More arguments, given to llama-server as they are."
    )
    pooling: Literal["mean", "cls", "last", "rank"] | None = Field(
        default=None,
        description="How an embedding model makes one vector; rank is a reranker. Unset is the model's own.",
    )
    matryoshka: bool = Field(
        default=False, description="The model was trained for shorter vectors: dimensions may cut them."
    )
    ubatch_size: Whole | None = Field(default=None, ge=1, description="Tokens in one physical batch.")
    flash_attn: Literal["on", "off", "auto"] | None = Field(default=None, description="Flash attention.")
    cache_type_k: CacheType | None = Field(default=None, description="Type of the keys in the KV cache.")
    cache_type_v: CacheType | None = Field(default=None, description="Type of the values in the KV cache.")
    tensor_split: Annotated[tuple[Annotated[Number, Field(ge=0)], ...], Field(min_length=1)] | None = Field(
        default=None, description="Share of each GPU, in proportion."
    )
    binary: Program | None = Field(
        default=None, description="llama-server program for this model: a path, or a name on PATH."
    )

    @model_validator(mode="after")
    def _drafts(self) -> LlamaServerConfig:
        if self.draft_model is None:
            for key in ("draft_n_max", "draft_n_min", "draft_p_min", "draft_n_gpu_layers"):
                if getattr(self, key) is not None:
                    raise mistake("has no meaning without draft_model; name one, or remove it", key)
        if self.draft_n_max is not None and (self.draft_n_min or 0) > self.draft_n_max:
            raise mistake(
                f"is {self.draft_n_min}, more than draft_n_max, which is {self.draft_n_max}", "draft_n_min"
            )
        return self

    @field_validator("flash_attn", mode="before")
    @classmethod
    def _switch(cls, value: Any) -> Any:
        return {True: "on", False: "off"}[value] if isinstance(value, bool) else value

    @field_validator("extra_args", mode="before")
    @classmethod
    def _numbers_as_text(cls, value: Any) -> Any:
        # `extra_args: [--seed, 1]` is what people write.
        if isinstance(value, list):
            return [str(v) if isinstance(v, int | float) and not isinstance(v, bool) else v for v in value]
        return value

    def worker_options(self) -> dict[str, Any]:
        """Return the options as JSON-able values; those that are plain flags come as `extra_args`.

        The owner's own `extra_args` come last, since llama-server takes the last of two.
        """
        dumped = self.model_dump(mode="json")
        flags: list[str] = []
        for key in ("ubatch_size", "flash_attn", "cache_type_k", "cache_type_v", "tensor_split"):
            value = dumped.pop(key)
            if value is not None:
                text = ",".join(f"{share:g}" for share in value) if isinstance(value, list) else str(value)
                flags += ["--" + key.replace("_", "-"), text]
        dumped["extra_args"] = flags + dumped["extra_args"]
        return dumped


class StableDiffusionCppConfig(Section):
    """Options of the stable_diffusion_cpp loader."""

    sample_steps: Whole = Field(default=20, ge=1, description="Denoising steps for an image.")
    cfg_scale: Number = Field(default=7.0, description="How closely an image follows its prompt.")
    sample_method: str = Field(
        default="default",
        description="Sampling method: euler, euler_a, dpm++2m, lcm, …; default is the model's own.",
    )
    scheduler: str = Field(
        default="default",
        description="Noise schedule: discrete, karras, simple, …; default is the method's own.",
    )
    wtype: str = Field(
        default="default",
        description="Type of the weights in memory: f16, q8_0, …; default leaves them as they are.",
    )
    n_threads: Whole = Field(default=-1, description="CPU threads; -1 takes half of the cores.")
    vae_tiling: bool = Field(default=False, description="Decode in tiles, to save memory.")
    diffusion_model_path: AnchoredText | None = Field(
        default=None, description="Diffusion model of a split checkpoint."
    )
    clip_l_path: AnchoredText | None = Field(
        default=None, description="CLIP-L encoder of a split checkpoint."
    )
    clip_g_path: AnchoredText | None = Field(
        default=None, description="CLIP-G encoder of a split checkpoint."
    )
    t5xxl_path: AnchoredText | None = Field(default=None, description="T5-XXL encoder of a split checkpoint.")
    vae_path: AnchoredText | None = Field(default=None, description="VAE of a split checkpoint.")
    model_kwargs: FreeForm = Field(
        default={}, description="More of the library's own arguments: llm_path, lora_model_dir, and so on."
    )


class WhispercppConfig(Section):
    """Options of the whispercpp loader."""

    n_threads: Whole | None = Field(
        default=None, ge=1, description="CPU threads; unset leaves it to the engine."
    )
    flash_attn: bool = Field(default=False, description="Flash attention.")
    models_dir: AnchoredText | None = Field(default=None, description="Folder that holds the models.")


class FakeCall(Section):
    """A tool call of the fake loader's script."""

    name: PlainText = Field(description="Tool to call; left out where a request does not offer it.")
    arguments: FreeForm | str = Field(
        default={}, description="Its arguments: a mapping, or text that goes out as it is."
    )


class FakeStep(Section):
    """One step of a turn in the fake loader's script: exactly one key."""

    text: str | None = Field(default=None, description="Say this, word by word.")
    reasoning: str | None = Field(default=None, description="Think this, word by word.")
    call: FakeCall | None = Field(default=None, description="Call a tool.")
    delay: Number | None = Field(default=None, ge=0, description="Wait so many seconds.")
    finish: Literal["stop", "length", "tool_calls", "content_filter"] | None = Field(
        default=None, description="End the answer here, for this reason."
    )
    fail: PlainText | None = Field(default=None, description="Fail with an engine error of these words.")
    crash: bool = Field(default=False, description="Let the process die.")
    hang: bool = Field(default=False, description="Fall silent.")

    @model_validator(mode="after")
    def _one_thing(self) -> FakeStep:
        given = [key for key, value in self if value is not None and value is not False]
        if len(given) != 1:
            raise mistake(
                f"a step does one thing, this one has {' and '.join(given) or 'nothing'}; "
                f"write one of {', '.join(type(self).model_fields)}"
            )
        return self


class FakeConfig(Section):
    """Script of the fake loader, which stands in for an engine in tests and measurements."""

    reply: str | None = Field(default=None, description="What it answers; unset makes up `tokens` tokens.")
    tokens: Whole = Field(default=16, ge=0, description="Tokens in an answer when `reply` is unset.")
    turns: tuple[tuple[FakeStep, ...], ...] = Field(
        default=(),
        description="Answers in a chat, each a list of steps; the assistant's messages since the user's last "
        "one say which comes, and after the last it comes again.",
    )
    context_length: Whole = Field(
        default=4096, ge=1, description="Most words of a chat and its tools; longer ones are refused."
    )
    first_delay: Number = Field(default=0, ge=0, description="Seconds before the first token.")
    token_delay: Number = Field(default=0, ge=0, description="Seconds between tokens.")
    load_seconds: Number = Field(default=0, ge=0, description="Seconds a load takes.")
    load_steps: Whole = Field(default=1, ge=1, description="Progress reports during a load.")
    load_error: PlainText | None = Field(default=None, description="Fail the load with these words.")
    load_error_permanent: bool = Field(default=True, description="Whether that failure is one that stays.")
    load_crash: bool = Field(default=False, description="Die during the load.")
    load_hang: bool = Field(default=False, description="Never finish the load.")
    load_until: PlainText | None = Field(default=None, description="File without which a load does not end.")
    memory: Size = Field(default=0, description="Memory to claim.")
    slots: Whole = Field(default=64, ge=1, description="Calls worked on at once.")
    fail_after: Whole | None = Field(
        default=None, ge=0, description="Tokens after which a call fails with an engine error."
    )
    crash_after: Whole | None = Field(default=None, ge=0, description="Tokens after which the process dies.")
    hang_after: Whole | None = Field(
        default=None, ge=0, description="Tokens after which a call falls silent."
    )
    ignore_term: bool = Field(default=False, description="Ignore SIGTERM.")
    ignore_cancel: bool = Field(default=False, description="Ignore the cancelling of a call.")
    junk_stdout: bool = Field(default=False, description="Write rubbish to standard output.")


class AutoscalingConfig(Section):
    """Number of replicas by load. The defaults are Ray Serve's, which Modelship leaves them to."""

    ignored: ClassVar[Mapping[str, str]] = AUTOSCALING_OPTIONS

    min_replicas: Whole = Field(default=1, ge=0, description="Fewest replicas; 0 unloads an idle model.")
    max_replicas: Whole = Field(default=1, ge=1, description="Most replicas.")
    initial_replicas: Whole | None = Field(
        default=None, ge=0, description="Replicas at the start; unset is min_replicas."
    )
    target_ongoing_requests: Number = Field(default=2.0, gt=0, description="Requests wanted on each replica.")
    upscale_delay_s: Number = Field(
        default=30.0, ge=0, description="Seconds of load before a replica is added."
    )
    downscale_delay_s: Number = Field(
        default=600.0, ge=0, description="Seconds of quiet before one is removed."
    )

    @model_validator(mode="after")
    def _bounds(self) -> AutoscalingConfig:
        low, high, first = self.min_replicas, self.max_replicas, self.initial_replicas
        if high < low:
            raise mistake(f"is {high}, less than min_replicas, which is {low}", "max_replicas")
        if first is not None and not low <= first <= high:
            raise mistake(
                f"is {first}, expected from {low} (min_replicas) to {high} (max_replicas)", "initial_replicas"
            )
        return self
