from __future__ import annotations

import dataclasses
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modeld.hardware.machine import Kind
from modeld.supervisor.scheduling.placement import (
    Demand,
    Found,
    Holding,
    Never,
    Phase,
    Refusal,
    Space,
    find,
    gib,
)
from tests.unit.supervisor.views import GIB, demands, free_bytes, gpu, holdings, host, machines, places


@st.composite
def questions(draw: st.DrawFn) -> tuple[Demand, tuple[Space, ...], tuple[Holding, ...]]:
    """Draw a machine, who is on it, and a demand."""
    spaces = draw(machines())
    return draw(demands()), spaces, draw(holdings(spaces, over=draw(st.integers(0, 9)) == 0))


def _leaves(holding: Holding, *, evict: bool) -> bool:
    """Say whether a replica may go: the rule, in the test's own words."""
    if holding.phase is Phase.LEAVING:
        return True
    return evict and holding.phase is Phase.SERVING and not holding.pinned


def _answer(
    question: tuple[Demand, tuple[Space, ...], tuple[Holding, ...]], *, evict: bool
) -> Found | Refusal:
    return find(*question, evict=evict)


@given(questions(), st.booleans())
def test_what_is_found_fits_beside_all_who_stay(
    question: tuple[Demand, tuple[Space, ...], tuple[Holding, ...]], evict: bool
) -> None:
    """The bytes found are free once the victims have gone, they are those asked for, on devices in order."""
    demand, spaces, held = question
    found = _answer(question, evict=evict)
    if isinstance(found, Refusal):
        return
    free = free_bytes(spaces, [holding for holding in held if holding.replica not in found.victims])
    known = {space.id: space for space in spaces}
    assert all(not size or size <= free[id_] for id_, size in found.devices.items())
    assert all(known[id_].ok for id_, size in found.devices.items() if size)
    on_gpus = {id_: size for id_, size in found.devices.items() if known[id_].kind is Kind.GPU}
    if demand.gpus and on_gpus:
        assert len(on_gpus) == demand.gpus
        assert all(size == known[id_].usable == free[id_] for id_, size in on_gpus.items())
    elif demand.share and on_gpus:
        ((id_, size),) = on_gpus.items()
        assert size - 1 < demand.share * known[id_].total <= size
    elif on_gpus:
        assert sum(on_gpus.values()) == demand.vram
        assert len(on_gpus) == 1 or (
            demand.spread and demand.vram > max(known[id_].usable for id_ in on_gpus)
        )
    if demand.on_gpu and not on_gpus:
        assert known["host"].kind is Kind.UNIFIED
    if on_gpus or not demand.on_gpu:
        assert found.devices.get("host", 0) == demand.ram


@given(questions(), st.booleans())
def test_nobody_goes_in_vain(
    question: tuple[Demand, tuple[Space, ...], tuple[Holding, ...]], evict: bool
) -> None:
    """Nobody pinned or loading goes; with any one victim staying the place would not be free; and there are
    none when the demand fits as things are.
    """
    demand, spaces, held = question
    found = _answer(question, evict=evict)
    if isinstance(found, Refusal):
        return
    known = {holding.replica: holding for holding in held}
    assert all(_leaves(known[key], evict=evict) for key in found.victims)
    assert not found.victims or not any(places(demand, spaces, free_bytes(spaces, held)))
    kinds = {space.id: space.kind for space in spaces}
    spread = [id_ for id_ in found.devices if kinds[id_] is Kind.GPU] if not demand.gpus else []
    for key in found.victims:
        stays = free_bytes(
            spaces, [one for one in held if one.replica == key or one.replica not in found.victims]
        )
        tight = any(size and size > stays[id_] for id_, size in found.devices.items() if id_ not in spread)
        together = bool(spread) and (
            sum(found.devices[id_] for id_ in spread) > sum(stays[id_] for id_ in spread)
            or min(stays[id_] for id_ in spread) < 0
        )
        assert tight or together


