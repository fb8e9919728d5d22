"""The sampling fields that chat and completions share, and the engine options that pass through."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta

from modeld.gateway.decoding import invalid
from modeld.protocol.tasks import Sampling

MAX_STOPS = 16
"""Stop sequences in one request; OpenAI takes 4."""

MAX_TOKENS = 2**31 - 1

Stop: TypeAlias = Annotated[str, Meta(min_length=1)]
Count: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_TOKENS)]
Penalty: TypeAlias = Annotated[float, Meta(ge=-2, le=2)]
Share: TypeAlias = Annotated[float, Meta(ge=0, le=1)]
NotNegative: TypeAlias = Annotated[float, Meta(ge=0)]
Int32: TypeAlias = Annotated[int, Meta(ge=-(2**31), le=2**31 - 1)]


class StreamOptions(msgspec.Struct):
    """`stream_options`; the other options of OpenAI's have no meaning here."""

    include_usage: bool | None = None


class SamplingFields(msgspec.Struct, kw_only=True):
    """Fields of both request bodies. None is absent: SDKs send null for what their caller left out.

    Beyond OpenAI's: `top_k`, `min_p`, `repeat_penalty` (also `repetition_penalty`), the fields named in
    `ENGINE_OPTIONS`, which reach the engine under their own names, and `keep_alive`, which is for the
    supervisor (`gateway.keep_alive` reads it).
    """

    model: Annotated[str, Meta(min_length=1)]
    stream: bool | None = None
    stream_options: StreamOptions | None = None
    n: Annotated[int, Meta(ge=1, le=16)] | None = None
    max_tokens: Count | None = None
    temperature: Annotated[float, Meta(ge=0, le=2)] | None = None
    top_p: Share | None = None
    top_k: Annotated[int, Meta(ge=-1, le=MAX_TOKENS)] | None = None
    min_p: Share | None = None
    seed: Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)] | None = None
    stop: Stop | Annotated[list[Stop], Meta(max_length=MAX_STOPS)] | None = None
    frequency_penalty: Penalty | None = None
    presence_penalty: Penalty | None = None
    repeat_penalty: NotNegative | None = None
    repetition_penalty: NotNegative | None = None
    logit_bias: dict[str, Annotated[float, Meta(ge=-100, le=100)]] | None = None

    keep_alive: float | str | None = None

    cache_prompt: bool | None = None
    grammar: str | None = None
    reasoning_format: str | None = None
    reasoning_budget_tokens: Int32 | None = None
    ignore_eos: bool | None = None
    typical_p: NotNegative | None = None
    top_n_sigma: float | None = None
    repeat_last_n: Int32 | None = None
    dry_multiplier: float | None = None
    dry_base: float | None = None
    dry_allowed_length: Int32 | None = None
    dry_penalty_last_n: Int32 | None = None
    xtc_probability: Share | None = None
    xtc_threshold: Share | None = None
    mirostat: Annotated[int, Meta(ge=0, le=2)] | None = None
    mirostat_tau: NotNegative | None = None
    mirostat_eta: NotNegative | None = None
    dynatemp_range: NotNegative | None = None
    dynatemp_exponent: float | None = None
    samplers: Annotated[list[str], Meta(max_length=32)] | None = None

    @property
    def include_usage(self) -> bool:
        """Whether a stream ends with a usage chunk."""
        return bool(self.stream_options and self.stream_options.include_usage)


ENGINE_OPTIONS = (
    "cache_prompt",
    "grammar",
    "reasoning_format",
    "reasoning_budget_tokens",
    "ignore_eos",
    "typical_p",
    "top_n_sigma",
    "repeat_last_n",
    "dry_multiplier",
    "dry_base",
    "dry_allowed_length",
    "dry_penalty_last_n",
    "xtc_probability",
    "xtc_threshold",
    "mirostat",
    "mirostat_tau",
    "mirostat_eta",
    "dynatemp_range",
    "dynatemp_exponent",
    "samplers",
)
"""Request fields that are passed to the engine as they are; every other unknown field is ignored."""


def engine_options(fields: SamplingFields) -> dict[str, Any]:
    """Return the engine options that a request sets."""
    return {name: value for name in ENGINE_OPTIONS if (value := getattr(fields, name)) is not None}


def sampling(fields: SamplingFields, max_tokens: int | None) -> Sampling:
    """Return a request's sampling parameters. Raises BadRequest for a logit_bias key that is no token id."""
    stop = (fields.stop,) if isinstance(fields.stop, str) else tuple(fields.stop or ())
    bias = fields.logit_bias or {}
    for key in bias:
        if not (key.isascii() and key.isdigit() and len(key) <= 10):
            raise invalid("logit_bias", f"{key[:40]!r} is not a token id")
    penalty = fields.repeat_penalty if fields.repeat_penalty is not None else fields.repetition_penalty
    return Sampling(
        max_tokens=max_tokens,
        temperature=fields.temperature,
        top_p=fields.top_p,
        top_k=fields.top_k,
        min_p=fields.min_p,
        seed=fields.seed,
        stop=stop,
        frequency_penalty=fields.frequency_penalty,
        presence_penalty=fields.presence_penalty,
        repeat_penalty=penalty,
        logit_bias=bias,
    )
