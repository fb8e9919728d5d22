from __future__ import annotations

import dataclasses
import random
from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from modeld.hardware.machine import Kind
from modeld.supervisor.scheduling.placement import Demand, Found, Holding, Never, Phase, Space, find
from modeld.supervisor.scheduling.scheduler import OVERTAKES, Claim, Plan, View, plan
from modeld.supervisor.scheduling.turns import LARGE_SHARE
from tests.unit.supervisor.views import free_bytes, gpu, host, places, views


def _started(view: View, decided: Plan) -> list[Holding]:
    """Return the replicas a plan starts, as they then hold memory."""
    claims = {claim.replica: claim for claim in view.claims}
    return [
        Holding(
            start.replica,
            claims[start.replica].model,
            start.devices,
            Phase.LOADING,
            exclusive=bool(claims[start.replica].demand.gpus),
        )
        for start in decided.starts
    ]


def _on_gpus(view: View, holding: Holding) -> set[str]:
    gpus = {space.id for space in view.spaces if space.kind is Kind.GPU}
    return {id_ for id_, size in holding.held.items() if size} & gpus


# --- any view -----------------------------------------------------------------------------------------------


@settings(max_examples=60)
@given(views())
def test_no_device_ever_holds_more_than_is_usable(view: View) -> None:
    """What starts fits beside all that is held now, by those who leave too; whole GPUs are shared by none."""
    decided = plan(view)
    started = _started(view, decided)
    free = free_bytes(view.spaces, [*view.holdings, *started])
    for holding in started:
        assert all(free[id_] >= 0 for id_, size in holding.held.items() if size)
    for holding in started:
        if holding.exclusive:
            others = [*view.holdings, *started]
            for id_ in _on_gpus(view, holding):
                assert [one.replica for one in others if one.held.get(id_)] == [holding.replica]


@settings(max_examples=60)
@given(views())
def test_every_claim_is_answered_once(view: View) -> None:
    """Each claim starts or has a sentence; a plan speaks of nobody else; EVER and the like are refusals."""
    decided = plan(view)
    keys = sorted(claim.replica for claim in view.claims)
    assert sorted([*(start.replica for start in decided.starts), *decided.waits]) == keys
    assert all(decided.waits.values())
    assert set(decided.refusals) <= set(decided.waits)
    assert set(decided.victims) <= set(decided.waits) - set(decided.refusals)
    for key, refusal in decided.refusals.items():
        assert refusal.never is not Never.NO
        assert refusal.message == decided.waits[key]


@settings(max_examples=60)
@given(views())
def test_only_those_who_may_go_are_sent_away(view: View) -> None:
    """Nobody pinned, loading, of the same model or, unless forced, busy is evicted, and nobody for a passive
    claim or for one that cannot fit; and each only once.
    """
    decided = plan(view)
    held = {holding.replica: holding for holding in view.holdings}
    claims = {claim.replica: claim for claim in view.claims}
    assert len({eviction.replica for eviction in decided.evictions}) == len(decided.evictions)
    for eviction in decided.evictions:
        claim, victim = claims[eviction.claimant], held[eviction.replica]
        assert claim.active
        assert victim.phase is Phase.SERVING
        assert not victim.pinned
        assert victim.model != claim.model
        assert claim.forced or not victim.in_flight
        assert eviction.replica in decided.victims[eviction.claimant]
        assert eviction.reason.startswith(f"{victim.model} makes room for {claim.model}, which needs ")
    sent = {eviction.replica for eviction in decided.evictions}
    for key, victims in decided.victims.items():
        for victim in (held[one] for one in victims):
            assert victim.phase is not Phase.LOADING
            assert victim.phase is Phase.LEAVING or not victim.pinned
            if not claims[key].active:
                assert victim.phase is Phase.LEAVING or victim.replica in sent


