"""The Messages API through Anthropic's SDK: Claude, and every server that speaks the same protocol."""

from __future__ import annotations

import math
import os
import random
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator
from contextlib import asynccontextmanager, contextmanager, suppress
from copy import copy
from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import anyio
import anyio.lowlevel
import anyio.to_thread
import msgspec

from repertory._choices import check_number, check_type, check_value
from repertory._error_texts import name_error
from repertory._json_text import decode_received
from repertory._web_address import public_address, read_base_address
from repertory.errors import ConfigurationError, ModelResponseInvalid
from repertory.llm import _failures
from repertory.llm._bounds import DOCUMENT_BYTES, ERROR_BYTES
from repertory.llm._failures import Failure, Place
from repertory.llm._stream import Assembler, EventReader, count_of, excerpt, reading, response_of
from repertory.llm.estimate import estimate_tokens
from repertory.llm.features import needed_betas
from repertory.llm.messages import Json
from repertory.llm.model import BrokenOff, ModelRequest, ModelResponse, Retrying, StreamEvent, encode_request
from repertory.llm.profiles import ModelProfile, Usage, profile_for
from repertory.llm.retry import RetryPolicy

if TYPE_CHECKING:
    import anthropic
    import httpx2

_API = "https://api.anthropic.com"
_WAYS_IN = ("ANTHROPIC_API_KEY", "ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_BASE_URL", "ANTHROPIC_CUSTOM_HEADERS")
_MESSAGES, _COUNTING = "/v1/messages", "/v1/messages/count_tokens"
# What the endpoint that counts takes of a request, as the SDK has it (its MessageCountTokensParams, 2026-11). Of other
# fields it says that they are not permitted.
_COUNTED = frozenset((
    *("model", "messages", "system", "tools", "tool_choice", "thinking", "output_config", "cache_control", "speed"),
    *("context_management", "compaction", "mcp_servers"),
))  # fmt: skip
_COUNT_TIMEOUT = 60.0  # seconds; no model has to write a count, and the caller can do without it
_REFUSAL_TIMEOUT = 5.0  # seconds to read why a server refuses; the status alone says enough
_STOP_TIMEOUT = 1.0  # seconds to wait after the stop reason for `message_stop`, which has been seen to stay away
_Listener: TypeAlias = Callable[[StreamEvent], Any]


class _Call(NamedTuple):
    """What every attempt of one call has in common."""

    client: anthropic.AsyncAnthropic
    place: Place
    body: Json
    betas: tuple[str, ...]


