from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from modeld import daemon
from modeld.cli.serve import _show, serve
from modeld.config.schema import Config
from modeld.daemon import Running
from tests.component.supervisor.conftest import make_pool, spec
from tests.fakes.workers import Workers

TEXT = """\
log: {{level: {level}}}
models:
  - name: a
    model: ./a.gguf
    usecase: generate
    loader: llama_server
    chat_template_kwargs: {{enable_thinking: no}}
  - {{name: b, model: org/b, usecase: image, loader: vllm}}
"""


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[tuple[Config, dict[str, Any]]]]:
    """Keep what the daemon would be started with, instead of starting it; the log is put back."""
    calls: list[tuple[Config, dict[str, Any]]] = []

    async def run(config: Config, env: Any, **options: Any) -> None:
        assert env is os.environ
        logging.getLogger("modeld").info("it runs")
        calls.append((config, options))

    monkeypatch.setattr(daemon, "run", run)
    root, ours = logging.getLogger(), logging.getLogger("modeld")
    before = (list(root.handlers), root.level, ours.level)
    yield calls
    root.handlers[:], level, own = before
    root.setLevel(level)
    ours.setLevel(own)
    logging.captureWarnings(False)


@pytest.mark.parametrize(("level", "said"), [("info", 3), ("warning", 2), ("error", 0)])
def test_a_files_warnings_are_logged_once_before_the_start(
    tmp_path: Path, started: list[tuple[Config, dict[str, Any]]], level: str, said: int
) -> None:
    """Each warning is one line with its place in the file, at the weight of a warning, under the file's own
    `log`, and comes before anything that the daemon says.
    """
    file = tmp_path / "modeld.yaml"
    file.write_text(TEXT.format(level=level))
    result = CliRunner().invoke(serve, ["--config", str(file), "--port", "7"])
    assert (result.exit_code, result.stdout, len(started)) == (0, "", 1)
    lines = result.stderr.splitlines()
    assert len(lines) == said
    if said >= 2:
        assert "WARNING" in lines[0]
        assert f"{file}:7:45: models[0].chat_template_kwargs.enable_thinking: no is text" in lines[0]
        assert f"{file}:8:38: models[1].usecase: the usecase image" in lines[1]
    config, options = started[0]
    assert (config.listen.port, options["file"], options["base"]) == (7, file, tmp_path)


def test_a_start_without_a_file_has_nothing_to_warn_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[tuple[Config, dict[str, Any]]]
) -> None:
    """Without a file, and with the demo's own, no warning is logged; only the former resumes."""
    monkeypatch.chdir(tmp_path)
    for arguments, resume in (([], True), (["--demo"], False)):
        result = CliRunner().invoke(serve, arguments)
        assert (result.exit_code, "WARNING" in result.stderr) == (0, False)
        assert (started[-1][1]["file"], started[-1][1]["resume"]) == (None, resume)


@pytest.mark.parametrize(
    ("gateways", "name", "route"),
    [(("", "g"), "a", ""), (("g", ""), "b", ""), (("g", "h"), "a", "/g")],
)
async def test_the_line_to_try_names_a_model_as_its_gateway_serves_it(
    gateways: tuple[str, str], name: str, route: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The curl line asks the default gateway's first model, or else another's under its own address."""
    specs = [
        spec(f"{gateway}/{name}".removeprefix("/"), gateway=gateway)
        for gateway, name in zip(gateways, "ab", strict=True)
    ]
    async with make_pool(specs, tmp_path, workers=Workers()) as pool:
        await _show(Running("http://127.0.0.1:1", False, pool))
    said = capsys.readouterr().out
    assert f"curl http://127.0.0.1:1{route}/v1/chat/completions " in said
    assert f'{{"model": "{name}", ' in said


async def test_more_models_come_up_once_the_first_are_at_rest(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Models to be woken follow the others, each says how to try it when it is ready, and notes come last."""
    specs = [
        spec("chat"),
        replace(spec("later", on_demand=True), usecase="embed"),
        replace(spec("never", on_demand=True), usecase="tts"),
    ]
    async with make_pool(specs, tmp_path, workers=Workers()) as pool:
        running = Running("http://127.0.0.1:1", False, pool)
        await _show(running, then=["later", "removed meanwhile"], notes=["a note"])
    text = capsys.readouterr().out
    words = ("chat is ready", "/v1/chat/completions ", "later is ready", "/v1/embeddings ", "  later: ready")
    order = [text.index(each) for each in (*words, "a note")]
    assert order == sorted(order)
    assert "  never: stopped" in text
    assert "audio/speech" not in text
    assert text.endswith("\na note\n")


def test_the_demo_wakes_what_has_an_engine(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, started: list[tuple[Config, dict[str, Any]]]
) -> None:
    """An engine that modeld keeps itself counts as installed; one that is declared missing does not."""
    home = tmp_path / "state" / "engines" / "sherpa_onnx"
    (home / "1").mkdir(parents=True)
    (home / "current").symlink_to("1")
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setenv("MODELD_CAPABILITIES", "")
    for declared, woken in (("", ["minilm", "kokoro"]), ("sherpa_onnx=no", ["minilm"])):
        monkeypatch.setenv("MODELD_CAPABILITIES", declared)
        result = CliRunner().invoke(serve, ["--demo", "--state-dir", str(tmp_path / "state")])
        assert result.exit_code == 0, result.output
        front_end = started[-1][1]["front_end"]
        assert front_end.keywords["then"] == woken
        assert len(front_end.keywords["notes"]) == 3 - len(woken)
