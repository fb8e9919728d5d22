"""`python -m tests.bench.translator`: what the stream events of a response cost, on one core.

From an engine's events to framed server-sent events. Each figure is the best of several rounds, in stream
events per second of CPU time. Nothing here passes or fails.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Sequence

from modeld.protocol.tasks import (
    Event,
    Finish,
    Reasoning,
    Text,
    TokenLogprob,
    ToolCallDelta,
    TopLogprob,
    Usage,
)
from modeld.responses import events as e
from modeld.responses.items import Response
from modeld.responses.translator import Translator

TOKENS = 100_000
ROUNDS = 5

_TOP = tuple(TopLogprob(word, -2.5) for word in (" a", " the", " an", " one", " this"))
KINDS: dict[str, tuple[Event, ...]] = {
    "text": (Text(" word"), Text("ing"), Text(",")),
    "text beyond ASCII": (Text(" 世界"), Text("é"), Text("…")),
    "thoughts": (Reasoning(" word"), Reasoning("ing"), Reasoning(",")),
    "arguments": (ToolCallDelta(0, '"key'), ToolCallDelta(0, '": '), ToolCallDelta(0, "12,")),
    "text with 5 log probabilities": (Text(" word", 0, (TokenLogprob(" word", -0.5, None, _TOP),)),),
}


def run(tokens: Sequence[Event], batch: int) -> tuple[int, float]:
    """Stream one response; return its events and seconds. `batch`: events that the engine sends at once."""
    numbers = itertools.count()
    translator = Translator(
        Response(id="resp_1", created_at=1, model="m"), lambda prefix: f"{prefix}{next(numbers)}"
    )
    events = 0
    begin = time.process_time()
    translator.begin()
    for at in range(0, len(tokens), batch):
        for event in translator.feed(tokens[at : at + batch]):
            e.frame(event)
            events += 1
    translator.feed([Finish("stop"), Usage(1, len(tokens))])
    for event in [*translator.settle(), translator.finish(2)]:
        e.frame(event)
        events += 1
    return events, time.process_time() - begin


def main() -> None:
    """Print the figures."""
    for name, kind in KINDS.items():
        tokens = list(itertools.islice(itertools.cycle(kind), TOKENS))
        for batch in (1, 16):
            rates = []
            for _ in range(ROUNDS):
                events, seconds = run(tokens, batch)
                rates.append(events / seconds)
            print(f"{name:<32} in batches of {batch:<3} {max(rates):>12,.0f} events/s", flush=True)


if __name__ == "__main__":
    main()
