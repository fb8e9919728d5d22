"""`python -m tests.harness.loads`: tries loads in one process, which imports the engine once; says why not.

Reads a JSON list of specs from standard input; answers on the last line of standard output with a list of
what became of each: [permanent, message] of a LoadFailed, or null for a load that went well.
"""

from __future__ import annotations

import asyncio
import sys

import msgspec

from modeld.errors import LoadFailed
from modeld.protocol.messages import LoadSpec
from modeld.worker import registry


async def _tried(specs: list[LoadSpec]) -> list[tuple[bool, str] | None]:
    outcomes: list[tuple[bool, str] | None] = []
    for spec in specs:
        try:
            model = await registry.find(spec.loader).load(spec, lambda stage, fraction: None)
        except LoadFailed as error:
            outcomes.append((error.permanent, str(error)))
        else:
            await model.close()
            outcomes.append(None)
    return outcomes


if __name__ == "__main__":
    found = asyncio.run(_tried(msgspec.json.decode(sys.stdin.buffer.read(), type=list[LoadSpec])))
    sys.stdout.flush()
    print(msgspec.json.encode(found).decode(), flush=True)
