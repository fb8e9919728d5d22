"""What callers carry around and cannot read: text encrypted under a key that never leaves this machine.

A sealed text is `version, nonce, ciphertext and tag` (AES-256-GCM), as URL-safe base64 without padding. Its
kind and the caller's identity are bound to it: it opens for the same caller and purpose only. The key file
is one line, `modeld-seal-1 KEY CHECK` in hex, so that a damaged one is not taken for another key.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import os
import re
import secrets
import stat
import tempfile
from pathlib import Path
from typing import Any

from modeld.errors import StartupError, StoreFailed

_VERSION = b"\x01"
_NONCE_BYTES = 12
"""What NIST SP 800-38D recommends for GCM; random ones are safe for 2**32 texts under one key."""
_TAG_BYTES = 16
_KEY_BYTES = 32
_SEALED = re.compile(r"[A-Za-z0-9_-]+", re.ASCII)
_LINE = re.compile(rb"modeld-seal-1 ([0-9a-f]{64}) ([0-9a-f]{16})\n?")
_LONGEST_FILE = 1024


class Seal:
    """Seals and opens texts with the key in the file `path`, which is made (mode 0600) when first needed."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._cipher: Any = None

    def check(self) -> None:
        """Read the key file, if there is one. Raises StartupError when it is damaged or cannot be read."""
        try:
            if self._path.exists():
                _read(self._path)
        except (StoreFailed, OSError) as error:
            raise StartupError(f"{error}") from error

    async def ready(self) -> None:
        """Do in a thread what the first use would do on the loop: import the cipher, read or make the key.

        Raises StoreFailed.
        """
        if self._cipher is None:
            await asyncio.to_thread(self._aead)

    def seal(self, kind: str, text: str, identity: str) -> str:
        """Return a text sealed for one purpose (`kind`, without NUL) and caller. Raises StoreFailed."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        closed = self._aead().encrypt(nonce, text.encode(), _bound(kind, identity))
        return base64.urlsafe_b64encode(_VERSION + nonce + closed).rstrip(b"=").decode()

    def open(self, kind: str, text: str, identity: str) -> str:
        """Return what was sealed. Raises ValueError for another kind, caller or machine, and for damage."""
        refused = ValueError("it was not made here for this caller and purpose, or it has been changed")
        if not _SEALED.fullmatch(text):
            raise refused
        raw = base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)) if len(text) % 4 != 1 else b""
        # Of the last character some bits are not used: only one spelling is the one that was given out.
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != text:
            raise refused
        head = len(_VERSION) + _NONCE_BYTES
        if not raw.startswith(_VERSION) or len(raw) < head + _TAG_BYTES:
            raise refused
        from cryptography.exceptions import InvalidTag

        try:
            opened: bytes = self._aead().decrypt(raw[1:head], raw[head:], _bound(kind, identity))
        except InvalidTag:
            raise refused from None
        return opened.decode()

    def _aead(self) -> Any:
        if self._cipher is None:
            # 15 ms and some MiB that only those pay who seal something.
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            self._cipher = AESGCM(_key(self._path))
        return self._cipher


def _bound(kind: str, identity: str) -> bytes:
    return f"{kind}\0{identity}".encode()


def _key(path: Path) -> bytes:
    """Return the key in the file, which is made if it is not there. Raises StoreFailed."""
    try:
        try:
            return _read(path)
        except FileNotFoundError:
            _make(path)
            return _read(path)
    except OSError as error:
        raise StoreFailed(
            f"the key for encrypted content cannot be read or made at {path}: {error.strerror or error}; "
            "see to the state directory"
        ) from error


def _read(path: Path) -> bytes:
    """Return the key of a file. Raises StoreFailed for what is no key file, OSError."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        found = os.fstat(handle)
        if stat.S_ISREG(found.st_mode) and found.st_mode & 0o077:
            # A restored copy, perhaps, or a volume whose modes are managed by others.
            with contextlib.suppress(OSError):
                os.fchmod(handle, 0o600)
        line = os.read(handle, _LONGEST_FILE) if stat.S_ISREG(found.st_mode) else b""
    finally:
        os.close(handle)
    match = _LINE.fullmatch(line)
    if match is None or _check(key := bytes.fromhex(match[1].decode())) != match[2]:
        raise StoreFailed(
            f"the key file {path} is damaged ({found.st_size} bytes that are no key); put it back, "
            "or delete it: a new key is made then, and content encrypted so far cannot be read again"
        )
    return key


def _make(path: Path) -> None:
    """Make a key file, whole or not at all; one that somebody else makes meanwhile stays. Raises OSError."""
    key = secrets.token_bytes(_KEY_BYTES)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)  # of mode 0600
    try:
        try:
            os.write(handle, b"modeld-seal-1 " + key.hex().encode() + b" " + _check(key) + b"\n")
            os.fsync(handle)
        finally:
            os.close(handle)
        with contextlib.suppress(FileExistsError):
            os.link(name, path)  # unlike a rename it fails where there is a file
    finally:
        os.unlink(name)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(folder)  # before anything is given out that needs the key
    finally:
        os.close(folder)


def _check(key: bytes) -> bytes:
    return hashlib.sha256(b"modeld-seal-1" + key).hexdigest()[:16].encode()
