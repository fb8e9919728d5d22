"""The Responses API: what a request asks for, how a model's answer becomes items and events, what is kept.

It stands above the gateway, whose edge, errors and egress it uses, because it has what the gateway's families
have not: state. `items`, `events`, `translator`, `inputs` and `request` are pure; `history` reads what an
earlier response left, `engine` runs one response from its first event to its last, `background` owns the
runs that no connection waits for, `mcp` speaks with the servers that callers name, `sealed` encrypts what
callers carry around and cannot read, `routes`, `conversations` and `websocket` are its faces.

One run is one task. It hands events to an outlet (an event stream, a socket, a log in the store), keeps the
response before the last event leaves, and ends in exactly one of completed, incomplete, failed, cancelled.
"""
