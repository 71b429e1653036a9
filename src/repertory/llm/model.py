"""The interface of a language model: one request in, one response out, with the usage that was billed."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Final, Literal, Protocol, TypeAlias, runtime_checkable

import msgspec

from repertory._frozen import Frozen
from repertory._json_text import canonical_json
from repertory.errors import ModelResponseInvalid
from repertory.llm.messages import Block, Json, Message, encode_block, encode_message
from repertory.llm.profiles import Amount, ModelProfile, Usage

# What a model of one's own reads and streams, beside what the room itself lists.
__all__ = ["BrokenOff", "Retrying", "TextDelta", "ThinkingDelta", "ToolSchema", "ToolUseStarted", "Usage"]

CacheTtl: TypeAlias = Literal["5m", "1h"]
StopReason: TypeAlias = str  # open: end_turn, tool_use, max_tokens, stop_sequence, refusal, pause_turn, …


class ToolSchema(Frozen, frozen=True, omit_defaults=True):
    """A tool as the model sees it.

    Attributes:
        provider_type: The type of a tool whose description and schema the provider knows, such as ``memory_20250818``;
            the request then has only the type and the name. "" for any other tool.
    """

    name: str
    description: str
    input_schema: Json
    provider_type: str = ""


class Breakpoint(msgspec.Struct, frozen=True):
    """Where a prompt-cache entry is written. A request has at most four.

    Attributes:
        message: Index of the message whose last markable block carries the marker; None for the end of the
            static head (the last system block, or the last tool if there is no system text).
        ttl: How long the entry lives; a 1-hour breakpoint must come before any 5-minute one.
    """

    message: int | None = None
    ttl: CacheTtl = "5m"


class ModelRequest(Frozen, frozen=True, kw_only=True):
    """One request to a model. Equal requests encode to the same bytes.

    Attributes:
        model: The model's name at its provider.
        messages: Alternating turns, beginning with the user's.
        system: The instructions, as text blocks.
        tools: The tools that the model may call.
        max_tokens: Most tokens that the answer may have.
        breakpoints: Prompt-cache markers; the model does not see them.
        options: Further top-level fields of the Messages API (``thinking``, ``tool_choice``, ``output_config``,
            ``context_management``, ``compaction``, …), sent unchanged.
        betas: Values for the ``anthropic-beta`` header.
    """

    model: str
    messages: tuple[Message, ...]
    system: tuple[Block, ...] = ()
    tools: tuple[ToolSchema, ...] = ()
    max_tokens: int = 8192
    breakpoints: tuple[Breakpoint, ...] = ()
    options: Json = msgspec.field(default_factory=dict)
    betas: tuple[str, ...] = ()


def request_digest(request: ModelRequest) -> str:
    """A digest of the whole request in 16 hexadecimal digits; equal requests have the same one."""
    return blake2b(canonical_json(request), digest_size=8).hexdigest()


_UNMARKABLE = frozenset({"thinking", "redacted_thinking"})


def encode_request(request: ModelRequest) -> Json:
    """Write a request as the body of ``POST /v1/messages``, with its cache markers in place."""
    body: Json = {"model": request.model, "max_tokens": request.max_tokens}
    if request.tools:
        body["tools"] = [_encode_tool(tool) for tool in request.tools]
    if request.system:
        body["system"] = [encode_block(block) for block in request.system]
    body["messages"] = [encode_message(message) for message in request.messages]
    put_markers(body, request.breakpoints)
    body.update(request.options)
    return body


def _encode_tool(tool: ToolSchema) -> Json:
    if tool.provider_type:
        return {"type": tool.provider_type, "name": tool.name}
    return {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}


def put_markers(body: Json, breakpoints: Iterable[Breakpoint]) -> None:
    """Put cache markers into a body. A marked block is a copy, so that no block of a ledger is changed."""
    for point in breakpoints:
        head: list[Json] = body.get("system") or body.get("tools") or []
        blocks = head if point.message is None else body["messages"][point.message]["content"]
        marker: Json = {"type": "ephemeral"} if point.ttl == "5m" else {"type": "ephemeral", "ttl": point.ttl}
        for index, block in reversed([*enumerate(blocks)]):
            if block.get("type") not in _UNMARKABLE and block.get("text") != "":
                blocks[index] = {**block, "cache_control": marker}
                break


CUT_OFF: Final = frozenset({"max_tokens", "model_context_window_exceeded", "length"})
"""Stop reasons of answers that are cut off; the last one is from servers with OpenAI's words."""


