"""One deployment per model, one replica per copy, one worker process per replica, one ledger over all
memory.

Pure: `states` (what there is), `restart` (when to try again), `admission` (who may go in), `scaling` (how
many copies), `routing` (which copy), `oom` (was it the memory), and the scheduler: `demand` says what is
asked and what there is, `placement` finds a place for one demand (`books` keeps the account, `victims`
chooses who must go, `shortage` puts a refusal into words), `scheduler` decides for everybody at once
(`turns`: who loads now).

Acting: `replica` is the only writer of its state and its worker; `deployment` owns a model's queue
(`tickets`) and its replicas; `memory` is the only writer of claims and leases, and carries out the
scheduler's plans on what `observation` sees of the machine; `pool` holds the deployments and is what the
rooms above ask. `worker` is one life of one worker, made of `process` (spawn, log, kill ladder) and the
protocol's `Caller`; `stream` is one request's way through admission, call and at most one silent retry.
`sizing` turns what is known of a model into a demand; `capabilities` knows which engines are there;
`events` tells everybody else what happened, `log_ring` keeps what workers wrote, `leftovers` ends what an
earlier life of the daemon left running.

The scheduler is level-triggered: whenever something changed, the whole view goes in and a plan comes out,
so a missed or doubled change does no harm, and the same function runs under a simulation in its tests. A
request that finds its model loaded and a slot free never meets it.
"""
