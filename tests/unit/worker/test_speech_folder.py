from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from modeld.errors import LoadFailed
from modeld.worker.loaders.sherpa_onnx.folder import Found, look
from modeld.worker.loaders.sherpa_onnx.lexicon import Lexicon
from modeld.worker.loaders.sherpa_onnx.model import _family
from modeld.worker.loaders.sherpa_onnx.onnx_file import metadata
from modeld.worker.loaders.sherpa_onnx.piper import completed, discarded
from modeld.worker.loaders.sherpa_onnx.voices import names
from tests.harness.models_kokoro import onnx_metadata

GRAPH = b"\x3a\x80\x01" + b"g" * 128
"""A field 7, as the graph of a model is, of 128 bytes."""

KOKORO = {"model_type": "kokoro", "n_speakers": "2", "style_dim": "5,1,2"}
VOICES = 5 * 1 * 2 * 2 * 4


def _onnx(file: Path, **values: str) -> Path:
    file.write_bytes(b"\x08\x08" + GRAPH + onnx_metadata(values))
    return file


def _folder(path: Path, files: str, **values: str) -> Path:
    path.mkdir()
    for name in files.split():
        if name.endswith("/"):
            (path / name).mkdir()
        else:
            (path / name).write_bytes(bytes(VOICES) if name == "voices.bin" else b"")
    _onnx(path / "model.onnx", **values)
    return path


def _refusal(path: Path) -> str:
    with pytest.raises(LoadFailed) as caught:
        look(path, has_espeak=False)
    assert caught.value.permanent
    return caught.value.message


def test_kokoro_is_known_by_its_metadata(tmp_path: Path) -> None:
    """Folder or file: all that the engine needs is found, one English lexicon, no rules for Chinese."""
    folder = _folder(
        tmp_path / "k",
        "tokens.txt voices.bin lexicon-gb-en.txt lexicon-us-en.txt lexicon-zh.txt espeak-ng-data/ dict/ "
        "number-zh.fst",
        **KOKORO,
    )
    expected = Found(
        family="kokoro",
        model=folder / "model.onnx",
        tokens=folder / "tokens.txt",
        lexicons=(folder / "lexicon-us-en.txt", folder / "lexicon-zh.txt"),
        metadata=KOKORO,
        voices=folder / "voices.bin",
        data_dir=folder / "espeak-ng-data",
        dict_dir=folder / "dict",
    )
    assert look(folder, has_espeak=False) == look(folder / "model.onnx", has_espeak=False) == expected


def test_the_other_families(tmp_path: Path) -> None:
    """Kitten has voices too, matcha needs its vocoder, vits may read letters."""
    kitten = _folder(tmp_path / "kt", "tokens.txt voices.bin lexicon.txt", model_type="kitten-tts")
    assert look(kitten, has_espeak=False).family == "kitten"
    matcha = _folder(tmp_path / "ma", "tokens.txt lexicon.txt phone.fst", model_type="matcha-tts")
    assert "vocos*.onnx" in _refusal(matcha)
    _onnx(matcha / "vocos-22khz-univ.onnx", model_type="vocos")
    found = look(matcha, has_espeak=False)
    assert (found.family, found.vocoder) == ("matcha", matcha / "vocos-22khz-univ.onnx")
    assert found.rules == (matcha / "phone.fst",)
    vits = _folder(tmp_path / "vi", "tokens.txt", model_type="vits")
    assert look(vits, has_espeak=False).family == "vits"


def test_espeak_data_alone_is_enough_only_for_an_old_engine(tmp_path: Path) -> None:
    """With sherpa-onnx 2 such a model would be mute, and the refusal says what it needs instead."""
    folder = _folder(tmp_path / "k", "tokens.txt voices.bin espeak-ng-data/", **KOKORO)
    assert look(folder, has_espeak=True).data_dir == folder / "espeak-ng-data"
    assert "espeak-ng-data is no longer used by sherpa-onnx 2; put lexicon*.txt there" in _refusal(folder)


def test_what_is_missing_is_named(tmp_path: Path) -> None:
    """A folder that is no speech model, or not a whole one, is refused for good with what was looked for."""
    assert "there is no folder" in _refusal(tmp_path / "kokoro-en-v0_19")
    (tmp_path / "empty").mkdir()
    assert "has no .onnx file" in _refusal(tmp_path / "empty")
    assert "model_type is 'bert'" in _refusal(_folder(tmp_path / "b", "", model_type="bert"))
    assert "has no model_type" in _refusal(_folder(tmp_path / "n", ""))
    assert "has no tokens.txt" in _refusal(_folder(tmp_path / "t", "voices.bin", **KOKORO))
    assert "has no voices.bin" in _refusal(_folder(tmp_path / "v", "tokens.txt", **KOKORO))


def test_voices_of_another_model_are_refused(tmp_path: Path) -> None:
    """The engine would end the process on them."""
    folder = _folder(tmp_path / "k", "tokens.txt voices.bin lexicon.txt", **KOKORO)
    (folder / "voices.bin").write_bytes(b"x" * 100)
    assert f"has 100 bytes; model.onnx needs {VOICES} of voices" in _refusal(folder)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "it is empty"),
        (b"<html>no model</html>", "it is"),
        (b"hello " * 100, "it is"),
        (b"\x08\x08" + GRAPH[:50], "it is cut off: it has 52 bytes"),
        (b"\xff" * 30, "it is no ONNX file"),
    ],
    ids=["empty", "html", "text", "truncated", "ones"],
)
def test_what_is_no_model_is_refused_with_the_reason(tmp_path: Path, content: bytes, words: str) -> None:
    """The reason is in the refusal, and the engine never sees the file."""
    folder = _folder(tmp_path / "k", "tokens.txt voices.bin lexicon.txt", **KOKORO)
    (folder / "model.onnx").write_bytes(content)
    assert words in _refusal(folder)


