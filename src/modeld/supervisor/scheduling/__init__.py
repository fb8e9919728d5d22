"""What fits where, who goes first, how many copies, and which of them: decisions only, no I/O and no clock.

`demand` says what is asked and what there is. `placement` finds a place for one demand: `books` keeps the
account, `victims` chooses who must go, `shortage` puts a refusal into words. `scheduler` decides for
everybody at once, with `turns` for who may load now. `scaling` is the number of copies, `routing` the copy
for a request.

The scheduler is level-triggered: whenever something changed, the whole view goes in and a plan comes out,
so a missed or doubled change does no harm, and the same function runs under a simulation in its tests. A
request that finds its model loaded and a slot free never meets it.
"""
