"""Engines in environments of their own, below the state directory, made and removed by `modeld engines`.

Engines disagree about the versions of what they stand on, so each gets a virtual environment that holds it
and nothing of modeld's: the worker program runs there as a file (`worker.elsewhere`). `pins` says what goes
into one, `variant` which build suits this machine; `place` is where they lie and what is told about one;
`pip` runs pip under a `warden` and tells how far it is; `check` tries a new one; `install` puts it together
and into place; `listing` says where each engine is.

The room stands above the supervisor, because trying an environment means running a worker in it, and because
where an engine is, is the supervisor's knowledge (`supervisor.capabilities`); beside the gateway and the
admin socket, which it needs as little as they need it. The daemon itself uses `place` only, to look whether
there is an environment; nothing is ever installed by the daemon.
"""
