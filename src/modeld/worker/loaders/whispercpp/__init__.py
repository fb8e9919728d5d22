"""Transcription on whisper.cpp, inside this worker's process.

The engine works in one thread of its own and lets go of the interpreter meanwhile, so the worker goes on
listening. A recording is worked on in stretches (`engine`), so that its length costs no memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load a model file. Raises LoadFailed, permanent for a file that whisper.cpp cannot read."""
    from modeld.worker.loaders.whispercpp.model import start  # brings in the engine

    return await start(spec, report)
