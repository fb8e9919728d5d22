"""The child: stable-diffusion.cpp in a process of its own, `… child FD` with the socket to the worker.

One thread does everything: it reads a frame, works, and answers. The library calls back on that thread. Its
callbacks are registered once and kept: one that is collected while the library still knows it is a crash.
"""

from __future__ import annotations

import ctypes
import importlib.metadata
import os
import re
import socket
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from modeld.protocol.framing import FrameDecoder, FrameEncoder
from modeld.worker.loaders.stable_diffusion_cpp import wire

CHUNK = 1 << 20

DEBUG, WARNING = 0, 2
"""Levels of the library's log."""

PROBE_SIDE = 63
"""Pixels: one less than a multiple of every model's step, so that the library says what it rounds up to."""

_FACTS = {
    "cpu": re.compile(r"- (Using CPU) backend"),
    "gpu": re.compile(r"- #\d+: (?!CPU|BLAS|AMX)(\S+)"),
    "family": re.compile(r"Version: (.+)"),
    "multiple": re.compile(r"\(multiple=(\d+)\)"),
}
"""What the library tells in its log only."""

_ANY_MODELS_MULTIPLE = 64


class Link:
    """Frames over the socket, with blocking reads and writes."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._encoder = FrameEncoder(wire.LIMIT)
        self._decoder: FrameDecoder[wire.ToChild] = FrameDecoder(wire.ToChild, wire.LIMIT)
        self._inbox: deque[wire.ToChild] = deque()

    def send(self, frame: wire.FromChild) -> None:
        """Send a frame; the end of the worker is the end of this process."""
        try:
            self._sock.sendall(self._encoder.encode(frame))
        except OSError:
            os._exit(0)

    def receive(self) -> wire.ToChild | None:
        """Return the next frame, None when the worker has gone."""
        while not self._inbox:
            data = self._sock.recv(CHUNK)
            if not data:
                return None
            self._inbox.extend(frame for frame, _ in self._decoder.feed(data))
        return self._inbox.popleft()


class Watch:
    """What the library says by its callbacks, and what of it is passed on."""

    def __init__(self, link: Link) -> None:
        self.facts: dict[str, str] = {}
        self.errors: deque[str] = deque(maxlen=4)
        self.busy = "loading"
        self.sampling = False
        self.want_preview: Callable[[bool], None] = lambda wanted: None
        self._link = link
        self._previews = self._shown = self._done = 0

    def begin(self, busy: str, previews: int = 0) -> None:
        """Say what the library is about to do: "loading", "probing" or "drawing"."""
        self.busy, self.sampling = busy, False
        self._previews, self._shown, self._done = previews, 0, 0
        self.errors.clear()

    def log(self, level: int, text: bytes | None, _data: Any) -> None:
        """Pass a line on to the log. Prompts stand in lines of level debug only, which are dropped."""
        line = (text or b"").decode("utf-8", "replace").strip()
        if self.busy != "drawing":
            for name, pattern in _FACTS.items():
                if found := pattern.search(line):
                    self.facts.setdefault(name, found[1].strip())
        if level == DEBUG:
            return
        if "generating image:" in line:
            self.sampling = True
        elif "sampling completed" in line:
            self.sampling = False
        if level > WARNING:
            self.errors.append(line)
        os.write(2, line.encode() + b"\n")

    def progress(self, done: int, total: int, _seconds: float, _data: Any) -> None:
        """Pass progress on. The tiles of a VAE, before and after the steps, are counted here too."""
        if self.busy == "probing" or (self.busy == "drawing" and not self.sampling) or total <= 0:
            return
        if self.busy == "loading" or done > self._done:
            self._done = done
            self._link.send(wire.Progress(min(done, total), total))
        if self._previews:
            # The library asks anew at each step whether a preview is wanted, and decodes one if so.
            self.want_preview(self._due(done + 1, total))

    def _due(self, step: int, total: int) -> bool:
        spaced = step * (self._previews + 1) >= (self._shown + 1) * total
        return self._shown < self._previews and step < total and spaced

    def preview(self, _step: int, count: int, frames: Any, _noisy: bool, _data: Any) -> None:
        """Pass a preview on."""
        if count and self._shown < self._previews:
            self._shown += 1
            self._link.send(wire.Preview(*pixels(frames[0])))


def pixels(image: Any) -> tuple[int, int, bytes]:
    """Return the width, height and RGB rows of a `sd_image_t`."""
    size = image.width * image.height
    data = ctypes.string_at(image.data, size * image.channel)
    if image.channel == 1:
        data = bytes(value for value in data for _ in range(3))
    return image.width, image.height, data


class Engine:
    """A loaded model. `lib` is the package's module of bare functions."""

    def __init__(self, lib: Any, model: Any, context: Any, watch: Watch) -> None:
        self._lib, self._context, self._watch = lib, context, watch
        self._model = model  # frees the context when it is collected
        self._free = ctypes.CDLL(None).free
        self._free.argtypes, self._free.restype = [ctypes.c_void_p], None
        self._preview = lib.sd_preview_callback(watch.preview)
        watch.want_preview = self._want_preview

    def draw(self, task: wire.Draw, busy: str = "drawing") -> wire.Drawn | wire.Failed:
        """Draw one picture; what the library allocates for it is given back."""
        lib, watch = self._lib, self._watch
        params, keep = self._params(task)
        watch.begin(busy, task.previews)
        self._want_preview(False)
        images = lib.generate_image(self._context, ctypes.byref(params))
        del keep
        if not images:
            return wire.Failed("; ".join(watch.errors) or "it gave no picture and no reason")
        try:
            if not images[0].data:
                return wire.Failed("; ".join(watch.errors) or "it gave an empty picture")
            return wire.Drawn(*pixels(images[0]))
        finally:
            self._free(ctypes.cast(images[0].data, ctypes.c_void_p))
            self._free(ctypes.cast(images, ctypes.c_void_p))

    def _want_preview(self, wanted: bool) -> None:
        mode = self._lib.Preview.PREVIEW_VAE
        self._lib.sd_set_preview_callback(self._preview, mode, 1, wanted, False, None)

    def _params(self, task: wire.Draw) -> tuple[Any, list[Any]]:
        """Return the library's parameters, and what must live as long as they do."""
        lib, keep = self._lib, list[Any]()
        params = lib.sd_img_gen_params_t()
        lib.stable_diffusion_cpp._lib.sd_img_gen_params_init(ctypes.byref(params))
        params.prompt, params.negative_prompt = task.prompt.encode(), task.negative_prompt.encode()
        params.width, params.height, params.seed = task.width, task.height, task.seed
        sample = params.sample_params
        sample.sample_steps = task.steps
        sample.guidance.txt_cfg = sample.guidance.img_cfg = task.guidance
        sample.sample_method = named(lib.SAMPLE_METHOD_MAP, task.sample_method, sample.sample_method)
        sample.scheduler = named(lib.SCHEDULER_MAP, task.scheduler, sample.scheduler)
        params.vae_tiling_params.enabled = task.vae_tiling
        params.strength = task.strength
        for name, data, channels in (("init_image", task.image, 3), ("mask_image", task.mask, 1)):
            if data is not None:
                buffer = ctypes.create_string_buffer(data, len(data))
                keep.append(buffer)
                image = getattr(params, name)
                image.width, image.height, image.channel = task.width, task.height, channels
                image.data = ctypes.cast(buffer, ctypes.POINTER(ctypes.c_uint8))
        if task.loras:
            loras = (lib.sd_lora_t * len(task.loras))()
            for lora, (path, strength) in zip(loras, task.loras, strict=True):
                lora.path, lora.multiplier, lora.is_high_noise = path.encode(), strength, False
            keep.append(loras)
            params.loras = ctypes.cast(loras, ctypes.POINTER(lib.sd_lora_t))
            params.lora_count = len(task.loras)
        return params, keep

    def multiple(self, task: wire.Load) -> int:
        """Draw the smallest picture and return what the sides of all are multiples of. Raises ValueError."""
        side = PROBE_SIDE
        drawn = self.draw(
            wire.Draw("", "", side, side, 1, 1.0, 0, task.sample_method, task.scheduler), "probing"
        )
        if isinstance(drawn, wire.Failed):
            raise ValueError(f"it loads, but cannot draw a first small picture: {drawn.message}")
        return int(self._watch.facts.get("multiple", _ANY_MODELS_MULTIPLE))


