"""A task checked, its pictures decoded, and the frames that ask the child for each picture of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from modeld.errors import BadRequest, EngineError
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import ImageTask
from modeld.worker.loaders.stable_diffusion_cpp import loras, wire
from modeld.worker.media import pictures
from modeld.worker.media.pictures import Size, by

SEEDS = 2**63
"""Seeds are below this; the picture after the last one's begins again at 0."""

OWN_SIDE = 512
"""Pixels of both sides of a picture when nobody says: the library's own size."""

STRENGTH = 0.75
"""How far from a given picture to go when nobody says: the library's own value."""


@dataclass(frozen=True)
class Job:
    """A checked call. `draw` asks for its picture of seed 0. `area`: where an edit draws on `picture`."""

    task: ImageTask
    draw: wire.Draw
    picture: Any | None = None
    area: Any | None = None

    def coded(self, drawn: wire.Drawn | wire.Preview) -> bytes:
        """Return what was drawn as a file, with all that an edit was not to touch as it was.

        Raises BadRequest when the library has drawn another size than it was asked for.
        """
        from PIL import Image

        size, wanted = (drawn.width, drawn.height), (self.draw.width, self.draw.height)
        if size != wanted:
            raise BadRequest(
                f"this model cannot draw {by(wanted)}: it gave {by(size)}; ask for that instead",
                code="invalid_value",
                param="size",
            )
        if len(drawn.pixels) != 3 * size[0] * size[1]:
            raise EngineError(f"the engine's picture of {by(size)} has {len(drawn.pixels)} bytes")
        picture = Image.frombytes("RGB", size, drawn.pixels)
        return pictures.encode(
            pictures.kept(picture, self.picture, self.area), self.task.format, self.task.quality
        )


def prepare(
    task: ImageTask, options: Mapping[str, Any], limits: MediaLimits, multiple: int, edits: bool
) -> Job:
    """Check a task and decode its pictures. Raises BadRequest.

    `multiple`: sides of a picture are multiples of it; the library would round others up in silence.
    `edits`: whether the model takes a picture in.
    """
    size = None if task.width is None or task.height is None else (task.width, task.height)
    if size is not None:
        pictures.check_drawn(size, multiple, limits, task.format)
    guidance = float(options.get("cfg_scale", 7.0)) if task.guidance is None else task.guidance
    if task.negative_prompt and guidance <= 1:
        raise _cannot("negative_prompt", "it has no effect in this model without a guidance above 1")
    picture = area = None
    if task.image is None:
        for name in ("mask", "strength"):
            if getattr(task, name) is not None:
                raise _cannot(name, "it goes with a picture in 'image'")
    elif not edits:
        raise _cannot("image", "this model has no VAE encoder, so it cannot take a picture in")
    else:
        picture = pictures.decode(task.image, "image", limits)
        area = _area(task, picture, limits)
        size = size or _near(picture.size, multiple, limits)
        picture = picture.resize(size)
        area = None if area is None else area.resize(size)
    width, height = size or (OWN_SIDE, OWN_SIDE)
    if size is None:
        pictures.check_drawn((width, height), multiple, limits, task.format)
    prompt, named = loras.extract(task.prompt, (options.get("model_kwargs") or {}).get("lora_model_dir"))
    draw = wire.Draw(
        prompt,
        task.negative_prompt,
        width,
        height,
        task.steps or int(options.get("sample_steps") or 20),
        guidance,
        0,
        str(options.get("sample_method") or "default"),
        str(options.get("scheduler") or "default"),
        bool(options.get("vae_tiling")),
        task.previews,
        None if picture is None else picture.convert("RGB").tobytes(),
        None if area is None else area.tobytes(),
        STRENGTH if task.strength is None else task.strength,
        named,
    )
    return Job(task, draw, picture, area)


def _area(task: ImageTask, picture: Any, limits: MediaLimits) -> Any | None:
    mask = None
    if task.mask is not None:
        mask = pictures.decode(task.mask, "mask", limits)
        if mask.size != picture.size:
            raise _cannot("mask", f"it is {by(mask.size)} pixels, its picture {by(picture.size)}")
    elif task.prompt and pictures.has_holes(picture):
        mask = picture
    return None if mask is None else pictures.drawing_area(mask)


def _near(size: Size, multiple: int, limits: MediaLimits) -> Size:
    """Return the largest size that can be drawn and is no larger than a given picture's."""
    width, height = (max(multiple, min(side, limits.image_side) // multiple * multiple) for side in size)
    return width, height


def _cannot(param: str, why: str) -> BadRequest:
    return BadRequest(f"'{param}' cannot be used: {why}", code="invalid_value", param=param)
