"""What the daemon remembers over restarts, in one SQLite file with one writer."""
