"""Which models there are, under which names, and how one takes another's place."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import partial

from modeld.errors import ModelFailed, NotFound
from modeld.supervisor.deployment import Deployment
from modeld.supervisor.spec import ModelSpec
from modeld.supervisor.states import State, Status
from modeld.supervisor.world import World


def settled(deployment: Deployment, status: Status) -> bool:
    """Say whether `status` is an end: READY, FAILED, waiting for what may never come, or STOPPED for good."""
    if status.state is State.STOPPED:
        return not deployment.wanted
    waits = status.state is State.WAITING and status.cause in ("memory", "engine")
    return waits or status.state in (State.READY, State.FAILED)


async def end_of(deployment: Deployment) -> Status:
    """Wait until a model is not on its way any more, and return its status then."""
    # A FAILED model that is wanted has just been asked to try again.
    now = not (deployment.wanted and deployment.status.state is State.FAILED)
    return await deployment.until(partial(settled, deployment), now=now)


class Roster:
    """The deployments of a pool, by key; and those that are on their way in or out."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._deployments: dict[str, Deployment] = {}
        self._retiring: set[Deployment] = set()
        self._names: dict[tuple[str, str], Deployment] = {}
        self._generations = 0
        self.gateways: tuple[str, ...] = ()
        """The named gateways there are, without the default one."""

    def begin(self, specs: Iterable[ModelSpec]) -> None:
        """Take in the first models; none is started."""
        for spec in specs:
            self._deployments[spec.name] = Deployment(spec, self._world)
        self._index()

    # --- who is there ---------------------------------------------------------------------------------------

    def __getitem__(self, name: str) -> Deployment:
        """Return a model's deployment. Raises NotFound (`model_not_found`)."""
        try:
            return self._deployments[name]
        except KeyError:
            raise NotFound(
                f"there is no model {name!r} here; GET /v1/models lists those there are",
                code="model_not_found",
                param="model",
            ) from None

    def find(self, gateway: str, name: str) -> Deployment | None:
        """Return what a gateway serves under a name or alias."""
        return self._names.get((gateway, name))

    def present(self) -> list[Deployment]:
        """Return the models there are, by name."""
        return [self._deployments[name] for name in sorted(self._deployments)]

    def all(self) -> list[Deployment]:
        """Return the models there are, and those coming and going."""
        return [*self._deployments.values(), *self._retiring]

    # --- changing who is there ------------------------------------------------------------------------------

    def add(self, spec: ModelSpec) -> None:
        """Add a model and start it as configured; it must not be there yet."""
        assert spec.name not in self._deployments
        self._deployments[spec.name] = deployment = self._deploy(spec)
        self._index()
        deployment.start()

    def update(self, spec: ModelSpec) -> None:
        """Give a model settings that need no new worker. Raises NotFound."""
        self[spec.name].update(spec)
        self._index()

    async def remove(self, name: str, drain_s: float | None = None) -> None:
        """Take a model out: nobody finds it from now on, open requests may finish. Raises NotFound."""
        deployment = self[name]
        del self._deployments[name]
        self._index()
        await self._retire(deployment, "removed", "it was removed from the configuration", drain_s)

    async def replace(self, spec: ModelSpec, *, beside: bool) -> str:
        """Put `spec` in the place of the model of its name; return in words how it went.

        With `beside` (blue-green) the new one comes up first and takes over when it is READY, if the two fit
        side by side: otherwise, and without `beside`, the old one stops first. Requests never fail for it:
        those in flight finish where they are, those that wait go to the new one. A new one that does not come
        up beside the old one is dropped, and the old one stays. Raises NotFound, ModelFailed (the new one's
        failure; the old one serves on, unless it had to go first).
        """
        old = self[spec.name]
        running = any(replica.pid is not None for replica in old.replicas)
        if not running:
            return await self._swap(old, spec, "")
        if not beside:
            return await self._swap(old, spec, "stopped the old one first, as asked")
        new = self._deploy(spec)
        self._retiring.add(new)
        try:
            new.load(passive=True)
            status = await new.until(partial(settled, new))
        except asyncio.CancelledError:
            new.end()
            raise
        finally:
            self._retiring.discard(new)
        if status.state is State.READY:
            self._deployments[spec.name] = new
            self._index()
            new.adopt(old)
            await self._retire(old, "replaced", "replaced by its new configuration")
            return "the new one took over when it was ready"
        if status.state is State.WAITING and status.cause == "memory":
            await self._retire(new, "replaced", "there is no room beside the old one")
            words = f"both do not fit side by side (it {status.message}), so the old one stopped first"
            return await self._swap(old, spec, words)
        await self._retire(new, "failed", "it did not come up")
        raise ModelFailed(
            f"the new {spec.name!r} did not come up, and the old one serves on: {status.message}",
            param="model",
        )

    async def _swap(self, old: Deployment, spec: ModelSpec, words: str) -> str:
        """Stop the old one first; whoever asks meanwhile waits for the new one."""
        awake = old.wanted
        new = self._deploy(spec)
        new.hold()
        try:
            self._deployments[spec.name] = new
            self._index()
            new.adopt(old)
            await self._retire(old, "replaced", "replaced by its new configuration")
        finally:
            new.release()
        if awake and not new.wanted:
            new.load()
        elif not new.wanted:
            new.start()
        if not new.wanted:
            return words or "the new settings are used at the next load"
        status = await new.until(partial(settled, new))
        before = f"{words}; " if words else ""
        if status.state is State.FAILED:
            raise ModelFailed(f"{before}the new one failed: {status.message}", param="model")
        if status.state is State.READY:
            return words or "it is up with its new settings"
        return f"{before}the new one is {status.state}: {status.message}"

    def _deploy(self, spec: ModelSpec) -> Deployment:
        self._generations += 1
        return Deployment(spec, self._world, generation=self._generations)

    async def _retire(
        self, deployment: Deployment, cause: str, words: str, drain_s: float | None = None
    ) -> None:
        self._retiring.add(deployment)
        try:
            await deployment.retire(cause, words, drain_s)
        except asyncio.CancelledError:
            deployment.end()
            raise
        finally:
            self._retiring.discard(deployment)

    def _index(self) -> None:
        self._names = {
            (deployment.spec.gateway, name): deployment
            for deployment in self._deployments.values()
            for name in (deployment.spec.served_name, *deployment.spec.aliases)
        }
        self.gateways = tuple(sorted({gateway for gateway, _ in self._names} - {""}))
