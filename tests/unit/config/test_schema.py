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
from modeld.config.model import OPTION_BLOCKS, Model
from modeld.config.schema import LARGEST_BODY, RESERVED_SLUGS, Config, slug
from modeld.config.values import NEVER, Listen, parse_duration, parse_size
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


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0),
        ("0", 0),
        (90, 90),
        (1.5, 1.5),
        ("90", 90),
        ("10m", 600),
        ("1h30m", 5400),
        (" 1D ", 86400),
        ("2d3h4m5.5s", 2 * 86400 + 3 * 3600 + 4 * 60 + 5.5),
        ("1h30", 3630),
        ("never", NEVER),
        ("Never", NEVER),
        (-1, NEVER),
        ("-1", NEVER),
        (NEVER, NEVER),
    ],
)
def test_durations(text: object, seconds: float) -> None:
    """A duration is seconds, or text in days, hours, minutes and seconds, or never."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "10 m",
        "-2",
        -2,
        -0.5,
        "30m1h",
        "1.5h",
        "1e3",
        True,
        None,
        [],
        "9" * 30,
        1e12,
        10**400,
        -(10**400),
        float("nan"),
        "٣m",
    ],
)
def test_what_is_not_a_duration_is_refused(text: object) -> None:
    """A unit alone, a wrong order, a sign, another type, centuries: refused with the form wanted."""
    with pytest.raises(PydanticCustomError, match="expected a duration"):
        parse_duration(text)


@given(st.integers(0, 99), st.integers(0, 99), st.integers(0, 99), st.integers(0, 99))
def test_durations_add_up(days: int, hours: int, minutes: int, seconds: int) -> None:
    """Each unit counts as what it is, whatever stands beside it."""
    text = f"{days}d{hours}h{minutes}m{seconds}s"
    assert parse_duration(text) == ((days * 24 + hours) * 60 + minutes) * 60 + seconds


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
        ({"load": "lazy"}, "'eager' or 'on_demand'"),
        ({"pin": True, "load": "on_demand"}, "cannot be on_demand for a pinned model"),
        ({"pin": True, "keep_alive": "10m"}, "cannot be 600 s for a pinned model"),
        ({"pin": True, "keep_alive": 0}, "cannot be 0 s for a pinned model"),
        ({"pin": True, "autoscaling_config": {"min_replicas": 0}}, "a pinned model is never unloaded"),
        ({"keep_alive": "soon"}, "expected a duration"),
        ({"priority": 101}, "less than or equal to 100"),
        ({"priority": -101}, "greater than or equal to -100"),
        ({"priority": 0.5}, "valid integer"),
        ({"aliases": "x"}, "valid tuple"),
        ({"aliases": [""]}, "empty"),
        ({"num_replicas": 0}, "greater than or equal to 1"),
        ({"num_cpus": -0.1}, "greater than or equal to 0"),
        ({"max_ongoing_requests": 0}, "greater than or equal to 1"),
        ({"autoscaling_config": {"min_replicas": -1}}, "greater than or equal to 0"),
        ({"autoscaling_config": {"max_replicas": 0, "min_replicas": 0}}, "greater than or equal to 1"),
        ({"autoscaling_config": {"target_ongoing_requests": 0}}, "greater than 0"),
        ({"autoscaling_config": {"downscale_delay_s": -1}}, "greater than or equal to 0"),
        ({"llama_server_config": {"tensor_split": [1, -1]}}, "greater than or equal to 0"),
        ({"chat_template_kwargs": {"x": [float("nan")]}}, "finite numbers"),
        ({"chat_template_kwargs": {"x": 2**63}}, "64 bits"),
        ({"chat_template_kwargs": {"x": "\ud800"}}, "surrogate"),
    ],
)
def test_rules_of_a_model(fields: dict[str, Any], words: str) -> None:
    """Each rule refuses what breaks it, and says which."""
    with pytest.raises(ValidationError, match=words):
        one(**fields)


def test_names_are_unique() -> None:
    """A second model of the same name is refused, naming the first."""
    assert "is taken by the model 'm' (models[0])" in refusal({"models": [model(), model()]})


def test_aliases_share_the_names_space() -> None:
    """An alias that is any name or alias of its gateway is refused, and both models are named."""
    one, two = model(name="one", aliases=["uno"]), model(name="two")
    for aliases, words in (
        (["one"], "the alias of 'two', 'one' is taken by the model 'one' (models[0])"),
        (["x", "uno"], "the alias of 'two', 'uno' is taken by the model 'one' (models[0])"),
        (["two"], "the alias of 'two', 'two' is taken by this model"),
        (["x", "x"], "the alias of 'two', 'x' is taken by this model"),
    ):
        text = refusal({"models": [one, {**two, "aliases": aliases}]})
        assert words in text
        assert "unique in a gateway" in text
    assert "the name 'uno' is taken by the model 'one' (models[0])" in refusal(
        {"models": [one, model(name="uno")]}
    )
    accepted = Config.model_validate({"models": [one, {**two, "aliases": ["One", "dos"]}]})
    assert accepted.models[1].aliases == ("One", "dos")


def test_gateways_have_names_of_their_own() -> None:
    """The same names and aliases may stand in two gateways; each model has its own key."""
    config = Config.model_validate(
        {
            "models": [model(aliases=["x"])],
            "gateways": [{"name": "The Lab!", "models": [model(aliases=["x"])]}, {"name": "b"}],
        }
    )
    assert [(key, gateway) for key, gateway, _ in config.keyed_models()] == [
        ("m", ""),
        ("the-lab/m", "the-lab"),
    ]


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"gateways": [{"name": "é !"}]}, "expected a name with a letter a-z or a digit"),
        ({"gateways": [{"name": "A b"}, {"name": "a--B"}]}, "the route /a-b is taken by gateways[0]"),
        (
            {"gateways": [{"name": "g", "models": [model(), model()]}]},
            "the model 'm' (gateways[0].models[0])",
        ),
        ({"gateways": [{"name": "g", "models": [{"name": "f", "loader": "fake"}]}]}, "allow_fake: true"),
        (
            {"models": [model(name="g/m")], "gateways": [{"name": "G", "models": [model()]}]},
            "the model 'm' of the gateway 'G' is known as 'g/m' to modeld, which is the name of models[0]",
        ),
        ({"gateways": [{"models": []}]}, "Field required"),
        ({"gateways": [{"name": "g", "route": "/x"}]}, "Extra inputs"),
        *(
            ({"gateways": [{"name": name.upper()}]}, f"the route /{name} is the")
            for name in sorted(RESERVED_SLUGS)
        ),
    ],
)
def test_rules_of_gateways(document: dict[str, Any], words: str) -> None:
    """Routes are unique, not the daemon's own, and the models' rules hold in every gateway."""
    assert words in refusal(document)


@given(st.text(max_size=20))
def test_slugs_are_one_step_of_a_path(name: str) -> None:
    """A slug is made of lower-case letters, digits and single inner dashes; it is its own slug."""
    text = slug(name)
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert slug(text) == text
    assert not text.startswith("-")
    assert not text.endswith("-")
    assert "--" not in text


def test_keep_alive_goes_from_pin_over_the_model_to_the_file() -> None:
    """A pinned model is never unloaded; else its own duration counts, 0 included; else the file's."""
    config = Config.model_validate(
        {
            "keep_alive": "10m",
            "models": [
                model(name="pinned", pin=True),
                model(name="own", keep_alive=5),
                model(name="at-once", keep_alive=0),
                model(name="for-ever", keep_alive="never"),
                model(name="silent"),
                model(name="blank", keep_alive=None),
            ],
        }
    )
    assert [config.keep_alive_for(one) for one in config.models] == [None, 5, 0, None, 600, 600]
    assert Config().keep_alive_for(one()) is None


