from __future__ import annotations

import json
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.config.diff import (
    IN_PLACE,
    RESTART,
    Difference,
    Wanted,
    changed_settings,
    diff,
    fingerprint,
    outcome,
    wanted_models,
)
from modeld.config.load import from_document
from modeld.config.model import OPTION_BLOCKS, Model, plain
from modeld.config.schema import Config

BASE = Path("/srv")


def read(fields: dict[str, Any], base: Path = BASE, **top: Any) -> Wanted:
    """Return one model as it is wanted; `fields` are added to a plain one, `top` to the document."""
    written = {"name": "m", "model": "./m.gguf", "usecase": "generate", "loader": "llama_server", **fields}
    (entry,) = wanted_models(from_document({"models": [written], **top}, base, allow_fake=True), base)
    return entry


def changes(
    before: dict[str, Any], after: dict[str, Any], *, old_top: Any = None, new_top: Any = None
) -> tuple[str, tuple[str, ...]]:
    """Return what happens to one model, and which of its keys differ."""
    found = diff([read(before, **(old_top or {}))], [read(after, **(new_top or {}))], additive=False)
    if found.replaces:
        return "replace", found.replaces[0][1]
    return ("update", found.updates[0][1]) if found.updates else ("unchanged", ())


def test_every_key_of_a_model_is_in_one_class() -> None:
    """A new field of a model cannot be forgotten: it needs a new worker, or it does not."""
    assert RESTART.isdisjoint(IN_PLACE)
    assert RESTART | IN_PLACE | {"name"} == set(Model.model_fields)


RESTARTS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"model": "./n.gguf"}, "model"),
    ({"model": "org/a"}, {"model": "org/b"}, "model"),
    ({}, {"usecase": "embed"}, "usecase"),
    ({}, {"num_gpus": 0}, "num_gpus"),
    ({"num_gpus": 1}, {"num_gpus": 2}, "num_gpus"),
    ({}, {"chat_template_kwargs": {"a": {"b": 1}}}, "chat_template_kwargs.a"),
    (
        {"chat_template_kwargs": {"a": {"b": 1}}},
        {"chat_template_kwargs": {"a": {"b": 2}}},
        "chat_template_kwargs.a.b",
    ),
    ({"chat_template_kwargs": {"a": True}}, {"chat_template_kwargs": {"a": 1}}, "chat_template_kwargs.a"),
    ({"chat_template_kwargs": {"a": [1]}}, {"chat_template_kwargs": {"a": [1.0]}}, "chat_template_kwargs.a"),
    ({}, {"llama_server_config": {"n_ctx": 4096}}, "llama_server_config.n_ctx"),
    ({}, {"llama_server_config": {"flash_attn": True}}, "llama_server_config.flash_attn"),
    ({}, {"llama_server_config": {"extra_args": ["--x"]}}, "llama_server_config.extra_args"),
    ({"loader": "fake"}, {"loader": "fake", "fake_config": {"reply": "x"}}, "fake_config.reply"),
]

UPDATES: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({}, {"aliases": ["x"]}, "aliases"),
    ({}, {"load": "on_demand"}, "load"),
    ({}, {"keep_alive": 0}, "keep_alive"),
    ({}, {"keep_alive": "never"}, "keep_alive"),
    ({}, {"pin": True}, "pin"),
    ({}, {"priority": 5}, "priority"),
    ({}, {"num_cpus": 4}, "num_cpus"),
    ({}, {"num_replicas": 4}, "num_replicas"),
    ({}, {"autoscaling_config": {"max_replicas": 2}}, "autoscaling_config"),
    (
        {"autoscaling_config": {"max_replicas": 2}},
        {"autoscaling_config": {"max_replicas": 3}},
        "autoscaling_config.max_replicas",
    ),
    ({}, {"max_ongoing_requests": 9}, "max_ongoing_requests"),
    ({}, {"ram": "1GiB"}, "ram"),
    ({}, {"vram": "1GiB"}, "vram"),
    ({}, {"start_timeout": 9}, "start_timeout"),
]


@pytest.mark.parametrize(("before", "after", "key"), RESTARTS)
def test_what_needs_a_new_worker(before: dict[str, Any], after: dict[str, Any], key: str) -> None:
    """Each of these is a replacement, named by its key, in both directions."""
    assert changes(before, after) == ("replace", (key,))
    assert changes(after, before) == ("replace", (key,))


