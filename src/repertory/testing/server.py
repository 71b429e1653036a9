"""A strict local server for the Messages API, for tests without a network and without a key.

It refuses what the real one refuses, in the same words; bills prompt caching by the same rules; signs thinking blocks
and checks what they are bound to; compacts and edits the context when asked; and fails on demand.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import Any, TypeAlias

import anyio
import anyio.abc
import msgspec

from repertory._choices import check_type
from repertory.errors import ConfigurationError
from repertory.llm.estimate import estimate_tokens
from repertory.llm.messages import Json, Thinking
from repertory.llm.model import Model, ModelRequest, ModelResponse, Usage
from repertory.llm.profiles import ModelProfile, canonical_name, cost_of, profile_for
from repertory.testing.binding import BINDING_BETA, Binder
from repertory.testing.cache import PromptCache, prompt_tokens
from repertory.testing.compaction import plain_summary, prompt_of, summary_of
from repertory.testing.editing import edit_context
from repertory.testing.faults import Break, Drip, Fault, Garbage, Raw, Refuse, Reset, Stall, Truncate
from repertory.testing.http import Gone, HttpRequest, Reply, serve_connection
from repertory.testing.models import Answer, FunctionModel
from repertory.testing.refusal import Refusal, malformed, refuse
from repertory.testing.rules import check_body, check_headers, check_length
from repertory.testing.wire import cut_off, decode_request, encode_event, encode_response, error_body, events_of

Responder: TypeAlias = Model | Callable[[ModelRequest], "Answer | Awaitable[Answer]"]

_NOTHING = Usage()
_PIECE = 65_536  # bytes of a raw answer that are sent at once


class Exchange(msgspec.Struct, frozen=True, kw_only=True):
    """One request and its outcome.

    Attributes:
        path: The requested path: ``/v1/messages`` or ``/v1/messages/count_tokens``.
        headers: The request's headers, with names in lower case.
        body: The decoded JSON; None if there was none.
        status: The HTTP status; 0 if the connection was reset before one was sent.
        message: The error message; "" for an answer.
        usage: What was billed; zeros for an error.
        cost: US dollars, at the prices for this prompt's length.
        fault: The injected fault; None if there was none.
    """

    path: str
    headers: dict[str, str]
    body: Any
    status: int
    message: str = ""
    usage: Usage = Usage()
    cost: float = 0.0
    fault: Fault | None = None


class MessagesServer:
    """Answers ``POST /v1/messages``, streaming or not, and ``POST /v1/messages/count_tokens``.

    ``open_messages_server`` creates one, documents its parameters, and listens.

    Attributes:
        url: The address on which it listens.
        exchanges: Every request so far, in order, with its outcome.
    """

    def __init__(
        self,
        responder: Responder,
        *,
        profile: ModelProfile | None,
        api_key: str | None,
        seed: int,
        clock: Callable[[], float],
        thinks: bool,
        summarizer: Responder | None,
    ) -> None:
        self._responder = _as_model(responder)
        self._summarizer = _as_model(summarizer or plain_summary)
        self._profile = profile
        self._api_key = api_key
        self._seed = seed
        self._thinks = thinks
        self._cache = PromptCache(clock)
        self._binder = Binder(seed)
        self._faults: list[Fault | None] = []
        self._count = 0
        self.url = ""
        self.exchanges: list[Exchange] = []

    def inject(self, *faults: Fault | None) -> None:
        """Make the next requests fail, one fault each, in order; None lets one pass.

        Raises:
            ConfigurationError: One is no fault; a test would believe in it, and pass.
        """
        for fault in faults:
            check_type("a fault", fault, Fault | None, "one of repertory.testing.faults, such as overloaded()")
        self._faults.extend(faults)

    @property
    def usage(self) -> Usage:
        """The total usage that was billed."""
        return sum((exchange.usage for exchange in self.exchanges), Usage())

    @property
    def cost(self) -> float:
        """The total cost in US dollars: the sum over requests, each at the prices for its own prompt's length."""
        return sum(exchange.cost for exchange in self.exchanges)

    async def handle(self, request: HttpRequest, reply: Reply) -> None:
        """Answer one HTTP request."""
        self._count += 1
        request_id = self._id("req")
        fault = self._faults.pop(0) if self._faults else None
        path = request.path.partition("?")[0]
        body: Any = None

        def record(status: int, message: str = "", usage: Usage = _NOTHING, cost: float = 0.0) -> None:
            """Record the outcome of this request."""
            self.exchanges.append(
                Exchange(
                    path=path,
                    headers=request.headers,
                    body=body,
                    status=status,
                    message=message,
                    usage=usage,
                    cost=cost,
                    fault=fault,
                )
            )

        try:
            if request.method != "POST" or path not in ("/v1/messages", "/v1/messages/count_tokens"):
                raise Refusal(404, "not_found_error", f"Not found: {request.method} {path}")
            try:
                body = msgspec.json.decode(request.body, type=dict[str, Any])
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                refuse(f"The request body is not valid JSON: {error}")
            if isinstance(fault, Refuse):
                raise Refusal(fault.status, fault.kind, fault.message, fault.headers)
            if isinstance(fault, Raw):
                record(fault.status)
                await reply.start(fault.status, fault.headers)
                for start in range(0, len(fault.body), _PIECE):
                    await reply.send(fault.body[start : start + _PIECE])
                await reply.end()
                return
            if isinstance(fault, Reset) and fault.after == 0:
                record(0)
                reply.reset()
            counting = path.endswith("count_tokens")
            if fault is not None and (counting or not body.get("stream")):
                raise ConfigurationError(f"{fault} spoils a stream, and met a request that asks for none: {path}")
            check_headers(request.headers, api_key=self._api_key)
            profile = self._profile_of(body)
            betas = tuple(beta.strip() for beta in request.headers.get("anthropic-beta", "").split(",") if beta.strip())
            check_body(body, profile=profile, betas=frozenset(betas), counting=counting)
            valid, dropped = self._binder.check(body, profile=profile, betas=frozenset(betas))
            shown, edits = edit_context(valid, profile)
            if counting:
                record(200)
                await reply.json(200, _count(valid, shown), {"request-id": request_id})
                return
            compaction = body.get("compaction") is not None
            check_length(prompt_tokens(shown), body, profile, answered=not compaction)
            sent = decode_request(shown, betas)
        except (Refusal, RecursionError) as error:
            refusal = error if isinstance(error, Refusal) else malformed("The request body is nested too deep")
            record(refusal.status, refusal.message)
            said = error_body(refusal.kind, refusal.message, request_id, code=refusal.code)
            await reply.json(refusal.status, said, {"request-id": request_id, **refusal.headers})
            return

        use = self._cache.use(shown, profile)
        if compaction:
            response = await self._compact(sent, body, dropped, use.usage, profile)
        else:
            response = await self._reply(sent, body, dropped, use.usage, profile)
        extra: Json = {"input_transformations": dropped} if BINDING_BETA in betas else {}
        if body.get("context_management") is not None:
            extra["context_management"] = {"applied_edits": edits}
        response = msgspec.structs.replace(
            response, model=body["model"], response_id=self._id("msg"), extra={**response.extra, **extra}
        )
        record(200, usage=response.usage, cost=cost_of(profile, response.usage))
        headers = {"request-id": request_id}
        if body.get("stream"):
            await reply.start(200, {"content-type": "text/event-stream; charset=utf-8", **headers})
            await _stream(reply, events_of(response, compaction=compaction), fault, use.begun)
        else:
            use.begun()
            await reply.json(200, encode_response(response, compaction=compaction), headers)

    async def _reply(
        self, request: ModelRequest, body: Json, dropped: list[Json], prompt: Usage, profile: ModelProfile
    ) -> ModelResponse:
        """Return the model's answer, with its thinking signed."""
        answer = await self._responder.complete(request)
        content = answer.content
        if self._thinks and not any(isinstance(block, Thinking) for block in content):
            content = (Thinking(f"Request {self._count}: what is asked, and what do I know?"), *content)
        within = cut_off(content, request.max_tokens)
        written = min(max(1, estimate_tokens(within)), request.max_tokens)
        return msgspec.structs.replace(
            answer,
            content=self._binder.sign(within, body=body, model=profile.name, dropped=dropped),
            stop_reason=answer.stop_reason if within == content else "max_tokens",
            usage=msgspec.structs.replace(prompt, output_tokens=written),
        )

    async def _compact(
        self, request: ModelRequest, body: Json, dropped: list[Json], prompt: Usage, profile: ModelProfile
    ) -> ModelResponse:
        """Return one signed block, or no content if no summary results."""
        asked = prompt_of(body)
        if prompt.prompt_tokens + asked >= profile.context_window:
            return ModelResponse(content=(), stop_reason="model_context_window_exceeded")
        answer = await self._summarizer.complete(request)
        text, stop_reason = summary_of(answer, body["max_tokens"])
        blocks = (self._binder.sign_summary(text, body=body, profile=profile, dropped=dropped),) if text else ()
        written = min(estimate_tokens(answer.content), body["max_tokens"])
        usage = msgspec.structs.replace(prompt, input_tokens=prompt.input_tokens + asked, output_tokens=written)
        return ModelResponse(content=blocks, stop_reason=stop_reason, usage=usage)

    def _profile_of(self, body: Json) -> ModelProfile:
        name = body.get("model")
        if not isinstance(name, str):
            refuse("model: Field required")
        profile = self._profile or profile_for(name)
        served = profile.known or self._profile is not None  # a given profile is served, whatever its name
        if not served or canonical_name(name) != canonical_name(profile.name):
            raise Refusal(404, "not_found_error", f"model: {name}")
        return profile

    def _id(self, prefix: str) -> str:
        return f"{prefix}_{blake2b(f'{self._seed}/{self._count}'.encode(), digest_size=9).hexdigest()}"