@pytest.mark.parametrize(
    ("fields", "gpus"),
    [
        ({}, None),
        ({"num_gpus": None}, None),
        ({"num_gpus": 0}, 0),
        ({"num_gpus": 0.55}, 0.55),
        ({"loader": "vllm"}, None),
        (
            {
                "loader": "vllm",
                "vllm_engine_kwargs": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2},
            },
            4,
        ),
        ({"loader": "vllm", "num_gpus": 0, "vllm_engine_kwargs": {"tensor_parallel_size": 2}}, 0),
    ],
)
def test_no_word_about_gpus_is_not_no_gpu(fields: dict[str, Any], gpus: float | None) -> None:
    """Unset leaves GPUs to modeld, 0 asks for none, and vLLM's own sizes say how many."""
    assert one(**fields).gpus == gpus


def test_budgets_and_headroom() -> None:
    """What models may take is sizes and a share."""
    memory = Config.model_validate({"memory": {"ram": "24GiB", "headroom": 0}}).memory
    assert (memory.ram, memory.vram, memory.headroom) == (24 * 1024**3, None, 0)
    assert Config().memory.headroom == 0.1
    for bad in ({"headroom": 0.95}, {"headroom": -0.1}, {"ram": "1G"}, {"disk": 1}):
        assert refusal({"memory": bad})


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
