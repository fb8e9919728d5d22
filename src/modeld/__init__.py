"""modeld: one daemon that turns a machine into its owner's private OpenAI.

Rooms, from the floor up; imports point downwards only (`pyproject.toml` holds the contract):

    cli > daemon > gateway | admin > supervisor | library > hardware | service > config
        > telemetry > protocol > errors > ids | clock | trust

`worker` is a separate program, one process per model; of these rooms it may import telemetry, protocol,
errors and ids only, so that it stays thin enough to run under an engine's own interpreter.
"""

from __future__ import annotations

__version__ = "0.1.0"
