from __future__ import annotations

import io
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.library import header as room
from modeld.library import window, word_lists
from modeld.library.header import Header, read
from modeld.library.window import Refused, Unknown
from modeld.library.word_lists import Workspace
from tests.unit.library.gguf_bytes import As, chat_model, header, tensor, text, value, whole


def of(content: bytes, size: int | None = None, workspace: Workspace | None = None) -> Header:
    """Read a header from bytes."""
    return read(io.BytesIO(content), len(content) if size is None else size, workspace)


class Counting(io.BytesIO):
    """Counts the bytes that are read."""

    taken = 0

    def readinto(self, buffer: Any, /) -> int:
        """Fill, and count."""
        got = super().readinto(buffer)
        self.taken += got
        return got


class Hole:
    """A huge file: a beginning, and zeros ever after."""

    def __init__(self, beginning: bytes) -> None:
        self.beginning, self.at, self.taken = beginning, 0, 0

    def seek(self, offset: int, /) -> int:
        """Go to a place."""
        self.at = offset
        return offset

    def readinto(self, buffer: memoryview, /) -> int:
        """Fill the whole buffer."""
        there = self.beginning[self.at : self.at + len(buffer)]
        buffer[:] = there + bytes(len(buffer) - len(there))
        self.at += len(buffer)
        self.taken += len(buffer)
        return len(buffer)


def test_what_is_read() -> None:
    """Every kind of value arrives as Python has it; long lists by their length; then tensors, and where
    their bytes begin.
    """
    numbers = {f"n.{code}": As(code, 3) for code in "BbHhIiQq"}
    content = header(
        {
            **numbers,
            "half": As("f", 0.5),
            "double": As("d", 0.1),
            "yes": True,
            "words": "grüße",
            "few": ["a", "", "ß"],
            "many": ["x"] * 1000,
            "list": As("q", [-1, 2**40]),
            "flags": As("?", [True, False]),
            "long": As("f", [1.0] * 5000),
            "general.alignment": 64,
        },
        [tensor("a.weight", (2, 3)), tensor("b", (), 14, 64)],
        version=2,
    )
    found = of(content + bytes(200))
    assert found.keys == {
        **{name: 3 for name in numbers},
        "half": 0.5,
        "double": 0.1,
        "yes": True,
        "words": "grüße",
        "few": ["a", "", "ß"],
        "list": [-1, 2**40],
        "flags": [True, False],
        "general.alignment": 64,
    }
    assert found.lengths == {"few": 3, "many": 1000, "list": 2, "flags": 2, "long": 5000}
    assert found.tensors == [("a.weight", (2, 3), 0, 0), ("b", (), 14, 64)]
    assert found.version == 2
    assert found.data == len(content) + -len(content) % 64


NUMBERS = st.sampled_from([(code, struct.calcsize(code)) for code in "BbHhIiQq"]).flatmap(
    lambda pair: st.builds(As, st.just(pair[0]), st.integers(0, 2 ** (8 * pair[1] - 1) - 1))
)
VALUES: st.SearchStrategy[Any] = st.one_of(
    NUMBERS,
    st.booleans(),
    st.text(max_size=20),
    st.lists(st.text(max_size=8), max_size=8),
    st.lists(st.integers(-9, 9), max_size=8).map(lambda many: As("h", many)),
)
KEYS = st.dictionaries(
    st.text(max_size=12).filter(lambda name: name != "general.alignment"), VALUES, max_size=8
)
TENSORS = st.dictionaries(
    st.text(max_size=12), st.lists(st.integers(0, 2**10), max_size=4).map(tuple), max_size=6
)


def plain(what: Any) -> Any:
    """Return the value that was written."""
    return what.value if isinstance(what, As) else what


@given(KEYS, TENSORS, st.integers(0, 40))
def test_what_is_written_is_read(
    keys: dict[str, Any], tensors: dict[str, tuple[int, ...]], padding: int
) -> None:
    """Any keys and tensors come back as they were written, whatever follows them."""
    content = header(keys, [tensor(name, shape, 8, 32) for name, shape in tensors.items()])
    found = of(content + b"\xff" * padding)
    assert found.keys == {name: plain(what) for name, what in keys.items()}
    assert found.tensors == [(name, shape, 8, 32) for name, shape in tensors.items()]


