from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from pydantic_core import PydanticCustomError

from modeld.config.engines import FakeConfig
from modeld.config.schema import LARGEST_BODY, OPTION_BLOCKS, Config, Model, warnings
from modeld.config.values import Listen, parse_size
from modeld.protocol.framing import MAX_FRAME
from modeld.worker.loaders.fake import Script


def model(**fields: Any) -> dict[str, Any]:
    """Return a plain model as it is written, changed by `fields`."""
    return {"name": "m", "model": "./m.gguf", "usecase": "generate", "loader": "llama_server", **fields}


def one(**fields: Any) -> Model:
    """Return that model as it is read."""
    return Config.model_validate({"allow_fake": True, "models": [model(**fields)]}).models[0]


def refusal(document: dict[str, Any]) -> str:
    """Return the words with which a document is refused."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate(document)
    return str(caught.value)


def test_nothing_written_is_a_valid_configuration() -> None:
    """The empty document gives the defaults the reference names."""
    config = Config.model_validate({})
    assert (str(config.listen), config.models, config.max_queue) == ("127.0.0.1:8000", (), 128)
    assert (config.max_request_body, config.drain_timeout) == (50 * 1024**2, 30.0)
    assert (config.keepalive_interval, config.request_timeout, config.allow_fake) == (10.0, None, False)


def test_a_key_left_blank_means_its_default() -> None:
    """`models:` with every line below it commented out is not an error, and not a setting."""
    config = Config.model_validate({"models": None, "log": {"level": None}, "max_queue": None})
    assert (config.models, config.log.level, config.max_queue) == ((), "info", 128)
    assert one(num_replicas=None, autoscaling_config={}).autoscaling_config is not None


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        (7, 7),
        ("512MB", 512_000_000),
        ("6GiB", 6 * 1024**3),
        ("1.5 kib", 1536),
        ("3 B", 3),
        ("1TB", 10**12),
    ],
)
def test_sizes(text: object, size: int) -> None:
    """A size is bytes, or text with a decimal or binary unit in any case."""
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text", ["6G", "-1", -1, "GiB", "1e3", True, None, 1.5, "9" * 30, "1 GiB GiB", "٣GiB", [1]]
)
def test_what_is_not_a_size_is_refused(text: object) -> None:
    """An ambiguous unit, a sign, an exponent, another type: refused with the form wanted."""
    with pytest.raises(PydanticCustomError, match="expected a size"):
        parse_size(text)


@given(st.integers(0, 2**40), st.sampled_from(["kB", "KiB", "MB", "MiB", "B"]))
def test_sizes_are_exact(number: int, unit: str) -> None:
    """A whole number of units is that many bytes, without rounding."""
    factor = {"kB": 1000, "KiB": 1024, "MB": 1000**2, "MiB": 1024**2, "B": 1}[unit]
    assert parse_size(f"{number}{unit}") == number * factor


@pytest.mark.parametrize(
    ("text", "host", "port", "loopback"),
    [
        ("127.0.0.1:8000", "127.0.0.1", 8000, True),
        ("[::1]:0", "::1", 0, True),
        ("0.0.0.0:65535", "0.0.0.0", 65535, False),
        ("localhost:1", "localhost", 1, True),
        ("box.lan:80", "box.lan", 80, False),
        ("127.9.9.9:80", "127.9.9.9", 80, True),
    ],
)
def test_listen_reads_and_writes_host_and_port(text: str, host: str, port: int, loopback: bool) -> None:
    """The text form is read, comes out again the same, and knows whether it is loopback."""
    listen = Config.model_validate({"listen": text}).listen
    assert (listen.host, listen.port, listen.is_loopback, str(listen)) == (host, port, loopback, text)
    assert Listen.parse(text) == listen


@pytest.mark.parametrize(
    "text", ["", ":80", "x", "x:", "x:65536", "::1:80", "x:-1", "a b:1", "x:٣", "h/:1", "x:1e1"]
)
def test_listen_refuses_what_is_no_address(text: str) -> None:
    """Anything but host:port is refused with an example."""
    with pytest.raises(ValueError, match=r'expected host:port, e\.g\. "127\.0\.0\.1:8000"'):
        Listen.parse(text)


@given(st.text())
def test_listen_never_fails_otherwise(text: str) -> None:
    """Any text is an address or a ValueError."""
    try:
        listen = Listen.parse(text)
    except ValueError:
        return
    assert Listen.parse(str(listen)) == listen


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"num_gpus": 1.5}, "whole number of GPUs"),
        ({"num_gpus": -1}, "greater than or equal to 0"),
        ({"num_replicas": 2, "autoscaling_config": {}}, "together with autoscaling_config"),
        ({"autoscaling_config": {"min_replicas": 3, "max_replicas": 2}}, "less than min_replicas"),
        ({"autoscaling_config": {"initial_replicas": 5}}, "from 1 \\(min_replicas\\) to 1"),
        ({"loader": "vllm", "vllm_engine_kwargs": {"gpu_memory_utilization": 0.5}}, "follows from num_gpus"),
        (
            {"loader": "vllm", "num_gpus": 0.5, "vllm_engine_kwargs": {"tensor_parallel_size": 2}},
            "share of one GPU",
        ),
        (
            {"loader": "vllm", "num_gpus": 3, "vllm_engine_kwargs": {"pipeline_parallel_size": 2}},
            "make them equal",
        ),
        ({"whispercpp_config": {"n_threads": 1}}, "belongs to the loader whispercpp"),
        ({"loader": "diffusers"}, "makes images only"),
        ({"name": "a\nb"}, "control characters"),
        ({"name": " "}, "empty"),
        ({"ram": 0}, "greater than 0"),
        ({"llama_server_config": {"parallel": 0}}, "greater than or equal to 1"),
        ({"start_timeout": float("inf")}, "finite"),
        ({"surprise": 1}, "Extra inputs"),
    ],
)
def test_rules_of_a_model(fields: dict[str, Any], words: str) -> None:
    """Each rule refuses what breaks it, and says which."""
    with pytest.raises(ValidationError, match=words):
        one(**fields)


def test_names_are_unique() -> None:
    """A second model of the same name is refused, naming the first."""
    assert "taken by models[0]" in refusal({"models": [model(), model()]})


def test_fake_needs_leave() -> None:
    """The scripted loader is refused unless the file allows it; then model and usecase may be left out."""
    fake = {"name": "f", "loader": "fake"}
    assert "allow_fake: true" in refusal({"models": [fake]})
    allowed = Config.model_validate({"allow_fake": True, "models": [fake]}).models[0]
    assert (allowed.usecase, allowed.model) == ("generate", "fake")


@pytest.mark.parametrize("loader", ["diffusers", "stable_diffusion_cpp"])
def test_image_loaders_imply_their_usecase(loader: str) -> None:
    """The loaders that only make images may leave `usecase` out."""
    assert one(loader=loader, usecase=None).usecase == "image"


@pytest.mark.parametrize("loader", [*OPTION_BLOCKS, "sherpa_onnx"])
def test_options_are_plain_json(loader: str) -> None:
    """What a worker is given survives JSON, with the defaults filled in."""
    usecase = {"diffusers": "image", "stable_diffusion_cpp": "image"}.get(loader, "generate")
    options = one(loader=loader, usecase=usecase).options()
    assert json.loads(json.dumps(options)) == options
    assert bool(options) == (loader != "sherpa_onnx")


def test_the_fake_loader_knows_every_field_of_its_script() -> None:
    """What the configuration accepts for the scripted loader is what that loader reads, defaults included."""
    script = {field.name: field.default for field in msgspec.structs.fields(Script)}
    assert script == {name: field.default for name, field in FakeConfig.model_fields.items()}


def test_plain_flags_become_arguments_before_the_owners_own() -> None:
    """Options that llama-server takes as flags are put before extra_args, so the owner's come last."""
    block = {"flash_attn": True, "ubatch_size": 256, "tensor_split": [3, 1], "extra_args": ["--seed", 7]}
    options = one(llama_server_config=block).options()
    assert options["extra_args"] == [
        "--ubatch-size", "256", "--flash-attn", "on", "--tensor-split", "3,1", "--seed", "7",
    ]  # fmt: skip
    assert "flash_attn" not in options


