"""All that daemon and worker share: tasks and events, messages, framing, and the channel that carries them.

One `socketpair` per worker; no path to protect, and end-of-file means death in both directions. Messages are
frozen, tagged and additive; a receiver matches on type, never on a name from the wire.
"""