class AnthropicModel:
    """A model behind the Messages API. Runs on trio and asyncio; safe to call from many tasks at once.

    ::

        model = AnthropicModel("claude-sonnet-5-5")                          # the key from ANTHROPIC_API_KEY
        local = AnthropicModel("qwen3", base_url="http://localhost:11434")   # Ollama; no key needed

    Every request is streamed, so that a silent server is noticed early. Only this class retries: the SDK's own
    retries are off. If an attempt fails after it has streamed something, ``on_event`` gets ``Retrying`` and then the
    new attempt's events from the start; discard the earlier ones.

    The server is not trusted: its answers are read up to size limits, an unreadable answer raises
    ``ModelResponseInvalid``, and redirects are not followed.

    Attributes:
        profile: What the planner knows about the model.

    Args:
        name: The model's name on the server.
        api_key: The key; None for ``ANTHROPIC_API_KEY``, or what the SDK finds by itself.
        auth_token: A bearer token instead of a key; None for ``ANTHROPIC_AUTH_TOKEN``.
        base_url: The server, without ``/v1``; None for ``ANTHROPIC_BASE_URL``, or Anthropic's own.
        profile: The model's profile, whose name is replaced by ``name``; None looks the name up.
        retry: When failed calls are retried.
        content_idle_timeout: Seconds without content after which an attempt is abandoned and retried. Pings, events
            of unknown types and empty pieces do not count as content. A model may think for minutes before it shows
            anything. None waits forever.
        request_timeout: Seconds that one attempt may take in total, including the answer; None for no limit.
        thinking: The ``thinking`` field for requests whose ``options`` have none, or one without a ``type``; None
            leaves it out.
        http_client: Replaces the SDK's own HTTP client, for proxies, certificates or a test transport. ``aclose``
            does not close it. Redirects are not followed, whatever its settings.
        chance: Returns the random numbers from 0 to 1 that spread out retries.
    """

    def __init__(
        self,
        name: str,
        *,
        api_key: str | None = None,
        auth_token: str | None = None,
        base_url: str | None = None,
        profile: ModelProfile | None = None,
        retry: RetryPolicy = RetryPolicy(),  # noqa: B008 - frozen
        content_idle_timeout: float | None = 300.0,
        request_timeout: float | None = 1800.0,
        thinking: Json | None = None,
        http_client: httpx2.AsyncClient | None = None,
        chance: Callable[[], float] = random.random,
    ) -> None:
        for what, text in (("api_key", api_key), ("auth_token", auth_token), ("base_url", base_url)):
            check_value(f"AnthropicModel: {what}", text, str | None)  # its error does not show what may be a key
        check_value("AnthropicModel: thinking", thinking, Json | None)
        check_type("AnthropicModel: retry", retry, RetryPolicy, "a RetryPolicy")
        check_type("AnthropicModel: profile", profile, ModelProfile | None, "a ModelProfile or None")
        if api_key is not None and auth_token is not None:
            raise ConfigurationError("both api_key and auth_token are set; the server takes one, so pass one")
        if base_url is not None:
            read_base_address("base_url (or ANTHROPIC_BASE_URL)", base_url)
        for field, seconds in (("content_idle_timeout", content_idle_timeout), ("request_timeout", request_timeout)):
            check_number(f"AnthropicModel {name}: {field}", seconds, int | float, above=0, none=True)
        self.name = name
        self._api_key = api_key
        self._auth_token = auth_token
        self._base_url = base_url
        # Requests carry the profile's name, so it must be the given name, whichever model the profile describes.
        self.profile = msgspec.structs.replace(profile, name=name) if profile else profile_for(name)
        self._retry = retry
        self._content_idle_timeout = content_idle_timeout
        self._request_timeout = request_timeout
        self._thinking = thinking
        self._http_client = http_client
        self._chance = chance
        self._client: anthropic.AsyncAnthropic | None = None
        self._client_loop: object = None
        self._siblings: dict[str, AnthropicModel] = {}

    @property
    def server(self) -> str:
        """The server's address, without any user and password in it."""
        used = self._client and str(self._client.base_url)
        return public_address(used or self._base_url or os.environ.get("ANTHROPIC_BASE_URL") or _API)

    def __repr__(self) -> str:
        return f"AnthropicModel({self.name!r})"  # never the key

    def sibling(self, name: str) -> AnthropicModel:
        """Return another model on the same server. It connects in the same way and is closed together with this one."""
        if name == self.name:
            return self
        if name not in self._siblings:
            other = self._siblings[name] = copy(self)
            other.name, other.profile, other._thinking = name, profile_for(name), None
            other._client, other._siblings = None, {}
        return self._siblings[name]

    async def check_key(self) -> None:
        """Check that there is a key, a token, or another credential that the SDK finds by itself. Nothing is sent.

        Raises:
            ModelAuthenticationError: There is none, and the server is Anthropic's own, which needs one.
        """
        known = (self._api_key, self._auth_token, self._base_url, self._http_client, *map(os.environ.get, _WAYS_IN))
        if any(known) or self._client is not None:
            return
        client = await anyio.to_thread.run_sync(self._make_client)  # the import takes over a second
        if not (client.api_key or client.auth_token or client.credentials):
            raise _failures.no_key(Place(_API, self.name, False), "no key was found").error
        self._client, self._client_loop = client, anyio.lowlevel.current_token()

    async def complete(self, request: ModelRequest, *, on_event: _Listener | None = None) -> ModelResponse:
        """Answer one request.

        A cancelled call may have been billed. A tool call whose arguments are not a JSON object, for example because a
        limit cut it off, becomes a ``RawBlock`` that holds what came, not a ``ToolUse``.

        Args:
            request: What to send.
            on_event: Called with every piece as it streams in, in the caller's task. It must not raise.

        Raises:
            ModelError: A subclass of it, if there is no usable answer after all retries.
        """
        call = await self._open(request)
        call.body["stream"] = True
        listen: _Listener = on_event or (lambda _: None)
        started = anyio.current_time()
        attempt = 1
        while True:
            try:
                answer = await self._attempt(call, listen)
                return msgspec.structs.replace(answer, usage=_known_usage(answer, request))
            except Failure as caught:
                failure = caught
            if failure.begun:
                listen(BrokenOff())
            if not failure.passing:
                raise failure.error from failure.__cause__
            attempt += 1
            delay = self._retry.delay(attempt, asked=failure.asked, chance=self._chance())
            too_late = anyio.current_time() + delay - started > self._retry.total_time
            if attempt > self._retry.attempts or too_late:
                asked = f", and asks to wait {failure.asked:g} s" if failure.asked else ""
                times = "one attempt" if attempt == 2 else f"{attempt - 1} attempts"
                raise type(failure.error)(f"{failure.error}{asked} (after {times})") from failure.__cause__
            listen(Retrying(attempt, delay, str(failure.error)))
            await anyio.sleep(delay)

    async def count_tokens(self, request: ModelRequest) -> int:
        """Ask the server how many input tokens a request has. Not retried.

        Raises:
            ModelError: A subclass of it; ``ModelRequestRejected`` or ``UnknownModel`` if the server cannot count.
        """
        call = await self._open(request)
        for field in call.body.keys() - _COUNTED:
            del call.body[field]
        try:
            with anyio.move_on_after(_COUNT_TIMEOUT):
                async with _ask(call, _COUNTING, _COUNT_TIMEOUT) as response:
                    return count_of(await _read_json(response, ERROR_BYTES))
            raise _failures.idle_timeout(call.place, _COUNT_TIMEOUT)
        except Failure as failure:
            raise failure.error from failure.__cause__

    async def aclose(self) -> None:
        """Release connections. Safe to call twice; a later request opens them again."""
        for sibling in self._siblings.values():
            await sibling.aclose()
        client, self._client = self._client, None
        if client is not None and self._http_client is None and self._client_loop == anyio.lowlevel.current_token():
            await client.close()

    async def _attempt(self, call: _Call, listen: _Listener) -> ModelResponse:
        idle, begun = self._content_idle_timeout or math.inf, False
        with anyio.move_on_after(self._request_timeout):
            with anyio.move_on_after(idle) as silence:

                def reset_idle_timer() -> None:
                    silence.deadline = anyio.current_time() + idle

                try:
                    async with _ask(call, _MESSAGES, self._request_timeout) as response:
                        begun = True
                        # A stream was asked for, so whatever does not call itself JSON is read as one.
                        if "json" in response.headers.get("content-type", "").lower():
                            said = await _read_json(response, DOCUMENT_BYTES)
                            if isinstance(said, dict) and "error" in said and "content" not in said:
                                raise _failures.from_body(call.place, said)
                            answer = response_of(said)
                        else:
                            answer = await _read_events(response, call.place, listen, reset_idle_timer)
                    if answer.stop_reason == "model_context_window_exceeded":
                        why = {"type": answer.stop_reason, "message": "the answer ran into the end of the window"}
                        raise _failures.from_status(call.place, 400, {"error": why}, {})
                except Failure as failure:
                    failure.begun = begun
                    raise
                return answer
            raise _failures.idle_timeout(call.place, idle)
        raise _failures.total_timeout(call.place, self._request_timeout or 0.0)

    async def _open(self, request: ModelRequest) -> _Call:
        loop = anyio.lowlevel.current_token()
        # A connection pool belongs to one event loop; the model itself may outlive it.
        if self._client is None or self._client_loop != loop:
            if "anthropic" in sys.modules and self._http_client is not None:
                made = self._make_client()
            else:
                # The import takes over a second and TLS certificates more: keep both off the event loop's thread.
                made = await anyio.to_thread.run_sync(self._make_client)
            # If several tasks get here at once, the first one's client is used; the others have no open connections.
            if self._client is None or self._client_loop != loop:
                self._client, self._client_loop = made, loop
        client = self._client
        body = encode_request(request)
        given: Json | None = body.get("thinking")
        if given is None and self._thinking is not None:
            body["thinking"] = self._thinking
        elif given is not None and "type" not in given:  # it says only what to do with earlier thinking
            body["thinking"] = {"type": "adaptive", **(self._thinking or {}), **given}
        url = public_address(str(client.base_url))
        # With those of ANTHROPIC_CUSTOM_HEADERS: a request's own betas would replace its betas, and it may hold a key.
        headers = {name.lower(): text for name, text in client.default_headers.items() if isinstance(text, str)}
        betas = [*request.betas, *filter(None, map(str.strip, headers.get("anthropic-beta", "").split(",")))]
        keys = [client.api_key, client.auth_token, *map(headers.get, ("x-api-key", "authorization"))]
        bare = (key.removeprefix("Bearer ") for key in keys if key)
        secrets = tuple(key for key in bare if len(key) >= 8)  # what is shorter is also found in harmless text
        return _Call(client, Place(url, request.model, url != _API, secrets), body, needed_betas(body, betas))

    def _make_client(self) -> anthropic.AsyncAnthropic:
        import httpx2

        sdk = import_module("anthropic")
        if self._base_url is None and (url := os.environ.get("ANTHROPIC_BASE_URL")):
            read_base_address("ANTHROPIC_BASE_URL", url)
        try:
            client: anthropic.AsyncAnthropic = sdk.AsyncAnthropic(
                api_key=self._api_key,
                auth_token=self._auth_token,
                base_url=self._base_url,
                max_retries=0,  # one owner of retries: this class
                http_client=self._http_client,
                middleware=[_skip_reading],
                open_telemetry=False,  # its spans would duplicate those of repertory.otel, which cover all attempts
            )
        except sdk.CredentialsError as error:
            raise _failures.no_key(Place(self._base_url or _API, self.name, False), str(error)).error from error
        except (OSError, ImportError, ValueError, httpx2.InvalidURL) as error:  # ValueError for the scheme of a proxy
            what = f"no HTTP client can be made for model {self.name!r}: {name_error(error)}"
            raise ConfigurationError(
                f"{what}; check the proxy variables, such as HTTPS_PROXY, and SSL_CERT_FILE"
            ) from error
        given = "authorization" in map(str.lower, client.default_headers)  # by ANTHROPIC_CUSTOM_HEADERS
        has_key = given or client.api_key or client.auth_token or client.credentials
        if not has_key and str(client.base_url).rstrip("/") != _API:
            # A local server needs no key, but the SDK sends no request unless told so explicitly.
            client = client.with_options(default_headers={"Authorization": sdk.Omit()})
        return client


