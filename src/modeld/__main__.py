"""`python -m modeld` is `modeld`."""

from __future__ import annotations

from modeld.cli.main import main

main()
