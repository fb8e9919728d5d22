"""`openai` for Python, strict, on raw prompts."""

from __future__ import annotations

import pytest

from tests.conformance.python_sdk import Sdk
from tests.conformance.questions import STEADY

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

PROMPT = "The capital of France is"
FRANCE = {"model": "plain", "prompt": PROMPT, "max_tokens": 4, **STEADY}


async def test_a_prompt_is_continued_plain_and_streamed(sdk: Sdk) -> None:
    """completions.create continues the prompt; a stream gives the same text, then usage when asked for."""
    answer = await sdk.complete(**FRANCE)
    [choice] = answer.choices
    assert choice.text.startswith(" Paris")
    assert choice.finish_reason == "length"
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 4
    assert (answer._request_id or "").startswith("req_")
    *chunks, last = await sdk.completion_chunks(**FRANCE, stream_options={"include_usage": True})
    assert "".join(chunk.choices[0].text for chunk in chunks) == choice.text
    assert chunks[-1].choices[0].finish_reason == "length"
    assert last.choices == []
    assert last.usage is not None
    assert last.usage.completion_tokens == 4


async def test_logprobs_cover_the_text(sdk: Sdk) -> None:
    """The four lists of completions' own form are as long as the tokens, which join to the text, each at its
    offset.
    """
    [choice] = (await sdk.complete(**FRANCE, logprobs=2)).choices
    logprobs = choice.logprobs
    assert logprobs is not None
    assert logprobs.tokens is not None
    assert "".join(logprobs.tokens) == choice.text
    assert len(logprobs.tokens) == len(logprobs.token_logprobs or ()) == 4
    assert all(len(best) >= 2 for best in logprobs.top_logprobs or ())
    assert logprobs.text_offset is not None
    for token, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert choice.text[offset:].startswith(token)


async def test_echo_and_several_prompts(sdk: Sdk) -> None:
    """echo puts each prompt before its own continuation, choices in the order of the prompts."""
    prompts = [PROMPT, "One, two,"]
    answer = await sdk.complete(**{**FRANCE, "prompt": prompts}, echo=True)
    assert [choice.index for choice in answer.choices] == [0, 1]
    for prompt, choice in zip(prompts, answer.choices, strict=True):
        assert choice.text.startswith(prompt)
        assert len(choice.text) > len(prompt)
    chunks = await sdk.completion_chunks(**FRANCE, echo=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == answer.choices[0].text