@given(questions(), st.booleans())
def test_a_place_is_found_when_there_is_one(
    question: tuple[Demand, tuple[Space, ...], tuple[Holding, ...]], evict: bool
) -> None:
    """A refusal means that even with everybody gone who may go, no set of devices would do; and it is NO
    exactly when the replicas that only have to be waited for are what is in the way.
    """
    demand, spaces, held = question
    answer = _answer(question, evict=evict)
    stay = [holding for holding in held if not _leaves(holding, evict=evict)]
    possible = any(places(demand, spaces, free_bytes(spaces, stay)))
    assert isinstance(answer, Found) == possible
    if isinstance(answer, Refusal):
        pinned = [holding for holding in held if holding.pinned and holding.phase is not Phase.LEAVING]
        in_time = any(places(demand, spaces, free_bytes(spaces, pinned)))
        assert (answer.never is Never.NO) == in_time
        empty = any(places(demand, spaces, free_bytes(spaces, [])))
        if answer.never is Never.PINNED:
            assert empty
        elif answer.never is not Never.NO:
            assert not empty
        largest = [dataclasses.replace(space, usable=space.limit or 0, ok=True) for space in spaces]
        if answer.never is Never.OTHERS:
            assert any(places(demand, largest, free_bytes(largest, [])))


@given(questions(), st.booleans())
def test_the_order_of_facts_does_not_matter(
    question: tuple[Demand, tuple[Space, ...], tuple[Holding, ...]], evict: bool
) -> None:
    """The same facts in another order give the same answer, word for word."""
    demand, spaces, held = question
    mixed = (demand, tuple(reversed(spaces)), tuple(reversed(held)))
    assert _answer(mixed, evict=evict) == _answer(question, evict=evict)


# --- sentences ----------------------------------------------------------------------------------------------


def _refusal(demand: Demand, spaces: list[Space], held: list[Holding], *, evict: bool = True) -> Refusal:
    answer = find(demand, spaces, held, evict=evict)
    assert isinstance(answer, Refusal)
    return answer


def test_a_refusal_names_the_numbers_and_the_pinned_holder() -> None:
    """What is needed, what is free, who holds the rest and that it is pinned."""
    held = [Holding("llama3", "llama3", {"GPU-0": int(3.2 * GIB)}, pinned=True)]
    refusal = _refusal(Demand(vram=int(7.9 * GIB)), [host(64 * GIB), gpu(0, int(8.3 * GIB))], held)
    assert refusal.never is Never.PINNED
    assert refusal.message == "needs 7.9 GiB, 5.1 GiB free on GPU 0, 3.2 GiB held by pinned llama3"


def test_a_refusal_names_the_other_programs() -> None:
    """When other programs hold the memory they are named, and waiting for models is no use."""
    space = gpu(
        0,
        24 * GIB,
        int(16.4 * GIB),
        limit=int(21.6 * GIB),
        others="5.2 GiB used by other programs (pid 4312: 5.0 GiB)",
    )
    refusal = _refusal(Demand(vram=20 * GIB), [host(64 * GIB), space], [])
    assert refusal.never is Never.OTHERS
    assert refusal.message == (
        "needs 20.0 GiB on one GPU; GPU 0 can give 16.4 GiB in all "
        "(5.2 GiB used by other programs (pid 4312: 5.0 GiB))"
    )


