"""Changing the running daemon's models: from documents to a plan, from the plan to the pool and the store.

`goal` works out what a change leads to, `room` carries it out, `specs` is what the pool is told of each
model, `start` which models a start begins with, `watch` when the daemon's own file is read again.
"""

from modeld.control.room import Control
from modeld.control.specs import media_limits, specs_of
from modeld.control.start import restored, starting_models

__all__ = ["Control", "media_limits", "restored", "specs_of", "starting_models"]
