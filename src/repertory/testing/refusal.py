"""How the test server refuses a request."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NoReturn


class Refusal(Exception):
    """A request that the server does not answer.

    Attributes:
        status: The HTTP status.
        kind: The API's error type.
        message: The error message.
        headers: Further headers of the response.
        code: The ``error_code`` in its details; "" for no details.
    """

    def __init__(
        self, status: int, kind: str, message: str, headers: Mapping[str, str] | None = None, *, code: str = ""
    ) -> None:
        super().__init__(message)
        self.status = status
        self.kind = kind
        self.message = message
        self.headers = dict(headers or {})
        self.code = code


def malformed(message: str, *, code: str = "") -> Refusal:
    """Make the refusal of a malformed request."""
    return Refusal(400, "invalid_request_error", message, code=code)


def refuse(message: str, *, code: str = "") -> NoReturn:
    """Refuse a request as malformed."""
    raise malformed(message, code=code)
