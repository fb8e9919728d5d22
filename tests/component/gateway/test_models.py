"""`GET /v1/models` with what is known of the models' files."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from modeld.gateway.families.models import FILES, SUMS, card
from modeld.library.about import About
from modeld.library.entry import Entry
from modeld.library.metadata import Metadata
from modeld.supervisor.states import State, Status
from tests.component.gateway.served import Serve
from tests.fakes.pool import FakePool, model

ENTRY = Entry(
    "/secret/m.gguf",
    "gguf",
    "model",
    size=90,
    capabilities=("chat",),
    usecase="generate",
    metadata=Metadata("gguf", 90, "llama", parameters=7, quantization="Q4_K_M", context_length=512),
    about=About("model", keys={"general.name": "m"}),
)


async def files(statuses: Sequence[Status]) -> dict[str, Entry]:
    """Know the file of one model."""
    return {status.name: ENTRY for status in statuses if status.name == "big"}


async def test_cards_carry_the_file_s_facts_and_metadata_when_asked(serve: Serve) -> None:
    """In the list, under each name, and alone; a model without a file has nulls, and no path is told."""
    pool = FakePool.of(model("big", state=State.STOPPED, aliases=("b",)), model("none", state=State.STOPPED))

    async def sums(entry: Entry) -> dict[str, str]:
        return {"m.gguf": "0" * 64} if entry is ENTRY else {}

    gateway = await serve(pool, {FILES: files, SUMS: sums})
    _, body = await gateway.ask("GET", "/v1/models")
    facts = [
        tuple(card["modeld"][key] for key in ("parameters", "quantization", "size", "context_length"))
        for card in body["data"]
    ]
    assert facts == [(7, "Q4_K_M", 90, 512), (7, "Q4_K_M", 90, 512), (None, None, None, None)]
    assert not any("metadata" in card["modeld"] for card in body["data"])
    _, body = await gateway.ask("GET", "/v1/models?detail=1")
    big, alias, none = (card["modeld"]["metadata"] for card in body["data"])
    assert big == alias
    assert (big["architecture"], big["about"]["keys"]) == ("llama", {"general.name": "m"})
    assert big["sha256"] == {"m.gguf": "0" * 64}
    assert none is None
    assert "secret" not in str(body)
    _, alone = await gateway.ask("GET", "/v1/models/b?detail=1")
    assert alone == body["data"][1]


def test_what_a_file_can_do_counts_for_what_it_is_configured_for() -> None:
    """Until it is loaded: a chat model that is to make vectors is not said to chat."""
    for usecase, able in (("generate", ["chat"]), ("embed", [])):
        status = model("m", state=State.STOPPED, usecase=usecase)
        assert card(status, "m", 0, ENTRY)["modeld"]["capabilities"] == able


@pytest.mark.parametrize("path", ["/v1/models?detail=yes", "/v1/models/big?detail=2"])
async def test_detail_is_0_or_1(serve: Serve, path: str) -> None:
    """Anything else is the caller's mistake."""
    response, body = await (await serve(FakePool.of(model("big")))).ask("GET", path)
    assert (response.status, body["error"]["param"]) == (400, "detail")
