"""The pure parts of embedding on llama.cpp: flags, pooling by the file, batches, vectors that are none."""

from __future__ import annotations

import base64
import math
import struct
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.errors import BadRequest, EngineError, LoadFailed
from modeld.protocol.llama import OWN_CONTEXT_BATCH
from modeld.protocol.messages import LoadSpec
from modeld.worker.loaders.llama_server.client import Client, EngineFault, TooLong, _fault
from modeld.worker.loaders.llama_server.command import command
from modeld.worker.loaders.llama_server.embedding import (
    BATCH_INPUTS,
    BATCH_SIZE,
    batches,
    embedded,
    too_long,
    weight,
)
from modeld.worker.loaders.llama_server.pooling import KINDS, check_use, own_pooling


def text(value: str) -> bytes:
    """Return a string as GGUF writes it."""
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def gguf(file: Path, pooling: int | None) -> Path:
    """Write a GGUF header with keys of every shape before the pooling."""
    keys = [
        text("general.architecture") + struct.pack("<I", 8) + text("bert"),
        text("bert.causal") + struct.pack("<I?", 7, False),
        text("bert.epsilon") + struct.pack("<Id", 12, 1e-12),
        text("tokenizer.ggml.tokens") + struct.pack("<IIQ", 9, 8, 2) + text("a") + text("bc"),
        text("tokenizer.ggml.scores") + struct.pack("<IIQ3f", 9, 6, 3, 1, 2, 3),
        text("bert.nested") + struct.pack("<IIQIQ2I", 9, 9, 1, 4, 2, 7, 8),
    ]
    if pooling is not None:
        keys.append(text("bert.pooling_type") + struct.pack("<II", 4, pooling))
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)) + b"".join(keys))
    return file


@pytest.mark.parametrize("number", range(len(KINDS)))
def test_the_file_says_how_it_pools(tmp_path: Path, number: int) -> None:
    """Whatever stands before the key is skipped, and the number is its word."""
    assert own_pooling(gguf(tmp_path / "m.gguf", number)) == KINDS[number]


def test_a_file_that_says_nothing_readable_has_no_pooling(tmp_path: Path) -> None:
    """None for no such key, a number of the future, a file cut anywhere, another file, no file."""
    assert own_pooling(gguf(tmp_path / "m.gguf", None)) is None
    assert own_pooling(gguf(tmp_path / "m.gguf", 99)) is None
    whole = gguf(tmp_path / "m.gguf", 1).read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut.gguf").write_bytes(whole[:end])
        assert own_pooling(tmp_path / "cut.gguf") is None
    (tmp_path / "page.gguf").write_bytes(b"<html>" * 20)
    assert own_pooling(tmp_path / "page.gguf") is None
    assert own_pooling(tmp_path / "none.gguf") is None


def header(file: Path, *keys: bytes) -> Path:
    """Write a GGUF header of these keys."""
    file.write_bytes(struct.pack("<4sIQQ", b"GGUF", 3, 0, len(keys)) + b"".join(keys))
    return file


def test_a_file_for_something_else_is_refused_before_an_engine_dies_of_it(tmp_path: Path) -> None:
    """A projector is no model, and what makes vectors or scores writes no text; each says what to write."""
    architecture = text("general.architecture") + struct.pack("<I", 8)
    pooled = text("x.pooling_type") + struct.pack("<I", 4)
    projector = header(tmp_path / "p.gguf", architecture + text("clip"))
    for usecase in ("generate", "embed"):
        with pytest.raises(LoadFailed, match=r"p\.gguf is a projector.*mmproj") as caught:
            check_use(projector, usecase)
        assert caught.value.permanent
    for number, what in ((1, "makes vectors"), (3, "makes vectors"), (4, "a reranker")):
        model = header(tmp_path / "v.gguf", architecture + text("x"), pooled + struct.pack("<I", number))
        with pytest.raises(LoadFailed, match=f"{what}.*; give it usecase: embed") as caught:
            check_use(model, "generate")
        assert caught.value.permanent
        check_use(model, "embed")


def test_a_file_that_may_be_right_is_left_to_the_engine(tmp_path: Path) -> None:
    """No pooling, none, one of the future, one behind the vocabulary, a file cut anywhere, another file."""
    architecture = text("general.architecture") + struct.pack("<I", 8) + text("llama")
    for number in (0, 99):
        pooled = text("llama.pooling_type") + struct.pack("<II", 4, number)
        check_use(header(tmp_path / "m.gguf", architecture, pooled), "generate")
    check_use(gguf(tmp_path / "m.gguf", 1), "generate")
    whole = gguf(tmp_path / "m.gguf", None).read_bytes()
    for end in range(len(whole)):
        (tmp_path / "cut.gguf").write_bytes(whole[:end])
        check_use(tmp_path / "cut.gguf", "generate")
    check_use(tmp_path / "none.gguf", "generate")


def flags(model: Path, usecase: str, **options: Any) -> list[str]:
    """Return the engine's command line."""
    spec = LoadSpec("m", "llama_server", usecase, str(model), "/run/x", {"binary": sys.executable, **options})
    return command(spec, model, Path("/run/x/engine.sock"))[0]


def value(argv: list[str], flag: str) -> str:
    """Return what follows a flag's last mention."""
    return argv[len(argv) - argv[::-1].index(flag)]