@settings(max_examples=60)
@given(views())
def test_idle_victims_go_at_once_unless_a_load_must_end_first(view: View) -> None:
    """A claim that waits for nobody's load evicts its idle victims now, and when forced the busy ones."""
    decided = plan(view)
    held = {holding.replica: holding for holding in view.holdings}
    claims = {claim.replica: claim for claim in view.claims}
    sent = {eviction.replica for eviction in decided.evictions}
    for key, victims in decided.victims.items():
        if "is loading" in decided.waits[key] or "more" in decided.waits[key]:
            continue
        for victim in (held[one] for one in victims):
            if victim.phase is Phase.SERVING and (claims[key].forced or not victim.in_flight):
                assert victim.replica in sent


@settings(max_examples=60)
@given(views(), st.randoms(use_true_random=False))
def test_the_order_of_facts_does_not_matter(view: View, chance: random.Random) -> None:
    """The same view in another order gives the same plan."""
    mixed = dataclasses.replace(
        view,
        spaces=tuple(chance.sample(view.spaces, len(view.spaces))),
        holdings=tuple(chance.sample(view.holdings, len(view.holdings))),
        claims=tuple(chance.sample(view.claims, len(view.claims))),
    )
    assert plan(mixed) == plan(view)


@settings(max_examples=60)
@given(views())
def test_loads_take_turns(view: View) -> None:
    """At most one load begins on a GPU, and none where one is; on the host one large at a time, and not more
    in all than there are cores.
    """
    decided = plan(view)
    started = _started(view, decided)
    loading = [holding for holding in view.holdings if holding.phase is Phase.LOADING]
    for space in view.spaces:
        if space.kind is Kind.GPU:
            begun = [holding for holding in started if holding.held.get(space.id)]
            assert not begun or len(begun) + sum(bool(one.held.get(space.id)) for one in loading) == 1
    usable = next(space.usable for space in view.spaces if space.id == "host")

    def on_host(held: Iterable[Holding]) -> list[Holding]:
        return [holding for holding in held if not _gpu_entries(view, holding)]

    def large(held: Iterable[Holding]) -> list[Holding]:
        return [holding for holding in on_host(held) if holding.held.get("host", 0) > LARGE_SHARE * usable]

    if on_host(started):
        assert len(on_host([*started, *loading])) <= max(view.cores, 1)
    if large(started):
        assert len(large([*started, *loading])) == 1


def _gpu_entries(view: View, holding: Holding) -> set[str]:
    return set(holding.held) & {space.id for space in view.spaces if space.kind is Kind.GPU}


@settings(max_examples=60)
@given(views())
def test_later_claims_do_not_delay_the_first(view: View) -> None:
    """Whatever else is started, the first claim in line fits as soon as those it waits for have gone."""
    decided = plan(view)
    active = [claim for claim in view.claims if claim.active]
    if not active:
        return
    first = min(
        active,
        key=lambda claim: (
            (0, 0) if claim.overtaken >= OVERTAKES else (1 if claim.paid else 2, -claim.priority),
            claim.since,
            claim.model,
            claim.replica,
        ),
    )
    victims = decided.victims.get(first.replica)
    if victims is None or "is loading" in decided.waits[first.replica]:
        return
    stay = [holding for holding in view.holdings if holding.replica not in victims]
    free = free_bytes(view.spaces, [*stay, *_started(view, decided)])
    assert any(places(first.demand, view.spaces, free))


@settings(max_examples=60)
@given(views())
def test_passive_claims_change_nothing_for_active_ones(view: View) -> None:
    """An active claim gets the same with and without those behind it in line."""
    decided = plan(view)
    alone = plan(dataclasses.replace(view, claims=tuple(claim for claim in view.claims if claim.active)))
    keys = {claim.replica for claim in view.claims if claim.active}
    assert [start for start in decided.starts if start.replica in keys] == list(alone.starts)
    assert decided.evictions == alone.evictions
    assert {key: decided.victims[key] for key in decided.victims.keys() & keys} == alone.victims
    assert {key: decided.refusals[key] for key in decided.refusals.keys() & keys} == alone.refusals


@given(views())
def test_nobody_waits_without_need(view: View) -> None:
    """A lone claim starts when it fits and no load is in its way; a refused one finds no place either."""
    for claim in view.claims:
        decided = plan(dataclasses.replace(view, claims=(claim,), sizing=False))
        found = find(claim.demand, view.spaces, view.holdings, evict=claim.active, prefer=claim.victims)
        if isinstance(found, Found) and not found.victims:
            turn = decided.waits.get(claim.replica, "").startswith("waits for its turn: ")
            assert turn != bool(decided.starts)
        else:
            assert not decided.starts
        if claim.replica in decided.refusals:
            assert decided.refusals[claim.replica] == found


