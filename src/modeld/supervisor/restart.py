"""When to start a crashed model again: facts in, a delay or the end, and a reason for people, out. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Exponential backoff with jitter inside a budget.

    `budget` crashes within `window_s` seconds are forgiven; one more is the end. The n-th delay in a row is
    `base_s`·2^(n-1), at most `cap_s`, spread by ±`jitter` (a share). A life of `stable_s` seconds or more
    before the crash starts the count anew.
    """

    budget: int = 5
    window_s: float = 600.0
    base_s: float = 0.25
    cap_s: float = 30.0
    jitter: float = 0.2
    stable_s: float = 60.0


@dataclass(frozen=True)
class Crash:
    """One crash: when (monotonic seconds) and how long the model had been READY (0 if never)."""

    at: float
    ready_s: float = 0.0


@dataclass(frozen=True)
class TryAgain:
    """Start again after `delay_s` seconds."""

    delay_s: float
    reason: str


@dataclass(frozen=True)
class GiveUp:
    """Do not start again by yourself."""

    reason: str


def decide(policy: RestartPolicy, crashes: tuple[Crash, ...], now: float, chance: float) -> TryAgain | GiveUp:
    """Decide after the last of `crashes` (oldest first). `chance` is a random number in 0..1, for jitter."""
    recent = tuple(crash for crash in crashes if now - crash.at <= policy.window_s)
    in_a_row = 0
    for crash in reversed(recent):
        in_a_row += 1
        if crash.ready_s >= policy.stable_s:
            break
    if in_a_row > policy.budget:
        return GiveUp(f"{in_a_row} crashes within {policy.window_s:g} s, {policy.budget} are allowed")
    delay = min(policy.base_s * 2 ** (max(in_a_row, 1) - 1), policy.cap_s)
    delay *= 1 + policy.jitter * (2 * chance - 1)
    return TryAgain(delay, f"crash {in_a_row} of {policy.budget} allowed; next try in {delay:.1f} s")


def remember(policy: RestartPolicy, crashes: tuple[Crash, ...], crash: Crash) -> tuple[Crash, ...]:
    """Add a crash and forget those too old to matter."""
    return (*(old for old in crashes if crash.at - old.at <= policy.window_s), crash)