@pytest.mark.parametrize(
    ("demand", "spaces", "never", "words"),
    [
        (Demand(vram=GIB), [host(64 * GIB)], Never.DEVICE, "needs a GPU, and this machine shows none"),
        (Demand(gpus=1), [host(64 * GIB)], Never.DEVICE, "needs a GPU, and this machine shows none"),
        (
            Demand(vram=GIB),
            [host(64 * GIB), gpu(0, 8 * GIB, ok=False, message="it fell off the bus")],
            Never.DEVICE,
            "GPU 0 cannot be used now: it fell off the bus",
        ),
        (
            Demand(vram=GIB),
            [host(64 * GIB), gpu(0, 0, ok=False)],
            Never.DEVICE,
            "GPU 0 cannot be used now: it does not answer",
        ),
        (
            Demand(vram=20 * GIB),
            [host(64 * GIB), gpu(0, 8 * GIB), gpu(1, 24 * GIB, ok=False, message="it is lost")],
            Never.DEVICE,
            "GPU 1 cannot be used now: it is lost",
        ),
        (
            Demand(vram=20 * GIB),
            [host(64 * GIB), gpu(0, 24 * GIB, 18 * GIB)],
            Never.EVER,
            "needs 20.0 GiB on one GPU; GPU 0 can give 18.0 GiB in all",
        ),
        (
            Demand(ram=20 * GIB),
            [host(16 * GIB, 14 * GIB)],
            Never.EVER,
            "needs 20.0 GiB; this machine can give 14.0 GiB in all",
        ),
        (
            Demand(gpus=3),
            [host(64 * GIB), gpu(0, 24 * GIB), gpu(1, 24 * GIB)],
            Never.EVER,
            "needs 3 whole GPUs, and this machine has 2",
        ),
        (
            Demand(gpus=2),
            [host(64 * GIB), gpu(0, 24 * GIB), gpu(1, 24 * GIB, ok=False, message="it is lost")],
            Never.DEVICE,
            "needs 2 whole GPUs, 1 of 2 empty; GPU 1 cannot be used now: it is lost",
        ),
        (
            Demand(vram=50 * GIB, spread=True),
            [host(64 * GIB), gpu(0, 24 * GIB), gpu(1, 24 * GIB)],
            Never.EVER,
            "needs 50.0 GiB on GPUs together, which can give 48.0 GiB in all; "
            "GPU 0 can give 24.0 GiB in all; GPU 1 can give 24.0 GiB in all",
        ),
        (
            Demand(gpus=2),
            [host(64 * GIB, kind=Kind.UNIFIED)],
            Never.EVER,
            "needs 2 whole GPUs, and this machine has 1",
        ),
        (Demand(ram=GIB), [], Never.DEVICE, "needs memory, and this machine's is not known"),
    ],
)
def test_refusals_for_want_of_devices(demand: Demand, spaces: list[Space], never: Never, words: str) -> None:
    """Each reason that no eviction could mend has its own sentence and says whether waiting helps."""
    refusal = _refusal(demand, spaces, [Holding("x", "x", {"host": 0})])
    assert (refusal.never, refusal.message) == (never, words)


def test_of_many_gpus_and_holders_only_some_are_named() -> None:
    """A refusal stays a sentence on a large machine."""
    spaces = [host(64 * GIB), *(gpu(at, 10 * GIB) for at in range(8))]
    held = [Holding(f"m{at}", f"m{at}", {f"GPU-{at % 8}": 2 * GIB}, pinned=True) for at in range(40)]
    refusal = _refusal(Demand(vram=5 * GIB), spaces, held)
    assert refusal.message.startswith(
        "needs 5.0 GiB on one GPU; 0 MiB free on GPU 0, 2.0 GiB held by pinned m0, "
    )
    assert "4.0 GiB held by 2 more" in refusal.message
    assert refusal.message.endswith("5 more GPUs have no more")
    assert len(refusal.message) < 500


@given(st.integers(0, 1 << 40))
def test_sizes_are_written_for_people(size: int) -> None:
    """GiB from one GiB on, MiB below; never more than a twentieth of a GiB off."""
    number, unit = gib(size).split()
    assert abs(float(number) * (GIB if unit == "GiB" else 1 << 20) - size) <= GIB / 20
    assert (unit == "GiB") == (size >= GIB)
    assert re.fullmatch(r"\d+(\.\d)?", number)


# --- choices ------------------------------------------------------------------------------------------------


def _found(
    demand: Demand, spaces: list[Space], held: list[Holding], *, prefer: frozenset[str] = frozenset()
) -> Found:
    answer = find(demand, spaces, held, evict=True, prefer=prefer)
    assert isinstance(answer, Found)
    return answer