@pytest.mark.parametrize(
    ("options", "batch"),
    [
        ({}, "2048"),
        ({"n_ctx": 512, "n_batch": 128, "parallel": 4}, "512"),
        ({"n_ctx": 512, "n_batch": 1024}, "1024"),
        ({"n_ctx": 0}, str(OWN_CONTEXT_BATCH)),
    ],
    ids=str,
)
def test_an_input_of_the_whole_context_fits_into_a_batch(
    tmp_path: Path, options: dict[str, Any], batch: str
) -> None:
    """Both batches are one slot's context or more; a model for text is started without any of it."""
    model = gguf(tmp_path / "m.gguf", 1)
    argv = flags(model, "embed", **options)
    assert "--embeddings" in argv
    assert value(argv, "-b") == value(argv, "-ub") == batch
    assert not {"--embeddings", "--pooling", "-ub"} & set(flags(model, "generate", **options))


def test_the_pooling_is_the_owners_then_the_files(tmp_path: Path) -> None:
    """The option goes before the file; the engine is told of a reranker, since it does not ask the file."""
    assert value(flags(gguf(tmp_path / "m.gguf", 1), "embed", pooling="last"), "--pooling") == "last"
    assert value(flags(gguf(tmp_path / "m.gguf", 4), "embed"), "--pooling") == "rank"
    assert "--pooling" not in flags(gguf(tmp_path / "m.gguf", None), "embed")


SIZES = st.integers(1, BATCH_SIZE * 2)
TEXTS = SIZES.map(lambda size: "x" * size)
TOKENS = SIZES.map(lambda size: (0,) * (size // 4 + 1))


@given(st.lists(TEXTS | TOKENS, max_size=60))
def test_batches_partition_their_items(items: list[str | tuple[int, ...]]) -> None:
    """Joined they are the items, each knows its first index, and only a batch of one is over the size."""
    found = batches(items)
    assert [item for _, part in found for item in part] == items
    lengths = [len(part) for _, part in found]
    assert [first for first, _ in found] == [sum(lengths[:at]) for at in range(len(found))]
    for _, part in found:
        assert 1 <= len(part) <= BATCH_INPUTS
        assert len(part) == 1 or sum(map(weight, part)) <= BATCH_SIZE


class Playing(Client):
    """A client whose engine gives one scripted answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__(Path("/nowhere"))
        self._answer = answer

    async def fetch(self, method: str, path: str, body: Any = None) -> Any:
        """Give the answer."""
        return self._answer


def coded(*values: float) -> str:
    """Return values as the engine codes them."""
    return base64.b64encode(struct.pack(f"<{len(values)}f", *values)).decode()


def answer(*vectors: str, first: int = 0) -> dict[str, Any]:
    """Return the engine's answer with these vectors."""
    data = [{"index": at, "embedding": vector} for at, vector in enumerate(vectors, first)]
    return {"data": data, "usage": {"prompt_tokens": 5}}


async def test_a_sound_answer_is_taken_as_it_is() -> None:
    """The bytes are the engine's own, with the tokens it counted."""
    vectors, used = await embedded(Playing(answer(coded(1, 0), coded(0, 1))), ["a", "b"])
    assert vectors == [(0, struct.pack("<2f", 1, 0)), (1, struct.pack("<2f", 0, 1))]
    assert used == 5


@pytest.mark.parametrize(
    "wrong",
    [
        answer(coded(1, math.nan), coded(1, 2)),
        answer(coded(1, math.inf), coded(1, 2)),
        answer(coded(math.inf, -math.inf), coded(1, 2)),
        answer("", coded(1, 2)),
        answer("!!!!", coded(1, 2)),
        answer("AAA=", coded(1, 2)),
        answer(coded(1, 2)),
        answer(coded(1, 2), coded(1, 2), first=1),
        answer(coded(1, 2), coded(1, 2, 3)),
        answer(coded(1, 2), coded(1, 2), coded(1, 2)),
        {"data": [], "usage": {}},
        {"data": [{"index": 0, "embedding": [1.0]}], "usage": {}},
        {},
        None,
    ],
    ids=[
        "NaN",
        "infinity",
        "both infinities",
        "empty",
        "no base64",
        "no float",
        "one missing",
        "wrong index",
        "lengths differ",
        "too many",
        "none",
        "numbers",
        "no fields",
        "null",
    ],
)
async def test_rubbish_from_the_engine_is_its_own_fault(wrong: Any) -> None:
    """None of it is passed on."""
    with pytest.raises(EngineError):
        await embedded(Playing(wrong), ["a", "b"])


def test_both_ways_of_the_engine_to_say_too_long_are_the_callers_fault() -> None:
    """The context's 400 and the physical batch's 500 are the same error, with both sizes."""
    by_context = EngineFault("input is larger", "exceed_context_size_error", 702, 512)
    by_batch = EngineFault(
        "input (702 tokens) is too large to process. "
        "increase the physical batch size (current batch size: 512)"
    )
    for status, fault in ((400, by_context), (500, by_batch)):
        error = _fault(status, fault)
        assert isinstance(error, TooLong)
        assert isinstance(error, BadRequest)
        assert (error.given, error.limit) == (702, 512)


@pytest.mark.parametrize(("context", "told"), [(None, 2048), (512, 512), (4096, 2048)])
def test_the_limit_told_is_the_one_that_holds(context: int | None, told: int) -> None:
    """The engine may refuse for its batch what the model's context is too small for."""
    error = too_long("input[1]", TooLong(5002, 2048), context)
    assert f"input[1] has 5002 tokens, this model takes at most {told};" in str(error)
    assert (error.code, error.param) == ("context_length_exceeded", "input[1]")