KEY_LIKE = text("tokenizer.ggml.merges") + struct.pack("<I", 4)
"""What the key behind a vocabulary begins with: inside of one it must not count."""
WORDS = st.lists(
    st.one_of(
        st.binary(max_size=12),
        st.binary(min_size=250, max_size=300),
        st.sampled_from([KEY_LIKE, b"tokenizer.ggml.merges", b"general.file_type", b"tokenizer.", bytes(9)]),
    ),
    max_size=12,
)
BEHIND = st.sampled_from(["tokenizer.ggml.eos_token_id", "general.file_type", "after"])


def listed(words: list[bytes]) -> bytes:
    """Return a list of words as a value."""
    return struct.pack("<IIQ", 9, 8, len(words)) + b"".join(map(text, words))


@given(WORDS, st.integers(1, 400), st.integers(8, 300), BEHIND)
def test_a_long_list_of_words_is_stepped_over_whatever_is_in_it(
    words: list[bytes], times: int, chunk: int, behind: str
) -> None:
    """What comes after a list is found, however the words lie in the pieces that are read, whatever they look
    like, and also when the list is known from an earlier file.
    """
    many = words * times
    if len(many) <= room.MOST_WORDS_KEPT:
        many += [b"w"] * (room.MOST_WORDS_KEPT + 1)
    content = header([("list", listed(many)), (behind, 7)], [tensor("t", (1,))])
    workspace = Workspace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(window, "_CHUNK", chunk)
        patch.setattr(window, "_FIRST", chunk)
        patch.setattr(window, "MOST_BYTES", 1 << 40)
        patch.setattr(word_lists, "_LONG", 300)
        for _ in range(2):
            found = of(content + b"\x01" * 50, workspace=workspace)
            assert found.lengths == {"list": len(many)}
            assert found.keys == {behind: 7}
            assert found.tensors == [("t", (1,), 0, 0)]


@given(
    st.lists(st.binary(max_size=6), min_size=1, max_size=5),
    BEHIND,
    st.integers(100, 399),
    st.one_of(st.binary(max_size=40), st.just(KEY_LIKE)),
)
def test_a_list_that_only_resembles_a_known_one_is_read_by_itself(
    few: list[bytes], behind: str, index: int, word: bytes
) -> None:
    """Of two lists of the same length and beginning each is stepped over to its own end."""
    words = (few * 400)[:400]
    other = [*words[:index], word, *words[index + 1 :]]
    workspace = Workspace()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(word_lists, "_LONG", 300)
        for each in (words, other, words, other):
            content = header([("list", listed(each)), (behind, 7)])
            assert of(content, workspace=workspace).keys == {behind: 7}


@pytest.fixture
def no_walk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forbid going through long lists word by word."""
    monkeypatch.setattr(word_lists, "MOST_WALKED", 0)


@pytest.mark.usefixtures("no_walk")
def test_a_vocabulary_costs_no_walk() -> None:
    """Lists with a key of the usual names behind them are stepped over as a whole, though words of theirs
    begin like such a key.
    """
    words = [*(b"w%d" % number for number in range(100_000)), b"tokenizer.", b"general.", b"end"]
    keys = [("tokenizer.ggml.tokens", listed(words)), ("tokenizer.ggml.merges", listed(words))]
    found = of(header([*keys, ("general.file_type", 7)], [tensor("t", (1,))]))
    assert found.lengths == {name: len(words) for name, _ in keys}
    assert found.keys == {"general.file_type": 7}


def test_a_known_vocabulary_is_not_even_read() -> None:
    """Of the second file with the same vocabulary the words are passed over; what is kept stays few."""
    words = [b"word %d" % number for number in range(100_000)]
    content = header([("tokenizer.ggml.tokens", listed(words)), ("general.file_type", 7)])
    workspace = Workspace()
    taken = []
    for _ in range(2):
        source = Counting(content)
        assert read(source, len(content), workspace).keys == {"general.file_type": 7}
        taken.append(source.taken)
    assert taken[0] >= len(content) > 10 * taken[1]


def test_what_is_kept_between_files_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many vocabularies there are, only so many sizes are kept."""
    monkeypatch.setattr(Workspace, "MOST", 4)
    workspace = Workspace()
    for start in range(8):
        for size in range(8):
            workspace.add(2100, bytes([start]), size)
    kept = [workspace.like(2100, bytes([start])) for start in range(8)]
    assert kept == [[], [], [], [], *([[0, 1, 2, 3]] * 4)]


