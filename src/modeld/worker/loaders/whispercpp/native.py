"""What whisper.cpp knows and its Python binding does not tell: two figures of a segment.

The C library has a function for the probability that nobody speaks, which the binding leaves out; it is
called here on the C context inside the binding's object. No function at all tells at which temperature a
window was decoded, but the timings that the library prints count the temperatures that it gave up.
"""

from __future__ import annotations

import ctypes
import re
from typing import Any

_FALLBACKS = re.compile(r"fallbacks\s*=\s*(\d+)\s*p")

_MARK = "_pybind11_conduit_v1_"
"""A class that has this is pybind11's, of version 2.13 or later, whose objects are laid out as `_pointer`
reads them: a header, then a pointer to the C++ object, here one that begins with the context's address.
"""

_OBJECT_SIZE = 56
"""Bytes of such an object on a machine of 64 bits."""


class Native:
    """Asks the library about the last stretch of sound. One thread at a time, like the engine."""

    def __init__(self, binding: Any, context: Any) -> None:
        self._binding = binding
        self._context = context
        self._pointer = _pointer(context)
        self._no_speech = _function(binding) if self._pointer is not None else None

    @property
    def hears_silence(self) -> bool:
        """Whether `no_speech` is known: not with a library or a binding that is laid out otherwise."""
        return self._no_speech is not None

    def no_speech(self, segment: int) -> float:
        """Return the probability that nobody speaks in the window of a segment, 0 when it is not known."""
        return 0.0 if self._no_speech is None else float(self._no_speech(self._pointer, segment))

    def fallbacks(self) -> int:
        """Return how many temperatures the library has given up since it was loaded."""
        lines: list[str] = []
        self._binding.whisper_log_set(lambda _level, text: lines.append(text))
        try:
            self._binding.whisper_print_timings(self._context)
        finally:
            self._binding.whisper_log_set(None)
        found = _FALLBACKS.search("".join(lines))
        return int(found[1]) if found else 0


def _pointer(context: Any) -> int | None:
    """Return the address of the C context in a binding's object, None for an object of another kind."""
    kind = type(context)
    if not hasattr(kind, _MARK) or kind.__basicsize__ != _OBJECT_SIZE:
        return None
    held = ctypes.c_void_p.from_address(id(context) + object.__basicsize__).value
    return None if held is None else ctypes.c_void_p.from_address(held).value


def _function(binding: Any) -> Any:
    """Return the C function, None for a library older than it."""
    try:
        # A look-up in the binding goes on to the libraries that it is linked with.
        function = ctypes.CDLL(binding.__file__).whisper_full_get_segment_no_speech_prob
    except (OSError, AttributeError):
        return None
    function.restype = ctypes.c_float
    function.argtypes = [ctypes.c_void_p, ctypes.c_int]
    return function
