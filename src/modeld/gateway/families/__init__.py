"""One package or module for each family of routes."""
