"""The HTTP interface: a small Starlette app over ``Control``, behind ``Guard``.

Operations that change nothing are in ``read_operations.py``, those that change something in ``write_operations.py``.
This module has what a browser and an MCP client need besides.
"""

from __future__ import annotations

from typing import Any, Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.mcp.server import answer_http, serve_tools
from repertory.service.access import Access, Guard
from repertory.service.control import Control
from repertory.service.feed import PING
from repertory.service.openapi import document
from repertory.service.page import CONTENT_SECURITY_POLICY, PAGE, STATIC_FILES
from repertory.service.read_operations import READ_OPERATIONS, ReadOperations
from repertory.service.routes import (
    ERROR_HANDLERS,
    LongRequests,
    LongResponse,
    Operation,
    get,
    make_routes,
    post,
    read_bytes,
)
from repertory.service.run_tools import ABOUT, run_tools
from repertory.service.server import MAX_CONNECTIONS
from repertory.service.views import AgentView
from repertory.service.write_operations import WRITE_OPERATIONS, WriteOperations

RESERVED: Final = 32  # connections that long requests must leave free for everything else


def create_app(
    control: Control, access: Access, *, ping: float = PING, max_followers: int = MAX_CONNECTIONS - RESERVED
) -> ASGIApp:
    """Make the ASGI app.

    Args:
        control: Carries the requests out.
        access: Decides which requests are allowed.
        ping: Seconds of silence after which an event stream sends a sign of life.
        max_followers: Largest number of event streams, calls of MCP clients and waits for results at once.
    """
    long_requests = LongRequests(max_followers)
    service = _Service(control, access, long_requests)
    reads = ReadOperations(control, long_requests, ping=ping, read_only=access.read_only)
    app = Starlette(
        routes=[
            *make_routes((_OWN, service), (READ_OPERATIONS, reads), (WRITE_OPERATIONS, WriteOperations(control))),
            Route("/mcp", service.mcp, methods=["POST"]),
            Route("/static/{path:path}", service.static, methods=["GET"]),
        ],
        exception_handlers=ERROR_HANDLERS,
    )
    app.router.redirect_slashes = False
    return Guard(app, access)


class _Service:
    """Operations on the service itself."""

    def __init__(self, control: Control, access: Access, long_requests: LongRequests) -> None:
        self._control = control
        self._access = access
        self._long_requests = long_requests
        self._mcp: tuple[list[AgentView], Any] | None = None  # the server, and the agents that it offers

    async def page(self) -> Response:
        """The page for a browser. It holds no data, so it needs no token."""
        return HTMLResponse(PAGE, headers={"content-security-policy": CONTENT_SECURITY_POLICY})

    async def static(self, request: Request) -> Response:
        """The files of the page. The path has a digest of all of them, so a browser may cache them for good."""
        found = STATIC_FILES.get(request.path_params["path"])
        if found is None:
            raise HTTPException(404, "the page has no such file; load the page again")
        body, media_type = found
        return Response(body, media_type=media_type, headers={"cache-control": "public, max-age=31536000, immutable"})

    async def openapi(self) -> Json:
        """This description of the service, for machines."""
        return document(OPERATIONS, self._control.offers.list())

    async def open_session(self, request: Request) -> Response:
        """Give a browser its cookie for the code in its link, or for the token."""
        if not self._access.exchange(request.headers.get("authorization")):
            raise HTTPException(401, "the code or token is wrong, or a code that was used before; see docs/service.md")
        answer = Response(status_code=204)
        answer.set_cookie(self._access.cookie_name, self._access.cookie, httponly=True, samesite="strict", path="/")
        return answer

    async def mcp(self, request: Request) -> Response:
        """A request of an MCP client: the agents and their runs as tools. See the protocol for what it may ask."""
        body = await read_bytes(request)
        agents = self._control.offers.list()
        if self._mcp is None or self._mcp[0] != agents:  # describing an agent as a tool takes about a millisecond
            try:
                self._mcp = agents, serve_tools(run_tools(self._control), instructions=ABOUT)
            except ConfigurationError as error:
                raise HTTPException(501, str(error)) from None
        server = self._mcp[1]
        unread: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

        async def answer(scope: Scope, receive: Receive, send: Send) -> None:
            async def receive_again() -> Message:
                return unread.pop() if unread else await receive()

            await answer_http(server, scope, receive_again, send)

        return LongResponse(self._long_requests, answer)


_OWN: Final[tuple[Operation, ...]] = (
    get("/", _Service.page, media=("text/html",)),
    get("/openapi.json", _Service.openapi),
    post("/session", _Service.open_session, status=204),
)
OPERATIONS: Final = (*_OWN, *READ_OPERATIONS, *WRITE_OPERATIONS)