@pytest.mark.parametrize(("before", "after", "key"), UPDATES)
def test_what_a_running_worker_takes(before: dict[str, Any], after: dict[str, Any], key: str) -> None:
    """Each of these leaves the worker alone, in both directions, and the fingerprint as it is."""
    assert changes(before, after) == ("update", (key,))
    assert changes(after, before) == ("update", (key,))
    assert read(before).fingerprint == read(after).fingerprint


def test_all_in_place_keys_are_tried() -> None:
    """No key is called harmless without a case above."""
    assert {key.split(".")[0] for *_, key in UPDATES} == IN_PLACE


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({}, {"num_replicas": 1, "load": "Eager", "priority": 0, "keep_alive": None}),
        ({}, {"llama_server_config": {"n_ctx": 2048}}),
        ({}, {"llama_server_config": {}}),
        ({}, {"model": "/srv/m.gguf"}),
        ({}, {"model": "m.gguf"}),
        ({"ram": "1GiB"}, {"ram": 1024**3}),
        ({"keep_alive": "10m"}, {"keep_alive": 600}),
        ({"chat_template_kwargs": {"a": 1, "b": 2}}, {"chat_template_kwargs": {"b": 2, "a": 1}}),
        ({"loader": "fake", "model": "fake"}, {"loader": "fake", "model": "fake", "fake_config": {}}),
    ],
)
def test_another_spelling_is_no_change(before: dict[str, Any], after: dict[str, Any]) -> None:
    """A default written out, another unit, another order of keys, the same path: nothing happens."""
    assert changes(before, after) == ("unchanged", ())
    assert read(before).fingerprint == read(after).fingerprint


def test_another_loader_is_a_replacement_with_all_its_keys() -> None:
    """The keys of both loaders' options are named, those that stand at their defaults too."""
    what, keys = changes({}, {"loader": "vllm"})
    assert what == "replace"
    assert {"loader", "llama_server_config", "vllm_engine_kwargs"} <= {key.split(".")[0] for key in keys}


def test_the_engines_program_reaches_its_models() -> None:
    """A new llama-server replaces the models that use it, and no other."""
    new = {"engines": {"llama_server": {"binary": "/opt/llama-server"}}}
    assert changes({}, {}, new_top=new) == ("replace", ("engines.llama_server.binary",))
    own = {"llama_server_config": {"binary": "/usr/bin/llama-server"}}
    assert changes(own, own, new_top=new) == ("unchanged", ())
    assert changes({"loader": "fake"}, {"loader": "fake"}, new_top=new) == ("unchanged", ())
    # The program stays the same, only the place where it is named moves.
    written = {"llama_server_config": {"binary": "/opt/llama-server"}}
    assert changes({}, written, old_top=new) == ("update", ("llama_server_config.binary",))


def test_gpus_that_follow_from_the_sizes_are_the_same_gpus() -> None:
    """Writing out what was derived before does not restart a worker."""
    sizes = {"vllm_engine_kwargs": {"tensor_parallel_size": 2}}
    assert changes({"loader": "vllm", **sizes}, {"loader": "vllm", "num_gpus": 2, **sizes})[0] == "update"
    assert (
        changes({"loader": "vllm", "num_gpus": 2}, {"loader": "vllm", "num_gpus": 2, **sizes})[0] == "update"
    )


@pytest.mark.parametrize(
    ("reference", "moves"),
    [
        ("./m.gguf", True),
        ("../m.gguf", True),
        ("m.gguf", True),
        ("below/m.gguf", True),
        (".", True),
        ("/abs/m.gguf", False),
        ("~/m.gguf", False),
        ("file:///m.gguf", False),
        ("org/repo", False),
        ("org/repo:*.gguf", False),
        ("pypi:p==1/p/m.gguf", False),
        ("base.en", False),
    ],
)
def test_only_relative_paths_follow_the_folder(reference: str, moves: bool) -> None:
    """The same file read from another folder means another model only where a relative path is written."""
    here, there = read({"model": reference}, Path("/a/x")), read({"model": reference}, Path("/b/x"))
    assert (here.fingerprint != there.fingerprint) == moves
    assert bool(diff([here], [there], additive=False).replaces) == moves


def test_a_fingerprint_is_the_same_in_every_process() -> None:
    """It is written to disk and compared by a later life of the daemon: hash seeds have no part in it."""
    code = (
        "from modeld.config.diff import fingerprint;"
        "print(fingerprint('l', 'm', 'u', {'b': [1, 2.5], 'a': None}, {'k': 'é'}, 0.5, '/b'))"
    )
    runs = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for seed in ("1", "2")
    }
    assert runs == {fingerprint("l", "m", "u", {"a": None, "b": [1, 2.5]}, {"k": "é"}, 0.5, "/b")}
    assert all(len(text) == 16 and set(text) <= set("0123456789abcdef") for text in runs)


