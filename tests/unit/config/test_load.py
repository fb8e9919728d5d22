from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from modeld.config.document import MOST_VALUES, Document
from modeld.config.load import (
    LARGEST_FILE,
    apply_environment,
    from_document,
    load,
    load_config,
    single_model,
)
from modeld.config.model import Model, plain
from modeld.config.ray import DEPLOYMENT_OPTIONS
from modeld.config.schema import Config
from modeld.errors import ConfigError, UsageError

NEITHER = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]

MODEL = "models:\n  - name: a\n    model: ./a.gguf\n    usecase: generate\n    loader: llama_server\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Give the path of a configuration file that is not there yet."""
    return tmp_path / "modeld.yaml"


def failure(file: Path, text: str | bytes, env: dict[str, str] | None = None) -> ConfigError:
    """Return the error that a file of this content gives."""
    file.write_bytes(text.encode() if isinstance(text, str) else text)
    with pytest.raises(ConfigError) as caught:
        load_config(file, env or {})
    assert caught.value.__cause__ is None
    assert "pydantic" not in str(caught.value)
    return caught.value


def told(file: Path, text: str | bytes) -> list[str]:
    """Return the lines of the error without the file's name."""
    return [line.removeprefix(f"{file}:").strip() for line in str(failure(file, text)).splitlines()]


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n", "{}", "\ufeff", "models:\n"])
def test_an_empty_file_is_valid(file: Path, text: str) -> None:
    """No content, comments only, a byte order mark only: the defaults."""
    file.write_text(text, "utf-8")
    assert load_config(file, {}) == Config()


