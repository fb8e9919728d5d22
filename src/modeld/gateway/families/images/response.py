"""Events to OpenAI's image events, or to one `ImagesResponse`. Pure: events in, bytes out."""

from __future__ import annotations

import base64
from collections.abc import Callable, Sequence
from typing import Any

from modeld.errors import EngineError
from modeld.gateway.encoding import dumps
from modeld.protocol.pictures import NotAPicture, look
from modeld.protocol.tasks import Event, ImageFormat, Picture, Step, Usage

Size = tuple[int, int]


def measured(data: bytes, form: ImageFormat) -> Size:
    """Return width and height of a picture of that format. Raises EngineError for anything else."""
    try:
        found = look(data)
    except NotAPicture as error:
        raise EngineError(f"the engine's picture is none: {error}", code="invalid_picture") from None
    if found.format != form:
        raise EngineError(f"the engine's picture is {found.format}, not {form}", code="invalid_picture")
    return found.width, found.height


def usage_body(usage: Usage) -> dict[str, Any]:
    """Return the `usage` object; output tokens are the denoising steps taken."""
    return {
        "input_tokens": usage.prompt_tokens,
        "output_tokens": usage.completion_tokens,
        "total_tokens": usage.prompt_tokens + usage.completion_tokens,
        "input_tokens_details": {"text_tokens": usage.prompt_tokens, "image_tokens": 0},
    }


class _Checked:
    """Counts finished pictures, compares their size and format: none is ever quietly another."""

    def __init__(self, n: int, size: Size | None, form: ImageFormat) -> None:
        self._n, self._size, self._form = n, size, form
        self._seen: set[int] = set()

    def measure(self, picture: Picture) -> Size:
        """Return a picture's size. Raises EngineError when it is not the one asked for."""
        size = measured(picture.data, self._form)
        if self._size is not None and size != self._size:
            wanted = f"{self._size[0]}x{self._size[1]}"
            raise EngineError(
                f"the engine drew {size[0]}x{size[1]} in place of {wanted}", code="wrong_picture_size"
            )
        if picture.preview is None:
            self._seen.add(picture.index)
        return size

    def check_complete(self) -> None:
        """Raise EngineError when pictures are missing."""
        if self._seen != set(range(self._n)):
            raise EngineError(
                f"the engine ended the call with {len(self._seen)} of {self._n} pictures",
                code="incomplete_answer",
            )


class ImageChunks:
    """Encodes one streamed answer.

    `family`: "image_generation" or "image_edit", the first word of the events' types. Each finished picture
    is an event of its own as soon as it is there; the last one carries the usage of the whole call, the ones
    before it zeros. Steps become comments, and events too when `progress`.
    """

    def __init__(
        self,
        *,
        family: str,
        created: int,
        n: int,
        size: Size | None,
        progress: bool,
        form: ImageFormat = "png",
    ) -> None:
        self.usage: Usage | None = None
        self._family, self._created, self._progress, self._form = family, created, progress, form
        self._checked = _Checked(n, size, form)
        self._last: tuple[Picture, Size] | None = None

    def encode(self, events: Sequence[Event]) -> list[bytes]:
        """Return the server-sent events for these events, each whole. Raises EngineError."""
        out: list[bytes] = []
        for event in events:
            match event:
                case Step() if self._progress:
                    body = {"fraction": event.fraction, "stage": event.stage}
                    out.append(self._event("progress", body))
                case Step():
                    out.append(b": %d%%\n\n" % round(event.fraction * 100))
                case Picture(preview=None):
                    if self._last is not None:
                        out.append(self._completed(Usage(0, 0)))
                    self._last = event, self._checked.measure(event)
                case Picture():
                    extra = {"partial_image_index": event.preview}
                    out.append(self._picture("partial_image", event, self._checked.measure(event), extra))
                case Usage():
                    self.usage = event
                case _:
                    pass  # nothing else is said about pictures
        return out

    def end(self) -> list[bytes]:
        """Return the last picture. Raises EngineError when pictures are missing."""
        self._checked.check_complete()
        return [self._completed(self.usage or Usage(0, 0))]

    def _completed(self, usage: Usage) -> bytes:
        assert self._last is not None
        picture, size = self._last
        return self._picture("completed", picture, size, {"usage": usage_body(usage), "seed": picture.seed})

    def _picture(self, kind: str, picture: Picture, size: Size, extra: dict[str, Any]) -> bytes:
        body = {
            "b64_json": base64.b64encode(picture.data).decode("ascii"),
            "created_at": self._created,
            "size": f"{size[0]}x{size[1]}",
            "quality": "auto",
            "background": "opaque",
            "output_format": self._form,
            "image_index": picture.index,
        }
        return self._event(kind, body | extra)

    def _event(self, kind: str, body: dict[str, Any]) -> bytes:
        name = f"{self._family}.{kind}"
        return b"event: %b\ndata: %b\n\n" % (name.encode(), dumps({"type": name, **body}))


class ImageCollector:
    """Gathers one answer that is not streamed.

    `link` makes the pictures' URLs; None gives the pictures themselves. Each comes with its seed, which asked
    for alone draws the same again.
    """

    def __init__(
        self,
        *,
        created: int,
        n: int,
        size: Size | None,
        link: Callable[[Sequence[bytes]], Sequence[str]] | None,
        form: ImageFormat = "png",
    ) -> None:
        self.usage: Usage | None = None
        self._created, self._link, self._form = created, link, form
        self._checked = _Checked(n, size, form)
        self._pictures: dict[int, Picture] = {}
        self._sizes: set[Size] = set()

    def add(self, events: Sequence[Event]) -> None:
        """Take events in. Raises EngineError."""
        for event in events:
            match event:
                case Picture(preview=None):
                    self._sizes.add(self._checked.measure(event))
                    self._pictures[event.index] = event
                case Usage():
                    self.usage = event
                case _:
                    pass

    def body(self) -> bytes:
        """Return the `ImagesResponse`. Raises EngineError when pictures are missing, TooLarge for links."""
        self._checked.check_complete()
        pictures = [self._pictures[index] for index in sorted(self._pictures)]
        if self._link is None:
            key, values = "b64_json", [base64.b64encode(one.data).decode("ascii") for one in pictures]
        else:
            key, values = "url", list(self._link([one.data for one in pictures]))
        size = self._sizes.pop() if len(self._sizes) == 1 else None
        return dumps(
            {
                "created": self._created,
                "data": [{key: value, "seed": one.seed} for value, one in zip(values, pictures, strict=True)],
                "background": "opaque",
                "output_format": self._form,
                "size": None if size is None else f"{size[0]}x{size[1]}",
                "usage": usage_body(self.usage or Usage(0, 0)),
            }
        )
