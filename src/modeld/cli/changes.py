"""What `ctl add`, `remove`, `reconcile` and `reload` show: the plan, and how it went. Text in, text out."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from modeld.admin.schemas import ChangePlan, Outcome, Replacement
from modeld.cli.sentences import said
from modeld.cli.table import BELOW, Screen
from modeld.cli.words import cell, one_line

NOTHING = "nothing changes"


def plan_page(plan: ChangePlan, screen: Screen) -> str:
    """Return what a change does, a section for each kind of it; sections without a model are left out."""
    lines = [
        *_section("adds", "+ ", "green", plan.adds, screen),
        *_section("removes", "- ", "red", plan.removes, screen),
        *_section("replaces", "~ ", "yellow", map(_differs, plan.replaces), screen),
        *_section("updates", "~ ", "cyan", map(_differs, plan.updates), screen),
    ]
    if not lines:
        lines.append(NOTHING)
    if plan.unchanged:
        names = ", ".join(map(cell, plan.unchanged))
        lines += [f"unchanged ({len(plan.unchanged)})", *screen.fold(names, BELOW)]
    if plan.notes:
        lines.append("notes")
        for note in plan.notes:
            lines += screen.fold(one_line(note), f"{BELOW}* ", f"{BELOW}  ")
    return "\n".join(lines)


def outcome_page(outcomes: Iterable[Outcome], screen: Screen) -> str:
    """Return one line for each model that was touched, those that went wrong last."""
    lines: list[str] = []
    for outcome in sorted(outcomes, key=lambda outcome: not outcome.ok):
        mark = screen.paint("ok", "green") if outcome.ok else screen.paint("failed", "red")
        message = said(outcome.message)
        lines += screen.fold(f"{mark} {cell(outcome.name)}" + (f": {message}" if message else ""), "", BELOW)
    return "\n".join(lines)


def _section(title: str, mark: str, colour: str, items: Iterable[str], screen: Screen) -> Iterator[str]:
    texts = [cell(item) for item in items]
    if not texts:
        return
    yield f"{title} ({len(texts)})"
    for text in texts:
        for line in screen.fold(text, BELOW + mark, BELOW + " " * len(mark)):
            yield screen.paint(line, colour)


def _differs(change: Replacement) -> str:
    return f"{change.name}: {', '.join(change.keys)}" if change.keys else change.name
