from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from modeld.cli.check import check
from modeld.cli.main import modeld
from modeld.errors import ConfigError

SHAPES = sorted((Path(__file__).parent / "modelship").glob("*.yaml"))


@pytest.fixture(autouse=True)
def _no_settings_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("MODELD_API_KEYS", "MODELD_LISTEN", "MODELD_STATE_DIR", "MODELD_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)


def test_a_good_file_is_listed_with_its_warnings(tmp_path: Path) -> None:
    """The models come by gateway, each with what it asks for; then what this version does not act on."""
    file = tmp_path / "m.yaml"
    file.write_text(
        "keep_alive: 10m\n"
        "models:\n"
        "  - {name: a, model: ./a.gguf, usecase: generate, loader: llama_server, num_replicas: 3,\n"
        "     pin: true}\n"
        "  - {name: b, model: x/y, usecase: tts, loader: vllm, num_gpus: 0.5, load: on_demand,\n"
        "     aliases: [c, d], autoscaling_config: {min_replicas: 0, max_replicas: 2}, keep_alive: never}\n"
        "gateways:\n"
        "  - name: My Lab\n"
        "    models: [{name: a, model: ./a.gguf, usecase: generate, loader: llama_server, num_gpus: 0,\n"
        "              priority: -3}]\n"
        "  - name: empty\n"
    )
    (tmp_path / "a.gguf").write_bytes(b"")
    result = CliRunner().invoke(check, [str(file)])
    assert result.exit_code == 0
    assert result.output.splitlines() == [
        f"{file}: ok, 3 models",
        "/v1:",
        "  a: llama_server, generate, ./a.gguf",
        "    loaded at start, GPUs as modeld decides, 3 replicas, pinned",
        "  b: vllm, tts, x/y",
        "    loaded on demand, 0.5 of a GPU, 0 to 2 replicas by load, also called c, d",
        "/my-lab/v1:",
        "  a: llama_server, generate, ./a.gguf",
        "    loaded at start, no GPU, 1 replica, unloaded after 600 s without a request, priority -3",
        "/empty/v1: no models",
        f"warning: {file}:5:36: models[1].usecase: the usecase tts is read, but models of vllm serve only "
        "generate, embed, transcription, translation; nobody can call 'b'",
    ]


def test_a_bad_file_raises_for_the_shared_handler(tmp_path: Path) -> None:
    """The error passes through: who runs the command line turns it into a line and an exit code."""
    file = tmp_path / "m.yaml"
    file.write_text("modells: []\n")
    result = CliRunner().invoke(check, [str(file)])
    assert isinstance(result.exception, ConfigError)
    assert str(result.exception) == f"{file}:1:1: modells: unknown key; did you mean models?"
    assert result.output == ""


def test_there_is_a_file_for_each_shape() -> None:
    """The files of the other system come in seven shapes, and each is here."""
    assert [file.stem for file in SHAPES] == [
        "diffusers",
        "full-stack",
        "llama-server",
        "sherpa-onnx",
        "stable-diffusion-cpp",
        "vllm",
        "whispercpp",
    ]


@pytest.mark.parametrize("file", SHAPES, ids=lambda file: file.stem)
def test_modelships_files_pass_unchanged(file: Path) -> None:
    """Each shape is accepted as it is: exit 0, every model listed.

    No warning but about the loader, and about models that lie elsewhere or have names that are not known.
    """
    result = CliRunner().invoke(modeld, ["check", str(file)])
    assert (result.exit_code, result.output.splitlines()[1]) == (0, "/v1:")
    names = [line.split(": ")[1].strip('"') for line in file.read_text().splitlines() if " name:" in line]
    listed = [line.split(":")[0].strip() for line in result.output.splitlines() if line.startswith("  ")][::2]
    assert listed == names
    warnings = [line for line in result.output.splitlines() if line.startswith("warning: ")]
    assert all(line.startswith(f"warning: {file}:") for line in warnings)
    words = ("the loader ", "the usecase ", "there is no /", " names no model; expected ")
    assert all(any(each in line for each in words) for line in warnings)


def test_a_model_that_is_not_there_is_a_warning(tmp_path: Path) -> None:
    """Paths count from the file's folder; a path that is not there, and what is none, have their places."""
    file = tmp_path / "m.yaml"
    (tmp_path / "there.gguf").write_bytes(b"")
    models = ["./there.gguf", "./gone.gguf", "http://host/m.gguf", "org/repo:*q4.gguf", "tiny.en"]
    loaders = ["llama_server"] * 4 + ["whispercpp"]
    usecases = ["generate"] * 4 + ["transcription"]
    file.write_text(
        "models:\n"
        + "".join(
            f"  - {{model: '{model}', name: m{at}, usecase: {usecase}, loader: {loader}}}\n"
            for at, (model, loader, usecase) in enumerate(zip(models, loaders, usecases, strict=True))
        )
    )
    result = CliRunner().invoke(modeld, ["check", str(file)])
    assert result.exit_code == 0
    gone, address = [line for line in result.output.splitlines() if line.startswith("warning: ")]
    assert gone == f"warning: {file}:3:13: models[1].model: there is no {tmp_path}/gone.gguf"
    assert address.startswith(
        f"warning: {file}:4:13: models[2].model: 'http://host/m.gguf': addresses are not"
    )


@pytest.mark.parametrize(
    ("gpus", "sizes", "message"),
    [
        ("0.5", (2, 1), "6:15: models[0].num_gpus is 0.5, a share of one GPU, but tensor_parallel_size x"),
        ("0.9", (1, 2), "6:15: models[0].num_gpus is 0.9, a share of one GPU, but tensor_parallel_size x"),
        (
            "3",
            (2, 2),
            "6:15: models[0].num_gpus is 3, but tensor_parallel_size x pipeline_parallel_size is 2 x 2",
        ),
        (
            "1",
            (4, 1),
            "6:15: models[0].num_gpus is 1, but tensor_parallel_size x pipeline_parallel_size is 4 x 1",
        ),
        ("1.5", (1, 1), "6:15: models[0].num_gpus is 1.5: expected a share of one GPU below 1, or a whole"),
        ("2.5", (2, 1), "6:15: models[0].num_gpus is 2.5: expected a share of one GPU below 1, or a whole"),
        ("-1", (1, 1), "6:15: models[0].num_gpus: expected at least 0, got the number -1"),
        ("2", (0, 1), "8:29: models[0].vllm_engine_kwargs.tensor_parallel_size: expected at least 1"),
        ("two", (1, 1), "6:15: models[0].num_gpus: expected a number, got text 'two'"),
    ],
)
def test_impossible_groups_of_gpus_are_refused(
    tmp_path: Path, gpus: str, sizes: tuple[int, int], message: str
) -> None:
    """A group of GPUs that cannot be is refused when the file is read: exit 2, with file, line and column."""
    file = tmp_path / "m.yaml"
    file.write_text(
        "models:\n  - name: big\n    model: org/big\n    usecase: generate\n    loader: vllm\n"
        f"    num_gpus: {gpus}\n    vllm_engine_kwargs:\n      tensor_parallel_size: {sizes[0]}\n"
        f"      pipeline_parallel_size: {sizes[1]}\n"
    )
    result = CliRunner().invoke(modeld, ["check", str(file)])
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:{message}")


@pytest.mark.parametrize(
    ("gpus", "sizes"), [("2", (1, 1)), ("2", (2, 1)), ("4", (2, 2)), ("0.4", (1, 1)), ("0", (2, 1))]
)
def test_possible_groups_of_gpus_are_accepted(tmp_path: Path, gpus: str, sizes: tuple[int, int]) -> None:
    """Sizes that agree, that follow from the GPUs, or that run without any are no mistake."""
    file = tmp_path / "m.yaml"
    file.write_text(
        "models:\n  - name: big\n    model: org/big\n    usecase: generate\n    loader: vllm\n"
        f"    num_gpus: {gpus}\n    vllm_engine_kwargs:\n      tensor_parallel_size: {sizes[0]}\n"
        f"      pipeline_parallel_size: {sizes[1]}\n"
    )
    assert CliRunner().invoke(modeld, ["check", str(file)]).exit_code == 0


@pytest.mark.parametrize("model", ["demo:kokoro", "pypi:some-model==1.0/some_model/m.gguf"])
def test_what_is_fetched_can_be_judged_without_a_network(tmp_path: Path, model: str) -> None:
    """A reference to a demo model or into a package is taken as it is."""
    file = tmp_path / "m.yaml"
    file.write_text(f"models:\n  - {{name: m, model: '{model}', usecase: tts, loader: sherpa_onnx}}\n")
    result = CliRunner().invoke(modeld, ["check", str(file)])
    assert (result.exit_code, f"m: sherpa_onnx, tts, {model}" in result.output) == (0, True)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            "demo:kokoko",
            "there is no demo model of that name; there are demo:kokoro, demo:minilm",
        ),
        ("pypi:some-model/m.gguf", "one exact version is needed; expected pypi:package==version/"),
    ],
)
@pytest.mark.parametrize("gateway", [False, True])
def test_a_wrong_reference_has_its_place(tmp_path: Path, model: str, message: str, gateway: bool) -> None:
    """A demo model that is none, or half a package, is refused with file, line and column."""
    entry = f"- name: m\n  model: {model}\n  usecase: tts\n  loader: sherpa_onnx\n"
    before = "gateways:\n- name: g\n  models:\n" if gateway else "models:\n"
    indent = "  " if gateway else ""
    file = tmp_path / "m.yaml"
    file.write_text(before + "".join(f"{indent}{line}\n" for line in entry.splitlines()))
    result = CliRunner().invoke(modeld, ["check", str(file)])
    place, path = ("5:12", "gateways[0].models[0].model") if gateway else ("3:10", "models[0].model")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"{file}:{place}: {path}: '{model}': {message}")


def test_an_open_address_without_keys_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon refuses it; keys may still come from the environment, and then there is nothing to say."""
    monkeypatch.delenv("MODELD_API_KEYS", raising=False)
    file = tmp_path / "m.yaml"
    file.write_text("listen: 0.0.0.0:8000\n")
    result = CliRunner().invoke(modeld, ["check", str(file)])
    assert result.exit_code == 0
    assert f"warning: {file}: listen: 0.0.0.0 can be reached from other machines" in result.output
    result = CliRunner().invoke(modeld, ["check", str(file)], env={"MODELD_API_KEYS": "k"})
    assert (result.exit_code, "warning" in result.output) == (0, False)