def test_every_mistake_is_told_at_once_with_its_place(file: Path) -> None:
    """Each wrong value has its own line, in the order of the file; the exception carries the first place."""
    text = MODEL + (
        "    llama_server_config:\n"
        "      n_ctxx: 4096\n"
        "      parallel: abc\n"
        "      threads: true\n"
        "    n_batch: 1\n"
        "    num_cpus: lots\n"
        "max_queue: 1.5\n"
    )
    error = failure(file, text)
    assert str(error).splitlines() == [
        f"{file}:7:7: models[0].llama_server_config.n_ctxx: unknown key; did you mean n_ctx?",
        f"{file}:8:17: models[0].llama_server_config.parallel: expected a whole number, got text 'abc'",
        f"{file}:9:16: models[0].llama_server_config.threads: expected a whole number, got true",
        f"{file}:10:5: models[0].n_batch: unknown key; it belongs under llama_server_config",
        f"{file}:11:15: models[0].num_cpus: expected a number, got text 'lots'",
        f"{file}:12:12: max_queue: expected a whole number, got the number 1.5",
    ]
    assert (error.file, error.line, error.column) == (file, 7, 7)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lissten: x:1", "1:1: lissten: unknown key; did you mean listen?"),
        ("log: {colour: red}", "1:7: log.colour: unknown key; known here: format, level"),
        ("log: {level: inof}", "1:14: log.level: expected one of debug, info, warning, error, got"),
        ("listen: 8000", "1:9: listen: expected a mapping (lines of key: value), got the number 8000"),
        ("models: {a: 1}", "1:9: models: expected a list, got a mapping"),
        ("models: [x]", "1:10: models[0]: expected a mapping (lines of key: value), got text 'x'"),
        ("allow_fake: 7", "1:13: allow_fake: expected true or false, got the number 7"),
        ("max_queue: -1", "1:12: max_queue: expected at least 0, got the number -1"),
        ("state_dir: [a]", "1:12: state_dir: expected a path, got a list"),
        ("max_request_body: 1GiB", "1:19: max_request_body: expected at most 67108864"),
        (MODEL.replace("name: a", "name: 7"), "2:11: models[0].name: expected text, got the number 7; put"),
        (MODEL.replace("usecase: generate", "num_gpus: 0"), "2:5: models[0].usecase: missing: What the"),
        (MODEL + "    max_queue: 3", "6:5: models[0].max_queue: unknown key; it belongs"),
        (MODEL + "    num_gpus: 1.5", "6:15: models[0].num_gpus is 1.5: expected a share of one GPU below 1"),
        (MODEL + MODEL[8:], "6:11: models[1].name: the name 'a' is taken by the model 'a' (models[0])"),
        (MODEL + "    aliases: [b, a]", "6:18: models[0].aliases[1]: the alias of 'a', 'a' is taken by this"),
        (MODEL + "    pin: true\n    keep_alive: 10m", "7:17: models[0].keep_alive cannot be 600 s for a"),
        (MODEL + "    load: on_demand\n    pin: true", "6:11: models[0].load cannot be on_demand for a"),
        (MODEL + "    load: ondemand", "6:11: models[0].load: expected one of eager, on_demand, got text"),
        (MODEL + "    keep_alive: soon", "6:17: models[0].keep_alive: expected a duration: seconds"),
        (MODEL + "    priority: 101", "6:15: models[0].priority: expected at most 100, got the number 101"),
        (MODEL + "    num_replicas: 0", "6:19: models[0].num_replicas: expected at least 1"),
        (MODEL + "    num_gpus: -1", "6:15: models[0].num_gpus: expected at least 0, got the number -1"),
        (
            MODEL + "    num_replicas: 2\n    autoscaling_config: {max_replicas: 3}",
            "6:19: models[0].num_replicas cannot be set together with autoscaling_config; remove one",
        ),
        (
            MODEL + "    autoscaling_config:\n      min_replicas: 3\n      max_replicas: 2",
            "8:21: models[0].autoscaling_config.max_replicas is 2, less than min_replicas, which is 3",
        ),
        (
            MODEL + "    pin: true\n    autoscaling_config: {min_replicas: 0}",
            "7:40: models[0].autoscaling_config.min_replicas is 0, but a pinned model is never unloaded",
        ),
        (MODEL + "    autoscaling_config: {max_replica: 2}", "6:26: models[0].autoscaling_config.max_rep"),
        (MODEL + "    ray_actor_option: {}", "6:5: models[0].ray_actor_option: unknown key"),
        ("memory: {headroom: 0.95}", "1:20: memory.headroom: expected at most 0.9, got the number 0.95"),
        ("memory: {ram: 5G}", "1:15: memory.ram: expected a size: a whole number of bytes, or text such as"),
        ("ram: 5GiB", "1:1: ram: unknown key; it belongs under memory"),
        ("priority: 5", "1:1: priority: unknown key; it belongs under models"),
        ("replace_strategy: green", "1:19: replace_strategy: expected one of blue_green, stop_start"),
        ("queue_timeout: 0", "1:16: queue_timeout: expected more than 0, got the number 0"),
        ("watch: often", "1:8: watch: expected true or false, got text 'often'"),
        ("gateways: [{models: []}]", "1:12: gateways[0].name: missing: Its name; the route is"),
        ("gateways:\n  - name: V1", "2:11: gateways[0].name: the route /v1 is the daemon's own; choose"),
        ("gateways:\n  - name: a\n  - name: A", "3:11: gateways[1].name: the route /a is taken"),
        ("gateways: [{name: a, modles: []}]", "1:22: gateways[0].modles: unknown key; did you mean models?"),
        (
            "gateways:\n- name: lab\n  " + MODEL.replace("\n", "\n  ") + "    port: 1",
            "8:7: gateways[0].models[0].port: unknown key",
        ),
        (MODEL + "  - {name: f, loader: fake}", "6:23: models[1].loader: the loader fake is a stand-in"),
        ("- a\n", "1:1: expected a mapping (lines of key: value) at the top; put it under a key, models:"),
        ("text", "1:1: expected a mapping (lines of key: value) at the top"),
        ("a: 1\nb: [", "2:5: not YAML: "),
        ("a: b: c", "1:5: not YAML: mapping values are not allowed here"),
        ("max_queue: 1\nmax_queue: 2", "2:1: the key 'max_queue' is already set in line 1"),
        ("a: !!python/object:os.system {}", "1:4: tags"),
        ("a: !secret x", "1:4: tags"),
        ("a: !!int x", "1:4: this is not a value of the kind !!int"),
        ("a: 1\n---\nb: 2", "2:1: not YAML: a second document begins here"),
        ("a: \x01", "1:4: the character #x0001 is not allowed in YAML"),
        ("? [a]\n: 1", "1:3: a key is plain text"),
        ("a: &x [*x]", "1:4: an alias that stands inside what it names"),
        (b"a: 1\nb: \xff", "2:4: the byte 0xff is not UTF-8; save the file as UTF-8"),
        ("a: &a [1]\nb: {<<: *a}", "1:8: << takes a mapping"),
        ("{log: {level: info, models: []}}", "1:21: log.models: unknown key; it belongs at the top level"),
    ],
)  # fmt: skip
def test_messages(file: Path, text: str | bytes, message: str) -> None:
    """Each kind of mistake names its place, what was wanted and what was there."""
    assert any(line.startswith(message) for line in told(file, text)), told(file, text)


