"""Pictures in a conversation: checked by their first bytes, and fetched, before any work is done.

What leaves here is a `data:` URL of a file that begins as a picture within the limits does. Unpacking it is
the worker's business.
"""

from __future__ import annotations

import asyncio
import base64
import re
import string
from collections.abc import Callable

import msgspec

from modeld.errors import BadRequest
from modeld.gateway.egress import Budget, Egress, Failed, Refused
from modeld.gateway.settings import MediaSettings
from modeld.protocol.pictures import NotAPicture, Picture, look, look_base64
from modeld.protocol.tasks import ChatTask, ImagePart, Message, Part

_HEAD = re.compile(r"data:[^,;]{0,100}(;[^,;]{0,100}){0,4};base64,", re.IGNORECASE)
"""The declared type does not matter: the content says what it is."""

_ALPHABET = (string.ascii_letters + string.digits + "+/").encode()


class Album:
    """The pictures of one request, counted as they are found."""

    def __init__(self, media: MediaSettings) -> None:
        self._media = media
        self._count = 0

    def part(self, url: str, param: str) -> ImagePart:
        """Return the part for a URL: a data: URL is checked, an http URL is left to `fetched`.

        Raises BadRequest.
        """
        self._count += 1
        if self._count > self._media.images:
            raise BadRequest(
                f"'{param}' is picture {self._count} of this request, the limit is {self._media.images} "
                "(media.images in the configuration)",
                code="too_many_images",
                param=param,
            )
        if _is_remote(url):
            return ImagePart(url=url)
        head = _HEAD.match(url)
        if head is None:
            raise _bad_url(param, "expected data:image/…;base64,… or an http or https URL")
        payload = url[head.end() :]
        _check_size(len(payload) // 4 * 3 - payload[-2:].count("="), self._media, param)
        if not _is_base64(payload):
            raise _bad_url(param, "what follows 'base64,' is not base64 from beginning to end")
        picture = _checked(lambda: look_base64(payload), self._media, param)
        return ImagePart(url=f"data:image/{picture.format};base64,{payload}")


def _chat_param(message: int, part: int) -> str:
    return f"messages[{message}].content[{part}].image_url.url"


async def fetched(
    task: ChatTask,
    egress: Egress,
    media: MediaSettings,
    room: int,
    param: Callable[[int, int], str] = _chat_param,
) -> ChatTask:
    """Return the task with every picture in it: those that are named by an http URL are fetched at once.

    `room`: bytes that the fetched pictures may add to the task, coded as they will be. `param` names the
    picture of a message and a part to the caller. Raises BadRequest.
    """
    wanted = [
        (at, place, part.url)
        for at, message in enumerate(task.messages)
        if isinstance(message.content, tuple)
        for place, part in enumerate(message.content)
        if isinstance(part, ImagePart) and _is_remote(part.url)
    ]
    if not wanted:
        return task
    budget = Budget(max(room, 0) * 3 // 4)
    try:
        async with asyncio.TaskGroup() as group:
            tasks = {
                (at, place): group.create_task(_one(url, param(at, place), egress, media, budget))
                for at, place, url in wanted
            }
    except BaseExceptionGroup as failures:
        raise failures.exceptions[0] from None
    found = {where: done.result() for where, done in tasks.items()}
    messages = tuple(_with_pictures(message, at, found) for at, message in enumerate(task.messages))
    return msgspec.structs.replace(task, messages=messages)


async def _one(url: str, param: str, egress: Egress, media: MediaSettings, budget: Budget) -> ImagePart:
    try:
        data = await egress.fetch(url, media.image_bytes, budget)
    except Refused as refused:
        raise _bad_url(param, str(refused)) from None
    except Failed as failed:
        raise BadRequest(
            f"the picture of '{param}' could not be fetched: {failed}", code="image_fetch_failed", param=param
        ) from None
    picture = _checked(lambda: look(data), media, param)
    return ImagePart(url=f"data:image/{picture.format};base64,{base64.b64encode(data).decode()}")


def _with_pictures(message: Message, at: int, found: dict[tuple[int, int], ImagePart]) -> Message:
    if not isinstance(message.content, tuple):
        return message
    parts: tuple[Part, ...] = tuple(
        found.get((at, place), part) for place, part in enumerate(message.content)
    )
    return msgspec.structs.replace(message, content=parts)


def _is_remote(url: str) -> bool:
    return url[:8].lower().startswith(("http://", "https://"))


def _bad_url(param: str, reason: str) -> BadRequest:
    return BadRequest(f"invalid value for '{param}': {reason}", code="invalid_image_url", param=param)


def _check_size(size: int, media: MediaSettings, param: str) -> None:
    if size > media.image_bytes:
        raise BadRequest(
            f"the picture of '{param}' has {size} bytes, the limit is {media.image_bytes} "
            "(media.image_bytes in the configuration)",
            code="image_too_large",
            param=param,
        )


def _is_base64(text: str) -> bool:
    """Say whether all of a text is base64; decoding megabytes to find out would take three times as long."""
    if len(text) % 4 or not text.isascii():
        return False
    return text.encode().translate(None, _ALPHABET) in (b"", b"=", b"==") and "=" not in text[:-2]


def _checked(look: Callable[[], Picture], media: MediaSettings, param: str) -> Picture:
    """Return what the file's header says, if it is a picture within the limits."""
    try:
        picture = look()
    except NotAPicture as error:
        raise BadRequest(
            f"the picture of '{param}' cannot be read: {error}", code="invalid_image", param=param
        ) from None
    limits = media.limits
    over = (
        f"{picture.width * picture.height} pixels, the limit is {limits.image_pixels} (media.image_pixels"
        if picture.width * picture.height > limits.image_pixels
        else f"a side of {max(picture.width, picture.height)} pixels, the limit is {limits.image_side} "
        "(media.image_side"
        if max(picture.width, picture.height) > limits.image_side
        else ""
    )
    if over:
        raise BadRequest(
            f"the picture of '{param}' is {picture.width}x{picture.height}: {over} in the configuration)",
            code="image_too_large",
            param=param,
        )
    return picture