def _as_model(responder: Responder) -> Model:
    return responder if isinstance(responder, Model) else FunctionModel(responder)


def _count(sent: Json, shown: Json) -> Json:
    count: Json = {"input_tokens": prompt_tokens(shown)}
    if sent.get("context_management") is not None:
        count["context_management"] = {"original_input_tokens": prompt_tokens(sent)}
    return count


async def _stream(reply: Reply, events: Iterable[Json], fault: Fault | None, begun: Callable[[], None]) -> None:
    every = list(events)
    if getattr(fault, "after", 0) >= len(every):
        raise ConfigurationError(f"{fault} comes after the end of the answer, which has {len(every)} events")
    for number, event in enumerate(every):
        match fault:
            case Reset(after=after) if number == after:
                reply.reset()
            case Truncate(after=after) if number == after:
                break
            case Garbage(after=after, data=data) if number == after:
                await reply.send(f"event: {event['type']}\ndata: {data}\n\n".encode())
                continue
            case Break(after=after, kind=kind, message=message) if number == after:
                error = {"type": kind, "message": message}
                await reply.send(encode_event({"type": "error", "error": error}))
                break
            case Stall(after=after) if number == after:
                await _stall(reply, fault)
                return
            case Drip(seconds=seconds):
                await anyio.sleep(seconds)
                await reply.send(encode_event({"type": "ping"}))
            case _:
                pass
        await reply.send(encode_event(event))
        if number == 0:
            begun()
    await reply.end()