@pytest.mark.parametrize("opening", ["[", "{a: "])
def test_deep_nesting_is_refused(file: Path, opening: str) -> None:
    """A thousand levels of nesting are an error, not a stack overflow."""
    assert "levels deep" in str(
        failure(file, "a: " + opening * 1000 + ("]" if opening == "[" else "}") * 1000)
    )


def test_aliases_cannot_explode(file: Path) -> None:
    """A few lines that stand for billions of values are refused after a bounded amount of work."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    assert f"more than {MOST_VALUES} values" in str(failure(file, "\n".join(lines)))


def test_anchors_and_merges_work_in_reason(file: Path) -> None:
    """Models may share a block with << as in other tools; what a model writes itself wins."""
    file.write_text(
        "models:\n"
        "  - &base {name: a, model: ./a.gguf, usecase: generate, loader: llama_server, num_cpus: 4}\n"
        "  - {<<: *base, name: b, num_cpus: 2}\n"
    )
    first, second = load_config(file, {}).models
    assert (first.name, first.num_cpus, second.name, second.num_cpus) == ("a", 4, "b", 2)
    assert second.model == "./a.gguf"


@pytest.mark.parametrize(
    "text",
    [
        "api_keys: sk-secret",
        "api_keys: {sk-secret: 1}",
        "api_keys: {sk-secret: 1, sk-secret: 2}",
        "api_keys: [[sk-secret]]",
        'api_keys: ["sk-secret key", "sk-secret\\n"]',
        "api_keys: [*sk-secret]",
        "api_keys: [!sk-secret x]",
        "api_keys: [&sk-secret a, &sk-secret b, {]",
        "api_keys: [sk-secret, {a: b: c}]",
        "api_key: sk-secret",
        "api_keys: [sk-secret, 5]\nmax_queue: x",
    ],
)
def test_no_error_shows_a_key(file: Path, text: str) -> None:
    """Whatever is wrong near an API key, its value is not repeated."""
    assert "sk-secret" not in str(failure(file, text))


def test_unreadable_files(tmp_path: Path) -> None:
    """Missing, a directory, a NUL in the name, too long: one clear line each."""
    big = tmp_path / "big"
    big.write_bytes(b"#" * (LARGEST_FILE + 1))
    cases = {
        tmp_path / "none": "there is no such file",
        tmp_path: "this is a directory",
        Path("a\0b"): "cannot be read",
        big: f"is over {LARGEST_FILE} bytes",
        tmp_path / ("x" * 300): "cannot be read: File name too long",
    }
    for file, words in cases.items():
        with pytest.raises(ConfigError, match=re.escape(words)):
            load_config(file, {})


@pytest.mark.skipif(os.geteuid() == 0, reason="the superuser may read everything")
def test_a_forbidden_file_names_the_user(file: Path) -> None:
    """A file without permission tells whose permission is missing."""
    file.write_text("")
    file.chmod(0)
    with pytest.raises(ConfigError, match=f"cannot be read by user {os.getuid()}"):
        load_config(file, {})


def test_paths_are_taken_from_the_files_directory(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Relative directories and programs follow the file, not the current directory; ~ is the home."""
    monkeypatch.setenv("HOME", "/home/x")
    file.write_text(
        "state_dir: state\ncache_dir: ~/c\nengines: {llama_server: {binary: ./bin/llama-server}}\n"
    )
    monkeypatch.chdir("/")
    config = load_config(file, {})
    assert config.state_dir == file.parent / "state"
    assert config.cache_dir == Path("/home/x/c")
    assert config.engines.llama_server.binary == file.parent / "bin/llama-server"


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ("llama-server", "llama-server"),
        ("./llama-server", "{base}/llama-server"),
        ("././llama-server", "{base}/llama-server"),
        ("../llama-server", "{base}/../llama-server"),
        ("bin/llama-server", "{base}/bin/llama-server"),
        ("/opt/llama-server", "/opt/llama-server"),
    ],
)
def test_only_a_bare_program_name_is_left_to_PATH(
    file: Path, monkeypatch: pytest.MonkeyPatch, written: str, read: str
) -> None:
    """A program written as a path, "./name" too, is a file beside the configuration, for a model as well."""
    monkeypatch.chdir("/")
    own = f"{{binary: {written}}}"
    file.write_text(f"engines: {{llama_server: {own}}}\n{MODEL}    llama_server_config: {own}\n")
    config = load_config(file, {})
    wanted = read.format(base=file.parent)
    assert str(config.engines.llama_server.binary) == wanted
    assert config.models[0].options()["binary"] == wanted
    again = Model.model_validate(plain(config.models[0]))
    assert again.options()["binary"] == wanted