def test_the_models_own_binary_wins() -> None:
    """The engine's program holds for every model that does not name its own."""
    document = {
        "engines": {"llama_server": {"binary": "bin/llama-server"}},
        "models": [model(), model(name="n", llama_server_config={"binary": "llama-server"})],
    }
    config = Config.model_validate(document, context={"base": Path("/etc/modeld")})
    first, second = config.models
    assert config.options_for(first)["binary"] == "/etc/modeld/bin/llama-server"
    assert config.options_for(second)["binary"] == "llama-server"


def test_tensor_parallel_follows_from_whole_gpus() -> None:
    """Two GPUs and no word on how to use them mean tensor parallelism over both."""
    assert one(loader="vllm", num_gpus=2).options()["tensor_parallel_size"] == 2


def test_warnings_name_what_is_read_but_not_done() -> None:
    """Each setting this version does not act on is one line; a plain model has none."""
    config = Config.model_validate(
        {
            "models": [
                model(),
                model(name="a", num_replicas=2, num_gpus=0.5, chat_template_kwargs={"thinking": "off"}),
                model(name="b", loader="vllm", autoscaling_config={}),
                model(name="c", usecase="embed"),
                model(name="d", num_gpus=2),
            ]
        }
    )
    lines = warnings(config)
    assert [line.split(": ")[0] for line in lines] == ["model 'a'"] * 3 + ["model 'b'"] * 2 + [
        "model 'c'",
        "model 'd'",
    ]
    assert lines[0] == "model 'a': num_replicas: 2 is read, but this version runs one replica"


def test_api_keys_hide_themselves() -> None:
    """Neither the text form of a configuration nor the error about a bad key shows a key."""
    config = Config.model_validate({"api_keys": ["sk-visible"]})
    assert "sk-visible" not in f"{config!r}{config}"
    assert "sk visible" not in refusal({"api_keys": ["sk visible"]})


def test_the_largest_body_fits_into_a_frame() -> None:
    """A body of the largest size allowed, and a quarter more for its envelope, is within the link's limit."""
    assert LARGEST_BODY * 5 // 4 <= MAX_FRAME


def test_the_schema_does_not_import_yaml() -> None:
    """A daemon without a file (the demo) does not pay for the YAML reader."""
    code = "import sys, modeld.config.load; sys.exit('ruamel.yaml' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
