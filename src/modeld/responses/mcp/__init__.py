"""MCP servers that callers name: what they are told, which of their tools a model sees, how those are called.

`servers` and `tools` are pure: what a request says about servers, and which tools come of it. `session` is
what a run uses: one conversation with each server, opened when first needed. `client` speaks MCP by its SDK,
`transport` sends what that says past the egress guard, and `sieve` keeps from it what a server should not
say; those three load much, and only when a server is really asked.
"""