def test_engine_files_beside_the_configuration_are_found(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A projector or template named like a file there is that file; a template's text stays text."""
    monkeypatch.chdir("/")
    (file.parent / "vision.gguf").write_text("x")
    block = "    llama_server_config: {mmproj: vision.gguf, chat_template: %s}\n"
    for written, read in (
        ("./t.jinja", str(file.parent / "t.jinja")),
        ("chatml", "chatml"),
        ("'{{ x }}'", "{{ x }}"),
        ('"' + "x" * 5000 + '"', "x" * 5000),
    ):
        file.write_text(MODEL + block % written)
        options = load_config(file, {}).models[0].options()
        assert options["mmproj"] == str(file.parent / "vision.gguf")
        assert options["chat_template"] == read


def test_the_environment_has_the_last_word(
    file: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Keys are added without doubles, address and directories replaced."""
    file.write_text("api_keys: [one]\nlisten: 127.0.0.1:1\nstate_dir: a\ncache_dir: b\n")
    monkeypatch.chdir(tmp_path)
    env = {"MODELD_API_KEYS": "two, one,,", "MODELD_LISTEN": "[::1]:0", "MODELD_STATE_DIR": "s"}
    config = load_config(file, env)
    assert [key.get_secret_value() for key in config.api_keys] == ["one", "two"]
    assert (str(config.listen), config.state_dir) == ("[::1]:0", tmp_path / "s")
    assert config.cache_dir == file.parent / "b"


@pytest.mark.parametrize(
    ("name", "value"),
    [("MODELD_API_KEYS", "good,sk secret"), ("MODELD_LISTEN", "x"), ("MODELD_STATE_DIR", "a\nb")],
)
def test_a_bad_variable_is_named(name: str, value: str) -> None:
    """A mistake in the environment names the variable, never a key."""
    with pytest.raises(UsageError, match=f"^{name}: ") as caught:
        apply_environment(Config(), {name: value})
    assert "secret" not in str(caught.value)


SCALARS = st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8)
KEYS = st.sampled_from([*Config.model_fields, *Model.model_fields, "runtime_env", "x", ""])
TREES = st.recursive(
    SCALARS,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(KEYS, below, max_size=4),
    max_leaves=12,
)


@settings(max_examples=150, deadline=None, suppress_health_check=NEITHER)
@given(tree=TREES)
def test_any_document_is_a_configuration_or_a_placed_error(tree: Any, tmp_path: Path) -> None:
    """Whatever a file holds, it loads or is refused with a place in that file."""
    file = tmp_path / "any.yaml"
    with open(file, "w", encoding="utf-8") as stream:
        YAML(typ="safe", pure=True).dump(tree, stream)
    refused: ConfigError | None = None
    try:
        loaded = load(file, {})
    except ConfigError as error:
        refused = error
        with pytest.raises(ConfigError):
            from_document(tree, tmp_path)
    else:
        assert from_document(loaded.document, loaded.base) == loaded.config
    if refused is not None:
        assert 1 <= refused.line <= len(file.read_text("utf-8").splitlines()) + 1
        assert refused.column >= 1


@settings(max_examples=200, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab:-[]{}&*!<>|#'\"%?, \n\t0\x00é"), max_size=40))
def test_any_text_is_parsed_or_refused(text: str) -> None:
    """Arbitrary text never raises anything but ConfigError."""
    message = "f:"
    try:
        Document(text, Path("f"))
    except ConfigError as error:
        message = str(error)
    assert message.startswith("f:")


def test_warnings_name_their_line(file: Path) -> None:
    """Each setting this version does not act on is one line with its place, in the order of the file."""
    file.write_text(
        MODEL
        + "    chat_template_kwargs: {thinking: off, level: high}\n    num_replicas: 2\n    num_gpus: 0.5\n"
        + "  - {name: b, model: x/y, usecase: image, loader: vllm}\n"
        + "gateways:\n  - name: lab\n    models:\n"
        + "      - {name: c, model: ./c.gguf, usecase: tts, loader: llama_server}\n"
    )
    assert [line.removeprefix(f"{file}:") for line in load(file, {}).warnings] == [
        "6:38: models[0].chat_template_kwargs.thinking: off is text in YAML 1.2; write true or false",
        "9:36: models[1].usecase: the usecase image is read, but models of vllm serve only generate, embed, "
        "transcription, translation; nobody can call 'b'",
        "13:45: gateways[0].models[0].usecase: the usecase tts is read, but models of llama_server serve "
        "only generate, embed; nobody can call 'c'",
    ]


def test_a_plain_file_has_no_warnings(file: Path) -> None:
    """What is acted on is not warned about: replicas, shares of GPUs, autoscaling."""
    file.write_text(MODEL + "    num_gpus: 0.5\n    autoscaling_config: {min_replicas: 0, max_replicas: 2}\n")
    loaded = load(file, {"MODELD_API_KEYS": "k"})
    assert loaded.warnings == ()
    assert loaded.config == load_config(file, {"MODELD_API_KEYS": "k"})
    assert loaded.base == file.parent
    assert from_document(loaded.document, loaded.base) == load_config(file, {})


def test_rays_options_are_one_warning(file: Path) -> None:
    """What has no meaning on one machine is dropped; one warning names every such key and its line."""
    file.write_text(
        MODEL
        + "    runtime_env: {pip: [x]}\n    autoscaling_config: {metrics_interval_s: 5, max_replicas: 2}\n"
        + "    ray_actor_options:\n      num_gpus: 1\n"
    )
    loaded = load(file, {})
    assert loaded.warnings == (
        f"{file}:6:5: Ray's options have no meaning on one machine and are ignored: "
        "models[0].runtime_env (line 6), models[0].autoscaling_config.metrics_interval_s (line 7), "
        "models[0].ray_actor_options (line 8; here: num_gpus, num_cpus and ram)",
    )
    file.write_text(MODEL + "    autoscaling_config: {max_replicas: 2}\n")
    assert loaded.config == load_config(file, {})


@pytest.mark.parametrize("option", sorted(DEPLOYMENT_OPTIONS))
def test_every_option_of_a_deployment_is_known(file: Path, option: str) -> None:
    """Each of Ray's options is accepted with any value, and named."""
    file.write_text(MODEL + f"    {option}: [{{x: 1}}]\n")
    (line,) = load(file, {}).warnings
    assert line.startswith(f"{file}:6:5: Ray's options have no meaning")
    assert f"models[0].{option} (line 6" in line


def test_many_options_are_still_one_line(file: Path) -> None:
    """A long file for a cluster gives a line that can be read, placed at the first of them."""
    entry = "  - {name: m%d, model: ./m.gguf, usecase: generate, loader: llama_server, runtime_env: {}}\n"
    file.write_text("models:\n" + "".join(entry % number for number in range(20)))
    (line,) = load(file, {}).warnings
    assert line.startswith(f"{file}:2:")
    assert line.endswith("models[7].runtime_env (line 9) and 12 more")


def test_a_document_without_a_file_is_checked_the_same() -> None:
    """What comes over a socket is refused with full names, one mistake a line; nothing shows a key."""
    good = {"models": [{"name": "f", "loader": "fake"}]}
    assert from_document(good, Path("/b"), allow_fake=True).models[0].model == "fake"
    with pytest.raises(ConfigError, match=r"^models\[0\]\.loader: the loader fake is a stand-in"):
        from_document(good, Path("/b"))
    with pytest.raises(ConfigError) as caught:
        from_document({"api_keys": ["sk-secret x"], "modles": [], "max_queue": "x"}, Path("/b"))
    assert str(caught.value).splitlines() == [
        "api_keys[0]: an API key is printable ASCII without spaces, and not empty",
        "max_queue: expected a whole number, got text 'x'",
        "modles: unknown key; did you mean models?",
    ]
    wrong: tuple[Any, ...] = (None, [], "x")
    for data in wrong:
        with pytest.raises(ConfigError, match=r"^expected a mapping"):
            from_document(data, Path("/b"))


@pytest.mark.parametrize(
    ("model", "name", "loader"),
    [
        ("./Tiny.Q4_1.gguf", "Tiny.Q4_1", "llama_server"),
        ("/srv/models/big-00001-of-00003.GGUF", "big", "llama_server"),
        ("org/Qwen3-8B-GGUF:*Q4_K_M.gguf", "Qwen3-8B", "llama_server"),
        ("org/Qwen3-8B-GGUF:*Q4_K_M*", "Qwen3-8B", "llama_server"),
        ("org/Qwen3-8B-GGUF", "Qwen3-8B", "llama_server"),
        ("pypi:llm-x==1.0/llm_x/X.Q4_1.gguf", "X.Q4_1", "llama_server"),
        ("file:///srv/m/a.gguf", "a", "llama_server"),
        ("/srv/a:b/c.gguf", "c", "llama_server"),
        ("org/Qwen3-8B-AWQ", "Qwen3-8B-AWQ", None),
        ("base.en", "base.en", None),
        ("demo:kokoro", "kokoro", None),
        ("/srv/models/folder/", "folder", None),
    ],
)
def test_one_model_from_the_command_line(model: str, name: str, loader: str | None) -> None:
    """Name and loader follow from the reference, or the option to give is named."""
    if loader is None:
        with pytest.raises(UsageError, match=r"give --loader, one of vllm, .*sherpa_onnx$"):
            single_model(model)
    document = single_model(model, loader=None if loader else "vllm", num_gpus=0)
    (read,) = from_document(document, Path("/base")).models
    assert (read.name, read.model, read.loader) == (name, model, loader or "vllm")
    assert (read.usecase, read.num_gpus, read.num_replicas) == ("generate", 0, 1)


def test_the_command_lines_options_win() -> None:
    """Everything given is in the document, and its mistakes are told by the key's name."""
    document = single_model(
        "x/y",
        name="n",
        usecase="embed",
        loader="vllm",
        num_gpus=0.5,
        num_cpus=2,
        num_replicas=3,
        max_ongoing_requests=4,
    )
    (read,) = from_document(document, Path("/base")).models
    assert (read.name, read.usecase, read.loader, read.num_gpus) == ("n", "embed", "vllm", 0.5)
    assert (read.num_cpus, read.num_replicas, read.max_ongoing_requests) == (2, 3, 4)
    with pytest.raises(ConfigError, match=r"^models\[0\]\.num_gpus is 1\.5: "):
        from_document(single_model("./a.gguf", num_gpus=1.5), Path("/base"))
    with pytest.raises(UsageError, match=r"give --name$"):
        single_model("../..", loader="vllm")


@pytest.mark.parametrize(
    ("loader", "usecase"),
    [("diffusers", "image"), ("whispercpp", "transcription"), ("sherpa_onnx", "tts"), ("vllm", "generate")],
)
def test_the_usecase_follows_from_the_loader(loader: str, usecase: str) -> None:
    """A loader that does one thing does that."""
    (read,) = from_document(single_model("x/y", loader=loader), Path("/base")).models
    assert read.usecase == usecase


def test_the_examples_load(monkeypatch: pytest.MonkeyPatch) -> None:
    """The annotated examples are valid, and what the first one calls a default is one."""
    etc = Path(__file__).parents[3] / "etc"
    daemon = load_config(etc / "modeld.yaml", {})
    assert daemon.model_copy(update={"models": (), "gateways": ()}) == Config()
    first = daemon.models[0]
    assert first == Model(
        name=first.name,
        model=first.model,
        usecase="generate",
        loader="llama_server",
        llama_server_config=first.llama_server_config,
    )
    assert {model.loader for model in load_config(etc / "models.yaml", {}).models} == {
        "llama_server", "vllm", "whispercpp", "sherpa_onnx", "diffusers", "stable_diffusion_cpp",
    }  # fmt: skip
