"""The messages of the worker link, in both directions.

Conversation: worker Hello → daemon Load → worker Progress* → Ready or LoadRefused; then any number of calls
at once, each Call → Emit* → Ended or Failed, with Credit flowing back as the daemon's reader takes events,
and Cancel at any time (a cancelled call still gets its Ended or Failed). Drain → the worker refuses new
calls, finishes the open ones and says Drained. Ping is answered by Pong while it serves. Bye → it unloads
and exits. Dying is a worker's last word when its engine is gone; end-of-file without it is a crash.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import msgspec

from modeld import errors
from modeld.protocol.tasks import Event, Task

PROTOCOL_VERSION = 1
"""Raised when a message changes its meaning; added fields do not count."""


class _Message(msgspec.Struct, frozen=True, array_like=True):
    pass


class Failure(msgspec.Struct, frozen=True):
    """A `ModeldError` on the wire."""

    kind: str
    message: str
    code: str
    param: str | None = None
    permanent: bool = False


class Facts(msgspec.Struct, frozen=True):
    """What a loaded model really is and uses, as the worker found it.

    `slots`: calls it works on at once. `bytes_used`: resident memory of the worker's process tree.
    `capabilities`: of chat, completion, tools, json_schema, logprobs, reasoning, vision, embed, rerank,
    tokenize, speech, transcription, translation, image, image_edit. `dimensions`: length of an embedding;
    `matryoshka`: whether a shorter one may be cut from it. `voices`: names of the voices, in their order.
    `detail`: words for `ctl status`, e.g. {"engine": "xllamacpp 2026.10", "tools": "rendered by modeld"}.
    """

    loader: str
    device: str
    slots: int = 1
    bytes_used: int = 0
    context_length: int | None = None
    capabilities: tuple[str, ...] = ()
    detail: dict[str, str] = {}
    dimensions: int | None = None
    matryoshka: bool = False
    voices: tuple[str, ...] = ()


class MediaLimits(msgspec.Struct, frozen=True):
    """The most that a worker takes in, and makes, for one caller; checked before anything is unpacked.

    `audio_seconds` of a recording; `image_pixels` of a picture in all, `image_side` along its longer side.
    """

    audio_seconds: float = 14_400.0
    image_pixels: int = 16 * 1024**2
    image_side: int = 4096


class LoadSpec(msgspec.Struct, frozen=True):
    """What to load.

    `path` is a file or folder on this disk. `options` are the loader's own, already checked against the
    configuration schema. `runtime_dir` is a private directory (0700) that the daemon removes after the
    worker's end. `start_timeout_s` is how long a load may go without progress. `gpus`: how many GPUs the
    worker was given (it sees no others); `gpu_share`: the part of that one GPU's memory it may take, 0 for
    all of what it was given. `limits` hold for every call.
    """

    name: str
    loader: str
    usecase: str
    path: str
    runtime_dir: str
    options: dict[str, Any] = {}
    template_kwargs: dict[str, Any] = {}
    start_timeout_s: float = 120.0
    gpus: int = 0
    gpu_share: float = 0.0
    limits: MediaLimits = MediaLimits()


# --- daemon → worker ----------------------------------------------------------------------------------------


class Load(_Message, tag="load", frozen=True, array_like=True):
    """Load this model; sent once."""

    spec: LoadSpec


class Call(_Message, tag="call", frozen=True, array_like=True):
    """Start a call. `window` is how many bytes of Emit frames may be under way before Credit is needed."""

    call: int
    task: Task
    identity: str
    window: int


class Credit(_Message, tag="credit", frozen=True, array_like=True):
    """The daemon's reader took `size` more bytes of this call."""

    call: int
    size: int


class Cancel(_Message, tag="cancel", frozen=True, array_like=True):
    """Stop this call; unknown or finished calls are ignored (the two ends cross on the wire)."""

    call: int


class Drain(_Message, tag="drain", frozen=True, array_like=True):
    """Take no new calls; answer Drained when the open ones have ended."""


class Ping(_Message, tag="ping", frozen=True, array_like=True):
    """Say Pong at once; sent now and then once the model serves."""


class Bye(_Message, tag="bye", frozen=True, array_like=True):
    """Unload and exit with code 0."""


ToWorker: TypeAlias = Load | Call | Credit | Cancel | Drain | Ping | Bye

# --- worker → daemon ----------------------------------------------------------------------------------------


class Hello(_Message, tag="hello", frozen=True, array_like=True):
    """The worker's first message."""

    version: int
    pid: int


class Progress(_Message, tag="progress", frozen=True, array_like=True):
    """Loading goes on. `fraction` is 0..1 or None when unknown; any Progress restarts the stall limit."""

    stage: str
    fraction: float | None = None


class Ready(_Message, tag="ready", frozen=True, array_like=True):
    """The model serves."""

    facts: Facts


class LoadRefused(_Message, tag="refused", frozen=True, array_like=True):
    """The model did not load; the worker exits after this."""

    failure: Failure


class Emit(_Message, tag="e", frozen=True, array_like=True):
    """One event of a call."""

    call: int
    event: Event


class Ended(_Message, tag="end", frozen=True, array_like=True):
    """The call is over and complete."""

    call: int


class Failed(_Message, tag="fail", frozen=True, array_like=True):
    """The call is over and failed."""

    call: int
    failure: Failure


class Drained(_Message, tag="drained", frozen=True, array_like=True):
    """No call is open any more."""


class Pong(_Message, tag="pong", frozen=True, array_like=True):
    """The answer to Ping: the worker's loop turns."""


class Dying(_Message, tag="dying", frozen=True, array_like=True):
    """The engine is gone, and the worker goes too; `reason` ends with the engine's last words."""

    reason: str


ToDaemon: TypeAlias = Hello | Progress | Ready | LoadRefused | Emit | Ended | Failed | Drained | Pong | Dying


# --- errors on the wire -------------------------------------------------------------------------------------


def _classes(root: type[errors.ModeldError]) -> dict[str, type[errors.ModeldError]]:
    # A class without a kind of its own is a helper of one room, and stands for its parent on the wire.
    found = {root.kind: root} if "kind" in vars(root) else {}
    for sub in root.__subclasses__():
        found |= _classes(sub)
    return found


_BY_KIND = _classes(errors.ModeldError)


def to_failure(error: BaseException) -> Failure:
    """Turn any exception into a Failure; one that is not a `ModeldError` becomes kind "internal"."""
    if isinstance(error, errors.ModeldError):
        return Failure(
            error.kind, error.message, error.code, error.param, bool(getattr(error, "permanent", False))
        )
    return Failure("internal", f"{type(error).__name__}: {error}", "internal_error")


def from_failure(failure: Failure) -> errors.ModeldError:
    """Rebuild the error a Failure stands for; an unknown kind (a newer worker) becomes EngineError."""
    cls = _BY_KIND.get(failure.kind, errors.EngineError)
    if issubclass(cls, errors.ConfigError):
        return cls(failure.message)
    error = cls(failure.message, code=failure.code, param=failure.param)
    if isinstance(error, errors.LoadFailed):
        error.permanent = failure.permanent
    return error
