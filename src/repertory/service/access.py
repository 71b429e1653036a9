"""Access control: checks the host, the origin and the token of a request before anything else of it is read.

On a unix socket the file's mode decides who may connect. On TCP everything but the empty page needs the token: as a
bearer token, or as the cookie that a browser gets in exchange for the code in the link it was opened with.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from collections.abc import Iterable
from typing import Final

import msgspec
from starlette.requests import cookie_parser
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from repertory.errors import ConfigurationError
from repertory.service.tokens import check_token

_LOOPBACK: Final = ("localhost", "127.0.0.1", "[::1]")
_USUAL: Final = 80  # the port that clients leave out of the host
OPEN: Final = {("GET", "/"), ("HEAD", "/"), ("POST", "/session")}  # no data: the page, and the exchange of the code
STATIC: Final = "/static/"  # the files of the page, which hold no data either

_HEADERS: Final = (
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cross-origin-opener-policy", b"same-origin"),
)


class Refusal(msgspec.Struct, frozen=True):
    """Why a request is refused."""

    status: int
    reason: str


class Access:
    """Decides which requests are allowed.

    Args:
        port: The TCP port; None for a unix socket.
        token: The secret that a request over TCP must show, of at least 43 characters; None if the mode of the socket's
            file decides.
        read_only: Refuse every request that changes something.

    Raises:
        ConfigurationError: There is a port but no token, or the token could be guessed.
    """

    def __init__(self, *, port: int | None = None, token: str | None = None, read_only: bool = False) -> None:
        if port is not None and token is None:
            raise ConfigurationError(f"port {port} needs a token: without one, every user of this machine could ask")
        if token is not None:
            check_token(token)
        self.read_only = read_only
        self._port = port
        self._token = token
        self._code: str | None = None

    @property
    def cookie_name(self) -> str:
        """The cookie's name. It has the port in it, because cookies are shared by all ports of a host."""
        return f"repertory-{self._port}"

    @property
    def cookie(self) -> str:
        """The value that a browser shows instead of the token. It is derived from it, so it outlives the process."""
        return hmac.digest((self._token or "").encode(), b"repertory cookie", hashlib.sha256).hex()

    def new_code(self) -> str:
        """Make a code for one link: whoever shows it first gets a cookie. It replaces the previous code."""
        self._code = secrets.token_urlsafe(32)
        return self._code

    def exchange(self, shown: str | None) -> bool:
        """Whether a cookie may be given for the code, which can be used once, or for the token."""
        secret = _bearer(shown)
        if self._code is not None and hmac.compare_digest(secret, self._code.encode()):
            self._code = None
            return True
        return self._token is not None and hmac.compare_digest(secret, self._token.encode())

    def refusal(self, method: str, path: str, headers: Iterable[tuple[bytes, bytes]]) -> Refusal | None:
        """Why the request is refused; None if it is allowed."""
        values: dict[str, list[str]] = {}
        for name, value in headers:
            values.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1").strip())
        several = [
            name for name in ("host", "origin", "authorization", "content-type") if len(values.get(name, [])) > 1
        ]
        if several:
            return Refusal(400, f"the header {several[0]} was sent more than once")
        first = {name: found[0] for name, found in values.items()}
        host = first.get("host", "").lower()
        if not self._is_our_host(host):
            ours = "localhost" if self._port is None else f"localhost:{self._port}"
            return Refusal(421, f"this is not {host[:100]!r}; ask for {ours}")
        origin = first.get("origin")
        if origin is not None and origin.lower() != f"http://{host}":
            return Refusal(403, "the request comes from another site's page")
        if first.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return Refusal(403, "the request comes from another site's page; open the address in a tab of its own")
        if not is_open(method, path) and not self._is_known(first, values.get("cookie", [])):
            return Refusal(401, "no valid token; see docs/service.md for where it is kept")
        if self.read_only and method not in ("GET", "HEAD") and not is_open(method, path):
            return Refusal(403, "this service is read-only; start it without --read-only to change something")
        return None

    def _is_our_host(self, host: str) -> bool:
        if self._port is not None:
            ports = (f":{self._port}", "") if self._port == _USUAL else (f":{self._port}",)
            return host in {f"{name}{port}" for name in _LOOPBACK for port in ports}
        name, colon, port = host.rpartition(":")  # a tunnel to the socket may have any port
        return host in _LOOPBACK or (bool(colon) and name in _LOOPBACK and port.isascii() and port.isdigit())

    def _is_known(self, headers: dict[str, str], cookies: list[str]) -> bool:
        if self._token is None:
            return True
        if hmac.compare_digest(_bearer(headers.get("authorization")), self._token.encode()):
            return True
        shown = (cookie_parser(header).get(self.cookie_name, "") for header in cookies)
        return any(hmac.compare_digest(each.encode(), self.cookie.encode()) for each in shown)


class Guard:
    """Passes on the requests that ``Access`` allows, and sets the headers that every answer has."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app = app
        self._access = access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})  # only HTTP is served
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [*message.get("headers", ()), *_HEADERS]
                if not any(name == b"cache-control" for name, _ in headers):
                    headers.append((b"cache-control", b"no-store"))
                message = {**message, "headers": headers}
            await send(message)

        refusal = self._access.refusal(scope["method"], scope["path"], scope["headers"])
        if refusal is None:
            if not is_open(scope["method"], scope["path"]):
                # A server other than ours does not ask for this.
                scope.get("extensions", {}).get("repertory.authenticated", lambda: None)()
            await self._app(scope, receive, send_guarded)
            return
        asked = {"www-authenticate": "Bearer"} if refusal.status == 401 else None
        body = msgspec.json.encode({"error": refusal.reason})
        answer = Response(body, refusal.status, headers=asked, media_type="application/json")
        await answer(scope, receive, send_guarded)


def is_open(method: str, path: str) -> bool:
    """Whether everybody may make this request, because its answer holds no data."""
    return (method, path) in OPEN or (method in ("GET", "HEAD") and path.startswith(STATIC))


def _bearer(shown: str | None) -> bytes:
    scheme, _, secret = (shown or "").partition(" ")
    return secret.strip().encode() if scheme.lower() == "bearer" else b""
