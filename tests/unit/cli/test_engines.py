from __future__ import annotations

import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from modeld.cli.main import modeld
from modeld.engines.listing import engines
from modeld.engines.pins import RECIPES, Variant
from modeld.engines.place import Installed, Place
from modeld.protocol.capabilities import Capability

THERE = Capability(True, "x 1")
GONE = Capability(False, "x is not there", "modeld engines install x")


@pytest.mark.parametrize("words", [["install", "vllm"], ["remove", "vllm"]])
def test_root_does_not_work_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    """Root is refused in another user's state directory, with the command that helps; nothing is made."""
    if os.geteuid() == 0:
        os.chown(tmp_path, 12345, 12345)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    result = CliRunner().invoke(modeld, ["engines", *words, "--state-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert f"{tmp_path} belongs to uid {tmp_path.stat().st_uid}: run this as that user" in result.stderr
    assert "systemd-run" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("words", [["install", "nope"], ["remove", "nope"], ["install", "vllm", "--metal"]])
def test_a_wrong_name_or_build_costs_nothing(tmp_path: Path, words: list[str]) -> None:
    """What there is not is refused with exit code 2 and what there is, before anything is made."""
    result = CliRunner().invoke(modeld, ["engines", *words, "--state-dir", str(tmp_path / "state")])
    assert result.exit_code == 2
    assert ("there are: diffusers" if "nope" in words else "there is: --") in result.stderr
    assert not (tmp_path / "state").exists()


def installed(place: Place, name: str, packages: tuple[str, ...]) -> str:
    """Put an environment into place that holds nothing, and return its interpreter."""
    with place.locked(name, "installed"):
        home = place.fresh(name)
        (home / "bin").mkdir(parents=True)
        place.accept(name, home, Installed(name, "cpu", "1", packages, "3.11", 5 << 20, 0.0))
    python = place.python(name)
    assert python is not None
    return python


def test_where_an_engine_is(tmp_path: Path) -> None:
    """Own, made by modeld, named or missing: each with what is known of it and what there is to do."""
    place, found = Place(tmp_path), dict.fromkeys(RECIPES, THERE)
    current = installed(place, "vllm", RECIPES["vllm"][Variant.CPU].packages)
    older = installed(place, "diffusers", ("torch==1.0",))
    unused = installed(place, "whispercpp", ())
    found["vllm"] = Capability(True, "vllm 1", python=current)
    found["diffusers"] = Capability(True, "diffusers 1", python=older)
    found["sherpa_onnx"] = Capability(True, "sherpa_onnx 1", python="/opt/python")
    found["llama_server"] = GONE
    rows = {each.name: each for each in engines(place, found, {"sherpa_onnx": "/opt/python"})}
    assert list(rows) == sorted(RECIPES)
    assert (rows["vllm"].where, rows["vllm"].variant, rows["vllm"].size) == ("managed", "cpu", 5 << 20)
    assert rows["vllm"].note == ""
    assert "modeld engines install diffusers" in rows["diffusers"].note
    assert (rows["sherpa_onnx"].where, rows["sherpa_onnx"].python) == ("named", "/opt/python")
    assert (rows["llama_server"].where, rows["llama_server"].fix) == ("missing", GONE.fix)
    assert (rows["whispercpp"].where, rows["whispercpp"].python) == ("own", "")
    assert "is not used, the daemon's own is" in rows["whispercpp"].note
    assert unused not in rows["whispercpp"].note
    assert rows["stable_diffusion_cpp"].note == ""


def test_a_manifest_that_cannot_be_read_hides_nothing(tmp_path: Path) -> None:
    """An environment without a readable manifest is still the one that counts, with nothing known of it."""
    place = Place(tmp_path)
    python = installed(place, "vllm", ())
    home = place.home("vllm")
    assert home is not None
    (home / "modeld-engine.json").write_text("{")
    assert (place.python("vllm"), place.installed("vllm")) == (python, None)
    found = dict.fromkeys(RECIPES, THERE) | {"vllm": Capability(True, "vllm 1", python=python)}
    (row,) = (each for each in engines(place, found, {}) if each.name == "vllm")
    assert (row.where, row.variant, row.size) == ("managed", "", 0)
