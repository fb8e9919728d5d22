from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types.responses import ResponseCompactionItem, ResponseUsage

from modeld.errors import EngineError
from modeld.protocol.tasks import Event, Finish, ImagePart, Message, Reasoning, Text, TextPart, Usage
from modeld.responses import turns
from modeld.responses.compact import KIND, REQUEST, compacted, items, longest, plan, summary
from modeld.responses.inputs import Item, kept
from modeld.responses.sealed import Seal

USER = Message(role="user", content="Count my sheep.")
ANSWER = Message(role="assistant", content="There are 12.")
BRIEF = Message(role="system", content="Be brief.")
USAGE = Usage(40, 9, 3, 2)


def ids() -> Any:
    """Return a maker of ids."""
    numbers = itertools.count()
    return lambda prefix: f"{prefix}{next(numbers)}"


def test_the_request_follows_the_conversation() -> None:
    """The conversation is left as it was, instructions first, and a turn of the user's asks for a summary."""
    task = plan((BRIEF, USER, ANSWER))
    assert task.messages == (BRIEF, USER, ANSWER, Message(role="user", content=REQUEST))
    assert (task.tools, task.n) == ((), 1)


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        ("Count my sheep.", f"Count my sheep.\n\n{REQUEST}"),
        ("", REQUEST),
        (
            (TextPart(text="See:"), ImagePart(url="data:,x")),
            (TextPart(text="See:"), ImagePart(url="data:,x"), TextPart(text=f"\n\n{REQUEST}")),
        ),
    ],
)
def test_a_question_that_waits_shares_its_turn_with_the_request(content: Any, wanted: Any) -> None:
    """The user does not speak twice in a row, which strict templates refuse."""
    task = plan((BRIEF, Message(role="user", content=content)))
    assert task.messages == (BRIEF, Message(role="user", content=wanted))


@given(st.integers(1, 2_000_000))
def test_a_summary_has_a_share_of_the_context(length: int) -> None:
    """Never more than half of it, a quarter where that is enough, and never more than 4,096 tokens."""
    most = longest(length)
    assert 1 <= most <= max(length // 2, 1)
    assert most <= 4096
    assert most >= min(length // 4, 4096)
    task = plan((USER,), context_length=length)
    assert task.sampling.max_tokens == most


def test_the_summary_is_the_text_of_the_answer() -> None:
    """Thoughts are no part of it; one that was cut off counts."""
    events: list[Event] = [Reasoning("hm"), Text(" 12 "), Text("sheep.\n"), Finish("length"), USAGE]
    assert summary(events) == ("12 sheep.", USAGE)


@pytest.mark.parametrize(
    ("events", "code"),
    [
        ([Reasoning("hm"), Text(" \n"), Finish("length"), USAGE], "no_summary"),
        ([Text("12 sheep")], "incomplete_answer"),
        ([], "incomplete_answer"),
    ],
)
def test_an_answer_without_a_summary_is_the_engines_failure(events: list[Event], code: str) -> None:
    """Nothing is sealed that says nothing."""
    with pytest.raises(EngineError) as caught:
        summary(events)
    assert caught.value.code == code


def conversation() -> list[Item]:
    """Return a conversation as it is kept, with an earlier compaction in it."""
    return kept(
        [
            {"role": "developer", "content": "Be brief."},
            {"role": "user", "content": "Count my sheep.", "id": "msg_first"},
            {"type": "compaction", "encrypted_content": "old"},
            {"type": "function_call", "call_id": "call_1", "name": "count", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "call_1", "output": "12"},
            {"role": "assistant", "content": "12."},
            {"role": "user", "content": [{"type": "input_image", "image_url": "data:,x"}]},
        ],
        ids(),
    )


def test_the_user_is_kept_word_for_word_and_the_rest_is_one_item() -> None:
    """The user's messages are the same items, in order; then comes one compaction, and nothing else."""
    given = conversation()
    made = items(given, "12 sheep", lambda text: f"sealed {text}", ids())
    assert made[:-1] == [given[1], given[-1]]
    assert made[-1] == {"type": "compaction", "id": "cmp_0", "encrypted_content": "sealed 12 sheep"}
    ResponseCompactionItem.model_validate(made[-1], strict=True)


def test_what_was_sealed_is_read_again_as_a_turn(tmp_path: Path) -> None:
    """The items go back as input: the model reads the user's words and the summary; nobody else does."""
    seal = Seal(tmp_path / "seal.key")
    made = items(conversation()[:3], "12 sheep", lambda text: seal.seal(KIND, text, "local"), ids())
    assert "sheep" not in made[-1]["encrypted_content"]
    again = kept(json.loads(json.dumps(made)), ids())
    assert again == made

    def unseal(kind: str, sealed: str) -> str:
        return seal.open(kind, sealed, "local")

    first, second = turns.messages((), again, None, album=None, unseal=unseal)
    assert first == USER
    assert second.role == "system"
    assert str(second.content).endswith("12 sheep")


def test_the_answer_is_the_published_object() -> None:
    """Id, time, items and usage, with every count that the SDK demands."""
    body = compacted([{"type": "compaction"}], USAGE, id="resp_1", created=17)
    assert set(body) == {"id", "object", "created_at", "output", "usage"}
    assert (body["object"], body["id"], body["created_at"]) == ("response.compaction", "resp_1", 17)
    used = ResponseUsage.model_validate(body["usage"], strict=True)
    assert (used.input_tokens, used.output_tokens, used.total_tokens) == (40, 9, 49)
    assert used.input_tokens_details.cached_tokens == 3
    assert used.output_tokens_details.reasoning_tokens == 2
