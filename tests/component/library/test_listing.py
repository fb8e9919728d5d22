from __future__ import annotations

import asyncio
import json
import os
import struct
from pathlib import Path
from typing import Any

import pytest

from modeld.library import listing as room
from modeld.library import listing_cache, reading
from modeld.library.about import Answer
from modeld.library.entry import Entry
from modeld.library.listing import Listing
from modeld.library.listing_cache import NAME
from tests.unit.library.gguf_bytes import chat_model, header, tensor, whole


class Opened:
    """Counts the models that are read."""

    def __init__(self) -> None:
        self.paths: list[str] = []


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> Opened:
    """Give what gets read."""
    seen = Opened()
    real, real_files = reading.read_models, room._of_files

    async def read_models(jobs: Any) -> Any:
        seen.paths += [str(job[0]) for job in jobs]
        return await real(jobs)

    def of_files(found: Any) -> Any:
        seen.paths.append(found.path)
        return real_files(found)

    monkeypatch.setattr(room, "read_models", read_models)
    monkeypatch.setattr(room, "_of_files", of_files)
    return seen


def put(path: Path, content: bytes | None = None) -> Path:
    """Write a file, a whole small model if nothing else is said."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(chat_model() if content is None else content)
    return path


def safetensors(path: Path, *names: str) -> Path:
    """Write a file of weights."""
    text = json.dumps(
        {name: {"dtype": "F16", "shape": [2], "data_offsets": [0, 4]} for name in names}
    ).encode()
    return put(path, struct.pack("<Q", len(text)) + text + bytes(4))


def projector() -> bytes:
    """Return a projector's file."""
    keys = {"general.architecture": "clip", "clip.has_vision_encoder": True, "clip.has_audio_encoder": True}
    return whole(keys, {"v.patch": ((2, 2), 0)})


def by_name(entries: tuple[Entry, ...], root: Path) -> dict[str, Entry]:
    """Return the entries by their paths below the root."""
    return {os.path.relpath(entry.path, root): entry for entry in entries}


async def test_a_tree_of_models(tmp_path: Path) -> None:
    """Each kind of model is found and told apart; other files are no models."""
    root = tmp_path / "models"
    put(root / "chat.gguf")
    put(root / "embed" / "bge.GGUF", whole({"general.architecture": "bert"}, {"a": ((2, 2), 0)}))
    put(root / "lora" / "a.gguf", whole({"general.type": "adapter"}, {"a.lora_a": ((2, 2), 0)}))
    put(
        root / "ggml-base.en.bin",
        b"lmgg" + struct.pack("<11i", 51864, 1500, 512, 8, 6, 448, 512, 8, 6, 80, 1),
    )
    put(root / "kokoro" / "model.onnx", b"x" * 10)
    put(root / "kokoro" / "voices.bin", b"y" * 5)
    put(root / "kokoro" / "tokens.txt", b"a 1\n")
    safetensors(root / "hf" / "model.safetensors", "a")
    put(
        root / "hf" / "config.json", b'{"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 99}'
    )
    put(root / "hf" / "chat_template.jinja", b"{{ tools }}")
    put(root / "hf" / "README.md", b"---\nlicense: mit\nlanguage:\n- en\n- de\n---\n# x\n")
    put(root / "sd" / "model_index.json", b'{"_class_name": "FluxPipeline"}')
    safetensors(root / "sd" / "unet" / "diffusion_pytorch_model.safetensors", "a")
    safetensors(root / "sd" / "vae" / "diffusion_pytorch_model.safetensors", "a")
    put(root / "sd" / "vae" / "config.json", b"{}")
    safetensors(root / "loose" / "sdxl.safetensors", "model.diffusion_model.x")
    safetensors(root / "loose" / "style.safetensors", "unet.lora_down.weight")
    safetensors(root / "peft" / "adapter_model.safetensors", "a")
    put(root / "peft" / "adapter_config.json", b"{}")
    put(root / "notes.txt", b"x")
    put(root / ".hidden" / "x.gguf")
    put(root / "half.gguf.part", b"x")
    found = by_name(await Listing(None).scan(root), root)
    assert {
        name: (entry.format, entry.kind, entry.loader, entry.usecase) for name, entry in found.items()
    } == {
        "chat.gguf": ("gguf", "model", "llama_server", "generate"),
        "embed/bge.GGUF": ("gguf", "model", "llama_server", "embed"),
        "lora/a.gguf": ("gguf", "lora", "", ""),
        "ggml-base.en.bin": ("ggml", "model", "whispercpp", "transcription"),
        "kokoro": ("onnx", "model", "sherpa_onnx", "tts"),
        "hf": ("safetensors", "model", "vllm", "generate"),
        "sd": ("diffusers", "model", "diffusers", "image"),
        "loose/sdxl.safetensors": ("safetensors", "model", "stable_diffusion_cpp", "image"),
        "loose/style.safetensors": ("safetensors", "lora", "", ""),
        "peft": ("safetensors", "lora", "", ""),
    }
    assert not [entry.error for entry in found.values() if entry.error]
    chat = found["chat.gguf"]
    assert chat.metadata is not None
    assert chat.about is not None
    assert (chat.name, chat.size, chat.metadata.context_length) == ("tiny", len(chat_model()), 512)
    assert chat.capabilities == ("chat", "completion", "tools", "tokenize")
    assert (chat.about.licence, chat.about.languages) == ("mit", ("en", "de"))
    assert (found["kokoro"].size, found["sd"].name) == (15, "sd")
    hf = found["hf"]
    assert hf.about is not None
    assert hf.capabilities == ("chat", "completion", "tools", "tokenize")
    assert (hf.about.licence, hf.about.languages) == ("mit", ("en", "de"))
    assert found["ggml-base.en.bin"].name == "whisper base.en"


