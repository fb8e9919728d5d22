"""Importing aiohttp without the system's certificate authorities.

aiohttp makes a TLS context for its client at import, with every certificate authority of the system in it: 50
to 100 ms and 2 MB at every start. The daemon serves plain HTTP and talks over Unix sockets, so none is ever
used. Whoever makes a TLS connection brings a context of his own; with aiohttp's default one it fails
closed, since that trusts nobody.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

_PLACES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


@contextmanager
def nobody_trusted() -> Iterator[None]:
    """While this holds, a default TLS context finds no authorities. Make aiohttp's first import in it."""
    before = {name: os.environ.get(name) for name in _PLACES}
    os.environ.update(dict.fromkeys(_PLACES, os.devnull))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
