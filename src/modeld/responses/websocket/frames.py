"""What travels on a socket: clients' frames as they are read, and those that are no event of a response.

No I/O. Every frame is one JSON text.
"""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import UNSET, Raw, UnsetType

from modeld.errors import BadRequest
from modeld.gateway.encoding import dumps, quote
from modeld.gateway.envelope import envelope, to_response
from modeld.gateway.sse import escape_separators
from modeld.ids import RequestId

CREATE = "response.create"
STEER = "response.steer"

END = b"}"
"""How a frame ends that belongs to no named lane."""

_LANE = re.compile(r"[A-Za-z0-9_.-]{1,256}")

_HINTS = ("retry-after", "retry-after-ms", "x-should-retry")
"""Headers that an HTTP client would have been told, and that an error's frame carries as `headers`."""


class Frame(msgspec.Struct):
    """What decides about a client's frame before its turn comes; the rest is read then."""

    type: Any = None
    stream_id: Any = None
    previous_response_id: Any = None
    prompt_cache_options: Any = None

    @property
    def previous(self) -> str | None:
        """The response that this one goes on from, if that is named by a text."""
        return self.previous_response_id if isinstance(self.previous_response_id, str) else None

    @property
    def prewarm(self) -> bool:
        """Whether the cache is to be warmed whatever `generate` says."""
        options = self.prompt_cache_options
        return isinstance(options, dict) and options.get("prewarm") is True


class _Steer(msgspec.Struct):
    previous_response_id: Any = None
    input: Raw | UnsetType = UNSET


_FRAME = msgspec.json.Decoder(Frame)
_STEER = msgspec.json.Decoder(_Steer)


def read(raw: bytes) -> Frame:
    """Read a client's frame. Raises BadRequest for what is not a JSON object."""
    try:
        return _FRAME.decode(raw)
    except msgspec.ValidationError:
        raise BadRequest("the frame must be a JSON object", code="invalid_json") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadRequest(f"the frame is not valid JSON: {error}", code="invalid_json") from None
    except RecursionError:
        raise BadRequest("the frame's JSON is nested too deeply", code="invalid_json") from None


def lane(stream_id: Any) -> str | None:
    """Return the lane that a frame names, None for the one without a name. Raises BadRequest."""
    if stream_id is None:
        return None
    if not isinstance(stream_id, str) or not _LANE.fullmatch(stream_id):
        raise BadRequest(
            "The 'stream_id' field must be a non-empty string with at most 256 characters and may only "
            "contain letters, numbers, underscores, hyphens, and periods.",
            code="invalid_stream_id",
            param="stream_id",
        )
    return stream_id


def unsupported(type: Any) -> BadRequest:
    """Return the error for a frame of a type that is not known."""
    what = f"'{type[:60]}' is not an event" if isinstance(type, str) else "the frame's type is not one"
    return BadRequest(
        f"{what} that a client may send; there are {CREATE} and {STEER}",
        code="unsupported_event_type",
        param="type",
    )


def end(lane: str | None) -> bytes:
    """Return how a lane's frames end, with its name if it has one, in the place of the last brace."""
    return END if lane is None else b',"stream_id":%b}' % quote(lane)


def refusal(error: BaseException, request_id: RequestId, end: bytes = END) -> bytes:
    """Return the frame that says why there is no response: what HTTP would have answered, with its status."""
    answer = to_response(error, request_id)
    hints = {name: answer.headers[name] for name in _HINTS if name in answer.headers}
    body = envelope(error, request_id)[len(b'{"error":') : -2]
    more = b',"headers":%b' % dumps(hints) if hints else b""
    return escape_separators(
        b'{"type":"error","status":%d,"error":%b%b}%b' % (answer.status, body, more, end)
    )


def steer_failed(raw: bytes) -> bytes:
    """Return the answer to a frame that steers, which gives back its input. `raw` has been read before."""
    try:
        steer = _STEER.decode(raw)
    except RecursionError:  # the stack was less deep when the frame was read
        steer = _Steer()
    target, given = steer.previous_response_id, steer.input
    if isinstance(target, str) and not isinstance(given, UnsetType) and bytes(given)[:1] in (b'"', b"["):
        code, message = (
            "steering_not_supported",
            ("responses cannot be steered here; send the input with response.create when this one is over"),
        )
    else:
        code, message = "invalid_input", "a response is steered by previous_response_id and input"
    return escape_separators(
        b'{"type":"response.steer.failed","sequence_number":0,'
        b'"error":{"type":"invalid_request_error","code":"%b","message":%b},'
        b'"steer":{"previous_response_id":%b,"input":%b}}'
        % (
            code.encode(),
            dumps(message),
            dumps(target if isinstance(target, str) else ""),
            b'""' if isinstance(given, UnsetType) else bytes(given),
        )
    )
