"""From what a configuration names as a model to files on this disk."""