async def test_broken_ones_are_listed_with_their_error(tmp_path: Path) -> None:
    """What is broken stands in the list, with what is wrong; the others stand beside it."""
    put(tmp_path / "good.gguf")
    put(tmp_path / "junk.gguf", b"<html>")
    put(tmp_path / "short.gguf", chat_model()[:-40])
    put(tmp_path / "empty.gguf", b"")
    put(tmp_path / "newer.gguf", header({}, version=9))
    put(tmp_path / "bad.safetensors", b"\xff" * 20)
    put(tmp_path / "ggml-x.bin", b"nothing")
    (tmp_path / "dangling.gguf").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "fifo.gguf")
    found = by_name(await Listing(None).scan(tmp_path), tmp_path)
    errors = {name: entry.error for name, entry in found.items() if entry.error}
    assert errors.keys() == found.keys() - {"good.gguf"}
    assert len(found) == 9
    words = {
        "junk.gguf": "it is a web page",
        "short.gguf": "is cut short: its tensors take",
        "empty.gguf": "is not a GGUF file: it begins with b''",
        "newer.gguf": "is GGUF version 9",
        "bad.safetensors": "is cut short or damaged",
        "ggml-x.bin": "is not a model of whisper",
        "dangling.gguf": f"is a link to {tmp_path / 'nowhere'}, which is not there",
        "fifo.gguf": "is not a regular file",
    }
    for name, part in words.items():
        assert part in errors[name]
        assert name in errors[name]
        assert found[name].loader == ""


async def test_pieces_are_one_model_and_missing_ones_are_named(tmp_path: Path) -> None:
    """A model in several files is one entry with all their bytes; a missing piece is named."""
    first = header({"general.architecture": "llama", "split.count": 2, "split.no": 0}, [tensor("a", (8,))])
    first += bytes(-len(first) % 32 + 32)
    second = header({"split.count": 2, "split.no": 1}, [tensor("b", (8,))])
    second += bytes(-len(second) % 32 + 32)
    put(tmp_path / "m-00001-of-00002.gguf", first)
    put(tmp_path / "m-00002-of-00002.gguf", second)
    put(tmp_path / "sub" / "n-00001-of-00002.gguf", first)
    put(tmp_path / "other" / "n-00002-of-00002.gguf", second)
    found = by_name(await Listing(None).scan(tmp_path), tmp_path)
    assert found.keys() == {
        "m-00001-of-00002.gguf",
        "sub/n-00001-of-00002.gguf",
        "other/n-00002-of-00002.gguf",
    }
    whole_one = found["m-00001-of-00002.gguf"]
    assert whole_one.metadata is not None
    assert (whole_one.size, whole_one.metadata.parameters) == (len(first) + len(second), 16)
    assert whole_one.files == ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    assert whole_one.name == "m"
    half = found["sub/n-00001-of-00002.gguf"]
    assert half.missing == ("n-00002-of-00002.gguf",)
    assert "lacks 1 of its files: n-00002-of-00002.gguf; fetch" in half.error
    assert half.metadata is not None
    assert half.metadata.parameters is None
    assert found["other/n-00002-of-00002.gguf"].kind == "piece"


async def test_missing_weights_of_a_folder_are_named(tmp_path: Path) -> None:
    """A folder whose index names files that are not there says so."""
    safetensors(tmp_path / "m" / "model-00001-of-00002.safetensors", "a")
    put(tmp_path / "m" / "config.json", b'{"architectures": ["LlamaForCausalLM"]}')
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    put(tmp_path / "m" / "model.safetensors.index.json", json.dumps(index).encode())
    (entry,) = await Listing(None).scan(tmp_path)
    assert entry.missing == ("model-00002-of-00002.safetensors",)
    assert "lacks 1 of its files" in entry.error


