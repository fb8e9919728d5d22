"""The Responses API: what a request asks for, how a model's answer becomes items and events, what is kept.

It stands above the gateway, whose edge, errors and egress it uses, because it has what the gateway's
families have not: state. Pure are `items`, `events`, `translator` and `building` (what is answered),
`request`, `inputs`, `input_items` and `turns` (what is asked), `approvals`, `truncation` and `compact`.
`history` reads what an earlier response left, `prepare` refuses what can be refused, `engine` runs one
response from its first event to its last, `background` owns the runs that no connection waits for, `asking`
puts a question to a model beside that, `mcp` speaks with the servers that callers name, `sealed` encrypts
what callers carry around and cannot read. `routes`, `prompts` (counting, compaction), `conversations` and
`websocket` are its faces.

One run is one task. It hands events to an outlet (an event stream, a socket, a log in the store), keeps the
response before the last event leaves, and ends in exactly one of completed, incomplete, failed, cancelled.
"""