async def _skip_reading(request: Any, call_next: Callable[[Any], Awaitable[Any]]) -> Any:
    """SDK middleware that passes every response on unread: the SDK would read the whole body of an error."""
    return (await call_next(request)).http_response


@asynccontextmanager
async def _ask(call: _Call, path: str, timeout: float | None) -> AsyncGenerator[httpx2.Response]:
    """Send a request and yield the response if it is a success. Errors here and in the block become ``Failure``."""
    import anthropic
    import httpx2

    # A compressing server would hold events back until a block of them is full.
    headers = {"accept-encoding": "identity"} | ({"anthropic-beta": ",".join(call.betas)} if call.betas else {})
    # Our own cancel scopes limit reading and the whole attempt. This limits connecting, so that a dead host is noticed.
    bounds = httpx2.Timeout(timeout, connect=10.0)
    options: Any = {"headers": headers, "timeout": bounds, "max_retries": 0, "follow_redirects": False}
    with _translated(call.place):
        try:
            response: httpx2.Response = await call.client.post(  # type: ignore[assignment] # see _skip_reading
                f"{path}?beta=true" if call.betas else path,
                body=call.body,
                cast_to=object,
                options=options,
                stream=True,
                stream_cls=anthropic.AsyncStream[object],
            )
        except (TypeError, ValueError, RecursionError) as error:
            # Before anything is sent; the SDK reports missing credentials by a bare TypeError, too.
            no_key = "authentication method" in str(error)
            raise (_failures.no_key(call.place) if no_key else _failures.unsendable(call.place, error)) from error
        try:
            if not response.is_success:
                raise await _read_refusal(response, call.place)
            yield response
        finally:
            with anyio.move_on_after(1, shield=True):  # give the connection back also when cancelled
                await response.aclose()