async def test_projectors_belong_to_their_models(tmp_path: Path) -> None:
    """Beside one model every projector is its own, the one that the loader takes first; beside several only
    the one with the model's name; what belongs to none stands alone.
    """
    put(tmp_path / "one" / "m.gguf")
    put(tmp_path / "one" / "mmproj-f32.gguf", projector())
    put(tmp_path / "one" / "mmproj-f16.gguf", projector())
    put(tmp_path / "two" / "a.gguf")
    put(tmp_path / "two" / "b.gguf")
    put(tmp_path / "two" / "mmproj-a.gguf", projector())
    put(tmp_path / "two" / "mmproj-other.gguf", projector())
    found = by_name(await Listing(None).scan(tmp_path), tmp_path)
    assert found.keys() == {"one/m.gguf", "two/a.gguf", "two/b.gguf", "two/mmproj-other.gguf"}
    one = found["one/m.gguf"]
    assert one.mmproj == (str(tmp_path / "one/mmproj-f16.gguf"), str(tmp_path / "one/mmproj-f32.gguf"))
    assert one.capabilities[-2:] == ("vision", "audio")
    assert one.projector is not None
    assert one.projector.size == len(projector())
    assert found["two/a.gguf"].mmproj == (str(tmp_path / "two/mmproj-a.gguf"),)
    assert "vision" not in found["two/b.gguf"].capabilities
    assert found["two/mmproj-other.gguf"].kind == "mmproj"


async def test_links_that_go_round_and_folders_that_are_closed(tmp_path: Path) -> None:
    """A loop of links ends, a folder is listed once and by its true path, and a root that is not there or a
    folder that may not be read is an entry of its own.
    """
    root = tmp_path / "root"
    put(root / "b" / "m.gguf")
    (root / "a").symlink_to(root / "b")
    (root / "b" / "up").symlink_to(root)
    (root / "self").symlink_to(root / "self")
    (root / "self.gguf").symlink_to(root / "self.gguf")
    closed = root / "closed"
    put(closed / "x.gguf")
    closed.chmod(0)
    try:
        found = by_name(await Listing(None).scan(root, tmp_path / "gone", root / "b"), root)
    finally:
        closed.chmod(0o700)
    assert found.pop("self.gguf").error.startswith(f"{root / 'self.gguf'} cannot be read: ")
    assert found.pop("../gone").error == f"{tmp_path / 'gone'} cannot be read: No such file or directory"
    if os.geteuid():
        assert found.pop("closed").error == f"{closed} cannot be read: Permission denied"
    else:
        del found["closed/x.gguf"]
    assert found.keys() == {"b/m.gguf"}


async def test_only_what_is_new_is_read(tmp_path: Path, opened: Opened) -> None:
    """A second look, also by another process, opens nothing but what has changed, broken models included."""
    root, cache = tmp_path / "models", tmp_path / "cache"
    put(root / "a.gguf")
    put(root / "b.gguf")
    put(root / "junk.gguf", b"junk")
    put(root / "bad.safetensors", b"bad")
    safetensors(root / "hf" / "model.safetensors", "a")
    put(root / "hf" / "config.json", b"{}")
    first = await Listing(cache).scan(root)
    assert len(first) == len(opened.paths) == 5
    opened.paths.clear()
    again = Listing(cache)
    assert await again.scan(root) == first
    assert await again.scan(root) == first
    assert opened.paths == []
    put(root / "b.gguf", chat_model(**{"general.name": "other"}))
    put(root / "hf" / "config.json", b'{"architectures": ["BertModel"]}')
    (root / "a.gguf").unlink()
    found = by_name(await again.scan(root), root)
    assert sorted(opened.paths) == [str(root / "b.gguf"), str(root / "hf")]
    assert (found["b.gguf"].name, found["hf"].capabilities) == ("other", ("embed", "tokenize"))
    assert "a.gguf" not in found
    assert str(root / "a.gguf") not in again._cache._rows


@pytest.mark.parametrize("damage", [b"", b"junk", b"\x92\x01\x80", b"\x92\xcd\x03\xe7\x80"])
async def test_a_damaged_cache_is_made_afresh(tmp_path: Path, opened: Opened, damage: bytes) -> None:
    """Whatever is in the file, the list is right, and the file is good again."""
    root, cache = tmp_path / "models", tmp_path / "cache"
    put(root / "a.gguf")
    first = await Listing(cache).scan(root)
    (cache / NAME).write_bytes(damage)
    opened.paths.clear()
    assert await Listing(cache).scan(root) == first
    assert len(opened.paths) == 1
    assert await Listing(cache).scan(root) == first
    assert len(opened.paths) == 1
    assert os.listdir(cache) == [NAME]