def named(table: dict[str, Any], name: str, default: Any) -> Any:
    """Return the library's number for a name, `default` for "default". Raises ValueError."""
    key = name.strip().lower()
    known = [each for each in table if not each.endswith("_count") and each != "default"]
    if key not in ("", "default", *known):
        raise ValueError(f"there is no {name!r}; there are default, {', '.join(known)}")
    value = table.get(key)
    return default if value is None else int(value)


def load(task: wire.Load, watch: Watch, keep: list[Any]) -> tuple[Engine, wire.Ready]:
    """Load the model; `keep` gets what must never be collected. Raises ValueError, TypeError, ImportError."""
    import stable_diffusion_cpp as lib

    for option, table in (("sample_method", lib.SAMPLE_METHOD_MAP), ("scheduler", lib.SCHEDULER_MAP)):
        try:
            named(table, getattr(task, option), None)
        except ValueError as error:
            raise ValueError(f"{option}: {error}") from None
    log, progress = lib.sd_log_callback(watch.log), lib.sd_progress_callback(watch.progress)
    keep += [log, progress]
    lib.sd_set_log_callback(log, None)
    lib.sd_set_progress_callback(progress, None)
    # Not verbose, the library points this process's outputs to /dev/null while it works.
    model = lib.StableDiffusion(**{**task.arguments, "verbose": True})
    keep.append(model)
    context = model.model
    if not context:  # the library's own check overlooks this, and its clean-up dies of it
        raise ValueError("; ".join(watch.errors) or "it did not say why")
    if not lib.sd_ctx_supports_image_generation(context):
        raise ValueError("this is a model of videos, not of pictures")
    engine = Engine(lib, model, context, watch)
    multiple = engine.multiple(task) if task.probe else 0
    version = importlib.metadata.version("stable-diffusion-cpp-python")
    commit = lib.sd_commit().decode("utf-8", "replace")
    backend = "CPU" if "cpu" in watch.facts else watch.facts.get("gpu", "CPU")
    family = watch.facts.get("family", "unknown")
    return engine, wire.Ready(f"{version} (stable-diffusion.cpp {commit})", backend, family, multiple)


def main() -> None:
    """Serve one worker until it goes."""
    link = Link(socket.socket(fileno=int(sys.argv[1])))
    task, keep, watch = link.receive(), list[Any](), Watch(link)
    if not isinstance(task, wire.Load):
        return
    try:
        engine, ready = load(task, watch, keep)
    except Exception as error:
        link.send(wire.Refused(f"{error}" if isinstance(error, ValueError) else repr(error)))
        os._exit(1)  # the library's destructors are not for models that did not load
    link.send(ready)
    while isinstance(task := link.receive(), wire.Draw):
        link.send(engine.draw(task))
    os._exit(0)


if __name__ == "__main__":
    main()