async def _stall(reply: Reply, fault: Stall) -> None:
    if fault.pings is None:
        await reply.wait_gone()
        return
    while True:  # ends with Gone, when the client disconnects
        await anyio.sleep(fault.pings)
        await reply.send(encode_event(dict(fault.event)))


@asynccontextmanager
async def open_messages_server(
    responder: Responder,
    *,
    profile: ModelProfile | None = None,
    api_key: str | None = None,
    seed: int = 0,
    clock: Callable[[], float] = time.monotonic,
    thinks: bool = False,
    summarizer: Responder | None = None,
    faults: Iterable[Fault | None] = (),
    host: str = "127.0.0.1",
    port: int = 0,
) -> AsyncGenerator[MessagesServer]:
    """Serve on a local port while the block runs; works on trio and asyncio.

    ::

        async with open_messages_server(OfflineModel()) as server:
            model = AnthropicModel("claude-sonnet-5-5", base_url=server.url)

    Args:
        responder: A model, or a function of the request that returns anything a ``ScriptedModel`` step may be.
        profile: The only model served; None serves every model that ``profile_for`` knows.
        api_key: The only key accepted; None accepts requests without one.
        seed: Determines the signing key and the ids; the same seed and requests give the same answers.
        clock: Returns seconds, for the cache's TTL.
        thinks: Whether thinking is added to answers without any, as from a model that always thinks.
        summarizer: Answers compaction requests; None lets the server write a summary by itself.
        faults: Faults for the first requests; ``server.inject`` adds more.
        host: The address to listen on.
        port: The port to listen on; 0 for any free port.

    Yields:
        The server; pass its ``url`` as a model's ``base_url``.

    Raises:
        ConfigurationError: ``faults`` are no list of faults, or one could not spoil the request that it met: a fault
            of a stream that was not asked for, or that ended before.
        Exception: What the responder raises cancels the block, and is raised by it.
    """
    check_type("open_messages_server: faults", faults, Iterable, "a list of faults")
    server = MessagesServer(
        responder, profile=profile, api_key=api_key, seed=seed, clock=clock, thinks=thinks, summarizer=summarizer
    )
    server.inject(*faults)
    listener = await anyio.create_tcp_listener(local_host=host, local_port=port)
    bound = listener.extra(anyio.abc.SocketAttribute.local_port)  # noqa: S610 - not Django's
    server.url = f"http://{f'[{host}]' if ':' in host else host}:{bound}"

    async def serve(stream: anyio.abc.SocketStream) -> None:
        """Serve one connection."""
        try:
            await serve_connection(stream, server.handle)
        except Gone:
            return
        except Exception as error:  # noqa: BLE001 - a bug of the responder; raised again below
            failures.append(error)
            tasks.cancel_scope.cancel()

    failures: list[Exception] = []  # raised again outside the group, which would wrap them
    async with listener, anyio.create_task_group() as tasks:
        tasks.start_soon(listener.serve, serve, tasks)
        try:
            yield server
        except Exception as error:  # noqa: BLE001 - raised again below
            failures.append(error)
        tasks.cancel_scope.cancel()
    if failures:
        raise failures[0]