def test_a_small_model_stays_when_its_going_would_not_help() -> None:
    """Of 24 GiB, A holds 18 and B 1: for 5 nobody goes, for 6 B; for 7 A alone, although B is idle longer."""
    spaces = [host(64 * GIB), gpu(0, 24 * GIB)]
    held = [
        Holding("a", "a", {"GPU-0": 18 * GIB}, idle_s=10),
        Holding("b", "b", {"GPU-0": 1 * GIB}, idle_s=9999),
    ]
    assert _found(Demand(vram=5 * GIB), spaces, held) == Found({"GPU-0": 5 * GIB})
    assert _found(Demand(vram=6 * GIB), spaces, held).victims == {"b"}
    assert _found(Demand(vram=7 * GIB), spaces, held).victims == {"a"}
    assert _found(Demand(vram=24 * GIB), spaces, held).victims == {"a", "b"}


def test_of_three_the_one_that_is_too_small_to_help_stays() -> None:
    """Two large models go, and the tiny one stays, although it has been idle longest."""
    held = [
        Holding("tiny", "tiny", {"GPU-0": 1}, idle_s=9999),
        Holding("b", "b", {"GPU-0": 5}, idle_s=10),
        Holding("c", "c", {"GPU-0": 5}, idle_s=5),
    ]
    assert _found(Demand(vram=10), [host(64), gpu(0, 11)], held).victims == {"b", "c"}


def test_one_recent_model_goes_rather_than_two_only_when_that_costs_less() -> None:
    """Two models idle for hours go before one that was used a second ago, and after one idle as long."""
    spaces = [host(64 * GIB), gpu(0, 12)]
    for idle_s, victims in ((1.0, {"a", "b"}), (17_000.0, {"c"})):
        held = [
            Holding("a", "a", {"GPU-0": 3}, idle_s=18_000, reload_s=1),
            Holding("b", "b", {"GPU-0": 3}, idle_s=18_000, reload_s=1),
            Holding("c", "c", {"GPU-0": 6}, idle_s=idle_s, reload_s=1),
        ]
        assert _found(Demand(vram=6), spaces, held).victims == victims


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ({"phase": Phase.LEAVING}, {"idle_s": 9e9}),
        ({"idle_s": 1.0}, {"in_flight": 1}),
        ({"idle_s": 1.0, "priority": 9}, {"in_flight": 1}),
        ({"priority": 0}, {"priority": 1, "idle_s": 9e9}),
        ({"idle_s": 100.0}, {"idle_s": 10.0}),
        ({"idle_s": 100.0, "reload_s": 1.0}, {"idle_s": 200.0, "reload_s": 60.0}),
        ({"in_flight": 1}, {"in_flight": 1, "priority": 1}),
        ({"in_flight": 9}, {"pinned": True, "idle_s": 9e9}),
        ({"in_flight": 9}, {"phase": Phase.LOADING}),
    ],
)
@pytest.mark.parametrize("apart", [False, True])
def test_who_goes_first(better: dict[str, object], worse: dict[str, object], apart: bool) -> None:
    """Leaving before idle before busy, lower priority, longer idle for its load; on one device or on two."""
    spaces = [host(64), gpu(0, 8 if apart else 16), gpu(1, 8 if apart else 1)]
    for first, second in (("a", "b"), ("b", "a")):
        held = [
            Holding(first, first, {"GPU-0": 8}, **better),  # type: ignore[arg-type]
            Holding(second, second, {"GPU-1" if apart else "GPU-0": 8}, **worse),  # type: ignore[arg-type]
        ]
        assert _found(Demand(vram=8), spaces, held).victims == {first}


def test_the_choice_does_not_wander_between_busy_models() -> None:
    """A busy model that was chosen stays the choice; an idle one that makes room at once goes before it."""
    spaces = [host(64), gpu(0, 16)]
    held = [Holding("a", "a", {"GPU-0": 8}, in_flight=1), Holding("b", "b", {"GPU-0": 8}, in_flight=1)]
    for kept in ("a", "b"):
        assert _found(Demand(vram=8), spaces, held, prefer=frozenset({kept})).victims == {kept}
    idle = [held[0], dataclasses.replace(held[1], in_flight=0)]
    assert _found(Demand(vram=8), spaces, idle, prefer=frozenset({"a"})).victims == {"b"}


