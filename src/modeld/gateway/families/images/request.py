"""What a request for pictures may say, and the task it asks for: each field is honoured or refused.

Of OpenAI's fields that choose between grades of its own models, the values that describe what modeld does
are accepted (quality auto and standard, background opaque), all others refused: nothing here can make another
background or a better grade. `moderation` is accepted: no filter is in the way.
`user` and `safety_identifier` name the caller's customer and change no picture.

Beside OpenAI's: `seed`, `steps`, `guidance_scale`, `negative_prompt`, for edits and variations `strength`
(0..1, how far to go from the picture), `progress` (events of a stream), and `keep_alive`.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from modeld.errors import BadRequest
from modeld.gateway.decoding import decode, invalid, missing, unsupported
from modeld.gateway.multipart import Form
from modeld.protocol.messages import MediaLimits
from modeld.protocol.pictures import Format, NotAPicture, look
from modeld.protocol.tasks import ImageFormat, ImageTask

Kind: TypeAlias = Literal["generation", "edit", "variation"]

MIN_SIDE = 16
SIDE_STEP = 8
"""In pixels: the least side of a picture, and what sides are multiples of; a model may ask for more."""

MAX_QUALITY = 100
"""`output_compression` of a file that loses next to nothing."""

TAKEN: tuple[Format, ...] = ("png", "jpeg", "webp")
"""Formats of pictures to begin with."""

MAX_PROMPT = 32_000
"""Characters, as in OpenAI's API."""

FILES = ("image", "mask")

_SIZE = re.compile(r"(\d{1,6})x(\d{1,6})")
_AS_IT_IS: dict[str, tuple[Collection[str], str]] = {
    "quality": (("auto", "standard"), "the model has one quality; `steps` sets how much work is done"),
    "style": ((), "say it in the prompt"),
    "background": (("auto", "opaque"), "pictures are opaque"),
    "moderation": (("auto", "low"), "there is no filter to choose"),
    "input_fidelity": ((), "`strength` sets how far an edit goes from the picture"),
}
"""By field: the values that describe what is done anyway, and why there are no others."""


class ImageRequest(msgspec.Struct, kw_only=True):
    """A body's fields; null is absent."""

    model: str
    prompt: str | None = None
    n: Annotated[int, Meta(ge=1, le=10)] | None = None
    size: str | None = None
    response_format: Literal["b64_json", "url"] | None = None
    output_format: ImageFormat | None = None
    output_compression: Annotated[int, Meta(ge=0, le=100)] | None = None
    quality: str | None = None
    style: str | None = None
    background: str | None = None
    moderation: str | None = None
    input_fidelity: str | None = None
    user: str | None = None
    safety_identifier: str | None = None
    stream: bool | None = None
    partial_images: Annotated[int, Meta(ge=0, le=3)] | None = None
    progress: bool | None = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] | None = None
    steps: Annotated[int, Meta(ge=1, le=1000)] | None = None
    guidance_scale: Annotated[float, Meta(ge=0, le=100)] | None = None
    negative_prompt: str | None = None
    strength: Annotated[float, Meta(gt=0, le=1)] | None = None
    keep_alive: float | str | None = None


_DECODER = msgspec.json.Decoder(ImageRequest)
_FORM_DECODER = msgspec.json.Decoder(ImageRequest, strict=False)
_KEYS = msgspec.json.Decoder(dict[str, msgspec.Raw])


def read(raw: bytes | bytearray) -> ImageRequest:
    """Decode a JSON body. Raises BadRequest, also for a field that nobody knows."""
    request = decode(_DECODER, raw)
    _check_known(_KEYS.decode(raw))
    return request


def read_fields(form: Form) -> ImageRequest:
    """Decode a form's text fields. Raises BadRequest, also for a part that is unknown or there twice."""
    _check_known(form.fields)
    for name in form.files:
        if name not in FILES:
            raise invalid(name[:100], f"it is a file; the files here are {' and '.join(FILES)}")
    for name, values in form.fields.items():
        if len(values) > 1:
            raise invalid(name, f"it is there {len(values)} times")
    return decode(_FORM_DECODER, msgspec.json.encode({name: one for name, (one,) in form.fields.items()}))


def _check_known(keys: Collection[str]) -> None:
    for key in keys:
        if key not in ImageRequest.__struct_fields__:
            shown = key[:100]
            raise BadRequest(
                f"unknown parameter: '{shown}'; there are {', '.join(ImageRequest.__struct_fields__)}",
                code="unknown_parameter",
                param=shown,
            )


