"""What `ctl devices` is told of engines by the control room."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from modeld.protocol.capabilities import Capability
from tests.component.control import conftest as control


class Asked(control.NoLoaders):
    """Notes what it is asked."""

    def __init__(self) -> None:
        self.whole: list[tuple[str | None, dict[str, str]]] = []

    async def all(
        self, *, fresh: bool = False, binary: str | None = None, pythons: Mapping[str, str] | None = None
    ) -> dict[str, Capability]:
        assert fresh
        self.whole.append((binary, dict(pythons or {})))
        return {"fake": Capability(True, "there")}


async def test_every_interpreter_that_is_named_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loaders are looked for where the configuration names their interpreters and programs; a model that
    names one of its own is listed beside its loader.
    """
    asked = Asked()
    monkeypatch.setattr(control, "NoLoaders", lambda: asked)
    models = [
        control.fake("a"),
        control.fake("b", python="/opt/own/python"),
        control.fake("c", python="/opt/own/python"),
    ]
    engines = {"llama_server": {"binary": "/opt/llama-server"}, "vllm": {"python": "/opt/vllm/python"}}
    async with control.running(tmp_path, *models, engines=engines) as room:
        reply = await room.control.devices()
    assert asked.whole == [("/opt/llama-server", {"vllm": "/opt/vllm/python"})]
    assert reply.loaders == {
        "fake": Capability(True, "there"),
        "fake of b": Capability(True, "there", python="/opt/own/python"),
        "fake of c": Capability(True, "there", python="/opt/own/python"),
    }
