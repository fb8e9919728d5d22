"""How much servers may take: time, and memory."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class McpLimits:
    """Limits for each server. Times in seconds, sizes in bytes.

    `list_s` for opening a session and listing, `call_s` for one call, `close_s` for saying goodbye.
    `result_bytes` of a tool's answer as text, `list_bytes` of all pages of a list together, `pages` of a list
    and `tools` in it.
    """

    list_s: float = 30.0
    call_s: float = 60.0
    result_bytes: int = 1024**2
    close_s: float = 2.0
    list_bytes: int = 4 * 1024**2
    pages: int = 100
    tools: int = 512

    @property
    def answer_bytes(self) -> int:
        """What one call's answers may have on the wire, where JSON may write a character as six."""
        return 6 * self.result_bytes + 64 * 1024
