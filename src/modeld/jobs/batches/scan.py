"""Reading an input file: which lines there are, and what is wrong with them.

A line is held in memory only while it is looked at; of all lines there remain their places, and digests of
their names.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from modeld.jobs.batches.records import Mistake, Place

MOST_LINES = 50_000
"""Requests in one file, as at OpenAI."""

MOST_MISTAKES = 100
"""After so many the rest of a file is not looked at."""

LONGEST_ID = 512

BOM = b"\xef\xbb\xbf"

_PLACE = msgspec.json.Encoder()


class Line(msgspec.Struct):
    """A line of an input file, as far as it is looked into."""

    custom_id: Any = None
    method: Any = None
    url: Any = None
    body: msgspec.Raw = msgspec.Raw(b"null")


class _Body(msgspec.Struct):
    model: Any = None
    stream: Any = None


LINE = msgspec.json.Decoder(Line)
_BODY = msgspec.json.Decoder(_Body)


@dataclass
class Scan:
    """What was found. `requests`: for each line what the queue holds of it. `model`: the one they all name,
    for the first time in line `model_line`.
    """

    requests: list[bytes] = field(default_factory=list)
    mistakes: list[Mistake] = field(default_factory=list)
    model: str | None = None
    model_line: int = 0


def scan(path: Path, endpoint: str, longest: int, sha256: str) -> Scan:
    """Look at a whole file; for a thread. Raises OSError.

    `longest`: bytes of a line. `sha256`: what the file's checksum must be.
    """
    found = _Scanner(endpoint)
    digest = hashlib.sha256()
    with path.open("rb") as file:
        for number, offset, line in _lines(file, longest, digest.update):
            if line is None:
                found.add(Mistake("line_too_long", f"This line is longer than {longest} bytes.", number))
            elif line.strip():
                found.look(number, offset, line)
            if found.full:
                return found.scan
    scan = found.scan
    if not scan.mistakes and not scan.requests:
        found.add(Mistake("empty_file", "The input file has no requests."))
    if not scan.mistakes and digest.hexdigest() != sha256:
        found.add(
            Mistake("damaged_file", "The input file is not what was uploaded: its checksum is another one.")
        )
    return scan


def _lines(
    file: BinaryIO, longest: int, seen: Callable[[bytes], object]
) -> Iterator[tuple[int, int, bytes | None]]:
    """Give (number, offset, line) of each line; None instead of one that is too long."""
    number = offset = 0
    if file.read(len(BOM)) == BOM:  # what editors put before UTF-8
        seen(BOM)
        offset = len(BOM)
    else:
        file.seek(0)
    while piece := file.readline(longest + 2):
        number += 1
        start, line, whole = offset, piece, True
        seen(piece)
        offset += len(piece)
        while not piece.endswith(b"\n") and (piece := file.readline(1 << 16)):
            whole = False
            seen(piece)
            offset += len(piece)
        yield number, start, line if whole and len(line.rstrip(b"\r\n")) <= longest else None


class _Scanner:
    def __init__(self, endpoint: str) -> None:
        self.scan = Scan()
        self._endpoint = endpoint
        self._names: set[bytes] = set()

    @property
    def full(self) -> bool:
        """Whether enough is wrong."""
        return len(self.scan.mistakes) >= MOST_MISTAKES or len(self.scan.requests) > MOST_LINES

    def add(self, mistake: Mistake) -> None:
        self.scan.mistakes.append(mistake)

    def look(self, number: int, offset: int, raw: bytes) -> None:
        try:
            line = LINE.decode(raw)
        except msgspec.ValidationError:
            self.add(Mistake("invalid_request", "This line is not a JSON object.", number))
            return
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            self.add(
                Mistake("invalid_json_line", f"This line is not parseable as valid JSON{_why(raw)}.", number)
            )
            return
        self.scan.requests.append(_PLACE.encode(Place(offset, len(raw))))
        if len(self.scan.requests) > MOST_LINES:
            self.add(
                Mistake("too_many_tasks", f"The input file has more than {MOST_LINES} requests.", number)
            )
            return
        for mistake in self._wrong(line):
            mistake.line = number
            self.add(mistake)
        self.scan.model_line = self.scan.model_line or (number if self.scan.model is not None else 0)

    def _wrong(self, line: Line) -> Iterator[Mistake]:
        yield from self._wrong_id(line.custom_id)
        if line.method is None:
            yield _missing("method")
        elif line.method != "POST":
            yield Mistake("invalid_method", "The method of a request in a batch is POST.", param="method")
        if line.url is None:
            yield _missing("url")
        elif line.url != self._endpoint:
            yield Mistake(
                "invalid_url",
                f"The URL of this request is not the endpoint of the batch, {self._endpoint}.",
                param="url",
            )
        yield from self._wrong_body(bytes(line.body))

    def _wrong_id(self, name: Any) -> Iterator[Mistake]:
        if name is None:
            yield _missing("custom_id")
            return
        if not isinstance(name, str) or not 0 < len(name) <= LONGEST_ID:
            yield Mistake(
                "invalid_request", f"custom_id is text of 1 to {LONGEST_ID} characters.", param="custom_id"
            )
            return
        digest = hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        if digest in self._names:
            yield Mistake(
                "duplicate_custom_id",
                f"The custom_id for this request is a duplicate of another request: {name[:100]!r}.",
                param="custom_id",
            )
        self._names.add(digest)

    def _wrong_body(self, raw: bytes) -> Iterator[Mistake]:
        if raw == b"null":
            yield _missing("body")
            return
        try:
            body = _BODY.decode(raw)
        except msgspec.ValidationError:
            yield Mistake("invalid_request", "The body of a request is a JSON object.", param="body")
            return
        if body.stream:
            yield Mistake(
                "streaming_unsupported", "The answers of a batch come in a file.", param="body.stream"
            )
        yield from self._wrong_model(body.model)

    def _wrong_model(self, model: Any) -> Iterator[Mistake]:
        if model is None:
            yield Mistake("invalid_request", "A request names its model.", param="body.model")
        elif not isinstance(model, str):
            yield Mistake("invalid_request", "The name of a model is text.", param="body.model")
        elif self.scan.model is None:
            self.scan.model = model
        elif model != self.scan.model:
            yield Mistake(
                "mismatched_model",
                f"This request is for the model {model[:100]!r}, those before it are for "
                f"{self.scan.model[:100]!r}; a batch has one model.",
                param="body.model",
            )


def _why(raw: bytes) -> str:
    """Return what may be the matter with a line that is no JSON."""
    if b"\0" in raw:
        return ": it is not UTF-8 text; save the file as UTF-8, not as UTF-16"
    try:
        raw.decode()
    except UnicodeDecodeError:
        return ": it is not UTF-8 text; save the file as UTF-8"
    if raw.strip() in (b"{", b"[", b"}", b"},", b"]"):
        return ": each request stands on one line, whole, with no list around them"
    return ""


def _missing(param: str) -> Mistake:
    return Mistake("missing_required_parameter", f"Missing required parameter: '{param}'.", param=param)
