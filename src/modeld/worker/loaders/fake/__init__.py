"""A scripted model for faults, load, speed and what small models cannot do. It proves nothing of any engine.

Its options are the configuration's `fake_config`; the configuration refuses it unless `allow_fake: true`.
"""

from __future__ import annotations

from modeld.worker.loaders.fake.model import load
from modeld.worker.loaders.fake.script import Script

__all__ = ["Script", "load"]