@pytest.mark.usefixtures("no_walk")
def test_words_made_to_look_like_the_end_are_found_out() -> None:
    """Where a leap leads into nonsense, the file is read word by word, as far as that is allowed."""
    words = [b"w"] * 3000 + [KEY_LIKE] + [b"w"] * 3000
    with pytest.raises(Unknown, match="unusual form"):
        of(header([("tokenizer.ggml.tokens", listed(words)), ("after", 7)]))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "begins with b''"),
        (bytes(4096), "nothing was ever written"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "git lfs pull"),
        (b"\n<!DOCTYPE html><html>", "web page"),
        (b"lmgg\x99\xca\0\0", "older format of ggml"),
        (struct.pack("<Q", 40) + b'{"a":{}}', "safetensors file"),
        (b"PK\3\4", r"begins with b'PK\\x03\\x04'"),
        (header({}, version=1), "version 1, which engines no longer read"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0), "big-endian"),
        (header({}, counts=(0, 2**63)), f"announces {2**63} keys, but only 0 bytes follow"),
        (header({}, counts=(2**64 - 1, 0)), "tensors, but only 0 bytes follow"),
        (header([("a", 1), ("a", 2)]), "the key 'a' twice"),
        (header([("a", ["x"]), ("a", ["x"])]), "the key 'a' twice"),
        (header([("a", ["x"] * 999), ("a", 1)]), "the key 'a' twice"),
        (header({"a": struct.pack("<I", 13) + bytes(20)}), "type 13"),
        (header({"a": struct.pack("<IIQ", 9, 9, 1) + bytes(20)}), "list of type 9"),
        (header({"a": struct.pack("<IIQ", 9, 200, 1) + bytes(20)}), "list of type 200"),
        (header({"a": struct.pack("<IIQ", 9, 4, 2**62)}), "goes beyond the end"),
        (header({"a": struct.pack("<IIQ", 9, 8, 2**60) + bytes(99)}), "words, but only 99 bytes follow"),
        (header({"a": struct.pack("<IQ", 8, 2**64 - 1) + bytes(9)}), "goes beyond the end"),
        (header({"a": struct.pack("<IIQ", 9, 8, 300) + b"\xff" * 2500}), "goes beyond the end"),
        (header([], counts=(0, 1)) + struct.pack("<Q", 2**40) + bytes(20), f"would be {2**40} bytes long"),
        (header({}, [tensor("t", (1,)), tensor("t", (1,))]), "the same name"),
        (header({}, [tensor("t" * 300, (1,))]), "name of a tensor would be 300 bytes"),
        (header({}, [tensor("t", (1,) * 5)]), "has 5 dimensions, at most 4"),
        (header({}, [tensor("t", (2**32, 2**32))]), "would have 18446744073709551616 elements"),
        (header({}, [tensor("t", (1,), 0, 2**63)]), "at offset 9223372036854775808"),
        (header({"general.alignment": 12}), "alignment is 12"),
        (header({"general.alignment": 0}), "alignment is 0"),
        (header({"general.alignment": "x" * 1000}), "alignment is xxx"),
    ],
)  # fmt: skip
def test_what_no_engine_loads_is_refused_in_words(content: bytes, words: str) -> None:
    """Each kind of damage is told by what it is, shortly and with the figures."""
    with pytest.raises(Refused, match=words) as caught:
        of(content)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    ("content", "size", "words"),
    [
        (header({}, version=4), 24, "version 4"),
        (header({}, counts=(0, 10**6)), 2**40, "1000000 keys, which is more than are read"),
        (header({}, counts=(10**6, 0)), 2**40, "1000000 tensors, which is more than are read"),
        (header({"a": struct.pack("<IIQ", 9, 8, 2**21)}), 2**40, "more than 1048576 words"),
        (header({"a": struct.pack("<IIQ", 9, 8, 2**20)}), 2**40, "more than 262144 words .* unusual"),
    ],
)
def test_what_may_be_sound_is_only_unknown(content: bytes, size: int, words: str) -> None:
    """What is newer or larger than this reader knows is not called damaged."""
    with pytest.raises(Unknown, match=words):
        read(Hole(content), size)


