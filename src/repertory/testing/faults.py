"""Faults between a client and a model's server. Each fault affects one request.

::

    server.inject(rate_limited(retry_after=2), overloaded(), Truncate(after=4))
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, TypeAlias

import msgspec

__all__ = [
    "Break",
    "Drip",
    "Fault",
    "Garbage",
    "Raw",
    "Refuse",
    "Reset",
    "Stall",
    "Truncate",
    "overloaded",
    "prompt_too_long",
    "rate_limited",
    "server_error",
]


class Refuse(msgspec.Struct, frozen=True):
    """Answer with an error instead of asking the responder."""

    status: int
    kind: str
    message: str
    headers: Mapping[str, str] = {}


class Reset(msgspec.Struct, frozen=True):
    """Reset the connection after ``after`` events of the stream; 0 is before the response's headers."""

    after: int = 0


class Truncate(msgspec.Struct, frozen=True):
    """End the stream properly at the HTTP level, but after only ``after`` events."""

    after: int = 3


class Raw(msgspec.Struct, frozen=True):
    """Answer with exactly these bytes instead of asking the responder."""

    status: int = 200
    headers: Mapping[str, str] = MappingProxyType({"content-type": "text/event-stream"})
    body: bytes = b""


class Stall(msgspec.Struct, frozen=True):
    """Send nothing more after ``after`` events, until the client disconnects.

    Attributes:
        pings: Seconds between pings that are sent meanwhile; None for no pings.
        event: The event that is sent as a ping.
    """

    after: int = 0
    pings: float | None = None
    event: Mapping[str, Any] = MappingProxyType({"type": "ping"})


class Garbage(msgspec.Struct, frozen=True):
    """Send ``data`` instead of the event that follows ``after`` events."""

    after: int = 2
    data: str = '{"type": "content_block_delta", "index": 0, "del'


class Break(msgspec.Struct, frozen=True):
    """Send an ``error`` event after ``after`` events, like a server that fails in the middle of an answer."""

    after: int = 2
    kind: str = "overloaded_error"
    message: str = "Overloaded"


class Drip(msgspec.Struct, frozen=True):
    """Send everything, but wait ``seconds`` and send a ping before each event."""

    seconds: float


Fault: TypeAlias = Refuse | Raw | Reset | Truncate | Stall | Garbage | Break | Drip


def rate_limited(*, retry_after: float | str | None = None, milliseconds: int | None = None) -> Refuse:
    """A 429, with the headers that say when to retry.

    Args:
        retry_after: Seconds, or an HTTP date; None leaves the header out.
        milliseconds: The more exact ``retry-after-ms``; None leaves it out.
    """
    headers = {} if retry_after is None else {"retry-after": f"{retry_after}"}
    if milliseconds is not None:
        headers["retry-after-ms"] = str(milliseconds)
    message = "This request would exceed your organization's rate limit of 50 requests per minute."
    return Refuse(429, "rate_limit_error", message, headers)


def overloaded() -> Refuse:
    """A 529."""
    return Refuse(529, "overloaded_error", "Overloaded")


def server_error(status: int = 500) -> Refuse:
    """A 5xx."""
    return Refuse(status, "api_error", "Internal server error")


def prompt_too_long() -> Refuse:
    """A 400, as for a prompt beyond the window."""
    return Refuse(400, "invalid_request_error", "prompt is too long: 210000 tokens > 200000 maximum")
