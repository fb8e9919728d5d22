"""The way into NVML: the `pynvml` module or a stand-in, one session of it, its errors as one exception."""

from __future__ import annotations

import enum
import logging
from typing import Any

_log = logging.getLogger("modeld.hardware")

LIBRARY = "libnvidia-ml.so.1"


class Code(enum.IntEnum):
    """The values of NVML's errors that are told apart here (nvml.h, nvmlReturn_t)."""

    UNINITIALIZED = 1
    INVALID_ARGUMENT = 2
    NOT_SUPPORTED = 3
    NO_PERMISSION = 4
    NOT_FOUND = 6
    DRIVER_NOT_LOADED = 9
    LIBRARY_NOT_FOUND = 12
    FUNCTION_NOT_FOUND = 13
    GPU_IS_LOST = 15
    RESET_REQUIRED = 16
    LIB_RM_VERSION_MISMATCH = 18
    ARGUMENT_VERSION_MISMATCH = 25
    GPU_NOT_FOUND = 28
    UNKNOWN = 999


NO_SUCH_CALL = {
    Code.INVALID_ARGUMENT,
    Code.NOT_SUPPORTED,
    Code.FUNCTION_NOT_FOUND,
    Code.ARGUMENT_VERSION_MISMATCH,
}
"""Errors that are about a function, not about the GPU."""

_WHY_NO_SESSION = {
    Code.LIBRARY_NOT_FOUND: f"there is no NVIDIA driver on this machine ({LIBRARY} is not found)",
    Code.DRIVER_NOT_LOADED: "the NVIDIA driver is installed and not loaded; try: sudo modprobe nvidia",
    Code.LIB_RM_VERSION_MISMATCH: (
        "the NVIDIA driver's library and kernel module are of different versions, as after an upgrade; "
        "reload the module or restart the machine"
    ),
    Code.NO_PERMISSION: (
        "this user may not speak to the NVIDIA driver; look at who may open /dev/nvidiactl and add the user "
        "to that group"
    ),
}


class Trouble(Exception):
    """A call that failed: NVML's error value (`Code` and others) and its words."""

    def __init__(self, code: int, words: str) -> None:
        super().__init__(words)
        self.code = code
        self.words = words


class Binding:
    """The library and at most one session of it. `open` tells whether there is one."""

    def __init__(self, library: Any = None) -> None:
        self._library = library
        self.open = False

    def begin(self) -> None:
        """Begin a session. Raises Trouble."""
        if self._library is None:
            self._library = _pynvml()
        try:
            self.ask("nvmlInit")
        except Trouble as trouble:
            if trouble.code == Code.LIB_RM_VERSION_MISMATCH:
                _forget(self._library)
            raise
        self.open = True

    def end(self) -> None:
        """End the session, if there is one, so that the next `begin` finds what has changed."""
        if self.open:
            self.open = False
            try:
                self.ask("nvmlShutdown")
            except Trouble as trouble:
                _log.debug("nvmlShutdown: %s", trouble.words)

    def constant(self, name: str) -> Any:
        """Return one of the library's constants."""
        return getattr(self._library, name)

    def ask(self, function: str, *arguments: Any) -> Any:
        """Call a function of the library. Raises Trouble, and nothing else."""
        try:
            return getattr(self._library, function)(*arguments)
        except Exception as error:  # bindings over a foreign library: whatever comes out is one state more
            code = getattr(error, "value", None)
            if not isinstance(code, int):
                absent = isinstance(error, AttributeError) or "Mismatch" in type(error).__name__
                code = Code.FUNCTION_NOT_FOUND if absent else Code.UNKNOWN
            raise Trouble(code, str(error) or type(error).__name__) from error


def why_no_session(trouble: Trouble) -> str:
    """Say for people why no session could begin, with the fix where one is known."""
    if trouble.code in _WHY_NO_SESSION:
        return _WHY_NO_SESSION[Code(trouble.code)]
    return f"the NVIDIA driver does not answer ({trouble.words}); see what nvidia-smi says"


def _pynvml() -> Any:
    """Return the pynvml module, imported only where the driver's library is: the module alone costs 20 ms.

    Raises Trouble.
    """
    import ctypes

    try:
        library = ctypes.CDLL(LIBRARY)
    except OSError as error:
        raise Trouble(Code.LIBRARY_NOT_FOUND, str(error)) from error
    try:
        import pynvml
    except ImportError as error:
        words = "the Python package nvidia-ml-py is missing; pip install nvidia-ml-py"
        raise Trouble(Code.UNKNOWN, words) from error
    if pynvml.nvmlLib is None:
        pynvml.nvmlLib = library  # else it opens the library a second time, which `_forget` could not undo
    return pynvml


def _forget(library: Any) -> None:
    """Make the module open the driver's library anew: the file may have been replaced by an upgrade.

    `pynvml` keeps the library and its functions for ever, so a mismatch would last as long as the process.
    """
    opened = getattr(library, "nvmlLib", None)
    if opened is None:
        return
    import _ctypes

    library._nvmlGetFunctionPointer_cache.clear()
    library.nvmlLib = None
    _ctypes.dlclose(opened._handle)
