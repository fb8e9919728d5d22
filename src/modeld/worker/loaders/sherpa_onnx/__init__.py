"""Speech on sherpa-onnx: Kokoro, and the other families whose folders `folder` knows.

The text is cut into sentences (`text`), which are spoken and coded one after the other, so that the first
can be heard while the last is still to come. sherpa-onnx 2 pronounces by a lexicon alone and leaves out the
words that are not in it; those are counted and told (`lexicon`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load the folder of a model. Raises LoadFailed, with what was looked for."""
    from modeld.worker.loaders.sherpa_onnx.model import start  # brings in numpy and libav

    return await start(spec, report)
