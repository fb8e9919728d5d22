"""From the configuration's models to what the supervisor needs to know of them."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from modeld.config.diff import Wanted
from modeld.config.model import Model
from modeld.config.schema import Config
from modeld.errors import UsageError
from modeld.library import whisper
from modeld.library.refs import HubRef, LocalRef, parse
from modeld.protocol.messages import MediaLimits
from modeld.supervisor.scheduling.scaling import Scaling
from modeld.supervisor.spec import ModelSpec, Resources


def specs_of(wanted: Iterable[Wanted], config: Config) -> dict[str, ModelSpec]:
    """Return what the supervisor needs to know of each model, under the daemon's own settings."""
    return {each.key: _spec(each, config) for each in wanted}


def media_limits(config: Config) -> MediaLimits:
    """Return what workers may take in and make for one caller."""
    return MediaLimits(
        audio_seconds=config.media.audio_seconds,
        image_pixels=config.media.image_pixels,
        image_side=config.media.image_side,
    )


def _spec(each: Wanted, config: Config) -> ModelSpec:
    model = each.model
    return ModelSpec(
        name=each.key,
        usecase=model.usecase,
        loader=model.loader,
        reference=_reference(each),
        options=each.options,
        template_kwargs=model.chat_template_kwargs,
        resources=Resources(model.gpus, model.ram, model.vram, model.num_cpus),
        start_timeout_s=model.start_timeout,
        max_queue=config.max_queue,
        max_ongoing=model.max_ongoing_requests,
        on_demand=model.load == "on_demand",
        keep_alive_s=config.keep_alive_for(model),
        pinned=model.pin,
        priority=model.priority,
        scaling=_scaling(model),
        gateway=each.gateway,
        aliases=model.aliases,
        media=media_limits(config),
        fingerprint=each.fingerprint,
    )


def _scaling(model: Model) -> Scaling:
    auto = model.autoscaling_config
    if auto is None:
        return Scaling(model.num_replicas, model.num_replicas, model.num_replicas)
    first = auto.min_replicas if auto.initial_replicas is None else auto.initial_replicas
    return Scaling(
        auto.min_replicas,
        auto.max_replicas,
        first,
        auto.target_ongoing_requests,
        auto.upscale_delay_s,
        auto.downscale_delay_s,
    )


def _reference(each: Wanted) -> str | None:
    """Return a reference that stands for itself wherever it is resolved, relative paths made absolute; None
    for a model without files.
    """
    reference, base = each.model.model, Path(each.base)
    if each.model.loader == "fake":
        return None
    if each.model.loader == "whispercpp" and not (base / reference).exists():
        file = whisper.named(reference, each.options.get("models_dir"))
        if file is not None:
            return str(file)
    try:
        found = parse(reference, base)
    except UsageError:
        return reference  # the resolver says what is wrong with it
    match found:
        case LocalRef(path):
            return str(path)
        case HubRef(repo) if (base / repo).is_dir():
            return str(base / repo)
    return reference
