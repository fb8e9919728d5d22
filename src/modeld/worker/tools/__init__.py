"""The tool seam: tools for any text engine, whatever its chat template knows and whatever it enforces.

`plan` says what to ask the engine; the plan's parser turns the engine's text into typed events. No I/O.
"""

from __future__ import annotations

from modeld.worker.tools.parser import CallParser
from modeld.worker.tools.planning import ParserFactory, Plan, TemplateFacts, plan

__all__ = ["CallParser", "ParserFactory", "Plan", "TemplateFacts", "plan"]