def picture(form: Form, name: str, limits: MediaLimits, *, needed: bool = False) -> bytes | None:
    """Return the one file of that name, None without any.

    Raises BadRequest, also for a file whose first bytes are no picture's, or one's over the limits: that
    costs no model's time. What is further inside is decoded in the worker only.
    """
    files = form.files.get(name, [])
    if not files:
        if needed:
            raise missing(name, "the picture to begin with, as a file")
        return None
    if len(files) > 1:
        raise invalid(name, f"there are {len(files)}; the models here take one")
    data = files[0].data
    try:
        found = look(data)
    except NotAPicture as error:
        raise _unusable(name, str(error)) from None
    if found.format not in TAKEN:
        raise _unusable(name, f"it is a {found.format} file; {', '.join(TAKEN)} are taken")
    if (words := _over(found.width, found.height, limits)) is not None:
        raise _unusable(name, f"it is {found.width}x{found.height}: {words}", "image_too_large")
    return data


def _unusable(name: str, why: str, code: str = "invalid_image") -> BadRequest:
    return BadRequest(f"the picture in '{name}' cannot be used: {why}", code=code, param=name)


def _over(width: int, height: int, limits: MediaLimits) -> str | None:
    """Return which limit a size is over, None for a size within them."""
    if max(width, height) > limits.image_side:
        return f"at most {limits.image_side} pixels on a side (media.image_side in the configuration)"
    if width * height > limits.image_pixels:
        return f"at most {limits.image_pixels} pixels in all (media.image_pixels in the configuration)"
    return None


def to_task(
    request: ImageRequest,
    kind: Kind,
    limits: MediaLimits,
    image: bytes | None = None,
    mask: bytes | None = None,
) -> ImageTask:
    """Return the task. Raises BadRequest with `param`."""
    _check_fixed(request)
    _check_stream(request)
    if mask is not None and kind != "edit":
        raise unsupported("mask", "a variation is of the whole picture; send it to images/edits")
    prompt = _prompt(request, kind)
    if kind == "generation" and request.strength is not None:
        raise invalid("strength", "it is for edits and variations")
    width, height = size(request.size, limits)
    more: dict[str, Any] = {}
    if request.negative_prompt is not None:
        more["negative_prompt"] = _checked(request.negative_prompt, "negative_prompt")
    if request.output_format is not None:
        more["format"] = request.output_format
    if request.output_compression is not None:
        more["quality"] = request.output_compression
    return ImageTask(
        prompt=prompt,
        n=request.n or 1,
        width=width,
        height=height,
        steps=request.steps,
        guidance=request.guidance_scale,
        seed=request.seed,
        image=image,
        mask=mask,
        strength=request.strength,
        previews=request.partial_images or 0,
        **more,
    )


def size(text: str | None, limits: MediaLimits) -> tuple[int, int] | tuple[None, None]:
    """Return width and height, Nones for the model's own size. Raises BadRequest."""
    if text is None or text == "auto":
        return None, None
    match = _SIZE.fullmatch(text)
    if match is None:
        raise invalid("size", f"{text[:40]!r} is neither auto nor WIDTHxHEIGHT in pixels, e.g. 512x768")
    width, height = int(match[1]), int(match[2])
    for side in (width, height):
        if side < MIN_SIDE:
            raise invalid("size", f"{text}: sides are from {MIN_SIDE} pixels on")
        if side % SIDE_STEP:
            near = max(MIN_SIDE, round(side / SIDE_STEP) * SIDE_STEP)
            raise invalid(
                "size", f"{text}: sides are multiples of {SIDE_STEP}; {near} is the nearest to {side}"
            )
    if (words := _over(width, height, limits)) is not None:
        raise invalid("size", f"{text}: {words}")
    return width, height


def _prompt(request: ImageRequest, kind: Kind) -> str:
    if kind == "variation":
        if request.prompt:
            raise unsupported("prompt", "a variation has none; send it to images/edits")
        return ""
    if not request.prompt:
        raise missing("prompt", "what to draw, in words")
    return _checked(request.prompt, "prompt")


def _checked(text: str, param: str) -> str:
    if len(text) > MAX_PROMPT:
        raise invalid(param, f"{len(text)} characters; {MAX_PROMPT} is the limit")
    return text


def _check_fixed(request: ImageRequest) -> None:
    for name, (values, why) in _AS_IT_IS.items():
        value = getattr(request, name)
        if value is not None and value not in values:
            other = f", only {' and '.join(values)}" if values else ""
            raise unsupported(name, f"not as {value[:40]!r}{other}: {why}")
    if request.output_format in (None, "png") and request.output_compression not in (None, MAX_QUALITY):
        raise unsupported(
            "output_compression", "it is for output_format jpeg and webp; png files lose nothing"
        )


def _check_stream(request: ImageRequest) -> None:
    if request.stream:
        if request.response_format == "url":
            raise invalid("response_format", "a stream carries its pictures; it is b64_json")
        return
    for name in ("partial_images", "progress"):
        if getattr(request, name):
            raise invalid(name, "it needs stream: true")
