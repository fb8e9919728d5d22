"""Image models on stable-diffusion.cpp, run by this worker as a child process.

The library is a guest that cannot be trusted with a process that has other duties: a load that fails ends in
a segmentation fault, so does closing it while it draws, and a picture that was begun cannot be stopped. So it
lives in a process of its own (`child`), which the worker speaks to in frames over a socket pair (`wire`).

**Cancelling.** When a call is cancelled in the middle of a picture, the child is killed, which frees the
processor or GPU at once, and a new child loads the model again in the background. Calls that come meanwhile
wait for that load, and for nothing else: not for the rest of a picture that nobody wants. The price is one
load, from the page cache, for each cancelled picture; a call that is cancelled while it waits costs nothing.

**Dying.** A child that ends by itself, loading or drawing, is the engine's death: the load is refused, or the
worker dies, with the child's last log lines. So headers are read before the library sees a file (`weights`),
and prompts name LoRAs in one folder only (`loras`). Pictures that callers send are decoded in the worker,
behind limits (`drawing`), and reach the child as bare pixels. The child's log goes on to the worker's, but
for the lines in which the library repeats prompts.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from modeld.protocol.messages import LoadSpec
    from modeld.worker.loader import LoadedModel, Report


async def load(spec: LoadSpec, report: Report) -> LoadedModel:
    """Load the model file `spec.path`, and the parts that the options name. Raises LoadFailed."""
    from modeld.worker.loaders.stable_diffusion_cpp.model import start

    return await start(spec, report)
