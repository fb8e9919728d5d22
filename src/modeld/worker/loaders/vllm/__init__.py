"""Models on vLLM: its engine in processes of its own, its serving layer in this one.

vLLM renders chats, parses calls and thoughts, holds answers to schemas and counts tokens, exactly as its own
server does; here its answers become events (`chunks`), and its failures errors (`failures`). Where a model
has no parser of calls, `worker.tools` gives it tools, by schema or from its text. What vLLM and its children
print is read on its way to the log, for progress and last words (`log`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Start the engine and wait until it serves. Raises LoadFailed with the engine's last words."""
    from modeld.worker.loaders.vllm.start import start

    return await start(spec, report)
