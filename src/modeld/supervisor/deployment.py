"""One model of the pool: its queue, its replicas, how many there should be, and when none should.

The only writer of the queue (`tickets`) and of the number of replicas. Everybody else asks: `enter` for a
request, `load`, `unload`, `restart` for the owner, `retire` for a change of configuration.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator

from msgspec.structs import replace

from modeld.errors import ModeldError, ModelFailed, ModelUnavailable, Overloaded
from modeld.supervisor import admission
from modeld.supervisor.admission import Priority, Situation, Verdict
from modeld.supervisor.log_ring import LogRing
from modeld.supervisor.memory import Standing, Usage
from modeld.supervisor.replica import Replica
from modeld.supervisor.scheduling import routing
from modeld.supervisor.scheduling.placement import Never, Refusal
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import COMING, State, Status
from modeld.supervisor.summary import Copy, summarise
from modeld.supervisor.tickets import Ticket, Tickets
from modeld.supervisor.upkeep import Upkeep
from modeld.supervisor.world import World

FAILED_COOL_S = 60.0
"""Seconds after which a request may try a model on demand again that has failed."""

MEMORY_RETRY_S = 5.0
"""What a caller is told to wait when memory is held by pinned models or other programs."""

UNLOADED = "unloaded"
"""What a status says of a model that its owner brought down."""


class Deployment:
    """A model and all that belongs to it."""

    def __init__(self, spec: ModelSpec, world: World, *, generation: int = 0) -> None:
        """`generation` tells apart the replicas of a model and of the one that replaces it."""
        self.spec = spec
        self.tickets = Tickets()
        self.ring = LogRing(world.clock)
        self.successor: Deployment | None = None
        """Who has taken over its requests, and takes those that come back to it."""
        self._world = world
        self._generation = generation
        self._target = 0
        self._down = False
        self._held = False
        self._order: int | None = None
        self._forced = False
        self._passive = False
        self._upkeep = Upkeep(world.clock.monotonic())
        self._failed_at: float | None = None
        self.hopeless = False
        """The last claim was refused, and waiting would not have helped."""
        self._deadline: float | None = None
        self._restarts = 0
        self._people_at = float("-inf")
        """When an interactive request last came or went."""
        self._replicas: dict[int, Replica] = {}
        self._lives: dict[int, asyncio.Task[None]] = {}
        self._watchers: list[tuple[Callable[[Status], bool], asyncio.Future[Status]]] = []
        self._replica(0)
        self.status = self._summary()

    # --- what the owner asks --------------------------------------------------------------------------------

    @property
    def wanted(self) -> bool:
        """Whether it should be up, now."""
        return self._target > 0

    @property
    def open(self) -> bool:
        """Whether any replica takes requests."""
        return any(replica.open for replica in self._replicas.values())

    @property
    def replicas(self) -> tuple[Replica, ...]:
        """Its replicas, in order."""
        return tuple(self._replicas[index] for index in sorted(self._replicas))

    def start(self) -> None:
        """Come up as configured at the daemon's start: an eager model takes what memory is free."""
        if not self.spec.on_demand and self.spec.scaling.initial:
            self._set_target(self.spec.scaling.initial)

    def hold(self) -> None:
        """Start nothing before `release`, whoever asks: the one that this one replaces has to go first."""
        self._held = True
        self._publish()

    def release(self) -> None:
        """Start what has been asked for meanwhile."""
        self._held = False
        self._set_target(self._target)

    def load(self, *, force: bool = False, passive: bool = False) -> None:
        """Come up: the owner's order. A FAILED model gets a new chance, one in BACKOFF tries now.

        `force` may evict busy models; `passive` takes free memory only.
        """
        self._down = False
        self._failed_at = None
        self.hopeless = False
        self._upkeep.used_at = self._world.clock.monotonic()
        serving = any(replica.serving for replica in self._replicas.values())
        self._order = None if passive or serving else next(self._world.numbers)
        self._forced = force
        self._passive = passive
        self._set_target(max(self._target, self.spec.scaling.initial, 1), anew=True)
        self._world.memory.changed()

    def unload(self, cause: str, words: str, drain_s: float | None = None, *, stay: bool = False) -> None:
        """Go down, after at most `drain_s` seconds for open requests.

        With `stay` no request brings it back. Who waits is refused with `words`.
        """
        self._down = stay
        self._order = None
        self._upkeep.keep_alive_s = None
        self._target = 0
        for replica in self.replicas:
            replica.unwant(cause, words, drain_s)
        because = "" if words == UNLOADED else f": {words}"
        self.tickets.refuse_waiting(
            ModelUnavailable(f"model {self.spec.name!r} was unloaded{because}", param="model")
        )
        self._publish()

    def unload_asked(self, drain_s: float | None = None) -> None:
        """Go down because the owner says so: a model on demand comes back with the next request."""
        self.unload("asked", UNLOADED, drain_s, stay=not self.spec.on_demand)

    def restart(self) -> None:
        """Go down and up again."""
        self.load()
        for replica in self.replicas:
            replica.again("restarting")

    def update(self, spec: ModelSpec) -> None:
        """Take new settings that need no new worker."""
        eager = self.spec.on_demand and not spec.on_demand
        self.spec = spec
        target = self._target
        if eager and not self._down:
            target = max(target, spec.scaling.initial, 1)
        if target:
            low, high = max(spec.scaling.minimum, 1), spec.scaling.maximum
            self._set_target(min(max(target, low), high))
        self._schedule()
        self._admit()
        self._world.memory.changed()
        self._publish()

    async def retire(self, cause: str, words: str, drain_s: float | None = None) -> None:
        """Go down for good; returns when no worker is left. Who waits is refused with `words`."""
        self.unload(cause, words, drain_s, stay=True)
        await self.until(lambda status: status.state in (State.STOPPED, State.FAILED))
        self.end()

    def end(self) -> None:
        """Cancel the replicas' lives; their workers are stopped on the way."""
        for life in self._lives.values():
            life.cancel()

    async def until(self, test: Callable[[Status], bool], *, now: bool = True) -> Status:
        """Wait until `test` holds for the status, and return the status for which it did.

        No status is missed, however short-lived. With `now` false the present one does not count.
        """
        if now and test(self.status):
            return self.status
        future: asyncio.Future[Status] = asyncio.get_running_loop().create_future()
        watcher = (test, future)
        self._watchers.append(watcher)
        try:
            return await future
        finally:
            self._watchers.remove(watcher)

    # --- requests -------------------------------------------------------------------------------------------

    def enter(
        self,
        priority: Priority,
        affinity: int | None = None,
        seq: int | None = None,
        give_way: Callable[[], None] | None = None,
    ) -> Ticket:
        """Take a slot or a place in the queue. Raises Overloaded, ModelFailed or ModelUnavailable.

        `seq` is the number of a request that comes back: it keeps its place. `give_way` is as in Ticket.
        """
        seq = next(self._world.numbers) if seq is None else seq
        self._cooled_down()
        verdict = admission.decide(self._situation())
        if isinstance(verdict, Overloaded) and priority is Priority.INTERACTIVE:
            # Places that yielding calls take, and slots that they will give, are as good as free for it.
            verdict = admission.decide(self._situation(self.tickets.yielding))
        if isinstance(verdict, ModeldError):
            raise verdict
        now = self._world.clock.monotonic()
        ticket = Ticket(self, priority, seq, affinity=affinity, now=now, give_way=give_way)
        if priority is Priority.INTERACTIVE:
            self._people_at = now
        # Jobs may wait beside a slot that is kept free for exactly this request.
        first = verdict is Verdict.GRANT or (priority is Priority.INTERACTIVE and self.tickets.only_yielding)
        replica = self._choose(ticket) if first else None
        if replica is None:
            self.tickets.wait(ticket)
            self._called_for()
            if priority is Priority.INTERACTIVE:
                self.tickets.make_way()
        else:
            self._grant(ticket, replica)
            self.tickets.hold(ticket, replica)
            if not self.spec.scaling.fixed:
                self._schedule()
        return ticket

    def keep_alive(self, seconds: float | None) -> None:
        """Take a request's own keep-alive (seconds, infinity for never); None says nothing.

        What a request says holds until the model is unloaded: a 0 ends one life, not each. `Upkeep` has the
        order of precedence.
        """
        if seconds is not None:
            self._upkeep.keep_alive_s = seconds

    def leave(self, ticket: Ticket) -> None:
        """Take back a ticket's slot or place."""
        if not self.tickets.leave(ticket):
            if not self.tickets.queued:
                self._nobody_waits()
            return
        now = self._world.clock.monotonic()
        self._upkeep.used_at = now
        replica = ticket.replica
        assert replica is not None
        replica.in_flight -= 1
        if ticket.priority is Priority.INTERACTIVE:
            self._people_at = now
        if not replica.in_flight:
            replica.idle_since = now
        if self.tickets.queued:
            self._admit()
        if self._world.memory.contended:
            self._world.memory.changed()
        if not self.tickets.in_flight or not self.spec.scaling.fixed:
            self._schedule()

    def reopen(self) -> None:
        """Let in who may go in now: a claim that closed a replica may be gone."""
        if self.tickets.queued:
            self._admit()

    def adopt(self, other: Deployment) -> None:
        """Take over the requests that wait for the model this one replaces."""
        other.successor = self
        other.tickets.hand_over(self.tickets, self)
        if self.tickets.queued:
            self._called_for()
            self._admit()

    def _called_for(self) -> None:
        """A request waits: see to it that something comes."""
        self.hopeless = False
        if not self._target:
            self._set_target(max(self.spec.scaling.initial, 1))
        for replica in self.replicas:
            replica.recheck()
        if any(replica.status.state in (State.WAITING, State.STARTING) for replica in self.replicas):
            self._world.memory.changed()
        if not self.spec.scaling.fixed:
            self._schedule(soon=True)

    def _nobody_waits(self) -> None:
        """The last of those who waited has left: what is not yet loading need not."""
        idle = self._order is None and not self.tickets.queued
        if idle and self.spec.on_demand and self._target and not self._passive:
            not_begun = {State.WAITING, State.STOPPED}
            if all(replica.status.state in not_begun for replica in self.replicas):
                self.unload("left", "nobody waits for it")

    def _choose(self, ticket: Ticket) -> Replica | None:
        if len(self._replicas) == 1:
            (replica,) = self._replicas.values()
            if not replica.open or replica.in_flight >= replica.slots:
                return None
            return None if self._closed(replica, ticket) else replica
        candidates = {
            replica.key: replica
            for replica in self._replicas.values()
            if replica.open and not self._closed(replica, ticket)
        }
        choices = [
            routing.Choice(key, replica.in_flight, replica.slots) for key, replica in candidates.items()
        ]
        chosen = routing.choose(choices, ticket.affinity)
        return None if chosen is None else candidates[chosen]

    def _closed(self, replica: Replica, ticket: Ticket) -> bool:
        """Say whether a replica is not for this request, though a slot may be free."""
        memory = self._world.memory
        job = ticket.give_way is not None
        if job:
            since = self._world.clock.monotonic() - self._people_at
            if admission.kept_free(replica.slots, self.tickets.jobs_on(replica), since):
                return True
        return memory.contended and memory.closed(replica.key, ticket.seq, makes_way=job)

    def _grant(self, ticket: Ticket, replica: Replica) -> None:
        replica.in_flight += 1
        if self._world.memory.contended:
            self._world.memory.granted(replica.key, ticket.seq)

    def _admit(self) -> None:
        def choose(ticket: Ticket) -> Replica | None:
            replica = self._choose(ticket)
            if replica is not None:
                self._grant(ticket, replica)
            return replica

        now = self._world.clock.monotonic()
        for ticket in self.tickets.admit(choose):
            self._world.observer.queue_waited(self.spec.name, now - ticket.waited_since)

    def _situation(self, more: int = 0) -> Situation:
        """Return what admission decides on; `more` are places beside those of the queue."""
        state = self.status.state
        slots = sum(replica.slots for replica in self._replicas.values() if replica.open)
        if state is State.READY and not slots:
            state = State.BACKOFF  # its worker has just died, or been told to stop; the move is on its way
        return Situation(
            self.spec.name,
            state,
            not self._down,
            self.tickets.in_flight,
            slots,
            self.tickets.queued,
            self.spec.max_queue + more,
            self.status.message,
        )

    def _cooled_down(self) -> None:
        """Give a failed model on demand a new chance, some time after its failure."""
        if self._failed_at is None or not self.spec.on_demand or self.status.state is not State.FAILED:
            return
        if self._world.clock.monotonic() - self._failed_at >= FAILED_COOL_S:
            self._failed_at = None
            self._set_target(max(self.spec.scaling.initial, 1), anew=True)

    # --- what its replicas say ------------------------------------------------------------------------------

    def standing(self, replica: Replica) -> Standing:
        """Say how urgent a replica's claim is: the first copy's is, when a request or the owner waits."""
        oldest = self.tickets.oldest
        first = not any(other.serving for other in self._replicas.values()) and replica is next(
            (other for other in self.replicas if other.wanted), None
        )
        since = min((number for number in (oldest, self._order) if number is not None), default=0)
        active = first and not self._passive and (oldest is not None or self._order is not None)
        patient = self._order is None and self.tickets.only_yielding
        return Standing(active, since, self.spec.priority, self._forced and active, patient)

    def usage(self, replica: Replica) -> Usage:
        """Say how much a replica is used."""
        idle = 0.0 if replica.in_flight else self._world.clock.monotonic() - replica.idle_since
        return Usage(replica.in_flight, idle, self.spec.pinned, self.spec.priority, replica.load_s)

    def progressed(self, replica: Replica) -> None:
        """A replica's status has changed."""
        if replica.restarts:
            self._restarts = sum(other.restarts for other in self._replicas.values())
        if replica.status.state in (State.STOPPED, State.FAILED):
            self._world.memory.changed()
            self._prune()
        elif replica.status.state is State.WAITING:
            self._nobody_waits()
        self._publish()

    def ready(self, replica: Replica) -> None:
        """A replica serves: let in who waits."""
        self._order = None
        self._forced = False
        self._passive = False
        self._failed_at = None
        self._upkeep.used_at = self._world.clock.monotonic()
        self._admit()
        self._schedule()

    def failed(self, replica: Replica, error: ModeldError) -> None:
        """A replica has given up; when none is left that could serve, who waits is told."""
        if any(other.serving or other.status.state in COMING for other in self._others(replica)):
            return
        self._order = None
        if replica.status.state is State.FAILED:
            self._failed_at = self._world.clock.monotonic()
            self._target = 0
            refusal: ModeldError = ModelFailed(f"model {self.spec.name!r} failed: {error}", param="model")
        else:
            refusal = ModelUnavailable(f"model {self.spec.name!r}: {error}", code=error.code, param="model")
        self.tickets.refuse_waiting(refusal)

    def evicted(self, replica: Replica, reason: str) -> None:
        """A replica makes room: it waits for room again, unless a request is what would bring it back."""
        alone = not any(other.serving for other in self._others(replica))
        if self.spec.on_demand and alone and not self.tickets.queued:
            self.unload("evicted", reason)
        else:
            replica.again(reason, cause="evicted")

    def make_way(self, replica: Replica) -> None:
        """Somebody waits for a replica's memory: calls that make way for others end."""
        self.tickets.clear(replica)

    def refused(self, replica: Replica, refusal: Refusal) -> None:
        """A replica gets no memory however long it waits: who waits for the model is told, with numbers."""
        if not self.standing(replica).active:
            return
        self._order = None
        self.hopeless = True
        code = "device_unavailable" if refusal.never is Never.DEVICE else "insufficient_memory"
        self.tickets.refuse_waiting(
            ModelUnavailable(
                f"model {self.spec.name!r}: {refusal.message}",
                code=code,
                param="model",
                retry_after=MEMORY_RETRY_S,
            )
        )
        if self.spec.on_demand:
            self.unload("memory", refusal.message)
        self._publish()

    def _others(self, replica: Replica) -> Iterator[Replica]:
        return (other for other in self._replicas.values() if other is not replica)

    # --- how many, and when none ----------------------------------------------------------------------------

    def tick(self) -> float | None:
        """See to idling and scaling; return the monotonic time of the next look, None for none."""
        now = self._world.clock.monotonic()
        self._deadline = None
        idle_at = self.idle_unload_at
        if idle_at is not None and now >= idle_at:
            self._world.observer.evicted(self.spec.name, "idle")
            self.unload("idle", self._upkeep.idle_words(now))
            return None
        scale_at = self._scale(now) if not self.spec.scaling.fixed and not self._down else None
        self._deadline = min((at for at in (idle_at, scale_at) if at is not None), default=None)
        return self._deadline

    @property
    def idle_unload_at(self) -> float | None:
        """The monotonic time at which it is unloaded if no request comes; None when it is not going to be."""
        at = self._upkeep.idle_unload_at(self.spec)
        if at is None or not self._target or self.tickets.in_flight or self.tickets.queued:
            return None
        return at if any(replica.serving for replica in self._replicas.values()) else None

    def _scale(self, now: float) -> float | None:
        decision, due = self._upkeep.scale(
            self.spec.scaling,
            ongoing=self.tickets.in_flight + self.tickets.queued,
            replicas=self._target,
            now=now,
        )
        if decision.replicas == self._target:
            return due
        if not decision.replicas:
            self._world.observer.evicted(self.spec.name, "idle")
            self.unload("scaled", decision.reason or "scaled to zero")
            return None
        self._set_target(decision.replicas)
        return due

    def _schedule(self, *, soon: bool = False) -> None:
        """Ask for a look when the next one would come too late."""
        if self.spec.scaling.fixed and self.idle_unload_at is None:
            return
        due = self._world.clock.monotonic() if soon else (self.idle_unload_at or 0.0)
        if self._deadline is None or due < self._deadline or not self.spec.scaling.fixed:
            self._world.tick()

    def _set_target(self, count: int, *, anew: bool = False) -> None:
        """Have `count` replicas; with `anew` also those that failed or are in backoff start over."""
        self._target = count
        for index in range(0 if self._held else count):
            replica = self._replica(index)
            if anew or not replica.wanted:
                replica.want()
        for replica in self.replicas[count:]:
            replica.unwant("scaled", "fewer replicas are needed")
        self._publish()

    def _replica(self, index: int) -> Replica:
        replica = self._replicas.get(index)
        if replica is None:
            suffix = f"~{self._generation}" if self._generation else ""
            prefix = f"[{index}] " if self.spec.scaling.maximum > 1 else ""
            ring = LogRing(self._world.clock, into=self.ring, prefix=prefix)
            replica = Replica(f"{self.spec.name}#{index}{suffix}", self, self._world, ring)
            self._replicas[index] = replica
            self._lives[index] = self._world.spawn(replica.run())
        return replica

    def _prune(self) -> None:
        """Forget further replicas that have stopped and are not wanted."""
        for index, replica in list(self._replicas.items()):
            gone = replica.status.state in (State.STOPPED, State.FAILED)
            if index >= max(self._target, 1) and gone and not replica.wanted and not replica.in_flight:
                del self._replicas[index]
                # It may be the one that is speaking: it ends when it waits next.
                self._lives.pop(index).cancel()

    # --- looking --------------------------------------------------------------------------------------------

    def snapshot(self) -> Status:
        """Return the status with the queue's present figures."""
        return replace(self.status, in_flight=self.tickets.in_flight, queued=self.tickets.queued)

    def detail(self) -> Status:
        """Return the status with all that changes without a move: memory, replicas, the idle deadline."""
        self.status = self._summary()
        idle_at = self.idle_unload_at
        wall = None
        if idle_at is not None:
            wall = self._world.clock.time() + idle_at - self._world.clock.monotonic()
        return replace(self.snapshot(), idle_unload_at=wall)

    def _publish(self) -> None:
        self.status = status = self._summary()
        for test, future in self._watchers:
            if not future.done() and test(status):
                future.set_result(status)

    def _summary(self) -> Status:
        copies = [
            Copy(
                replace(replica.status, in_flight=replica.in_flight),
                replica.facts,
                replica.size.total if replica.size is not None else 0,
            )
            for replica in self.replicas
        ]
        return summarise(self.spec, copies, wanted=self._target, restarts=self._restarts, held=self._held)
