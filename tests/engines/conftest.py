from __future__ import annotations

from pathlib import Path

import pytest

from tests.harness.models import demo_model


@pytest.fixture(scope="session")
def demo_gguf() -> Path:
    """Give the real demo model."""
    return demo_model()