@given(views())
def test_while_sizes_are_unknown_passive_claims_wait(view: View) -> None:
    """Only active claims start, because the largest passive one may not be known yet."""
    decided = plan(dataclasses.replace(view, sizing=True))
    passive = {claim.replica for claim in view.claims if not claim.active}
    assert {decided.waits[key] for key in passive} <= {"waits until the size of every model is known"}


# --- the order of claims ------------------------------------------------------------------------------------


def _claim(name: str, demand: Demand, **more: object) -> Claim:
    return Claim(name, name, demand, **more)  # type: ignore[arg-type]


def _starts(view: View) -> list[tuple[str, list[str]]]:
    return [(start.replica, sorted(start.devices)) for start in plan(view).starts]


def _until_done(view: View) -> list[list[tuple[str, list[str]]]]:
    """Plan again and again, every load ending between; return what starts each time."""
    rounds = []
    while (decided := plan(view)).starts:
        rounds.append([(start.replica, sorted(start.devices)) for start in decided.starts])
        begun = {start.replica for start in decided.starts}
        loaded = [dataclasses.replace(holding, phase=Phase.SERVING) for holding in _started(view, decided)]
        left = tuple(claim for claim in view.claims if claim.replica not in begun)
        view = dataclasses.replace(view, holdings=(*view.holdings, *loaded), claims=left)
    return rounds


def _four_gpus() -> tuple[Space, ...]:
    """A machine as NVML showed it: four 24 GiB cards, one tenth kept free, a desktop on the first."""
    total, limit = 25_757_220_864, 23_181_498_777
    desktop = gpu(0, total, limit - 700_000_000, limit=limit, others="668 MiB used by other programs")
    return (host(128 << 30, 115 << 30), desktop, *(gpu(at, total, limit) for at in (1, 2, 3)))


def test_whole_gpus_are_given_before_shares_of_one() -> None:
    """tp=2 first, then one whole GPU, then shares, which are packed together on the GPU that is left."""
    claims = (
        _claim("tts", Demand(share=0.10)),
        _claim("embed", Demand(share=0.15)),
        _claim("chat", Demand(share=0.55)),
        _claim("vllm-1", Demand(ram=4 << 30, gpus=1)),
        _claim("vllm-tp2", Demand(ram=4 << 30, gpus=2)),
    )
    assert _until_done(View(_four_gpus(), (), claims, 8)) == [
        [("vllm-tp2", ["GPU-0", "GPU-1", "host"]), ("vllm-1", ["GPU-2", "host"]), ("chat", ["GPU-3"])],
        [("embed", ["GPU-3"])],
        [("tts", ["GPU-3"])],
    ]


def test_shares_of_one_gpu_fit_together() -> None:
    """Shares of one card load one after the other, the largest first; one that does not fit is skipped."""
    claims = (
        _claim("whisper", Demand(share=0.15)),
        _claim("chat", Demand(share=0.55)),
        _claim("tts", Demand(share=0.10)),
        _claim("more", Demand(share=0.20)),
    )
    spaces = _four_gpus()[:2]
    rounds = _until_done(View(spaces, (), claims, 8))
    assert [[key for key, _ in begun] for begun in rounds] == [["chat"], ["more"], ["tts"]]
    assert "needs 3.6 GiB" in plan(View(spaces, _held_by(rounds, claims), claims[:1], 8)).waits["whisper"]


def _held_by(rounds: list[list[tuple[str, list[str]]]], claims: Iterable[Claim]) -> tuple[Holding, ...]:
    shares = {claim.replica: claim.demand.share for claim in claims}
    total = _four_gpus()[1].total
    keys = [key for begun in rounds for key, _ in begun]
    return tuple(Holding(key, key, {"GPU-0": round(shares[key] * total)}) for key in keys)


