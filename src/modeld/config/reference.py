"""The configuration reference, written from the schema's own descriptions.

`python -m modeld.config.reference` prints it; `--write FILE` puts it between the two markers in a file;
`--check FILE` exits with 1 when what stands there is out of date.
"""

from __future__ import annotations

import argparse
import re
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import SecretStr
from pydantic.fields import FieldInfo

from modeld.config.outline import is_list, members, section_of
from modeld.config.schema import Config
from modeld.config.values import NEVER, Section

BEGIN = "<!-- config reference: begin -->"
END = "<!-- config reference: end -->"

_NAMES: dict[Any, str] = {int: "whole number", float: "number", bool: "true/false", SecretStr: "text"}


def rows() -> Iterator[tuple[str, str, str, str]]:
    """Give key, type, default and meaning of every field, depth first, in the schema's order.

    A section that stands in two places is spelled out in the first only.
    """
    yield from _rows(Config, "", set())


def _rows(
    section: type[Section], prefix: str, shown: set[type[Section]]
) -> Iterator[tuple[str, str, str, str]]:
    shown.add(section)
    for name, field in section.model_fields.items():
        key = prefix + name
        below = section_of(field)
        yield key, _type(field), "" if below else _default(field), field.description or ""
        if below is not None and below not in shown:
            yield from _rows(below, key + ("[]." if is_list(field) else "."), shown)


def render() -> str:
    """Return the reference as a Markdown table."""
    lines = ["| Key | Type | Default | Meaning |", "|---|---|---|---|"]
    for key, kind, default, meaning in rows():
        shown = f"`{default}`" if default and default != "required" else default
        lines.append(f"| `{key}` | {_cell(kind)} | {_cell(shown)} | {_cell(meaning)} |")
    return "\n".join(lines) + "\n"


def replaced(document: str, reference: str) -> str:
    """Return `document` with `reference` between the markers. Raises ValueError without exactly one pair."""
    if document.count(BEGIN) != 1 or document.count(END) != 1 or document.index(BEGIN) > document.index(END):
        raise ValueError(f"expected the lines {BEGIN} and {END}, once each and in this order")
    head, rest = document.split(BEGIN)
    return f"{head}{BEGIN}\n\n{reference}\n{END}{rest.split(END)[1]}"


def _type(field: FieldInfo) -> str:
    # A size is an int to Python, a duration a float; the annotation carries a mark for the reader.
    if mark := re.search(r"'kind': '(\w+)'", repr(field)):
        return mark[1]
    kinds: list[str] = []
    for member in members(field.annotation):
        if typing.get_origin(member) is typing.Literal:
            kinds += [str(choice) for choice in typing.get_args(member)]
        elif (isinstance(member, type) and issubclass(member, Section)) or typing.get_origin(member) is dict:
            kinds.append("mapping")
        elif isinstance(member, type) and issubclass(member, Path):
            kinds.append("path")
        else:
            kinds.append(_NAMES.get(member, "text"))
    text = ", ".join(kinds)
    return f"list of {text}" if is_list(field) else text


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.default
    if value is None or value == () or value == {}:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if value == NEVER:
        return "never"
    if _type(field) == "size" and value and value % 1024**2 == 0:
        return f"{value // 1024**2}MiB"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns its exit code (0 done or up to date, 1 out of date, 2 bad input)."""
    parser = argparse.ArgumentParser(prog="python -m modeld.config.reference", description=__doc__)
    action = parser.add_mutually_exclusive_group()
    action.add_argument("--write", type=Path, metavar="FILE", help="put the reference into this file")
    action.add_argument(
        "--check", type=Path, metavar="FILE", help="exit with 1 when this file is out of date"
    )
    chosen = parser.parse_args(arguments)
    file: Path | None = chosen.write or chosen.check
    if file is None:
        sys.stdout.write(render())
        return 0
    try:
        before = file.read_text("utf-8")
        after = replaced(before, render())
        if chosen.write and after != before:
            file.write_text(after, "utf-8")
    except (OSError, ValueError) as error:
        print(f"{file}: {error}", file=sys.stderr)
        return 2
    if chosen.check and after != before:
        print(f"{file}: out of date; run python -m modeld.config.reference --write {file}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
