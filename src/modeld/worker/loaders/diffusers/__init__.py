"""Image models on diffusers, in this worker's own process.

A model is a pipeline folder (`model_index.json` and a folder for each part). Its parts are loaded once and
shared by three pipelines: text to image, image to image, and inpainting where the family has it
(`pipeline`). Pictures that callers send are decoded behind limits (`worker.media.pictures`). One thread
draws, one call at a time, and a cancelled call stops at its next denoising step (`model`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load the pipeline folder `spec.path`. Raises LoadFailed."""
    from modeld.worker.loaders.diffusers.model import start

    return await start(spec, report)
