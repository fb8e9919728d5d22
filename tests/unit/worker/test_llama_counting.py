from __future__ import annotations

from typing import Any, cast

import pytest

from modeld.errors import BadRequest, EngineError
from modeld.worker.loaders.llama_server.client import Client
from modeld.worker.loaders.llama_server.tokens import count_chat

PICTURES = ("messages[0].content[0].image_url.url",)


class _Engine:
    """Refuses everything with one error."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    async def ask(self, path: str, body: Any, kind: type[Any]) -> Any:
        raise self._error


async def test_an_engine_that_cannot_count_pictures_says_so() -> None:
    """An older one knows no such route: the caller learns that the picture is the trouble."""
    engine = cast("Client", _Engine(BadRequest("File Not Found", code="engine_refused")))
    with pytest.raises(BadRequest, match="how many tokens a picture has") as caught:
        await count_chat(engine, {}, PICTURES)
    assert (caught.value.code, caught.value.param) == ("unsupported_parameter", PICTURES[0])


@pytest.mark.parametrize(
    "error",
    [
        BadRequest("unknown role", code="engine_refused"),
        BadRequest("a picture was not found to be one", code="invalid_image"),
        EngineError("not found"),
    ],
)
async def test_other_refusals_stay_what_they_are(error: Exception) -> None:
    """What the engine says of the request itself is passed on."""
    with pytest.raises(type(error)) as caught:
        await count_chat(cast("Client", _Engine(error)), {}, PICTURES)
    assert caught.value is error
