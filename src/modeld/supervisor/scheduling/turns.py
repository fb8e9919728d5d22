"""Who may load now: loads on one device go one after the other, small ones on the host side by side. Pure.

Two engines that look at a GPU's memory while both are loading each count the other's and size their caches
wrongly. On the host the disk and the memory bandwidth are what large loads would share.
"""

from __future__ import annotations

from collections.abc import Mapping

from modeld.supervisor.scheduling.books import LOADING, Books

LARGE_SHARE = 1 / 8
"""A replica that takes more than this part of the host's usable memory loads alone among such."""


class Turns:
    """The loads under way. `taken`: the GPUs where one is, or where an earlier claim waits for its turn."""

    def __init__(self, books: Books, cores: int) -> None:
        self._books = books
        self._cores = max(cores, 1)
        self._loading: dict[int, str] = {}
        self._large = ""
        self._on_host = 0
        self.taken: set[int] = set()
        for entry in books.entries:
            if entry.phase is LOADING:
                self.start(entry.model, entry.held)

    def start(self, model: str, devices: Mapping[int, int]) -> None:
        """Take note of a load."""
        if gpus := self._gpus(devices):
            for at in gpus:
                self._loading.setdefault(at, model)
                self.taken.add(at)
            return
        self._on_host += 1
        if self._is_large(devices):
            self._large = self._large or model

    def keep(self, devices: Mapping[int, int]) -> None:
        """Keep the turn on its GPUs for a claim that waits for others of them."""
        self.taken.update(self._gpus(devices))

    def blocker(self, devices: Mapping[int, int]) -> str:
        """Say whose load must end first; "" when this one may start."""
        if gpus := self._gpus(devices):
            for at in gpus:
                label = self._books.spaces[at].label
                if at in self._loading:
                    return f"{self._loading[at]} is loading on {label}"
                if at in self.taken:
                    return f"another model loads on {label} first"
            return ""
        if self._large and self._is_large(devices):
            return f"{self._large} is loading, and large models load one after the other"
        if self._on_host >= self._cores:
            loads = "1 model is" if self._on_host == 1 else f"{self._on_host} models are"
            return f"{loads} loading, and this machine loads {self._cores} at a time"
        return ""

    def _gpus(self, devices: Mapping[int, int]) -> list[int]:
        return [at for at in devices if self._books.is_gpu[at]]

    def _is_large(self, devices: Mapping[int, int]) -> bool:
        host = self._books.host
        return host is not None and devices.get(host, 0) > LARGE_SHARE * self._books.usable[host]