def test_of_equal_keys_the_last_counts(tmp_path: Path) -> None:
    """So does the engine read it."""
    file = _onnx(tmp_path / "m.onnx", a="1", b="2")
    file.write_bytes(file.read_bytes() + onnx_metadata({"a": "3"}))
    assert metadata(file) == {"a": "3", "b": "2"}


def test_the_lexicon_knows_what_will_be_left_out(tmp_path: Path) -> None:
    """Words in any case, once each and in order; compounds by their parts; ideographs one by one."""
    file = tmp_path / "lexicon.txt"
    file.write_text("hello h e\nit's i t s\nwell w e\nknown n o n\n日 r i\n\n", encoding="utf-8")
    lexicon = Lexicon([file])
    assert len(lexicon) == 5
    assert lexicon.unknown("Hello, IT'S well-known; 日本 modeld 2024 modeld.") == ["本", "modeld", "2024"]
    assert lexicon.unknown("...!") == []
    assert lexicon.nearest("Héllo, modéld; well.") == "Hello, modéld; well."


PIPER = {
    "audio": {"sample_rate": 22050},
    "espeak": {"voice": "en-us"},
    "num_speakers": 2,
    "speaker_id_map": {"ann": 0, "bob": 1},
    "phoneme_id_map": {"_": [0], "a": [1], "ˈ": [2]},
    "language": {"name_english": "English"},
}


def _piper(path: Path, files: str, settings: object = PIPER, **values: str) -> Path:
    folder = _folder(path, files, **values)
    (folder / "model.onnx.json").write_text(json.dumps(settings), "utf-8")
    return folder


def test_a_voice_as_piper_gives_it_out_is_completed_in_a_copy(tmp_path: Path) -> None:
    """Two files and a lexicon: metadata, blanks and tokens go into a copy, and the folder is left alone."""
    folder, scratch = _piper(tmp_path / "p", "lexicon.txt"), tmp_path / "run"
    scratch.mkdir()
    before = (folder / "model.onnx").read_bytes()
    found = completed(look(folder, has_espeak=False), scratch, has_espeak=False)
    assert found.family == "vits"
    assert found.model == scratch / "model.onnx"
    assert found.tokens.read_text("utf-8") == "_ 0\na 1\nˈ 2\n"
    written = metadata(found.model)
    assert written == found.metadata
    assert (written["sample_rate"], written["n_speakers"], written["comment"]) == ("22050", "2", "piper")
    assert (written["add_blank"], written["blank_id"]) == ("1", "0")
    assert names(found.metadata, 2) == ("ann", "bob")
    assert (folder / "model.onnx").read_bytes() == before
    discarded(scratch)
    assert list(scratch.iterdir()) == []


def test_a_converted_piper_voice_gets_its_blanks(tmp_path: Path) -> None:
    """One with metadata lacks only those; with an engine that has espeak nothing; others are let be."""
    known = {"model_type": "vits", "comment": "piper", "has_espeak": "1", "n_speakers": "1"}
    folder = _folder(tmp_path / "c", "tokens.txt lexicon.txt espeak-ng-data/", **known)
    found = look(folder, has_espeak=False)
    assert completed(found, tmp_path, has_espeak=True) == found
    whole = completed(found, tmp_path, has_espeak=False)
    assert metadata(whole.model) == {**known, "add_blank": "1", "blank_id": "0"}
    assert whole.tokens == folder / "tokens.txt"
    other = look(_folder(tmp_path / "v", "tokens.txt lexicon.txt", model_type="vits"), has_espeak=False)
    assert completed(other, tmp_path, has_espeak=False) == other


def test_piper_without_a_lexicon_or_with_a_broken_file_is_refused(tmp_path: Path) -> None:
    """It speaks sounds, not letters, so sherpa-onnx 2 needs one; settings of another kind are none."""
    assert "has no lexicon, without which a vits model can say nothing" in _refusal(
        _piper(tmp_path / "a", "")
    )
    for number, settings in enumerate(([], {}, {**PIPER, "phoneme_id_map": {"a": []}}, {"espeak": 5})):
        folder = _piper(tmp_path / str(number), "lexicon.txt", settings)
        assert "has no model_type" in _refusal(folder)


def test_an_engine_with_espeak_is_told_the_language(tmp_path: Path) -> None:
    """Without a lexicon a Kokoro of several languages needs it; with one it would only be in the way."""
    engine = SimpleNamespace(OfflineTtsKokoroModelConfig=dict)
    values = {**KOKORO, "voice": "en-us"}
    plain = look(_folder(tmp_path / "e", "tokens.txt voices.bin espeak-ng-data/", **values), has_espeak=True)
    assert _family(engine, plain)["lang"] == "en-us"
    lexicon = look(_folder(tmp_path / "l", "tokens.txt voices.bin lexicon.txt", **values), has_espeak=True)
    assert "lang" not in _family(engine, lexicon)
