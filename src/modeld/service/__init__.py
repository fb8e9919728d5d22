"""What a daemon owes the system it runs under: readiness, signals, one instance at a time."""
