from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from modeld.protocol.tasks import ChatTask, CompletionTask, ImagePart, Message, TextPart
from modeld.supervisor.scheduling.routing import AFFINITY_BYTES, AFFINITY_SLACK, Choice, affinity_of, choose

choices = st.lists(
    st.builds(Choice, st.sampled_from("abcdefgh"), st.integers(0, 6), st.integers(1, 6)),
    max_size=6,
    unique_by=lambda choice: choice.replica,
)
affinities = st.none() | st.integers(0, 2**64 - 1)


@given(choices, affinities)
def test_a_replica_with_a_free_slot_is_chosen(several: list[Choice], affinity: int | None) -> None:
    """One with a free slot, None only when there is none; never far busier than the least loaded."""
    chosen = choose(several, affinity)
    free = {choice.replica: choice for choice in several if choice.in_flight < choice.slots}
    if chosen is None:
        assert not free
        return
    least = min(free.values(), key=lambda choice: (choice.in_flight / choice.slots, choice.replica))
    assert free[chosen].in_flight <= least.in_flight + AFFINITY_SLACK or chosen == least.replica
    if affinity is None:
        assert chosen == least.replica


@given(choices, affinities)
def test_the_order_of_replicas_does_not_matter(several: list[Choice], affinity: int | None) -> None:
    """The same replicas in another order give the same choice."""
    assert choose(several, affinity) == choose(several[::-1], affinity)


@given(st.integers(0, 2**64 - 1), st.integers(2, 8))
def test_a_conversation_keeps_its_replica(affinity: int, count: int) -> None:
    """Idle or a little busy it stays; when another replica goes it stays too; much busier it is left."""
    idle = [Choice(f"r{at}", 0, 8) for at in range(count)]
    home = choose(idle, affinity)
    for busy, stays in ((AFFINITY_SLACK, True), (AFFINITY_SLACK + 1, False), (8, False)):
        several = [Choice(one.replica, busy if one.replica == home else 0, 8) for one in idle]
        assert (choose(several, affinity) == home) == stays
    for gone in idle:
        if gone.replica != home:
            assert choose([one for one in idle if one is not gone], affinity) == home


def test_conversations_spread_over_the_replicas() -> None:
    """Of 400 conversations each of four replicas is home to about a quarter."""
    idle = [Choice(f"r{at}", 0, 8) for at in range(4)]
    homes = [choose(idle, affinity_of(_chat(f"hello {number}"))) for number in range(400)]
    assert all(60 < homes.count(f"r{at}") < 140 for at in range(4))


def _chat(user: str, *more: Message, system: str = "Be kind.") -> ChatTask:
    return ChatTask(
        messages=(Message(role="system", content=system), Message(role="user", content=user), *more)
    )


@given(st.text(), st.text(), st.text())
def test_turns_of_a_conversation_share_a_number(system: str, user: str, later: str) -> None:
    """What comes after the first message of the user changes nothing."""
    turns = (Message(role="assistant", content=later), Message(role="user", content=later))
    assert affinity_of(_chat(user, system=system)) == affinity_of(_chat(user, *turns, system=system))


def test_conversations_differ_by_their_beginning() -> None:
    """Another first message, instruction or picture is another conversation, also behind long instructions
    that all share.
    """
    long = "x" * 3 * AFFINITY_BYTES
    picture = "data:image/png;base64," + "A" * AFFINITY_BYTES
    tasks: list[ChatTask | CompletionTask] = [
        _chat("a"),
        _chat("b"),
        _chat("a", system="Be brief."),
        _chat("a", system=long),
        _chat("b", system=long),
        ChatTask(
            messages=(Message(role="user", content=(TextPart(text="see"), ImagePart(url=picture + "1"))),)
        ),
        ChatTask(
            messages=(Message(role="user", content=(TextPart(text="see"), ImagePart(url=picture + "2"))),)
        ),
        CompletionTask(prompt="once"),
        CompletionTask(prompt="twice"),
        CompletionTask(prompt=(1, 2)),
        CompletionTask(prompt=(12,)),
    ]
    assert len({affinity_of(task) for task in tasks}) == len(tasks)


def test_the_number_is_the_same_in_every_process() -> None:
    """It does not rest on Python's own hash, which differs from run to run; odd text does no harm."""
    assert affinity_of(CompletionTask(prompt="once upon a time")) == 11164044858836442944
    assert affinity_of(_chat("\ud800")) is not None


def test_a_task_without_a_prompt_has_no_affinity() -> None:
    """A chat without messages of the system or the user tells nothing."""
    assert affinity_of(ChatTask(messages=())) is None
    assert affinity_of(ChatTask(messages=(Message(role="assistant", content="hi"),))) is None
