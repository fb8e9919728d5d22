from __future__ import annotations

import json
import shlex

import pytest

from modeld.cli.examples import RECORDED, SPOKEN, Examples
from modeld.supervisor.states import State, Status

URL = "http://127.0.0.1:1"


def _ready(name: str, usecase: str, **more: object) -> Status:
    gateway = str(more.pop("gateway", ""))
    key = f"{gateway}/{name}" if gateway else name
    fields = {"served_name": name, "gateway": gateway, **more}
    return Status(key, usecase, "fake", State.READY, "loaded", "", 0.0, **fields)  # type: ignore[arg-type]


CHAT, VECTORS = _ready("c", "generate"), _ready("v", "embed")
SPEECH, EARS = _ready("s", "tts"), _ready("t", "transcription")


def _command(lines: list[str]) -> list[str]:
    title, command = lines
    assert title.endswith(" is ready. Try it:")
    return shlex.split(command)


@pytest.mark.parametrize(
    ("status", "path", "wanted"),
    [
        (CHAT, "/v1/chat/completions", {"model": "c", "max_tokens": 40}),
        (VECTORS, "/v1/embeddings", {"model": "v"}),
        (SPEECH, "/v1/audio/speech", {"model": "s", "voice": "alloy"}),
    ],
)
def test_a_body_is_json_for_the_kinds_route(status: Status, path: str, wanted: dict[str, object]) -> None:
    """A shell takes the line as curl, the address, the content type and one JSON body for the model."""
    words = _command(Examples([status], URL, keyed=False).of(status))
    assert words[:4] == ["curl", URL + path, "-H", "Content-Type: application/json"]
    body = json.loads(words[words.index("-d") + 1])
    assert wanted.items() <= body.items()
    assert {"messages", "input"} & body.keys()


def test_what_is_spoken_is_then_transcribed() -> None:
    """The transcription example reads what the speech example wrote, and comes after it."""
    examples = Examples([SPEECH, EARS], URL, keyed=False)
    assert examples.of(EARS) == []
    lines = examples.of(SPEECH)
    assert _command(lines[:2])[-2:] == ["-o", SPOKEN]
    form = ["-F", "model=t", "-F", f"file=@{SPOKEN}"]
    assert _command(lines[2:]) == ["curl", f"{URL}/v1/audio/transcriptions", *form]
    assert examples.of(EARS, at_last=True) == []
    other = Examples([SPEECH, EARS], URL, keyed=False)
    assert len(other.of(SPEECH)) == 2
    assert _command(other.of(EARS))[-1] == f"file=@{SPOKEN}"


def test_without_speech_a_recording_is_transcribed() -> None:
    """Where nothing speaks, or what should speak has failed, the reader's own file is asked for."""
    assert _command(Examples([EARS], URL, keyed=False).of(EARS))[-1] == f"file=@{RECORDED}"
    examples = Examples([SPEECH, EARS], URL, keyed=False)
    assert examples.of(EARS) == []
    assert _command(examples.of(EARS, at_last=True))[-1] == f"file=@{RECORDED}"


def test_a_key_is_asked_for_where_one_is_needed() -> None:
    """With API keys every line has the header."""
    for status in (CHAT, EARS):
        words = _command(Examples([status], URL, keyed=True).of(status))
        assert "Authorization: Bearer YOUR_KEY" in words


def test_one_example_for_each_kind() -> None:
    """The first model of a kind has the example, once; one whose first is not ready is told whichever is."""
    other = _ready("d", "generate")
    examples = Examples([CHAT, other], URL, keyed=False)
    assert examples.of(other) == []
    assert examples.of(CHAT)
    assert examples.of(CHAT) == examples.of(other, at_last=True) == []
    assert _command(Examples([CHAT, other], URL, keyed=False).of(other, at_last=True))


def test_the_default_gateway_comes_first() -> None:
    """A model of the default gateway stands for its kind, else one of another under its own address."""
    far = _ready("f", "generate", gateway="g")
    assert Examples([far, CHAT], URL, keyed=False).of(far) == []
    assert _command(Examples([far, VECTORS], URL, keyed=False).of(far))[1] == f"{URL}/g/v1/chat/completions"


def test_names_are_safe_in_a_shell() -> None:
    """Quotes and signs of a shell in a model's name reach the daemon as they are."""
    name = 'it\'s $HOME; `x` "y"'
    chat, ears = _ready(name, "generate"), _ready(name, "transcription")
    examples = Examples([chat, ears], URL, keyed=False)
    words = _command(examples.of(chat))
    assert json.loads(words[words.index("-d") + 1])["model"] == name
    assert f"model={name}" in _command(examples.of(ears))


def test_a_kind_without_an_example_has_none() -> None:
    """Pictures would fill the terminal with base64."""
    image = _ready("i", "image")
    assert Examples([image], URL, keyed=False).of(image, at_last=True) == []
