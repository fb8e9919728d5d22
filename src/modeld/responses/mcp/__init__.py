"""MCP servers that callers name: what they are told, which of their tools a model sees, how those are called.

`tools` is pure: what a request says about servers, and which tools come of it. `session` is what a run uses:
one conversation with each server, opened when first needed. `client` speaks MCP by its SDK and `transport`
sends what that says past the egress guard; those two load much, and only when a server is really asked.
"""
