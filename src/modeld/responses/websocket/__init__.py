"""`/v1/responses` as a WebSocket: many responses on one connection, each lane's one after the other.

`frames`, `lanes` and `memory` are pure: what travels, what may run, what is remembered. `connection` is the
socket's life, `routes` the way to it. Sources of the rules: OpenAI's guide to WebSocket mode (lanes, limits,
warm-up, eviction, codes) and the Open Responses specification (bare JSON text frames, no end marker).
"""
