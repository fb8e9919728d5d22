"""Every light loader's real engine passes the loaders' contract."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from modeld.protocol.tasks import (
    Audio,
    ChatTask,
    EmbedTask,
    Finish,
    Message,
    Sampling,
    SpeechTask,
    TextFormat,
    TranscribeTask,
    Transcript,
    Vector,
)
from tests.harness.loader_contract import Case, LoaderContract
from tests.harness.models import demo_model
from tests.harness.models_kokoro import kokoro_model
from tests.harness.models_minilm import minilm
from tests.harness.models_whisper import whisper_tiny_en
from tests.harness.recordings import BROKEN, spoken

pytestmark = pytest.mark.engine

NOTHING: dict[str, Any] = {}


def chat(prompt: str, tokens: int, **more: Any) -> ChatTask:
    """Return a chat of one turn."""
    sampling = Sampling(max_tokens=tokens, temperature=0.0)
    return ChatTask(messages=(Message(role="user", content=prompt),), sampling=sampling, **more)


def cut(size: int) -> Any:
    """Return a maker of a model file that ends after so many bytes."""

    def made(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
        broken = folder / f"broken{model.suffix}"
        with model.open("rb") as file:
            broken.write_bytes(file.read(size))
        return broken, NOTHING

    return made


def torn_voice(model: Path, folder: Path) -> tuple[Path, Mapping[str, Any]]:
    """Make a speech model's folder whose network is half a file."""
    for file in model.iterdir():
        target = folder / file.name
        if file.suffix == ".onnx":
            target.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
        else:
            target.symlink_to(file)
    return folder, NOTHING


class TestLlamaServer(LoaderContract):
    """llama.cpp, chatting."""

    case = Case(
        loader="llama_server",
        usecase="generate",
        model=demo_model,
        options={"n_ctx": 1024, "parallel": 2, "threads": 1},
        capabilities=frozenset({"chat", "completion", "tools", "json_schema", "logprobs", "tokenize"}),
        short=chat("Say hello", 8),
        ends=Finish,
        long=chat("Tell me a long story", 900),
        bad=chat("x", 8, format=TextFormat(kind="json_schema", name="x", schema={"type": "bogus"})),
        foreign=SpeechTask(text="x", voice="x"),
        broken=cut(1 << 20),
        words=r"(?s)its last words:\n.*failed to load",
        log="model loaded",
        pieces=4,
        slots=2,
    )


class TestLlamaServerEmbedding(LoaderContract):
    """llama.cpp, embedding."""

    case = Case(
        loader="llama_server",
        usecase="embed",
        model=minilm,
        options={"n_ctx": 512, "parallel": 1, "threads": 1},
        capabilities=frozenset({"embed", "tokenize"}),
        short=EmbedTask(inputs=("a", "b", "c")),
        ends=Vector,
        long=EmbedTask(inputs=("word " * 400,) * 2048),
        bad=EmbedTask(inputs=("word " * 600,)),
        foreign=chat("x", 8),
        broken=cut(1 << 20),
        words=r"(?s)its last words:\n.*failed to load",
        log="model loaded",
        memory=30 << 20,
    )


class TestWhispercpp(LoaderContract):
    """whisper.cpp."""

    case = Case(
        loader="whispercpp",
        usecase="transcription",
        model=whisper_tiny_en,
        options={"n_threads": 1, "flash_attn": False},
        capabilities=frozenset({"transcription"}),
        short=TranscribeTask(media=spoken()),
        ends=Transcript,
        long=TranscribeTask(media=spoken(2.0, times=120)),
        bad=TranscribeTask(media=BROKEN["html"]),
        foreign=chat("x", 8),
        broken=cut(1 << 20),
        words="cut short",
        log="whisper_model_load",
        pieces=2,
    )


class TestSherpaOnnx(LoaderContract):
    """sherpa-onnx."""

    case = Case(
        loader="sherpa_onnx",
        usecase="tts",
        model=kokoro_model,
        options={},
        capabilities=frozenset({"speech"}),
        short=SpeechTask(text="Good morning, Zyxgrf.", voice="0", format="pcm"),
        ends=Audio,
        long=SpeechTask(text="It will be a good day for all of us. " * 100, voice="0", format="pcm"),
        bad=SpeechTask(text="x", voice="nobody"),
        foreign=chat("x", 8),
        broken=torn_voice,
        words="cut off",
        log="OOV word skipped",
        pieces=1,
    )
