"""`/v1/completions`: raw prompts, one or several, in the older shapes."""
