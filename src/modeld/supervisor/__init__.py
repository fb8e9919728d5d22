"""One deployment per model, one replica per copy, one worker process per replica, one ledger over all
memory.

Pure: `scheduling` (what fits where, who goes first), `states` (what there is), `restart` (when to try
again), `admission` (who may go in), `oom` (was it the memory), `summary` (what a model shows of its
replicas), `upkeep` (when it has been idle for long enough).

Acting: `replica` is the only writer of its state and its worker (`intent`: what is wanted of it);
`deployment` owns a model's queue (`tickets`) and its replicas; `memory` is the only writer of claims and
leases, and carries out the scheduler's plans on what `observation` sees of the machine; `roster` knows
which models there are and how one takes another's place; `pool` is what the rooms above ask, and `world`
what it gives to all below. `worker` is one life of one worker, made of `process` (spawn, log, kill ladder)
and the protocol's `Caller`; `stream` is one request's way through admission, call and at most one silent
retry. `sizing` turns what is known of a model into a demand; `capabilities` knows which engines are there;
`events` tells everybody else what happened, `log_ring` keeps what workers wrote, `leftovers` ends what an
earlier life of the daemon left running.

The larger modules are those of the three owners of state: what belongs to one writer is not spread out.
"""