def test_one_model_goes_for_both_memories() -> None:
    """A replica that frees the host and the GPU goes alone, not one for each."""
    spaces = [host(8), gpu(0, 8)]
    held = [
        Holding("ram", "ram", {"host": 4}, idle_s=999),
        Holding("both", "both", {"host": 4, "GPU-0": 8}, idle_s=1),
    ]
    assert _found(Demand(ram=4, vram=8), spaces, held).victims == {"both"}


def test_the_fullest_gpu_that_fits_is_taken() -> None:
    """Best fit, so that empty GPUs stay whole for the models that need whole ones."""
    spaces = [host(64), gpu(0, 24), gpu(1, 24), gpu(2, 24)]
    held = [Holding("a", "a", {"GPU-1": 10}), Holding("b", "b", {"GPU-2": 16})]
    assert set(_found(Demand(vram=8), spaces, held).devices) == {"GPU-2"}
    assert set(_found(Demand(vram=9), spaces, held).devices) == {"GPU-1"}
    assert set(_found(Demand(vram=20), spaces, held).devices) == {"GPU-0"}
    assert set(_found(Demand(gpus=1), spaces, held).devices) == {"GPU-0"}


def test_a_model_that_fits_one_gpu_is_not_split() -> None:
    """24 + 12 + 12 GiB: what the large one could hold goes there alone, even if somebody must go for it."""
    spaces = [host(64), gpu(0, 12), gpu(1, 24), gpu(2, 12)]
    assert _found(Demand(vram=20, spread=True), spaces, []).devices == {"GPU-1": 20}
    held = [Holding("a", "a", {"GPU-1": 8})]
    assert _found(Demand(vram=20, spread=True), spaces, held) == Found({"GPU-1": 20}, frozenset({"a"}))
    split = _found(Demand(vram=30, spread=True), spaces, [])
    assert len(split.devices) == 2
    assert sum(split.devices.values()) == 30
    assert len(_found(Demand(vram=46, spread=True), spaces, []).devices) == 3


def test_gpus_are_numbered_as_people_do() -> None:
    """GPU 2 comes before GPU 10 when both would do."""
    spaces = [host(64), gpu(10, 8), gpu(2, 8)]
    assert set(_found(Demand(vram=4), spaces, []).devices) == {"GPU-2"}


def test_unified_memory_holds_both_parts() -> None:
    """On a Mac the host's and the GPU's part go to the one memory there is."""
    spaces = [host(16, kind=Kind.UNIFIED)]
    assert _found(Demand(ram=2, vram=8), spaces, []).devices == {"host": 10}
    assert _found(Demand(ram=2, share=0.5), spaces, []).devices == {"host": 10}
    assert _found(Demand(ram=2, gpus=1, vram=8), spaces, []).devices == {"host": 10}
    assert _found(Demand(gpus=1), spaces, []).devices == {"host": 16}


def test_a_gpu_held_whole_takes_nobody_else() -> None:
    """However little of its GPUs a replica with whole GPUs was measured to use, they are its own."""
    spaces = [host(64), gpu(0, 24)]
    small = Holding("vllm", "vllm", {"GPU-0": 4}, in_flight=1, exclusive=True)
    assert isinstance(find(Demand(vram=2), spaces, [small], evict=False), Refusal)
    assert _found(Demand(vram=2), spaces, [small]).victims == {"vllm"}
    assert find(Demand(vram=2), spaces, [dataclasses.replace(small, exclusive=False)], evict=False) == Found(
        {"GPU-0": 2}
    )


def test_a_model_never_falls_back_to_the_cpu() -> None:
    """With its GPU lost and the host empty, a GPU model is refused."""
    lost = gpu(0, 24, ok=False, message="it is lost")
    assert _refusal(Demand(ram=1, vram=2), [host(64), lost], []).never is Never.DEVICE
