"""Addresses of servers, as callers pass them in."""

from __future__ import annotations

from urllib.parse import SplitResult, urlsplit

from repertory.errors import ConfigurationError


def read_web_address(where: str, url: str) -> SplitResult:
    """Take an ``http`` or ``https`` address apart.

    Raises:
        ConfigurationError: It is none. The message does not show what may be secret: user, password and query.
    """
    try:
        parts = urlsplit(url)
        (parts.hostname or "").encode("idna")  # fails here instead of at the lookup
        if parts.scheme in ("http", "https") and parts.hostname and parts.port != 0 and url.isprintable():
            return parts
    except ValueError:  # an impossible port, half an IPv6 address, or a name that no host can have
        pass
    shown = url.rpartition("@")[2].partition("?")[0].partition("#")[0]
    raise ConfigurationError(f"{where} must begin with http:// or https:// and a host, got {shown[:200]!r}")


def read_base_address(where: str, url: str) -> SplitResult:
    """The same for an address to which the paths of endpoints are appended.

    Raises:
        ConfigurationError: It is no web address, or has a query or a fragment.
    """
    parts = read_web_address(where, url)
    if "?" in url or "#" in url:
        raise ConfigurationError(f"{where} has a query or a fragment, but the paths of endpoints are appended to it")
    return parts


def public_address(url: str) -> str:
    """An address without user and password, safe to show in a message."""
    parts = urlsplit(url)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")


def port_of(parts: SplitResult) -> int:
    """The port of an address, or the one that its scheme implies."""
    return parts.port or (443 if parts.scheme == "https" else 80)
