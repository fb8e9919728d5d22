from __future__ import annotations

from pathlib import Path

import pytest

from modeld.config.reference import BEGIN, END, main, render, rows


def test_every_field_is_in_the_reference_with_its_meaning() -> None:
    """Each key, at every depth, has a row with a type and a sentence; keys are not repeated."""
    table = list(rows())
    keys = [key for key, *_ in table]
    assert len(keys) == len(set(keys))
    assert all(kind and meaning.endswith(".") for _, kind, _, meaning in table)
    assert {"listen.port", "models[].llama_server_config.n_ctx", "models[].fake_config.tokens"} <= set(keys)


def test_types_and_defaults_are_in_plain_words() -> None:
    """The table says what a person would write."""
    found = {key: (kind, default) for key, kind, default, _ in rows()}
    assert found["max_request_body"] == ("size", "50MiB")
    assert found["models[].name"] == ("text", "required")
    assert found["models[].ram"] == ("size", "")
    assert found["api_keys"] == ("list of text", "")
    assert found["models"] == ("list of mapping", "")
    assert found["allow_fake"] == ("true/false", "false")
    assert found["log.level"] == ("debug, info, warning, error", "info")
    assert found["models[].llama_server_config.tensor_split"] == ("list of number", "")
    assert found["models[].chat_template_kwargs"] == ("mapping", "")
    assert found["state_dir"] == ("path", "")
    assert found["keep_alive"] == ("duration", "never")
    assert found["models[].keep_alive"] == ("duration", "")
    assert found["models[].load"] == ("eager, on_demand", "eager")
    assert found["memory.headroom"] == ("number", "0.1")
    assert found["gateways[].models"] == ("list of mapping", "")


def test_a_section_is_spelled_out_once() -> None:
    """The models of a gateway are those of the top level: the table does not repeat them."""
    keys = [key for key, *_ in rows()]
    assert [key for key in keys if key.startswith("gateways")] == [
        "gateways",
        "gateways[].name",
        "gateways[].models",
    ]


def test_write_then_check(tmp_path: Path) -> None:
    """`--check` fails until `--write` has been run, and what stands around the markers is kept."""
    file = tmp_path / "README.md"
    file.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main(["--check", str(file)]) == 1
    assert main(["--write", str(file)]) == 0
    assert main(["--check", str(file)]) == 0
    text = file.read_text("utf-8")
    assert text.startswith(f"before\n{BEGIN}\n\n| Key |")
    assert text.endswith(f"{END}\nafter\n")
    assert render() in text


@pytest.mark.parametrize("text", ["", BEGIN, f"{END}{BEGIN}", f"{BEGIN}{END}{BEGIN}{END}"])
def test_without_one_pair_of_markers_nothing_is_written(tmp_path: Path, text: str) -> None:
    """A file whose markers are missing, doubled or swapped is left as it is."""
    file = tmp_path / "README.md"
    file.write_text(text)
    assert main(["--write", str(file)]) == 2
    assert file.read_text() == text


def test_a_missing_file_is_bad_input(tmp_path: Path) -> None:
    """A file that is not there ends with code 2, not a traceback."""
    assert main(["--check", str(tmp_path / "none")]) == 2
