"""Asks a service that runs on this machine: at its unix socket, or at its port with the token that it keeps."""

from __future__ import annotations

import http.client
import socket
from pathlib import Path
from typing import Any, Final

import msgspec

from repertory.errors import ConfigurationError, RepertoryError, RunError, RunNotFound
from repertory.service.access import default_token_file, read_token
from repertory.service.sockets import default_socket

_TIMEOUT: Final = 30.0  # seconds; a decision is durable when the answer comes
_ERRORS: Final[dict[int, type[RepertoryError]]] = {400: ConfigurationError, 404: RunNotFound, 409: RunError}


def ask_service(path: str, body: Any = None, *, at: Path | None = None, port: int | None = None) -> Any:
    """Ask, and give the answer's JSON.

    Args:
        path: What to ask for, with its query.
        body: What to post; None asks with GET.
        at: The unix socket; None for the one that a service listens at unless told otherwise.
        port: A port of 127.0.0.1 instead.

    Raises:
        ConfigurationError: No service answers there, or it does not understand.
        RepertoryError: What the service says is wrong.
    """
    place = f"127.0.0.1:{port}" if port is not None else f"unix:{at or default_socket()}"
    headers = {"content-type": "application/json"}
    if port is not None:
        headers["authorization"] = f"Bearer {read_token(default_token_file())}"
    connection = _UnixConnection(at or default_socket()) if port is None else http.client.HTTPConnection(place)
    connection.timeout = _TIMEOUT
    try:
        sent = None if body is None else msgspec.json.encode(body)
        connection.request("GET" if body is None else "POST", path, sent, headers)
        answer = connection.getresponse()
        said = msgspec.json.decode(answer.read())
    except (OSError, http.client.HTTPException, msgspec.DecodeError) as error:
        raise ConfigurationError(
            f"no service answers at {place} ({error}); start one with repertory serve, or name where it is with "
            "--socket or --port"
        ) from error
    finally:
        connection.close()
    if answer.status >= 400:
        raise _ERRORS.get(answer.status, RepertoryError)(said["error"])
    return said


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost")
        self._path = path

    def connect(self) -> None:
        """Connect to the socket instead of a port."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))
