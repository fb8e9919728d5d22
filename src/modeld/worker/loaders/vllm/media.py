"""Pictures in messages: only such as came along, and none larger than allowed, go on to vLLM."""

from __future__ import annotations

import base64
import binascii
from urllib.parse import unquote_to_bytes

from modeld.errors import BadRequest
from modeld.protocol.messages import MediaLimits
from modeld.protocol.tasks import ChatTask, ImagePart
from modeld.worker.media import pictures


def check(task: ChatTask, limits: MediaLimits, *, sees: bool) -> None:
    """Refuse pictures that the model cannot see, that are elsewhere, broken, or too large.

    Raises BadRequest naming the message. `sees`: whether the model takes pictures at all.
    """
    for at, message in enumerate(task.messages):
        if not isinstance(message.content, tuple):
            continue
        for number, part in enumerate(message.content):
            if isinstance(part, ImagePart):
                param = f"messages[{at}].content[{number}]"
                if not sees:
                    raise BadRequest(
                        "this model does not see pictures; leave them out, or ask one with the capability "
                        "vision",
                        code="unsupported_content",
                        param=param,
                    )
                pictures.decode(content_of(part.url, param), param, limits)


def content_of(url: str, param: str) -> bytes:
    """Return the bytes of a `data:` URL. Raises BadRequest, for any other URL too: nothing is fetched."""
    if not url.startswith("data:"):
        raise BadRequest(
            "a picture must come as a data: URL by the time it gets here", code="invalid_image", param=param
        )
    head, comma, body = url.partition(",")
    if not comma:
        raise _invalid(param, "the data: URL has no comma")
    if not head.endswith(";base64"):
        return unquote_to_bytes(body)
    try:
        return base64.b64decode(body, validate=True)
    except (binascii.Error, ValueError):
        raise _invalid(param, "its base64 cannot be read") from None


def _invalid(param: str, why: str) -> BadRequest:
    return BadRequest(f"the picture in {param!r} cannot be used: {why}", code="invalid_image", param=param)
