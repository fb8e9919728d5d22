"""What a chat template can do, told from its text. Pure; the template is never run."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

_TOOLS = re.compile(r"\btools\b")
_SWITCH = re.compile(r"\b(?:enable_thinking|thinking|reasoning_effort|thinking_budget)\b")
_THOUGHTS = (
    "<think>",
    "</think>",
    "[think]",
    "◁think▷",
    "<seed:think>",
    "<|start_thinking|>",
    "<|channel|>analysis",
    "reasoning_content",
    "enable_thinking",
    "reasoning_effort",
)
"""What templates of models that think hold, in lower case: their marks, or the names that thoughts have."""

_KEY = "tokenizer.chat_template"


TOKENIZER = "tokenizer_config.json"
MOST_BYTES = 16 * 1024**2
"""Of a tokenizer's configuration, beyond which it is not read."""


class _Named(msgspec.Struct):
    name: str = ""
    template: str = ""


class _Tokenizer(msgspec.Struct):
    """Of a tokenizer's configuration, which may be long, only this is kept."""

    chat_template: str | list[_Named | str] | None = None


class Template(msgspec.Struct, frozen=True, omit_defaults=True):
    """A model's chat template.

    `tools`: it puts tools into the prompt. `reasoning`: it knows thoughts; `switch`: whether callers can turn
    them on and off. `named`: names of further templates for special uses.
    """

    tools: bool = False
    reasoning: bool = False
    switch: bool = False
    named: tuple[str, ...] = ()


def template_of(keys: Mapping[str, Any], lengths: Mapping[str, int]) -> Template | None:
    """Return what a GGUF file's keys say of its template; None without one."""
    named = {
        key.removeprefix(f"{_KEY}."): value
        for key, value in keys.items()
        if key.startswith(f"{_KEY}.") and isinstance(value, str)
    }
    main = keys.get(_KEY)
    if not isinstance(main, str):
        # One that is too long to be kept is there all the same.
        if not named and _KEY not in lengths:
            return None
        main = ""
    return read([main, *named.values()], tuple(sorted(named)))


def of_tokenizer(folder: Path) -> tuple[tuple[str, str], ...]:
    """Return the names and texts of the templates in a folder's tokenizer_config.json; () without one."""
    try:
        with (folder / TOKENIZER).open("rb") as stream:
            found = msgspec.json.decode(stream.read(MOST_BYTES), type=_Tokenizer).chat_template
    except (OSError, ValueError, RecursionError):
        return ()
    each = [found] if isinstance(found, str) else found or []
    pairs = (("", one) if isinstance(one, str) else (one.name, one.template) for one in each)
    return tuple((name, text) for name, text in pairs if text)


def read(texts: list[str], named: tuple[str, ...] = ()) -> Template:
    """Return what templates can do together."""
    tags = [tag for text in texts for tag in _tags(text)]
    lower = [text.lower() for text in texts]
    return Template(
        tools="tool_use" in named or any(_TOOLS.search(tag) for tag in tags),
        reasoning=any(mark in text for text in lower for mark in _THOUGHTS),
        switch=any(_SWITCH.search(tag) for tag in tags),
        named=named,
    )


def _tags(text: str) -> Iterator[str]:
    """Yield what stands between {% and %}, and between {{ and }}: code, and not words of the prompt."""
    for opening, closing in (("{%", "%}"), ("{{", "}}")):
        at = text.find(opening)
        while at >= 0:
            end = text.find(closing, at + 2)
            if end < 0:
                break
            yield text[at + 2 : end]
            at = text.find(opening, end + 2)
