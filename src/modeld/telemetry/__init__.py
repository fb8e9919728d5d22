"""What modeld says about itself while it runs: structured logs, and every metric's name in one place."""
