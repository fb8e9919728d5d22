"""Lines to try for each kind of model: commands that a shell takes as they stand."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from modeld.supervisor.states import Status

SPOKEN = "speech.mp3"
"""The file that the speech example writes, and that the transcription example reads."""

RECORDED = "recording.mp3"
"""What the transcription example reads where nothing speaks: a file of the reader's own."""

_SENTENCE = "Good morning. The sun is up, and the birds begin to sing."


class Examples:
    """One example for each kind of model: of the default gateway's first, else of another gateway's.

    `expected`: the models that are to come up. `address` is the daemon's. `keyed`: callers need an API key.
    """

    def __init__(self, expected: Iterable[Status], address: str, *, keyed: bool) -> None:
        statuses = sorted(expected, key=lambda status: status.gateway != "")
        self._told: set[str] = set()
        self._address = address
        self._key = " -H 'Authorization: Bearer YOUR_KEY'" if keyed else ""
        self._held: Status | None = None
        self._first: dict[str, str] = {}
        for status in statuses:
            self._first.setdefault(status.usecase, status.name)

    def of(self, status: Status, *, at_last: bool = False) -> list[str]:
        """Return the lines for a model that is ready; none where its kind has had some, or another model is
        to stand for it, or what its example needs is still to come. `at_last`: nothing more is to come.

        What is to be transcribed must have been spoken, so that example comes after the speech example.
        """
        chosen = at_last or self._first.get(status.usecase) == status.name
        if status.usecase not in _COMMANDS or status.usecase in self._told or not chosen:
            return []
        waits = "tts" in self._first and "tts" not in self._told
        if status.usecase == "transcription" and waits and not at_last:
            self._held = status
            return []
        lines = self._lines(status)
        if status.usecase == "tts" and self._held is not None:
            lines += self._lines(self._held)
        return lines

    def _lines(self, status: Status) -> list[str]:
        self._told.add(status.usecase)
        route = f"/{status.gateway}" if status.gateway else ""
        path, rest = _COMMANDS[status.usecase](status.served_name, "tts" in self._told)
        return [
            f"{status.name} is ready. Try it:",
            f"  curl {self._address}{route}/v1/{path}{self._key} {rest}",
        ]


def _chat(name: str, _spoken: bool) -> tuple[str, str]:
    # Small models ramble: without a limit the first answer could take a minute.
    body = {"model": name, "max_tokens": 40, "messages": [{"role": "user", "content": "Say hello"}]}
    return "chat/completions", _posted(body)


def _embeddings(name: str, _spoken: bool) -> tuple[str, str]:
    return "embeddings", _posted({"model": name, "input": "The sun is up."})


def _speech(name: str, _spoken: bool) -> tuple[str, str]:
    return "audio/speech", _posted({"model": name, "voice": "alloy", "input": _SENTENCE}) + f" -o {SPOKEN}"


def _transcription(name: str, spoken: bool) -> tuple[str, str]:
    file = SPOKEN if spoken else RECORDED
    return "audio/transcriptions", f"-F {shlex.quote(f'model={name}')} -F file=@{file}"


def _posted(body: dict[str, Any]) -> str:
    return f"-H 'Content-Type: application/json' -d {shlex.quote(json.dumps(body))}"


_COMMANDS: Mapping[str, Callable[[str, bool], tuple[str, str]]] = {
    "generate": _chat,
    "embed": _embeddings,
    "tts": _speech,
    "transcription": _transcription,
}
"""By usecase: the route below /v1, and the rest of the command, for a model's name, and whether there is
speech to transcribe.
"""