def test_settings_that_wait_for_the_next_start() -> None:
    """Top-level keys that differ are named, not those which a change of the models carries out."""
    old = Config.model_validate({"api_keys": ["a"], "max_queue": 5})
    new = Config.model_validate(
        {
            "api_keys": ["b"],
            "max_queue": 5,
            "log": {"level": "debug"},
            "memory": {"headroom": 0.2},
            "models": [{"name": "m", "model": "./m.gguf", "usecase": "generate", "loader": "llama_server"}],
            "gateways": [{"name": "g"}],
            "engines": {"llama_server": {"binary": "x"}},
        }
    )
    assert changed_settings(old, new) == ("api_keys", "memory", "log")
    assert changed_settings(new, new) == ()


NAMES = st.sampled_from(["a", "b", "c", "d/e"])
SCALARS = st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text("aé\n", max_size=5)
JSON = st.recursive(
    SCALARS | st.floats(allow_nan=False, allow_infinity=False),
    lambda below: (
        st.lists(below, max_size=2) | st.dictionaries(st.text("xyz", max_size=2), below, max_size=2)
    ),
    max_leaves=4,
)
SCALING = st.integers(0, 2).flatmap(
    lambda low: st.fixed_dictionaries(
        {"min_replicas": st.just(low), "max_replicas": st.integers(max(low, 1), 4)},
        optional={"target_ongoing_requests": st.floats(0.5, 9)},
    )
)
BLOCKS: dict[str, st.SearchStrategy[dict[str, Any]]] = {
    "llama_server": st.fixed_dictionaries(
        {},
        optional={
            "n_ctx": st.integers(0, 9),
            "flash_attn": st.sampled_from(["on", "off", True]),
            "tensor_split": st.lists(st.floats(0, 3), min_size=1, max_size=2),
            "chat_template": st.sampled_from(["chatml", "./t.jinja"]),
            "binary": st.sampled_from(["llama-server", "./bin/llama-server"]),
            "extra_args": st.lists(st.sampled_from(["--x", 1]), max_size=2),
        },
    ),
    "vllm": st.fixed_dictionaries(
        {}, optional={"dtype": st.just("half"), "mm_processor_kwargs": st.just({"a": 1})}
    ),
    "stable_diffusion_cpp": st.fixed_dictionaries(
        {}, optional={"vae_path": st.sampled_from(["vae", "/vae"])}
    ),
    "fake": st.fixed_dictionaries(
        {}, optional={"memory": st.sampled_from(["1MiB", 5]), "token_delay": st.just(1)}
    ),
}


@st.composite
def models(draw: st.DrawFn) -> dict[str, Any]:
    """A model as it may be written, all kinds of values in it."""
    loader = draw(st.sampled_from(sorted(BLOCKS)))
    written: dict[str, Any] = {
        "model": draw(st.sampled_from(["./m.gguf", "org/repo:*.gguf", "/m.gguf"])),
        "loader": loader,
        "usecase": "image"
        if loader == "stable_diffusion_cpp"
        else draw(st.sampled_from(["generate", "embed"])),
    }
    some = st.fixed_dictionaries(
        {},
        optional={
            "num_gpus": st.sampled_from([0, 0.5, 2]),
            "num_cpus": st.floats(0, 4),
            "keep_alive": st.sampled_from(["never", "10m", 0, 2.5, None]),
            "priority": st.integers(-2, 2),
            "load": st.sampled_from(["eager", "ON_DEMAND"]),
            "ram": st.sampled_from(["1GiB", 7]),
            "start_timeout": st.integers(1, 3),
            "max_ongoing_requests": st.integers(1, 3),
            "chat_template_kwargs": st.dictionaries(st.text("ab", max_size=2), JSON, max_size=2),
            OPTION_BLOCKS[loader]: BLOCKS[loader],
        },
    )
    written |= draw(some)
    replicas = st.fixed_dictionaries({"num_replicas": st.integers(1, 3)})
    scaled = st.fixed_dictionaries({"autoscaling_config": SCALING})
    return written | draw(st.just({}) | replicas | scaled)


