"""The kinds of value a configuration is made of: sizes, durations, paths, numbers, the listening address."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, TypeAlias

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    ValidationInfo,
    model_validator,
)
from pydantic_core import PydanticCustomError

_UNITS = {
    "b": 1,
    **{unit + "b": 1000**power for power, unit in enumerate("kmgt", start=1)},
    **{unit + "ib": 1024**power for power, unit in enumerate("kmgt", start=1)},
}
_SIZE = re.compile(r"\s*(\d{1,20}(?:\.\d{1,20})?)\s*([A-Za-z]*)\s*", re.ASCII)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
_LARGEST_SIZE = 2**60
_SECONDS = {"d": 86400, "h": 3600, "m": 60, "s": 1}
_DURATION = re.compile(
    r"(?=\d)(?:(\d{1,9})d)?(?:(\d{1,9})h)?(?:(\d{1,9})m)?(?:(\d{1,9}(?:\.\d{1,9})?)s?)?", re.ASCII
)
_LONGEST = 100 * 366 * 86400
_WIDEST = 2**63
_DEEPEST = 60

NEVER = math.inf
"""The duration that does not end; written `never` or -1."""


def mistake(message: str, field: str | None = None) -> PydanticCustomError:
    """Return an error for a validator to raise; `field` is a dotted path below the value being validated."""
    # Pydantic fills "{...}" in from the context, so a message holding braces has to travel inside it.
    return PydanticCustomError("modeld", "{message}", {"message": message, "field": field or ""})


def parse_size(value: object) -> int:
    """Return a size in bytes from a whole number of bytes or text such as "6GiB" or "512MB".

    Raises PydanticCustomError. "G" alone is refused: it means 1000³ to some and 1024³ to others.
    """
    wanted = "expected a size: a whole number of bytes, or text such as 6GiB (1024³) or 512MB (1000²)"
    if isinstance(value, int) and not isinstance(value, bool):
        size = value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number, unit = match.groups()
        factor = _UNITS.get(unit.lower() or "b")
        if factor is None:
            raise mistake(f"{wanted}; the unit {unit!r} is not one of B, kB, KiB, MB, MiB, GB, GiB, TB, TiB")
        size = int(number) * factor if number.isdecimal() else round(float(number) * factor)
    else:
        raise mistake(wanted)
    if not 0 <= size <= _LARGEST_SIZE:
        raise mistake(f"{wanted}, from 0 to {_LARGEST_SIZE} bytes")
    return size


def parse_duration(value: object) -> float:
    """Return seconds from a number of seconds, text such as "90", "10m" or "1h30m", or "never" (NEVER).

    Raises PydanticCustomError.
    """
    wanted = "expected a duration: seconds, text such as 10m or 1h30m (d, h, m, s), or never"
    if isinstance(value, int | float) and not isinstance(value, bool):
        # A whole number may be too large to be a float.
        seconds = NEVER if value in (-1, NEVER) else float(value) if -1 <= value <= _LONGEST else -1
    elif isinstance(value, str) and (text := value.strip().lower()) in ("never", "-1"):
        seconds = NEVER
    elif isinstance(value, str) and (match := _DURATION.fullmatch(text)):
        seconds = sum(
            float(number) * factor
            for number, factor in zip(match.groups(), _SECONDS.values(), strict=True)
            if number
        )
    else:
        raise mistake(wanted)
    if seconds != NEVER and not 0 <= seconds <= _LONGEST:
        raise mistake(f"{wanted}, from 0 to 100 years")
    return seconds


def _spoken_duration(seconds: float) -> float | str:
    return "never" if seconds == NEVER else seconds


def _json(value: Any, depth: int = 0) -> Any:
    """Refuse what would not be the same after a trip through JSON."""
    if depth > _DEEPEST:
        raise mistake(f"nested more than {_DEEPEST} levels deep")
    match value:
        case dict():
            for key, below in value.items():
                _json(key, depth + 1)
                _json(below, depth + 1)
        case list():
            for below in value:
                _json(below, depth + 1)
        case float() if not math.isfinite(value):
            raise mistake("expected finite numbers")
        case int() if not -_WIDEST <= value < _WIDEST:
            raise mistake("expected whole numbers of at most 64 bits")
        case str() if any("\ud800" <= character <= "\udfff" for character in value):
            raise mistake("expected text that is Unicode; it holds half of a surrogate pair")
    return value


def _whole(value: object) -> object:
    if isinstance(value, bool):
        raise mistake(f"expected a whole number, got {str(value).lower()}")
    return value


def _number(value: object) -> object:
    if isinstance(value, bool):
        raise mistake(f"expected a number, got {str(value).lower()}")
    return value


def _plain_text(value: str) -> str:
    if not value.strip():
        raise mistake("expected text, got an empty one")
    if _CONTROL.search(value):
        raise mistake("control characters (line ends, tabs, NUL) are not allowed here")
    return value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _anchor(path: Path, info: ValidationInfo) -> Path:
    _plain_text(str(path))
    try:
        path = path.expanduser()
    except RuntimeError:
        raise mistake(f"{path}: the home directory is not known here; write the whole path") from None
    base = info.context.get("base") if info.context else None
    return path if base is None else Path(base) / path


def _keep_here(value: object, info: ValidationInfo) -> object:
    """Anchor "./name" before it is a `Path`, which forgets the "./" that tells it from a bare name."""
    if isinstance(value, str) and value.startswith("./"):
        base = info.context.get("base") if info.context else None
        return os.path.join(os.getcwd() if base is None else os.path.abspath(base), value[2:])
    return value


def _anchor_program(path: Path, info: ValidationInfo) -> Path:
    # A bare name is looked up on PATH, as a shell does.
    return _anchor(path, info) if len(path.parts) > 1 or str(path).startswith((".", "~")) else path


def _anchor_text(value: str, info: ValidationInfo) -> str:
    return str(_anchor(Path(value), info))


def _anchor_if_local(value: str, info: ValidationInfo) -> str:
    """Anchor what is written as a relative path, or names a file beside the configuration; keep the rest."""
    base = info.context.get("base") if info.context else None
    if value.startswith(("./", "../", "~")) or (
        base is not None and os.path.isfile(os.path.join(base, value))
    ):
        return _anchor_text(value, info)
    return value


Whole: TypeAlias = Annotated[int, BeforeValidator(_whole)]
Number: TypeAlias = Annotated[float, BeforeValidator(_number), Field(allow_inf_nan=False)]
Size: TypeAlias = Annotated[int, BeforeValidator(parse_size), Field(json_schema_extra={"kind": "size"})]
Duration: TypeAlias = Annotated[
    float,
    BeforeValidator(parse_duration),
    PlainSerializer(_spoken_duration, when_used="json"),
    Field(json_schema_extra={"kind": "duration"}),
]
"""Seconds, or NEVER."""
FreeForm: TypeAlias = Annotated[dict[str, Any], AfterValidator(lambda value: _json(value))]
"""A mapping that is handed on as it stands; it holds what JSON can hold."""
PlainText: TypeAlias = Annotated[str, AfterValidator(_plain_text)]
Word = BeforeValidator(_lower)
AnchoredPath: TypeAlias = Annotated[Path, AfterValidator(_anchor)]
"""A path; a relative one is taken from the directory of the file it is written in."""
AnchoredText: TypeAlias = Annotated[str, AfterValidator(_anchor_text)]
"""The same as text, for options that go to an engine."""
FileOrText: TypeAlias = Annotated[str, AfterValidator(_anchor_if_local)]
"""Text that may name a file, such as a chat template."""
Program: TypeAlias = Annotated[Path, BeforeValidator(_keep_here), AfterValidator(_anchor_program)]
"""A path to a program, or a bare name to be looked up on PATH."""


class Section(BaseModel):
    """Base of every part of the configuration: unknown keys are errors, values do not change."""

    ignored: ClassVar[Mapping[str, str]] = {}
    """Keys that are accepted and dropped, with a hint for whoever wrote one; `advice` tells of them."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True, protected_namespaces=())

    @model_validator(mode="before")
    @classmethod
    def _blank_means_default(cls, data: Any) -> Any:
        """A key with nothing after it (all its lines commented out, say) counts as not written."""
        if isinstance(data, Mapping):
            return {
                key: value
                for key, value in data.items()
                if key not in cls.ignored and (value is not None or key not in cls.model_fields)
            }
        return data


