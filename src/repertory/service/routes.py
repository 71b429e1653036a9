"""HTTP routing: the signature of a handler defines what it takes and returns, also for the OpenAPI document.

A handler is ``async def handler(service, run_id: str, *, limit: int = 50, headers: …, body: …) -> …``. Parts of its
path are passed by name, and ``request`` if it has such a parameter. ``headers`` and ``body`` are structs; what else is
keyword-only is the query, or a struct ``query`` is. The return value is answered as JSON, None as ``Accepted``. A
handler that makes its own response declares ``Annotated[Response, …]`` with the type of the JSON in it, or ``Response``
if there is none. The errors that it raises are answered here, too.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import aclosing, contextmanager
from functools import cache, partial
from inspect import signature
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

import anyio
import msgspec
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from repertory._choices import expected, show
from repertory._cutting import clip
from repertory._frozen import freeze
from repertory._json_text import is_half_a_pair, json_bytes
from repertory.errors import (
    ConfigurationError,
    ContentNotFound,
    ItemNotFound,
    JournalError,
    ModelError,
    PayloadInvalid,
    QueueFull,
    RepertoryError,
    RunError,
    RunExists,
    RunNotFound,
    ScopeNotFound,
)
from repertory.service.views import Accepted

T = TypeVar("T", bound=msgspec.Struct)

MAX_BODY: Final = 2**20  # bytes
MAX_LEVELS: Final = 128  # of nesting in a body: what is in it may have 100, as arguments and payloads everywhere
BODY_TIMEOUT: Final = 10.0  # seconds
_LONGEST: Final = 300  # characters of an error that is quoted: it may itself quote the whole request
_EXACT: Final = 2**53  # beyond it floats cannot represent every whole number

Method: TypeAlias = Literal["GET", "POST", "DELETE"]
Handler: TypeAlias = Callable[..., Awaitable[object]]
Part: TypeAlias = Literal["query", "headers", "body"]
PARTS: Final = get_args(Part)


class Nothing(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a request that needs none: empty, or an empty object."""


class Operation(msgspec.Struct, frozen=True):
    """One operation of the HTTP interface; ``get``, ``post`` and ``delete`` make one of their method.

    Attributes:
        path: The path in Starlette's syntax.
        handle: The handler, see the module.
        status: The status of a successful answer.
        also: Other such statuses.
        errors: Its specific error statuses; those that any request may get are in ``ANY_ERRORS``.
        media: The media types of its answers.
        max_body: Most bytes that its body may have.
    """

    method: Method
    path: str
    handle: Handler
    status: int = 200
    also: tuple[int, ...] = ()
    errors: tuple[int, ...] = ()
    media: tuple[str, ...] = ("application/json",)
    max_body: int = MAX_BODY

    def takes(self, part: Part | Literal["request"]) -> Any:
        """The type of a part of the request; None if it has no such part."""
        if part == "query":
            return _query_of(self.handle)
        return get_type_hints(self.handle).get(part, Nothing if part == "body" and self.method == "POST" else None)

    @property
    def gives(self) -> Any:
        """The type of its JSON answer; None if it does not answer with JSON."""
        kind = get_type_hints(self.handle, include_extras=True)["return"]
        if get_origin(kind) is Annotated:
            return get_args(kind)[1]
        return None if kind is Response else Accepted if kind is type(None) else kind


@cache
def _query_of(handle: Handler) -> type[msgspec.Struct] | None:
    hints = get_type_hints(handle, include_extras=True)
    own = [
        (each.name, hints[each.name], *(() if each.default is each.empty else (each.default,)))
        for each in signature(handle).parameters.values()
        if each.kind is each.KEYWORD_ONLY and each.name not in PARTS
    ]
    name = f"{handle.__name__}_query"
    return hints.get("query", msgspec.defstruct(name, own, kw_only=True, frozen=True) if own else None)


