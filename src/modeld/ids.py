"""Identifiers: one NewType each, so that a call id is never passed where a model name is meant."""

from __future__ import annotations

import secrets
from typing import NewType

ModelName = NewType("ModelName", str)
"""The name the owner gave a model in the configuration; the routed id."""

CallId = NewType("CallId", int)
"""One call on one worker link; unique for the life of the link."""

RunId = NewType("RunId", str)
"""One life of one worker process."""

RequestId = NewType("RequestId", str)
"""One HTTP request, as answered in `x-request-id`."""

Identity = NewType("Identity", str)
"""Who calls: "local" on a daemon without keys, else a digest of the key. Scopes state and prompt caches."""

LOCAL = Identity("local")


def new_id(prefix: str) -> str:
    """Return `prefix` followed by 24 random hex digits, e.g. `new_id("req_")`."""
    return prefix + secrets.token_hex(12)