class ModelResponse(Frozen, frozen=True, kw_only=True):
    """A model's answer.

    Attributes:
        content: The assistant's turn, to be sent back unchanged.
        stop_reason: Why the answer ended: ``end_turn``, ``tool_use``, ``max_tokens``, ``refusal``, …
        usage: The tokens that were billed.
        model: The provider's name for the model that answered.
        response_id: The provider's id of the answer; "" if it gives none.
        extra: Other top-level fields of the answer that a caller may need (``context_management``, …).

    Raises:
        ModelResponseInvalid: ``content`` is not a list or tuple, ``usage`` not a ``Usage`` or ``extra`` not a dict.
    """

    content: tuple[Block, ...]
    stop_reason: StopReason = "end_turn"
    usage: Usage = Usage()
    model: str = ""
    response_id: str = ""
    extra: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, kind in (("content", tuple), ("usage", Usage), ("extra", dict)):
            value: object = getattr(self, name)
            if not isinstance(value, kind):
                raise ModelResponseInvalid(
                    f"{name} of a ModelResponse must be a {kind.__name__}, got a value of type {type(value).__name__}"
                )


class TextDelta(msgspec.Struct, frozen=True):
    """A piece of the answer's text, as it streams in."""

    text: str


class ThinkingDelta(msgspec.Struct, frozen=True):
    """A piece of the model's reasoning, as it streams in."""

    thinking: str


class ToolUseStarted(msgspec.Struct, frozen=True):
    """The model began to write a tool call; its arguments are not complete yet."""

    id: str
    name: str


class Retrying(msgspec.Struct, frozen=True):
    """A call failed in a way that may be temporary, and will be retried.

    Attributes:
        attempt: Which attempt comes next; the first call was 1.
        delay: Seconds until then.
        reason: What went wrong, in one line.
    """

    attempt: int
    delay: float
    reason: str


class BrokenOff(msgspec.Struct, frozen=True):
    """An attempt ended without a whole answer after the server had begun to answer.

    It is usually billed, but the amount is unknown: limits count the most that it can have used.
    """


StreamEvent: TypeAlias = TextDelta | ThinkingDelta | ToolUseStarted | Retrying | BrokenOff


@dataclass
class Reservation:
    """What one model call reserves of the limits of its run: reserved before it begins, settled after.

    Attributes:
        at_most: The most that one attempt can use.
        lost: The most that broken-off attempts can have used: they are usually billed, but the amount is unknown.
    """

    at_most: Amount
    lost: Amount = field(default_factory=Amount)

    def broke_off(self) -> None:
        """Count an attempt that broke off; another one may follow."""
        self.lost += self.at_most


@runtime_checkable
class Model(Protocol):
    """A language model. Implementations are safe to call from many tasks at once."""

    @property
    def name(self) -> str:
        """The model's name at its provider, as requests carry it."""
        ...

    @property
    def profile(self) -> ModelProfile:
        """What the planner needs to know: window, prices, cache rules, whether thinking is bound."""
        ...

    async def complete(
        self, request: ModelRequest, *, on_event: Callable[[StreamEvent], Any] | None = None
    ) -> ModelResponse:
        """Answer one request.

        Retries errors that may be temporary. No other code retries model calls. A cancelled call may have been billed.

        Args:
            request: What to send.
            on_event: Called with every piece as it streams in, in the caller's task. It must not raise.

        Raises:
            ModelError: A subclass of it, if there is no usable answer.
        """
        ...

    async def aclose(self) -> None:
        """Release connections. Safe to call twice."""
        ...


@runtime_checkable
class NeedsKey(Protocol):
    """A model whose server requires credentials."""

    async def check_key(self) -> None:
        """Raise ``ModelAuthenticationError`` if there are no credentials. Nothing is sent."""
        ...


@runtime_checkable
class SharedServer(Protocol):
    """A model whose server has other models too."""

    def sibling(self, name: str) -> Model:
        """Return another model on the same server. It connects in the same way and is closed together with this one."""
        ...


def server_of(model: Model) -> str:
    """The address of a model's server, from its attribute ``server``, without user and password; "" if it has none."""
    server = getattr(model, "server", "")
    return server if isinstance(server, str) else ""


@runtime_checkable
class TokenCounter(Protocol):
    """A model whose server can count a request's tokens before it is sent."""

    async def count_tokens(self, request: ModelRequest) -> int:
        """Ask the server how many input tokens a request has. Free of charge, but a round trip.

        Raises:
            ModelError: A subclass of it; ``ModelRequestRejected`` if the server cannot count.
        """
        ...