_LISTEN_FORM = 'expected host:port, e.g. "127.0.0.1:8000" or "[::1]:8000"'


class Listen(Section):
    """The address the API listens on."""

    host: PlainText = Field(default="127.0.0.1", description="Address or host name to listen on.")
    port: Whole = Field(default=8000, ge=0, le=65535, description="TCP port; 0 takes any free one.")

    @model_validator(mode="before")
    @classmethod
    def _from_text(cls, data: Any) -> Any:
        return _split_address(data) if isinstance(data, str) else data

    @classmethod
    def parse(cls, text: str) -> Listen:
        """Read "host:port". Raises ValueError with the form wanted."""
        try:
            return cls(**_split_address(text))
        except PydanticCustomError as error:
            raise ValueError(error.message()) from None

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        import ipaddress

        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host.rstrip(".").lower() == "localhost"


def _split_address(text: str) -> dict[str, Any]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or not port.isascii() or not port.isdecimal() or int(port[:6]) > 65535:
        raise mistake(_LISTEN_FORM)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise mistake(f"{_LISTEN_FORM}; an IPv6 address goes in square brackets")
    if not host or re.search(r"[\s/\[\]@]", host) or _CONTROL.search(host):
        raise mistake(_LISTEN_FORM)
    return {"host": host, "port": int(port)}