async def _read_refusal(response: httpx2.Response, place: Place) -> Failure:
    import httpx2

    if "location" in response.headers and 300 <= response.status_code < 400:
        return _failures.redirected(place, response.status_code, response.headers["location"])
    body = b""
    with suppress(httpx2.HTTPError, ModelResponseInvalid), anyio.move_on_after(_REFUSAL_TIMEOUT):
        body = await _read_body(response, ERROR_BYTES)
    try:
        said: Any = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError):
        said = body[:ERROR_BYTES].decode(errors="replace").strip()
    return _failures.from_status(place, response.status_code, said, response.headers)


async def _read_json(response: httpx2.Response, most: int) -> Any:
    body = await _read_body(response, most)
    if len(body) > most:
        raise ModelResponseInvalid(f"the answer has more than {most:,} bytes")
    with reading("the answer is not JSON", body[:200]):
        return decode_received(body)


async def _read_body(response: httpx2.Response, most: int) -> bytes:
    """Read a body that is one document; stop once it has more than ``most`` bytes."""
    body = bytearray()
    async with _open_body(response) as chunks:
        async for chunk in chunks:
            body += chunk
            if len(body) > most:
                break
    return bytes(body)


@asynccontextmanager
async def _open_body(
    response: httpx2.Response, patience: Callable[[], float] = lambda: 0.0
) -> AsyncGenerator[AsyncIterator[bytes]]:
    """Yield the pieces of a body; when the block ends, wait at most ``patience()`` seconds for the rest.

    A compressed body, which was not asked for, is not read: a small one can be a bomb.
    """
    import httpx2

    if response.is_stream_consumed:
        chunks = response.aiter_bytes()  # from memory: the caller's own transport has read it already
    else:
        coding = response.headers.get("content-encoding", "identity")
        if coding.strip().lower() not in ("identity", ""):
            raise ModelResponseInvalid(f"the answer is compressed ({coding[:40]!r}) although that was not asked for")
        chunks = response.aiter_raw()
    try:
        yield chunks
    finally:
        # A connection can be reused once its last bytes are read, but that is not worth a long wait. Reading on under a
        # deadline also ends the HTTP client's nested generators; closing the outermost one would not.
        with anyio.move_on_after(patience(), shield=True), suppress(httpx2.HTTPError):
            async for _ in chunks:
                pass