def test_all_four_gpus_are_taken_when_all_are_empty() -> None:
    """tp=4 takes every card, and with one taken waits, naming it."""
    claim = _claim("vllm-tp4", Demand(gpus=4), active=True)
    assert _starts(View(_four_gpus(), (), (claim,))) == [("vllm-tp4", ["GPU-0", "GPU-1", "GPU-2", "GPU-3"])]
    busy = Holding("chat", "chat", {"GPU-2": 5 << 30}, in_flight=2)
    decided = plan(View(_four_gpus(), (busy,), (claim,)))
    assert decided.victims == {"vllm-tp4": {"chat"}}
    assert not decided.evictions
    assert decided.waits["vllm-tp4"] == (
        "needs 85.7 GiB on GPU 0 and GPU 1 and GPU 2 and GPU 3: "
        "waits for chat, which holds 5.0 GiB and has 2 requests in flight"
    )
    pinned = dataclasses.replace(busy, pinned=True)
    refusal = plan(View(_four_gpus(), (pinned,), (claim,))).refusals["vllm-tp4"]
    assert refusal.never is Never.PINNED
    assert "5.0 GiB held by pinned chat" in refusal.message


def test_passive_claims_go_by_size() -> None:
    """Most GPUs first, then whole ones, then GPU bytes, then RAM, then the name; priority before all."""
    spaces = (host(1000), *(gpu(at, 100) for at in range(8)))
    claims = (
        _claim("ram-b", Demand(ram=100)),
        _claim("ram-a", Demand(ram=100)),
        _claim("ram-large", Demand(ram=120)),
        _claim("gpu-small", Demand(ram=50, vram=51)),
        _claim("gpu-large", Demand(vram=90)),
        _claim("whole", Demand(gpus=1)),
        _claim("spread", Demand(vram=150, spread=True)),
        _claim("tp2", Demand(gpus=2)),
        _claim("urgent", Demand(ram=1), priority=1),
    )
    assert [key for key, _ in _starts(View(spaces, (), claims, 100))] == [
        "urgent",
        "tp2",
        "spread",
        "whole",
        "gpu-large",
        "gpu-small",
        "ram-large",
        "ram-a",
        "ram-b",
    ]


def test_a_model_that_does_not_fit_is_skipped() -> None:
    """The next in line takes what the first could not, and the first gets its sentence."""
    spaces = (host(100), gpu(0, 24))
    held = (Holding("a", "a", {"GPU-0": 10}),)
    decided = plan(View(spaces, held, (_claim("large", Demand(vram=20)), _claim("small", Demand(vram=4)))))
    assert [start.replica for start in decided.starts] == ["small"]
    assert decided.waits == {"large": "needs 0 MiB, 0 MiB free on GPU 0, 0 MiB held by a"}
    assert not decided.refusals


def test_active_claims_go_by_priority_then_by_arrival() -> None:
    """The higher priority first, then who has waited longest; size does not count."""
    spaces = (host(100),)
    claims = (
        _claim("late", Demand(ram=60), active=True, since=9),
        _claim("early", Demand(ram=50), active=True, since=3),
        _claim("vip", Demand(ram=40), active=True, since=20, priority=1),
    )
    assert [key for key, _ in _starts(View(spaces, (), claims, 8))] == ["vip"]
    held = (Holding("x", "x", {"host": 50}),)
    for names in (("vip", "early"), ("early", "late")):
        chosen = tuple(claim for claim in claims if claim.replica in names)
        assert [key for key, _ in _starts(View(spaces, held, chosen, 8))] == [names[0]]


def test_a_claim_that_was_overtaken_enough_goes_before_any_priority() -> None:
    """From OVERTAKES on a claim is first in line: priority cannot starve it."""
    spaces = (host(100),)
    vip = _claim("vip", Demand(ram=60), active=True, since=20, priority=5)
    for overtaken, first in ((OVERTAKES - 1, "vip"), (OVERTAKES, "meek")):
        meek = _claim("meek", Demand(ram=60), active=True, since=1, overtaken=overtaken)
        assert [key for key, _ in _starts(View(spaces, (), (vip, meek), 8))] == [first]


