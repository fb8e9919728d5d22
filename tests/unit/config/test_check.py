from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from modeld.cli.check import check
from modeld.errors import ConfigError


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODELD_API_KEYS", "MODELD_LISTEN", "MODELD_STATE_DIR", "MODELD_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_good_file_is_listed_with_its_warnings(tmp_path: Path) -> None:
    """The models come one a line, then what this version does not act on."""
    file = tmp_path / "m.yaml"
    file.write_text(
        "models: [{name: a, model: ./a.gguf, usecase: generate, loader: llama_server, num_replicas: 3}]\n"
    )
    result = CliRunner().invoke(check, [str(file)])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{file}: ok, 1 model",
        "  a: llama_server, generate, ./a.gguf",
        "warning: model 'a': num_replicas: 3 is read, but this version runs one replica",
    ]


def test_a_bad_file_raises_for_the_shared_handler(tmp_path: Path) -> None:
    """The error passes through: who runs the command line turns it into a line and an exit code."""
    file = tmp_path / "m.yaml"
    file.write_text("modells: []\n")
    result = CliRunner().invoke(check, [str(file)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"{file}:1:1: modells: unknown key; did you mean models?"
    assert result.output == ""