@st.composite
def sides(draw: st.DrawFn) -> tuple[Wanted, ...]:
    """All the models of a configuration, in two gateways."""
    default = draw(st.dictionaries(NAMES, models(), max_size=3))
    lab = draw(st.dictionaries(st.sampled_from(["a", "x"]), models(), max_size=2))
    document = {
        "models": [{"name": name, **fields} for name, fields in default.items()],
        "gateways": [{"name": "lab", "models": [{"name": name, **fields} for name, fields in lab.items()]}],
    }
    binary = draw(st.sampled_from([None, "llama-server"]))
    base = draw(st.sampled_from([Path("/srv"), Path("/opt")]))
    config = from_document(
        {**document, "engines": {"llama_server": {"binary": binary}}}, base, allow_fake=True
    )
    return wanted_models(config, base)


def named(difference: Difference) -> list[str]:
    """Return every key in a difference, once for each time it is there."""
    keys = [*difference.adds, *difference.removes, *difference.unchanged]
    return keys + [key for key, _ in (*difference.replaces, *difference.updates)]


@settings(max_examples=40)
@given(sides(), sides(), st.booleans(), st.randoms(use_true_random=False))
def test_a_difference_is_a_partition_and_leads_to_what_is_wanted(
    current: tuple[Wanted, ...], wanted: tuple[Wanted, ...], additive: bool, chance: random.Random
) -> None:
    """Every name is in exactly one part, whatever the order; what is carried out leaves nothing to do."""
    found = diff(current, wanted, additive=additive)
    before, after = {one.key: one for one in current}, {one.key: one for one in wanted}
    assert sorted(named(found)) == sorted(before.keys() | after.keys())
    assert set(found.adds) == after.keys() - before.keys()
    assert set(found.removes) == (set() if additive else before.keys() - after.keys())
    for _, keys in (*found.replaces, *found.updates):
        assert len(set(keys)) == len(keys) > 0
    heads = [{key.split(".")[0] for key in keys} for _, keys in found.replaces]
    assert all(head & (RESTART | {"engines"}) for head in heads)
    assert {key for key, _ in found.replaces} == {
        key for key in before.keys() & after.keys() if before[key].fingerprint != after[key].fingerprint
    }
    for key in set(found.unchanged) & after.keys():
        old, new = before[key], after[key]
        # An empty block of options and none at all are the same options.
        apart = {"model", *OPTION_BLOCKS.values()}
        assert (old.options, old.model.gpus, old.model.model_dump(exclude=apart)) == (
            new.options,
            new.model.gpus,
            new.model.model_dump(exclude=apart),
        )

    result = outcome(current, wanted, additive=additive)
    again = diff(result, wanted, additive=additive)
    assert again.empty
    assert {one.key for one in result} == (before.keys() if additive else set()) | after.keys()

    shuffled = list(current), list(wanted)
    for side in shuffled:
        chance.shuffle(side)
    assert diff(*shuffled, additive=additive) == found


@settings(deadline=None)
@given(models(), st.integers(1, 9), SCALING)
def test_replica_counts_never_replace(written: dict[str, Any], count: int, scaling: dict[str, Any]) -> None:
    """Whatever a model is, another number of replicas leaves its workers alone."""
    kept = {key: value for key, value in written.items() if key not in ("num_replicas", "autoscaling_config")}
    variants = [
        read(kept),
        read(kept | {"num_replicas": count}),
        read(kept | {"autoscaling_config": scaling}),
    ]
    for old in variants:
        for new in variants:
            assert not diff([old], [new], additive=False).replaces


@settings(deadline=None)
@given(models())
def test_a_model_survives_json(written: dict[str, Any]) -> None:
    """What is kept on disk or sent over a socket makes an equal model with an equal fingerprint."""
    entry = read(written)
    document = plain(entry.model)
    restored = Model.model_validate(json.loads(json.dumps(document)), context={"base": BASE})
    assert restored == entry.model
    assert plain(restored) == document
    again = read(document)
    assert (again.fingerprint, again.options) == (entry.fingerprint, entry.options)


def test_a_key_cannot_be_there_twice() -> None:
    """Two entries for one key are a defect of the caller, not a choice to be made here."""
    with pytest.raises(ValueError, match="'m' is there twice"):
        diff([], [read({}), read({"num_gpus": 1})], additive=True)


def test_a_model_that_moves_between_gateways_keeps_its_worker() -> None:
    """`g/m` of the default gateway and `m` of the gateway `g` are one key; the route is an update."""
    written = {"name": "m", "model": "./m.gguf", "usecase": "generate", "loader": "llama_server"}
    old = wanted_models(from_document({"models": [{**written, "name": "g/m"}]}, BASE), BASE)
    new = wanted_models(
        from_document({"gateways": [{"name": "G", "models": [written]}]}, BASE), BASE, "added"
    )
    assert diff(old, new, additive=False) == Difference(updates=(("g/m", ("gateway",)),))