async def test_a_cache_cut_short_anywhere(tmp_path: Path) -> None:
    """A file that ends early, wherever, is no error and no wrong list."""
    root, cache = tmp_path / "models", tmp_path / "cache"
    put(root / "a.gguf")
    await Listing(cache).scan(root)
    content = (cache / NAME).read_bytes()
    for end in range(0, len(content), 7):
        (cache / NAME).write_bytes(content[:end])
        kept = listing_cache.Cache(cache)
        kept.load()
        assert kept.below(str(root)) == []


async def test_a_cache_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    """A file in the place of the folder leaves the list as it is."""
    put(tmp_path / "models" / "a.gguf")
    cache = put(tmp_path / "cache", b"x")
    (entry,) = await Listing(cache).scan(tmp_path / "models")
    assert not entry.error


async def test_what_the_system_was_in_the_way_of_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An error that says nothing of the file is not remembered."""
    path = put(tmp_path / "a.gguf")
    list_of = Listing(None)

    async def trouble(jobs: Any) -> Any:
        return [Answer(trouble=f"{path} cannot be read: Input/output error")]

    with monkeypatch.context() as patch:
        patch.setattr(room, "read_models", trouble)
        (entry,) = await list_of.scan(tmp_path)
        assert "Input/output error" in entry.error
    (entry,) = await list_of.scan(tmp_path)
    assert not entry.error


async def test_looking_at_one_model(tmp_path: Path, opened: Opened) -> None:
    """A file, any piece of a model, a projector or a folder with one model stands for the model; what is
    none is told.
    """
    put(tmp_path / "one" / "m.gguf")
    put(tmp_path / "one" / "mmproj-m.gguf", projector())
    put(tmp_path / "one" / "below" / "x.gguf")
    put(tmp_path / "two" / "a.gguf")
    put(tmp_path / "two" / "b.gguf")
    put(tmp_path / "two" / "c.txt", b"x")
    list_of = Listing(None)
    model = await list_of.look(tmp_path / "one" / "m.gguf")
    assert model.capabilities[-1] == "audio"
    assert len(opened.paths) == 2
    assert await list_of.look(tmp_path / "one" / "mmproj-m.gguf") == model
    assert await list_of.look(tmp_path / "one") == model
    assert (await list_of.look(tmp_path / "two")).error == f"{tmp_path / 'two'} holds 2 models; name one"
    assert (await list_of.look(tmp_path / "two" / "c.txt")).error.endswith("is no model that is known here")
    assert (await list_of.look(tmp_path / "gone.gguf")).error.endswith("is not there")


async def test_many_callers_read_once(tmp_path: Path, opened: Opened) -> None:
    """Lists that are asked for at the same time cost one reading."""
    for number in range(5):
        put(tmp_path / f"{number}.gguf")
    list_of = Listing(None)
    lists = await asyncio.gather(*(list_of.scan(tmp_path) for _ in range(4)))
    assert all(each == lists[0] for each in lists)
    assert len(opened.paths) == 5


async def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """A file whose name is not UTF-8 is listed with an error, and harms no other and no cache."""
    put(tmp_path / "m" / "good.gguf")
    put(tmp_path / "m" / os.fsdecode(b"bad-\xff.gguf"))
    good, bad = sorted(await Listing(tmp_path / "c").scan(tmp_path / "m"), key=lambda entry: entry.error)
    assert good.name == "tiny"
    assert bad.error.endswith("has a name that is not UTF-8; rename it")
    bad.path.encode()


async def test_the_demo_model(demo_gguf: Path, tmp_path: Path) -> None:
    """A real model says what it is."""
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "SmolLM2.gguf").symlink_to(demo_gguf)
    (entry,) = await Listing(None).scan(tmp_path)
    assert entry.about is not None
    assert entry.metadata is not None
    assert (entry.kind, entry.loader, entry.usecase) == ("model", "llama_server", "generate")
    assert entry.capabilities == ("chat", "completion", "tokenize")
    assert (entry.metadata.quantization, entry.about.stored) == ("Q4_1", "Q4_1")
    assert entry.about.keys["tokenizer.ggml.tokens"] == 49152
    assert (entry.about.licence, entry.about.languages) == ("apache-2.0", ("en",))
    assert entry.size == demo_gguf.stat().st_size