def test_memory_freed_for_a_claim_is_not_taken_by_a_higher_priority() -> None:
    """What was evicted for the modest claim is its own: the urgent model comes back after it."""
    spaces = (host(100),)
    for paid, first in ((False, "vip"), (True, "meek")):
        meek = _claim("meek", Demand(ram=60), active=True, since=1, paid=paid)
        vip = _claim("vip", Demand(ram=60), active=True, since=20, priority=5)
        assert [key for key, _ in _starts(View(spaces, (), (vip, meek), 8))] == [first]


# --- waiting ------------------------------------------------------------------------------------------------


def test_an_idle_model_makes_room_at_once() -> None:
    """It is evicted with a reason that names both models and the bytes, and the claim waits for it."""
    gib = 1 << 30
    spaces = (host(64 * gib), gpu(0, 10 * gib))
    held = (Holding("chat", "chat", {"GPU-0": 8 * gib}, idle_s=5),)
    claim = _claim("coder", Demand(vram=int(7.9 * gib)), active=True)
    decided = plan(View(spaces, held, (claim,)))
    (eviction,) = decided.evictions
    assert (eviction.replica, eviction.claimant) == ("chat", "coder")
    assert eviction.reason == "chat makes room for coder, which needs 7.9 GiB on GPU 0"
    assert decided.waits == {
        "coder": "needs 7.9 GiB on GPU 0: waits for chat, which holds 8.0 GiB and is stopping"
    }
    gone = plan(View(spaces, (dataclasses.replace(held[0], phase=Phase.LEAVING),), (claim,)))
    assert not gone.evictions
    assert gone.victims == decided.victims
    assert gone.waits == decided.waits


def test_the_sentence_names_the_memory_that_is_lacking() -> None:
    """A GPU model that only lacks RAM says so: the model it waits for holds nothing on the GPU."""
    gib = 1 << 30
    held = (Holding("cpu", "cpu", {"host": 6 * gib}, in_flight=1),)
    claim = _claim("chat", Demand(ram=3 * gib, vram=9 * gib), active=True)
    decided = plan(View((host(8 * gib), gpu(0, 10 * gib)), held, (claim,)))
    assert decided.waits["chat"] == (
        "needs 3.0 GiB on this machine: waits for cpu, which holds 6.0 GiB and has 1 request in flight"
    )


def test_memory_that_comes_back_late_is_waited_for_and_nobody_else_goes() -> None:
    """What a stopped worker held counts until it is seen free, and the idle model beside it stays."""
    spaces = (host(100), gpu(0, 20))
    held = (
        Holding("old", "old", {"GPU-0": 10}, Phase.LEAVING),
        Holding("idle", "idle", {"GPU-0": 10}, idle_s=9e9),
    )
    decided = plan(View(spaces, held, (_claim("new", Demand(vram=10), active=True),)))
    assert decided == Plan(
        victims={"new": frozenset({"old"})},
        waits={"new": "needs 0 MiB on GPU 0: waits for old, which holds 0 MiB and is stopping"},
    )


def test_two_claims_never_count_on_the_same_bytes() -> None:
    """B and C each need 60 of 100: one starts, the other waits for it, and nothing overflows."""
    claims = (_claim("b", Demand(ram=60), active=True), _claim("c", Demand(ram=60), active=True, since=1))
    decided = plan(View((host(100),), (), claims, 8))
    assert [start.replica for start in decided.starts] == ["b"]
    assert decided.waits == {
        "c": "needs 0 MiB on this machine: waits for b, which holds 0 MiB and is loading"
    }
    assert not decided.evictions
    assert not decided.victims["c"]


def test_a_busy_model_is_waited_for_unless_forced() -> None:
    """A streams: B waits until it is done; the owner's forced load does not."""
    held = (Holding("a", "a", {"host": 60}, in_flight=1),)
    claim = _claim("b", Demand(ram=60), active=True)
    decided = plan(View((host(100),), held, (claim,)))
    assert decided.victims == {"b": {"a"}}
    assert not decided.evictions
    forced = plan(View((host(100),), held, (dataclasses.replace(claim, forced=True),)))
    assert [eviction.replica for eviction in forced.evictions] == ["a"]


