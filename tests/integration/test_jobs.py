"""Jobs with a real engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.jobs import survives
from tests.harness.models import llama


@pytest.mark.engine
async def test_every_item_of_a_real_batch_ends_once_and_in_order_however_often_the_daemon_dies(
    short_dir: Path, demo_gguf: Path
) -> None:
    """Two hundred chats of a few tokens, and kill -9 at random points of them."""
    model = llama("m", demo_gguf, parallel=2, n_ctx=256)
    await survives(short_dir, model, count=200, tokens=3, kills=3, slots=2, within=480.0)
