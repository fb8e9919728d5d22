from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.llama_server.command import command, model_file
from modeld.worker.loaders.llama_server.xllama import configure


def spec(path: Path, **options: Any) -> LoadSpec:
    """Return a load for this path."""
    return LoadSpec("m", "llama_server", "generate", str(path), "/run/x", options)


def gguf(file: Path) -> Path:
    """Make the beginning of a GGUF file."""
    file.write_bytes(b"GGUF\x03\0\0\0")
    return file


def test_a_folder_with_one_model_is_that_model(tmp_path: Path) -> None:
    """A projector and later parts of a split model do not count."""
    first = gguf(tmp_path / "big-00001-of-00002.gguf")
    gguf(tmp_path / "big-00002-of-00002.gguf")
    gguf(tmp_path / "mmproj-big.gguf")
    assert model_file(spec(tmp_path)) == first
    assert model_file(spec(first)) == first


def test_what_is_no_model_is_refused_for_good_with_what_is_wrong(tmp_path: Path) -> None:
    """Missing, ambiguous and foreign files are permanent failures that name the file."""
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    with pytest.raises(LoadFailed, match=r"page.gguf is not a GGUF file: it begins with b'<htm'") as caught:
        model_file(spec(tmp_path / "page.gguf"))
    assert caught.value.permanent
    with pytest.raises(LoadFailed, match=r"cannot read the model file .*none.gguf: No such file"):
        model_file(spec(tmp_path / "none.gguf"))
    gguf(tmp_path / "other.gguf")
    with pytest.raises(LoadFailed, match=r"it holds: other.gguf, page.gguf; name the file itself"):
        model_file(spec(tmp_path))


def test_every_option_reaches_the_command_line(tmp_path: Path) -> None:
    """The context is for each slot, so it is multiplied; 0 and -1 mean what llama.cpp means by them."""
    template = tmp_path / "t.jinja"
    template.write_text("x")
    options = {
        "binary": sys.executable,
        "n_ctx": 1000,
        "parallel": 3,
        "n_batch": 64,
        "threads": 2,
        "n_gpu_layers": 7,
        "mmproj": "/p.gguf",
        "cache_reuse": 0,
        "cache_ram_mib": 0,
        "chat_template": str(template),
        "context_shift": True,
        "lora": [{"path": "/a.gguf", "scale": 1.0}, {"path": "/b.gguf", "scale": 0.5}],
        "draft_model": "/d.gguf",
        "draft_n_max": 8,
        "draft_n_min": 2,
        "draft_p_min": 0.5,
        "draft_n_gpu_layers": 3,
        "extra_args": ["--seed", 1],
    }
    argv, name = command(spec(tmp_path, **options), Path("/m.gguf"), Path("/s.sock"))
    line = " ".join(argv[1:])
    assert argv[0] == sys.executable
    assert name == f"llama-server ({sys.executable})"
    for part in (
        "-m /m.gguf",
        "--host /s.sock",
        "-c 3000",
        "-np 3",
        "-b 64",
        "-t 2",
        "-ngl 7",
        "--mmproj /p.gguf",
        "--cache-reuse 0",
        "--cache-ram 0",
        f"--chat-template-file {template}",
        "--context-shift",
        "--lora-scaled /a.gguf:1,/b.gguf:0.5",
        "--spec-draft-model /d.gguf --spec-type draft-simple",
        "--spec-draft-n-max 8",
        "--spec-draft-n-min 2",
        "--spec-draft-p-min 0.5",
        "--spec-draft-ngl 3",
    ):
        assert part in line
    assert argv[-2:] == ["--seed", "1"]
    argv, _ = command(
        spec(
            tmp_path,
            binary=sys.executable,
            n_ctx=0,
            n_gpu_layers=-1,
            chat_template="chatml",
            lora=[],
            mmproj="none",
            draft_model=None,
            draft_n_max=None,
        ),
        Path("/m.gguf"),
        Path("/s.sock"),
    )
    assert not {"-ngl", "--lora-scaled", "--mmproj", "--spec-type", "--spec-draft-n-max"} & set(argv)
    assert "-c 0 --chat-template chatml" in " ".join(argv)


def test_a_projector_beside_the_model_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By either engine, unless `none` is asked for, or the model is one that gives vectors."""
    model, eyes = gguf(tmp_path / "m.gguf"), gguf(tmp_path / "mmproj-m.gguf")
    found, _ = command(spec(model, binary=sys.executable), model, Path("/s.sock"))
    assert found[found.index("--mmproj") + 1] == str(eyes)
    for options, usecase in (({"mmproj": "none"}, "generate"), ({}, "embed")):
        asked = msgspec.structs.replace(spec(model, binary=sys.executable, **options), usecase=usecase)
        assert "--mmproj" not in command(asked, model, Path("/s.sock"))[0]
    monkeypatch.setenv("PATH", str(tmp_path))
    for options, wanted in (({}, str(eyes)), ({"mmproj": "none"}, None), ({"mmproj": "/o.gguf"}, "/o.gguf")):
        argv, name = command(spec(model, **options), model, Path("/s.sock"))
        assert name == "xllamacpp"
        assert json.loads(argv[-1])["mmproj"] == wanted


def test_a_binary_that_cannot_run_and_no_engine_at_all_say_the_fix(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both are permanent, and the second names all three ways to an engine."""
    with pytest.raises(LoadFailed, match="is not an executable file, nor on PATH"):
        command(spec(tmp_path, binary=str(tmp_path)), Path("/m"), Path("/s"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(
        LoadFailed, match=r"(?s)PATH.*engines.llama_server.binary.*modeld engines install llama_server"
    ) as caught:
        command(spec(tmp_path), Path("/m"), Path("/s"))
    assert caught.value.permanent


class _Params:
    """Takes any attribute, as xllamacpp's parameters do."""

    def __init__(self) -> None:
        self.model = self.mmproj = self.sampling = self.cpuparams = self.cpuparams_batch = None

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if value is None:
            value = _Params()
            setattr(self, name, value)
        return value


def test_the_prebuilt_engine_takes_the_same_options_and_refuses_flags_it_does_not_know() -> None:
    """Flags with a blank or an equals sign are set; an unknown one, or one without its value, is an error."""
    params = _Params()
    options = {"model": "/m", "socket": "/s", "n_ctx": 10, "parallel": 2, "threads": 3}
    configure(params, {**options, "extra_args": ["--reasoning-budget", "24", "--seed=5"]})
    assert (params.n_ctx, params.n_parallel, params.cpuparams.n_threads) == (20, 2, 3)  # type: ignore[attr-defined]
    assert params.sampling.reasoning_budget_tokens == 24  # type: ignore[attr-defined]
    assert params.sampling.seed == 5  # type: ignore[attr-defined]
    for extra in (["--grammar-file", "x"], ["--seed"]):
        with pytest.raises(ValueError, match="is not among those the xllamacpp engine takes"):
            configure(_Params(), {**options, "extra_args": extra})