async def _read_events(
    response: httpx2.Response, place: Place, listen: _Listener, reset_idle_timer: Callable[[], None]
) -> ModelResponse:
    import httpx2

    # Raw events, not the SDK's models: those would have to know every block and field.
    reader, answer, beginning = EventReader(), Assembler(), b""
    try:
        with anyio.CancelScope() as end:
            async with _open_body(response, lambda: 0.5 if answer.complete else 0.0) as chunks:
                async for chunk in chunks:
                    beginning = beginning or chunk[:200]
                    for event in reader.feed(chunk):
                        if event["type"] == "error" and not answer.stopped:
                            raise _failures.from_body(place, event)
                        grown = answer.grown
                        pieces = answer.feed(event)
                        if answer.grown > grown:
                            reset_idle_timer()
                        for piece in pieces:
                            listen(piece)
                        if answer.complete:
                            return answer.finish()
                        latest = anyio.current_time() + _STOP_TIMEOUT
                        end.deadline = min(end.deadline, latest) if answer.stopped else math.inf
    except (httpx2.HTTPError, ModelResponseInvalid):
        if not answer.stopped:
            raise
    if not answer.grown:
        raise ModelResponseInvalid(f"the answer holds no event of the Messages API, got {excerpt(beginning)}")
    return answer.finish()


def _known_usage(answer: ModelResponse, request: ModelRequest) -> Usage:
    """What was billed, estimated where the server does not say: limits, quotas and costs would count nothing."""
    usage, is_free = answer.usage, answer.stop_reason == "refusal" and not answer.content
    read = usage.input_tokens if usage.prompt_tokens or is_free else estimate_tokens(request)
    written = usage.output_tokens or estimate_tokens(answer.content)
    return msgspec.structs.replace(usage, input_tokens=read, output_tokens=written)


@contextmanager
def _translated(place: Place) -> Generator[None]:
    """Turn every foreign error into a ``Failure``.

    Those that may quote a header, or what the server sent, are not kept as its cause: a traceback would show the key.
    """
    import anthropic
    import httpx2

    try:
        yield
    except httpx2.RemoteProtocolError as error:
        raise _failures.unreadable(place, f"the stream broke off ({error})") from None
    except ModelResponseInvalid as error:
        raise _failures.unreadable(place, error) from None
    except (anthropic.APIConnectionError, httpx2.TransportError) as error:
        if isinstance(error.__cause__, httpx2.LocalProtocolError):
            raise _failures.unsendable(place) from None
        raise _failures.unreachable(place, error) from None
    except anthropic.CredentialsError as error:
        raise _failures.no_key(place, str(error)) from error
