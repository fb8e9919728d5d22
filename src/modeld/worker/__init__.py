"""The worker: a program of its own, one process per model replica.

`python -m modeld.worker --fd N --parent PID` speaks the link protocol on an inherited socket. It imports
telemetry, protocol, errors and ids only, so that it runs under an engine's own interpreter; engines
are imported inside `loader.load`. Its standard output and error are its log. It dies with its daemon: end-
of-file on the link, and on Linux the kernel's parent-death signal.

`tools/` is the seam every text loader shares: it renders tools for templates that know none, enforces
tool_choice by schema, and turns text into tool calls.
"""
