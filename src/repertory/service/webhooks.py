"""Webhooks: addresses that are told when a run changes its state, signed according to Standard Webhooks.

https://github.com/standard-webhooks/standard-webhooks/blob/main/spec/standard-webhooks.md
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import ipaddress
import os
import re
from collections.abc import Sequence
from typing import Final, get_args
from urllib.parse import SplitResult

import msgspec

from repertory._frozen import freeze_fields
from repertory._web_address import read_web_address
from repertory.errors import ConfigurationError
from repertory.record.records import RunState

_URL: Final = re.compile("[!-~]+")
_PREFIX: Final = "whsec_"
_LEAST_SECRET: Final = 24  # bytes, by the specification
_MOST_SECRET: Final = 64


class Webhook(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An address that is told when a run changes its state.

    Attributes:
        url: The address to post to: ``https``, or ``http`` on this machine. It identifies the webhook, also after a
            restart.
        secret_env: The environment variable with the secret that signs messages: ``whsec_`` and 24 to 64 bytes in
            base 64, or the base 64 alone.
        on: The states that it is told of; () for all of them.
        allow_http: Whether ``url`` may be ``http`` on another machine. Others on the network can then read messages.

    Raises:
        ConfigurationError: The address may not be posted to, or there is no such state.
    """

    url: str
    secret_env: str
    on: Sequence[RunState] = ()
    allow_http: bool = False

    def __post_init__(self) -> None:
        freeze_fields(self, sequences=("on",))
        this, states = f"webhook {self.url[:200]!r}", get_args(RunState)
        for state in self.on:
            if state not in states:
                raise ConfigurationError(f"{this}: on names {state!r}; the states are {', '.join(states)}")
        if not self.secret_env:
            raise ConfigurationError(f"{this}: secret_env must name an environment variable")
        parts = read_web_address("the url of a webhook", self.url)
        if not _URL.fullmatch(self.url):
            raise ConfigurationError(f"{this} must be of ASCII letters, digits and signs alone")
        if parts.username is not None or parts.password is not None:
            raise ConfigurationError(f"the webhook at {parts.hostname} has a password in its url; it is shown in lists")
        if parts.scheme == "http" and not self.allow_http and not _is_loopback(parts):
            raise ConfigurationError(f"{this} must be https, as it is not on this machine; allow_http = true allows it")

    def read_secret(self) -> bytes:
        """Read the secret from the environment.

        Raises:
            ConfigurationError: It is not set, or is invalid.
        """
        text = os.environ.get(self.secret_env, "").strip()
        if not text:
            raise ConfigurationError(f"webhook {self.url[:200]!r}: the environment has no {self.secret_env}")
        try:
            secret = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        except (binascii.Error, ValueError):
            secret = b""
        if not _LEAST_SECRET <= len(secret) <= _MOST_SECRET:
            raise ConfigurationError(
                f"webhook {self.url[:200]!r}: {self.secret_env} must hold {_PREFIX} and {_LEAST_SECRET} to "
                f"{_MOST_SECRET} bytes in base 64; make one with "
                """python -c 'import base64, os; print("whsec_" + base64.b64encode(os.urandom(32)).decode())'"""
            )
        return secret


def signature(secret: bytes, webhook_id: str, timestamp: int, body: bytes) -> str:
    """The value of the header ``webhook-signature``."""
    digest = hmac.digest(secret, f"{webhook_id}.{timestamp}.".encode() + body, hashlib.sha256)
    return f"v1,{base64.b64encode(digest).decode()}"


def _is_loopback(parts: SplitResult) -> bool:
    host = parts.hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
