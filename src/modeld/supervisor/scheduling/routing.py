"""Which replica takes a request: the least loaded, or the one that has seen the conversation before. Pure.

An engine keeps the attention state of prompts it has read. A later turn of the same conversation begins with
the same words, so on the same replica it need not read them again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from modeld.protocol.tasks import ChatTask, CompletionTask, ImagePart, Message, Task, TextPart

AFFINITY_BYTES = 4096
"""Bytes of each message, or of a completion's prompt, that tell conversations apart. It is a bound for each:
long instructions that all conversations share must not hide how they differ.
"""

AFFINITY_SLACK = 2
"""Requests by which a conversation's replica may be busier than the least loaded and still be taken: reading
a prompt anew costs about as much as waiting for a request or two.
"""


@dataclass(frozen=True)
class Choice:
    """A replica that serves: `in_flight` of its `slots` are taken."""

    replica: str
    in_flight: int
    slots: int


def choose(choices: Sequence[Choice], affinity: int | None) -> str | None:
    """Return the replica to take, None when no slot is free. The order of `choices` does not matter."""
    free = [choice for choice in choices if choice.in_flight < choice.slots]
    if not free:
        return None
    least = min(free, key=lambda choice: (choice.in_flight / choice.slots, choice.replica))
    if affinity is None or len(choices) == 1:
        return least.replica
    home = max(choices, key=lambda choice: (_score(affinity, choice.replica), choice.replica))
    if home.in_flight < home.slots and home.in_flight <= least.in_flight + AFFINITY_SLACK:
        return home.replica
    return least.replica


def _score(affinity: int, replica: str) -> bytes:
    """Rendezvous hashing: each conversation ranks the replicas in its own order, which the coming and going
    of others does not change.
    """
    return hashlib.blake2b(f"{affinity}/{replica}".encode(), digest_size=8).digest()


def affinity_of(task: Task) -> int | None:
    """Return a number that the turns of one conversation share; None for a task without a prompt.

    It is made of the system messages and the first message of the user, or of a completion's beginning.
    """
    hashed = hashlib.blake2b(digest_size=8)
    begun = False
    for text in _opening(task):
        begun = True
        hashed.update(text[:AFFINITY_BYTES].encode(errors="replace")[:AFFINITY_BYTES])
        hashed.update(b"\0")
    return int.from_bytes(hashed.digest(), "big") if begun else None


def _opening(task: object) -> Iterator[str]:
    """Give the texts of a task that later turns repeat."""
    match task:
        case ChatTask(messages=messages):
            for message in messages:
                if message.role == "system" or message.role == "user":
                    yield from _texts(message)
                if message.role == "user":
                    return
        case CompletionTask(prompt=str() as prompt):
            yield prompt
        case CompletionTask(prompt=tuple() as tokens):
            yield ",".join(map(str, tokens[:AFFINITY_BYTES]))
        case _:
            return


def _texts(message: Message) -> Iterator[str]:
    if isinstance(message.content, str):
        yield message.content
        return
    for part in message.content or ():
        match part:
            case TextPart(text=text):
                yield text
            case ImagePart(url=url):
                yield url[-AFFINITY_BYTES:]  # pictures of one kind begin alike
