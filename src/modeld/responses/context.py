"""What every part of the room is given, and the few facts that all of them need."""

from __future__ import annotations

from dataclasses import dataclass, field

from aiohttp import web

from modeld.clock import Clock
from modeld.gateway.egress import Egress, Policy
from modeld.gateway.ports import Pool
from modeld.gateway.settings import GatewaySettings
from modeld.responses.mcp.session import McpLimits
from modeld.responses.sealed import Seal
from modeld.store.approvals import Approvals
from modeld.store.conversations import Conversations
from modeld.store.responses import Responses
from modeld.telemetry.metrics import Metrics

FLEETING_S = 600.0
"""Seconds for which a background response is there after its end when nobody asked to store it."""


@dataclass(frozen=True, slots=True)
class Context:
    """The world outside of one response.

    `keep_s`: seconds for which a response is stored, None for ever. `replay_s`: seconds for which the stream
    of a background run can be read again after its end. `most_background`: unfinished runs in the background.
    """

    pool: Pool
    settings: GatewaySettings
    responses: Responses
    conversations: Conversations
    approvals: Approvals
    seal: Seal
    pictures: Egress
    mcp: Egress
    mcp_policy: Policy
    mcp_limits: McpLimits
    clock: Clock
    keep_s: float | None
    replay_s: float
    most_background: int = 1000
    metrics: Metrics = field(default_factory=Metrics)

    def expires(self, created: float, *, store: bool) -> float | None:
        """Return until when a response is kept, in seconds since the Unix epoch; None for ever."""
        if not store:
            return created + FLEETING_S
        return None if self.keep_s is None else created + self.keep_s


KEY = web.AppKey("responses", Context)
"""Where the application carries it."""
