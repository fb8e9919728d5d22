"""What the gateway is told by the daemon."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from modeld.protocol.messages import MediaLimits


@dataclass(frozen=True, slots=True)
class MediaSettings:
    """The most that callers' media may be; all of it is answered before work is done.

    `limits` are those that workers check too. `speech_characters` of a text to speak; `images` in one chat
    request, each of `image_bytes` at most. `fetch`: from where http URLs of pictures are fetched, "public"
    addresses and `fetch_hosts`, those "listed" there only, or "none".
    """

    limits: MediaLimits = field(default_factory=MediaLimits)
    speech_characters: int = 4096
    images: int = 16
    image_bytes: int = 20 * 1024**2
    fetch: Literal["public", "listed", "none"] = "public"
    fetch_hosts: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """All settings of the HTTP face; sizes in bytes, times in seconds.

    `api_keys` empty leaves the API open to whoever reaches the address. `loopback` says that the daemon
    listens on this machine only, which makes it check `Host` against rebinding. `request_timeout` None is no
    limit. `body_stall_timeout` and `client_stall_timeout` end a request whose client sends or reads nothing
    for so long.
    """

    api_keys: tuple[str, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    cors_origins: tuple[str, ...] = ()
    loopback: bool = True
    max_request_body: int = 50 * 1024 * 1024
    keepalive_interval: float = 10.0
    request_timeout: float | None = None
    body_stall_timeout: float = 60.0
    client_stall_timeout: float = 120.0
    media: MediaSettings = field(default_factory=MediaSettings)
