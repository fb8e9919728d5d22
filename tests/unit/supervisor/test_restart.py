from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from modeld.supervisor.restart import Crash, GiveUp, RestartPolicy, TryAgain, decide, remember

policies = st.builds(
    RestartPolicy,
    budget=st.integers(0, 20),
    window_s=st.floats(1, 1000),
    base_s=st.floats(0.01, 5),
    cap_s=st.floats(5, 60),
    jitter=st.floats(0, 0.5),
    stable_s=st.floats(1, 100),
)
chances = st.floats(0, 1)


@given(policies, st.lists(st.floats(0, 100), max_size=30), chances)
def test_delays_keep_within_bounds(policy: RestartPolicy, readies: list[float], chance: float) -> None:
    """A delay is never below the base or above the cap, give or take the jitter."""
    crashes = tuple(Crash(0.0, ready) for ready in readies)
    verdict = decide(policy, crashes, 0.0, chance)
    if isinstance(verdict, TryAgain):
        assert policy.base_s * (1 - policy.jitter) <= verdict.delay_s + 1e-9
        assert verdict.delay_s <= policy.cap_s * (1 + policy.jitter) + 1e-9


def test_delays_double_up_to_the_cap() -> None:
    """The n-th delay in a row is base·2^(n-1), at most the cap."""
    policy = RestartPolicy(budget=10, base_s=0.25, cap_s=30.0, jitter=0.2)
    delays = []
    for count in range(1, 11):
        verdict = decide(policy, tuple(Crash(0.0) for _ in range(count)), 0.0, 0.5)
        assert isinstance(verdict, TryAgain)
        delays.append(verdict.delay_s)
    assert delays == [0.25, 0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_jitter_spreads_a_delay_both_ways() -> None:
    """Chance 0 and 1 give the delay minus and plus the jitter's share; ½ gives the delay itself."""
    policy = RestartPolicy(base_s=10.0, cap_s=100.0, jitter=0.2)
    verdicts = [decide(policy, (Crash(0.0),), 0.0, chance) for chance in (0.0, 0.5, 1.0)]
    assert [verdict.delay_s for verdict in verdicts if isinstance(verdict, TryAgain)] == [8.0, 10.0, 12.0]


@given(policies, st.integers(0, 30), chances)
def test_the_budget_is_what_is_forgiven(policy: RestartPolicy, count: int, chance: float) -> None:
    """`budget` crashes at one moment are forgiven, one more is the end, with the numbers in the reason."""
    verdict = decide(policy, tuple(Crash(5.0) for _ in range(count)), 5.0, chance)
    if count <= policy.budget:
        assert isinstance(verdict, TryAgain)
    else:
        assert isinstance(verdict, GiveUp)
        assert f"{count} crashes" in verdict.reason
        assert f"{policy.budget} are allowed" in verdict.reason


@given(policies, st.integers(0, 30), chances)
def test_a_stable_life_starts_the_count_anew(policy: RestartPolicy, before: int, chance: float) -> None:
    """However often it crashed before, the crash after a stable life counts as the first."""
    crashes = (*(Crash(0.0) for _ in range(before)), Crash(0.0, policy.stable_s))
    if policy.budget:
        assert decide(policy, crashes, 0.0, chance) == decide(policy, (Crash(0.0),), 0.0, chance)


@given(policies, st.integers(1, 30), chances)
def test_crashes_outside_the_window_do_not_count(policy: RestartPolicy, old: int, chance: float) -> None:
    """A crash that happened longer ago than the window changes nothing."""
    now = 2 * policy.window_s
    crashes = (*(Crash(0.0) for _ in range(old)), Crash(now))
    assert decide(policy, crashes, now, chance) == decide(policy, (Crash(now),), now, chance)


class Crashing(RuleBasedStateMachine):
    """A model that crashes at any time: what is remembered stays small and decides as everything would."""

    @initialize(policy=policies)
    def begin(self, policy: RestartPolicy) -> None:
        self.policy = policy
        self.now = 0.0
        self.all: tuple[Crash, ...] = ()
        self.kept: tuple[Crash, ...] = ()

    @rule(after=st.floats(0, 500), ready=st.floats(0, 200))
    def crash(self, after: float, ready: float) -> None:
        self.now += after
        crash = Crash(self.now, ready)
        self.all = (*self.all, crash)
        self.kept = remember(self.policy, self.kept, crash)

    @rule(after=st.floats(0, 500))
    def live(self, after: float) -> None:
        self.now += after

    @invariant()
    def forgetting_changes_no_decision(self) -> None:
        assert decide(self.policy, self.kept, self.now, 0.5) == decide(self.policy, self.all, self.now, 0.5)

    @invariant()
    def nothing_old_is_kept(self) -> None:
        if self.kept:
            assert all(self.kept[-1].at - crash.at <= self.policy.window_s for crash in self.kept)


TestCrashing = Crashing.TestCase