get: Final = partial(Operation, "GET")
post: Final = partial(Operation, "POST")
delete: Final = partial(Operation, "DELETE")


def make_routes(*groups: tuple[Sequence[Operation], object]) -> list[Route]:
    """Make the routes of operations; each group comes with the object whose methods its handlers are.

    There is one route for each path, so that the answer to an unsupported method lists the supported ones.
    """
    by_path: dict[str, dict[str, Callable[[Request], Awaitable[Response]]]] = {}
    for operations, service in groups:
        for operation in operations:
            by_path.setdefault(operation.path, {})[operation.method] = _endpoint(operation, service)
    return [Route(path, _by_method(answer), methods=list(answer)) for path, answer in by_path.items()]


def _by_method(
    answers: Mapping[str, Callable[[Request], Awaitable[Response]]],
) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        return await answers["GET" if request.method == "HEAD" else request.method](request)

    return endpoint


def _endpoint(operation: Operation, service: object) -> Callable[[Request], Awaitable[Response]]:
    handle = partial(operation.handle, service)
    query, headers, body = operation.takes("query"), operation.takes("headers"), operation.takes("body")
    wants_request = operation.takes("request") is not None
    takes_whole_query = "query" in signature(operation.handle).parameters

    async def endpoint(request: Request) -> Response:
        parts: dict[str, Any] = {**request.path_params, **({"request": request} if wants_request else {})}
        if query is not None:
            asked = _read_texts(request.query_params.multi_items(), query, "the query")
            parts |= {"query": asked} if takes_whole_query else msgspec.structs.asdict(asked)
        if headers is not None:
            names = [field.encode_name for field in msgspec.structs.fields(headers)]
            given = [(name, text) for name in names for text in request.headers.getlist(name)]
            parts["headers"] = _read_texts(given, headers, "a header")
        if body is not None:
            read = await _read_body(request, body, max_body=operation.max_body)
            parts |= {} if body is Nothing else {"body": read}
        answer = await handle(**parts)
        if isinstance(answer, Response):
            return answer
        return as_json(Accepted() if answer is None else answer, operation.status)

    return endpoint