def test_a_later_small_claim_takes_only_what_the_first_leaves_over() -> None:
    """Of 100, busy A holds 70 and the first needs 90: of the 30 free a later claim may have 10, not 11."""
    held = (Holding("a", "a", {"host": 70}, in_flight=1),)
    first = _claim("first", Demand(ram=90), active=True)
    for size, goes in ((10, True), (11, False)):
        for active in (True, False):
            later = _claim("later", Demand(ram=size), active=active, since=1)
            decided = plan(View((host(100),), held, (first, later), 8))
            assert [start.replica for start in decided.starts] == (["later"] if goes else [])


def test_a_claim_that_waits_for_its_turn_keeps_its_place() -> None:
    """A large model waits while another loads: of the 70 free it needs 60, and small ones get the 10 left."""
    held = (Holding("a", "a", {"host": 30}, Phase.LOADING),)
    first = _claim("first", Demand(ram=60), active=True)
    for size, goes in ((10, True), (11, False)):
        later = _claim("later", Demand(ram=size), active=True, since=1)
        decided = plan(View((host(100),), held, (first, later), 8))
        assert decided.waits["first"].startswith("waits for its turn: a is loading")
        assert [start.replica for start in decided.starts] == (["later"] if goes else [])


def test_a_gpu_that_is_kept_for_a_claim_is_not_emptied_for_another() -> None:
    """A whole GPU is not found where an earlier claim waits for a part of it: the other GPU is waited for."""
    spaces = (host(100), gpu(0, 20), gpu(1, 20))
    held = (
        Holding("a", "a", {"GPU-0": 10}, in_flight=1),
        Holding("b", "b", {"GPU-1": 20}, in_flight=1, priority=1),
    )
    part = _claim("part", Demand(vram=15), active=True)
    whole = _claim("whole", Demand(gpus=1), active=True, since=1)
    assert plan(View(spaces, held, (part, whole), 8)).victims == {"part": {"a"}, "whole": {"b"}}


def test_what_a_leaver_brings_is_counted_once() -> None:
    """Two claims wait for A's 80: of the 20 free a third may have the 5 that both leave over, and no more."""
    held = (Holding("a", "a", {"host": 80}, in_flight=1),)
    claims = (_claim("b", Demand(ram=60), active=True), _claim("c", Demand(ram=35), active=True, since=1))
    for size, goes in ((5, True), (6, False)):
        later = _claim("d", Demand(ram=size), active=True, since=2)
        decided = plan(View((host(100),), held, (*claims, later), 8))
        assert [start.replica for start in decided.starts] == (["d"] if goes else [])


def test_a_model_that_loads_is_not_evicted_but_its_place_is_kept() -> None:
    """Room for one, A is loading: B is next, and C, which came later, does not slip in beside A."""
    held = (Holding("a", "a", {"host": 60}, Phase.LOADING),)
    b = _claim("b", Demand(ram=90), active=True)
    c = _claim("c", Demand(ram=30), active=True, since=1)
    decided = plan(View((host(100),), held, (b, c), 8))
    assert not decided.starts
    assert not decided.evictions
    assert "a, which holds 0 MiB and is loading" in decided.waits["b"]
    assert "kept for b" in decided.waits["c"] or "waits for a" in decided.waits["c"]


def test_idle_models_are_not_sent_away_while_the_claim_must_wait_for_a_load() -> None:
    """Their memory would lie idle until that load has ended and served."""
    held = (
        Holding("a", "a", {"host": 50}, Phase.LOADING),
        Holding("idle", "idle", {"host": 50}, idle_s=99),
    )
    decided = plan(View((host(100),), held, (_claim("b", Demand(ram=100), active=True),), 8))
    assert not decided.evictions
    assert decided.victims == {"b": {"idle"}}


def test_a_model_is_not_evicted_for_its_own_second_copy() -> None:
    """Another replica of the model that holds the memory waits without anybody going."""
    held = (Holding("a/0", "a", {"host": 60}, idle_s=99),)
    decided = plan(View((host(100),), held, (Claim("a/1", "a", Demand(ram=60), True),)))
    assert decided.waits == {"a/1": "needs 0 MiB, 0 MiB free on this machine, 0 MiB held by a"}
    assert not decided.evictions


