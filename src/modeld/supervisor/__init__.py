"""One actor per model, one worker process per actor, one pool over all of them.

Pure: `states` (what there is), `restart` (when to try again), `admission` (who may go in), `placement`
(what fits). Acting: `actor` is the only writer of its model's state and queue (`tickets`); `worker` is one
life of one worker, made of `process` (spawn, log, kill ladder) and the protocol's `Caller`; `stream` is one
request's way through admission, call and at most one silent retry; `pool` holds the actors, and is what the
rooms above ask. `events` tells everybody else what happened, `log_ring` keeps what workers wrote,
`leftovers` ends what an earlier life of the daemon left running.
"""