def as_json(value: object, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Make a JSON answer."""
    return Response(json_bytes(value), status, headers=headers, media_type="application/json")


# --- long requests ----------------------------------------------------------------------------------------


class LongRequests:
    """Allows so many answers at once to keep their connections for long, so that some are left for everything else."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._open = 0

    @contextmanager
    def slot(self) -> Generator[None]:
        """Occupy a slot until the end of the block. Raises ``HTTPException`` if all are taken."""
        if self._open >= self._most:
            raise HTTPException(
                503, f"{self._most} long requests (streams, waits, MCP calls) are open already", {"retry-after": "5"}
            )
        self._open += 1
        try:
            yield
        finally:
            self._open -= 1


class LongResponse(Response):
    """A response that occupies a slot of ``LongRequests`` while it is sent."""

    def __init__(self, long_requests: LongRequests, answer: ASGIApp) -> None:
        super().__init__()
        self._long_requests = long_requests
        self._answer = answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or refuse because there are too many."""
        with self._long_requests.slot():
            await self._answer(scope, receive, send)


# --- errors -----------------------------------------------------------------------------------------------

# The first match counts.
_STATUS: Final = (
    ((RunNotFound, ScopeNotFound, ItemNotFound, ContentNotFound), 404),
    (ConfigurationError, 400),
    ((RunExists, PayloadInvalid), 422),
    (QueueFull, 429),
    (RunError, 409),
    ((ModelError, JournalError), 503),
    (RepertoryError, 500),
)


async def _answer_error(request: Request, error: Exception) -> Response:
    status = next(status for kind, status in _STATUS if isinstance(error, kind))
    headers = {"retry-after": f"{math.ceil(error.retry_after)}"} if isinstance(error, QueueFull) else None
    return as_json({"error": str(error)}, status, headers)


# Starlette's own texts say neither what is wrong nor what to do.
_BETTER_TEXTS: Final = {
    "Not Found": "there is nothing at this address; GET /openapi.json lists what there is",
    "Method Not Allowed": "this address does not take this method; the header Allow lists those that it takes",
}


async def _answer_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    text = _BETTER_TEXTS.get(error.detail, error.detail)
    return as_json({"error": text}, error.status_code, error.headers)


ERROR_HANDLERS: Final = {RepertoryError: _answer_error, HTTPException: _answer_http_error}
"""Answers each kind of error that a handler may raise."""


# --- reading requests -------------------------------------------------------------------------------------


def _read_texts(given: Iterable[tuple[str, str]], kind: type[T], what: str) -> T:
    """Convert names and texts to a struct. Raises ``HTTPException`` if they do not fit it."""
    known = {field.encode_name: field.type for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, text in given:
        if name not in known:
            raise HTTPException(400, f"unknown parameter {clip(name, 40)!r}; there are {', '.join(known)}")
        if name in values:
            raise HTTPException(400, f"{name} was given more than once")
        try:
            values[name] = msgspec.convert(text, known[name], strict=False)  # which also reads numbers
        except msgspec.ValidationError as error:
            raise HTTPException(400, f"{name} is {show(text)}; {expected(known[name], error)}") from error
    try:
        return msgspec.convert(values, kind)
    except msgspec.ValidationError as error:
        raise HTTPException(400, f"{what} is not what was expected: {clip(str(error), _LONGEST)}") from error


async def read_bytes(request: Request, *, max_body: int = MAX_BODY) -> bytes:
    """Read the body. Raises ``HTTPException`` if it has over ``max_body`` bytes, is too slow, or not declared as JSON.

    A page of another site cannot send JSON without a preflight request, so a form that it submits is refused here.
    """
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, f"a {request.method} must have content-type: application/json")
    body = bytearray()
    try:
        with anyio.fail_after(BODY_TIMEOUT):
            async with aclosing(request.stream()) as pieces:
                async for piece in pieces:
                    body += piece
                    if len(body) > max_body:
                        raise HTTPException(413, f"the body is larger than {max_body} bytes")
    except TimeoutError:
        raise HTTPException(408, f"the body did not come within {BODY_TIMEOUT:g} s") from None
    except ClientDisconnect:
        raise HTTPException(400, "the body is not whole") from None
    return bytes(body)


def _read_float(text: str) -> int | float:
    """Read a number with a point or an exponent: in JSON 7.0 is as whole as 7. Raises ``ValueError`` for 1e999."""
    number = float(text)
    if math.isinf(number):
        raise ValueError(f"{clip(text, 40)} is out of range")
    return int(number) if abs(number) < _EXACT and number.is_integer() else number


_DECODER: Final = msgspec.json.Decoder(float_hook=_read_float)


async def _read_body(request: Request, kind: type[T], *, max_body: int) -> T:
    """Read the body as a struct. Raises ``HTTPException`` as ``read_bytes``, and if the body does not fit it."""
    body = await read_bytes(request, max_body=max_body)
    # A large body is that of an image: base64 has none of these signs, and each value takes time and memory.
    if len(body) > MAX_BODY and sum(map(body.count, (b"{", b"[", b","))) > MAX_BODY:
        raise HTTPException(413, f"the body has more than {MAX_BODY} brackets and commas")
    try:
        content = _DECODER.decode(body or b"{}")
        freeze(content, deepest=MAX_LEVELS)  # otherwise what one task can write down, another could not read
        return msgspec.convert(content, kind)
    except RecursionError:
        raise HTTPException(400, f"the body is nested more than {MAX_LEVELS} levels deep") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = r"it has half of a surrogate pair, such as \ud83d" if is_half_a_pair(body) else clip(str(error), _LONGEST)
        raise HTTPException(400, f"the body is not what was expected: {why}") from error
