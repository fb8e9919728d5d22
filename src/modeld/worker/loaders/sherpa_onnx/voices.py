"""The voices of a model: their names, and which one a caller means."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modeld.errors import BadRequest

OPENAI = (
    "alloy",
    "ash",
    "ballad",
    "cedar",
    "coral",
    "echo",
    "fable",
    "marin",
    "nova",
    "onyx",
    "sage",
    "shimmer",
    "verse",
)
"""OpenAI's voices, which stock clients send. One stands for the model's voice whose name ends in it ("nova"
for "af_nova"), else for the voice at its place in this list, counted round the voices that there are.
"""

_MOST_LISTED = 60


def names(metadata: Mapping[str, str], speakers: int) -> tuple[str, ...]:
    """Return the voices' names in their order; their numbers when the model does not name each one."""
    listed = [name.strip() for name in metadata.get("speaker_names", "").split(",")]
    if len(listed) == speakers == len(set(listed)) and all(listed):
        return tuple(listed)
    numbered: dict[int, str] = {}
    for pair in metadata.get("id2speaker", "").split(","):
        number, arrow, name = pair.partition("->")
        if arrow and number.strip().isdecimal() and name.strip():
            numbered[int(number)] = name.strip()
    if sorted(numbered) == list(range(speakers)) and len(set(numbered.values())) == speakers:
        return tuple(numbered[at] for at in range(speakers))
    return tuple(str(number) for number in range(speakers))


def number(voices: Sequence[str], wanted: str) -> int:
    """Return the number of the voice that a caller names: by its name, number or OpenAI's name.

    Raises BadRequest with the param `voice`.
    """
    wanted = wanted.strip()
    if wanted in voices:
        return voices.index(wanted)
    if wanted.isascii() and wanted.isdecimal() and len(wanted) < 10 and int(wanted) < len(voices):
        return int(wanted)
    if wanted in OPENAI:
        alike = [at for at, name in enumerate(voices) if name.endswith(f"_{wanted}")]
        return alike[0] if alike else OPENAI.index(wanted) % len(voices)
    if any(sign in wanted for sign in "+,("):
        raise BadRequest(
            f"the voice {wanted[:80]!r} asks for a blend of voices, which is not supported; name one of: "
            f"{listing(voices)}",
            code="unknown_voice",
            param="voice",
        )
    raise BadRequest(
        f"the model has no voice {wanted[:80]!r}; it has: {listing(voices)} (or 0 to {len(voices) - 1}; "
        f"OpenAI's names are taken too)",
        code="unknown_voice",
        param="voice",
    )


def listing(voices: Sequence[str]) -> str:
    """Return the voices in words."""
    more = f" and {len(voices) - _MOST_LISTED} more" if len(voices) > _MOST_LISTED else ""
    return ", ".join(voices[:_MOST_LISTED]) + more
