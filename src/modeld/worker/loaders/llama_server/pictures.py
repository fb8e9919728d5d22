"""Pictures on their way to the engine: refused here when it cannot read them, before it works on anything.

The engine reads what stb_image reads; whatever else it takes for a video, and starts ffprobe on it. It would
also fetch a URL by itself, past every guard.
"""

from __future__ import annotations

from collections.abc import Iterator

from modeld.errors import BadRequest
from modeld.protocol.messages import Facts, MediaLimits
from modeld.protocol.pictures import look_base64
from modeld.protocol.tasks import ChatTask, ImagePart

READ = ("png", "jpeg", "gif")
"""Formats that the engine has a decoder for; of a moving GIF it takes the first picture."""


def check(task: ChatTask, facts: Facts, limits: MediaLimits) -> tuple[str, ...]:
    """Return where a conversation has pictures. Raises BadRequest for one that the engine cannot take."""
    found = []
    for param, part in _pictures(task):
        found.append(f"{param}.url")
        if "vision" not in facts.capabilities:
            raise BadRequest(
                f"'{param}' is not supported: this model has no projector, and does not see images; "
                "put its mmproj file beside it, or name it in llama_server_config.mmproj",
                code="unsupported_parameter",
                param=param,
            )
        _check(part.url, limits, f"{param}.url")
    return tuple(found)


def _pictures(task: ChatTask) -> Iterator[tuple[str, ImagePart]]:
    for at, message in enumerate(task.messages):
        if isinstance(message.content, tuple):
            for place, part in enumerate(message.content):
                if isinstance(part, ImagePart):
                    yield f"messages[{at}].content[{place}].image_url", part


def _check(url: str, limits: MediaLimits, param: str) -> None:
    head, _, payload = url.partition(";base64,")
    if not head.startswith("data:"):
        raise BadRequest(f"'{param}' is not a data: URL", code="invalid_image_url", param=param)
    try:
        picture = look_base64(payload)
    except ValueError as error:
        raise BadRequest(
            f"the picture of '{param}' cannot be read: {error}", code="invalid_image", param=param
        ) from None
    if picture.format not in READ:
        raise BadRequest(
            f"the picture of '{param}' is {picture.format}, which this engine does not read; "
            f"send {', '.join(READ[:-1])} or {READ[-1]}",
            code="unsupported_image_format",
            param=param,
        )
    if (
        picture.width * picture.height > limits.image_pixels
        or max(picture.width, picture.height) > limits.image_side
    ):
        raise BadRequest(
            f"the picture of '{param}' is {picture.width}x{picture.height} pixels; the limits are "
            f"{limits.image_pixels} pixels and {limits.image_side} along a side",
            code="image_too_large",
            param=param,
        )