def test_nobody_goes_for_a_claim_that_can_never_fit() -> None:
    """C needs more than there is: refused for ever, with both idle models left alone."""
    held = (Holding("a", "a", {"host": 50}, idle_s=9), Holding("b", "b", {"host": 50}, idle_s=9))
    decided = plan(View((host(100),), held, (_claim("c", Demand(ram=101), active=True, forced=True),)))
    assert decided.refusals["c"].never is Never.EVER
    assert not decided.evictions


def test_nobody_goes_when_a_pinned_model_is_in_the_way() -> None:
    """The other, idle one would go in vain."""
    held = (Holding("p", "p", {"host": 60}, pinned=True), Holding("b", "b", {"host": 40}, idle_s=9))
    decided = plan(View((host(100),), held, (_claim("c", Demand(ram=50), active=True, forced=True),)))
    assert decided.refusals["c"].never is Never.PINNED
    assert "held by pinned p" in decided.waits["c"]
    assert not decided.evictions


# --- turns --------------------------------------------------------------------------------------------------


def test_loads_on_one_gpu_go_one_after_the_other() -> None:
    """The second waits with a sentence; another GPU loads meanwhile, and so does a model on the host."""
    spaces = (host(1000), gpu(0, 100), gpu(1, 100))
    held = (Holding("chat", "chat", {"GPU-0": 30}, Phase.LOADING),)
    claims = (
        _claim("small", Demand(vram=50)),
        _claim("large", Demand(vram=80)),
        _claim("cpu", Demand(ram=10)),
    )
    decided = plan(View(spaces, held, claims, 8))
    assert [start.replica for start in decided.starts] == ["large", "cpu"]
    assert decided.waits == {"small": "waits for its turn: chat is loading on GPU 0"}


def test_somebody_who_waits_gets_the_gpu_that_is_free_to_load() -> None:
    """An active claim takes an emptier GPU rather than wait for its turn on the best one."""
    spaces = (host(1000), gpu(0, 100), gpu(1, 100))
    held = (Holding("chat", "chat", {"GPU-0": 30}, Phase.LOADING),)
    for active, started in ((True, [("m", ["GPU-1"])]), (False, [])):
        claim = _claim("m", Demand(vram=50), active=active)
        assert _starts(View(spaces, held, (claim,), 8)) == started


@pytest.mark.parametrize(("cores", "begun"), [(1, 1), (2, 2), (16, 4)])
def test_small_models_load_side_by_side_on_the_host(cores: int, begun: int) -> None:
    """As many as there are cores, but of large ones one at a time; a GPU model's load does not count."""
    spaces = (host(800), gpu(0, 100))
    held = (Holding("gpu", "gpu", {"GPU-0": 30, "host": 200}, Phase.LOADING),)
    claims = (
        _claim("large-1", Demand(ram=101)),
        _claim("large-2", Demand(ram=101)),
        *(_claim(f"small-{at}", Demand(ram=100)) for at in range(3)),
    )
    decided = plan(View(spaces, held, claims, cores))
    assert [start.replica for start in decided.starts] == ["large-1", "small-0", "small-1", "small-2"][:begun]
    assert decided.waits["large-2"] == (
        "waits for its turn: large-1 is loading, and large models load one after the other"
    )
    if cores == 2:
        assert decided.waits["small-2"] == (
            "waits for its turn: 2 models are loading, and this machine loads 2 at a time"
        )


def test_a_split_model_keeps_its_turn_on_all_its_gpus() -> None:
    """While one of its GPUs is loading, no later claim begins on the other and makes it wait again."""
    spaces = (host(1000), gpu(0, 100), gpu(1, 100))
    held = (Holding("chat", "chat", {"GPU-0": 10}, Phase.LOADING),)
    split = _claim("split", Demand(vram=150, spread=True), active=True)
    later = _claim("later", Demand(vram=5), active=True, since=1)
    decided = plan(View(spaces, held, (split, later), 8))
    assert not decided.starts
    assert decided.waits["split"] == "waits for its turn: chat is loading on GPU 0"
    assert decided.waits["later"].startswith("waits for its turn: ")