def test_huge_words_do_not_make_it_read_on_and_on() -> None:
    """A list whose words are far apart ends the reading after a set number of bytes."""

    class Far(Hole):
        def readinto(self, buffer: memoryview, /) -> int:
            """Say everywhere that the next word is 16 MiB long."""
            got = super().readinto(buffer)
            if self.at > len(buffer):
                buffer[:8] = struct.pack("<Q", 1 << 24)
            return got

    beginning = header({"a": struct.pack("<IIQ", 9, 8, 2**18) + struct.pack("<Q", 1 << 24)}, counts=(0, 2))
    source = Far(beginning)
    with pytest.raises(Unknown, match="over 48 MiB"):
        read(source, 2**50)
    assert source.taken <= window.MOST_BYTES


def refused(content: bytes) -> bool:
    """Return whether it is refused, or not known; anything else that is raised comes through."""
    try:
        of(content)
    except (Refused, Unknown):
        return True
    return False


def test_cut_short_anywhere() -> None:
    """A header that ends early is refused, wherever it ends."""
    content = chat_model()
    end = len(content) - len(content.rpartition(b"output_norm.weight")[2]) + 4 + 8 + 4 + 8
    assert not refused(content[:end])
    assert all(refused(content[:length]) for length in range(end))


CHANGES: list[Callable[[bytearray, int, int], None]] = [
    lambda content, at, byte: content.__setitem__(at, byte),
    lambda content, at, byte: content.__setitem__(slice(at, at + 8), bytes([byte]) * 8),
    lambda content, at, byte: content.insert(at, byte),
    lambda content, at, byte: content.__delitem__(slice(at, at + byte)),
]


@settings(max_examples=300)
@given(st.data())
def test_damaged_anywhere(data: st.DataObject) -> None:
    """Whatever bytes of a header are changed, there is a header or a refusal."""
    content = bytearray(chat_model())
    for _ in range(data.draw(st.integers(1, 4))):
        change = data.draw(st.sampled_from(CHANGES))
        change(content, data.draw(st.integers(0, len(content) - 1)), data.draw(st.integers(0, 255)))
    refused(bytes(content))


@settings(max_examples=300)
@given(st.binary(max_size=400), st.integers(0, 6), st.integers(0, 6))
def test_random_bytes(rest: bytes, tensors: int, keys: int) -> None:
    """Whatever follows the two counts, there is a header or a refusal."""
    refused(header({}, counts=(tensors, keys)) + rest)
    refused(rest)


@pytest.mark.parametrize("times", [1, 40])
def test_memory_is_bounded(times: int) -> None:
    """Texts and lists are kept up to a limit, however many there are; the rest is stepped over."""
    keys: dict[str, Any] = {f"text.{number}": "x" * 400_000 for number in range(times)}
    keys |= {f"words.{number}": ["y" * 100_000] * 8 for number in range(times)}
    lists = {f"list.{number}": As("B", [1] * 4000) for number in range(times * 2)}
    content = header({**keys, **lists})
    workspace = Workspace()
    tracemalloc.start()
    try:
        found = of(content, workspace=workspace)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    kept = sum(len(each) for each in found.keys.values() if isinstance(each, str))
    assert kept <= room.MOST_TEXT
    assert sum(len(many) for name, many in found.keys.items() if "list" in name) <= room.MOST_NUMBERS
    assert len(found.keys) + len(found.lengths) >= len(keys)
    assert peak < 16 * 1024**2


def test_tensors_are_not_read() -> None:
    """Of a file with much behind its header little more than the header is read."""
    source = Counting(whole({"general.architecture": "llama"}, {"a": ((1000, 1000), 0)}))
    read(source, len(source.getvalue()))
    assert source.taken <= window._FIRST


def test_value_helper_writes_the_types_that_are_read() -> None:
    """The writer of these tests knows every type of number that the reader does."""
    kinds = {struct.unpack_from("<I", value(As(code, 1)))[0] for code in "BbHhIif?Qqd"}
    assert kinds == set(room._SCALARS)
