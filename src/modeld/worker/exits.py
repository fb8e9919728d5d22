"""How an engine's process ended, in words for people."""

from __future__ import annotations

import signal


def exit_words(code: int | None) -> str:
    """Return how a process ended, from its exit code: negative is a signal's number, None is not known."""
    if code is None:
        return "has ended"
    if code >= 0:
        return f"exited with code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else str(-code)
    return f"was killed by signal {-code} ({name})"
