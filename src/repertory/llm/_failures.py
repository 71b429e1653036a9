"""Turns the errors of a server or of the SDK into repertory's own; no other module does."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import msgspec

from repertory._error_texts import name_error, telling
from repertory.errors import (
    MediaUnreadable,
    ModelAuthenticationError,
    ModelError,
    ModelRequestRejected,
    ModelResponseInvalid,
    ModelTimeout,
    ModelUnavailable,
    PromptTooLong,
    ThinkingMismatch,
    UnknownModel,
)
from repertory.llm._bounds import ERROR_BYTES, ERROR_CHARS
from repertory.llm._stream import excerpt
from repertory.llm.retry import asked_delay

# The wordings of Anthropic, OpenAI, Bedrock, Gemini, xAI, Groq, Mistral, Moonshot, Qwen, MiniMax and Z.ai, of
# llama.cpp, vLLM, SGLang, LM Studio and Ollama, and of proxies such as LiteLLM, which pass on what others say.
_TOO_LONG = re.compile(
    r"(?i)(?:prompt|input) (?:is )?too long|prompt exceeds max|exceed_context|larger context length"
    r"|context[ _]?(?:size|length|window)[ _]?(?:has been )?exceed"
    r"|exceed(?:s|ed)? (?:[\w']+ ){0,3}(?:context|token limit)|(?:longer|greater|more) than (?:[\w']+ ){0,3}context"
    r"|max(?:imum)? (?:context|prompt|model|allowed input) length|max_model_len|model context window is \d"
    r"|token count\b.{0,40} exceeds the |reduce the length of the|range of input length"
)
_MANY_MEDIA = re.compile(r"(?i)too (?:many images|much media)|many-images? requests|at most \d+ image|\d+ PDF pages")
# Anthropic, Gemini, vLLM, llama.cpp; a damaged file, or one with a password, has the right first bytes. Whatever else
# Anthropic says of one begins with its place: "messages.0.content.0.image.source.base64: invalid base64 data".
_MEDIA = re.compile(
    r"(?i)(?:could not|cannot|unable to|failed to) (?:process|identify|load|decode)(?: input)? image"
    r"|messages\.\d[\w.]*\.(?:image|document|pdf)\.source\b"
    r"|PDF (?:specified )?(?:was|is) (?:not valid|invalid|password[- ]protected)"
)
_THINKING = re.compile(
    r"(?i)bound to a different conversation|invalid `?signature`? in `?thinking`? block"
    r"|`?redacted_thinking`? blocks in the latest|blocks must match the parameters"
)
# Comes with status 400 or 429; no attempt succeeds before somebody pays, or the month is over.
_UNPAID = re.compile(r"credit balance is too low|API usage limits|spend_limit_reached|insufficient_quota")
# An error in a body has a type but no status of its own. Those that are missing here may pass, as 0 does.
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "authentication_error": 401,
    "billing_error": 402,
    "permission_error": 403,
    "not_found_error": 404,
    "request_too_large": 413,
    "rate_limit_error": 429,
    "overloaded_error": 529,
}
_NO_ENDPOINT = "Unexpected endpoint"  # LM Studio, with status 200
_PASSING = frozenset({408, 409, 425, 429})
_SECRET = re.compile(r"sk-ant-[\w-]{8,}")


@dataclass(eq=False)
class Failure(Exception):
    """A failed attempt.

    Attributes:
        error: The error to raise to the caller.
        passing: Whether another attempt may succeed.
        asked: Seconds that the server asked us to wait; None if it did not.
        begun: Whether the server had begun to answer, or may have: such an attempt is usually billed.
    """

    error: ModelError
    passing: bool
    asked: float | None = None
    begun: bool = False


class Place(msgspec.Struct, frozen=True):
    """Where a call went, for error messages, and the secrets that must never appear in them."""

    url: str
    model: str
    local: bool
    secrets: tuple[str, ...] = ()

    def scrub(self, text: str) -> str:
        """Remove keys that a server may have echoed into a text, and cut the text."""
        text = text[:ERROR_BYTES]  # searching more of it would take long
        for secret in self.secrets:
            text = text.replace(secret, "***")
        text = _SECRET.sub("***", text)
        return text if len(text) <= ERROR_CHARS else f"{text[:ERROR_CHARS]}…"


def from_status(place: Place, status: int, body: Any, headers: Mapping[str, str]) -> Failure:
    """Translate an HTTP status, 0 for an unknown one, and an error body."""
    message = place.scrub(_message_in(body)) or "no explanation"
    request_id = place.scrub(headers.get("request-id", ""))[:100]
    fact = f"{place.url} answered {status or 'with an error'}: {message}{request_id and f' (request {request_id})'}"
    error, passing = _classify(place, status, message, fact)
    if status >= 400 and (wants := headers.get("x-should-retry")) in ("true", "false"):
        passing = wants == "true"
    return Failure(error, passing, asked_delay(headers, now=time.time()))


def _classify(place: Place, status: int, message: str, fact: str) -> tuple[ModelError, bool]:
    if (media := _MANY_MEDIA.search(message) is not None) or _TOO_LONG.search(message) or status == 413:
        fits = f"the prompt does not fit model {place.model!r}: {fact}; send a strictly smaller one"
        return PromptTooLong(fits, media=media), False
    if _MEDIA.search(message):
        return MediaUnreadable(f"an image or a document cannot be read: {fact}; send it without"), False
    if status == 400 and _THINKING.search(message):
        todo = "send the history unchanged, or drop the thinking"
        return ThinkingMismatch(f"a thinking block no longer fits its history: {fact}; {todo}"), False
    status = 402 if _UNPAID.search(message) else status
    if status in (401, 402, 403):
        todo = {
            401: "set ANTHROPIC_API_KEY (or ANTHROPIC_AUTH_TOKEN) to a valid key",
            402: "the account behind the key has a billing problem, or has reached a limit on spending",
            403: f"the key may not use model {place.model!r} or this endpoint",
        }[status]
        return ModelAuthenticationError(f"{fact}; {todo}"), False
    if status == 404 or _NO_ENDPOINT in message:
        local = ", that the server has loaded it, and that its base_url ends without /v1" if place.local else ""
        what = f"no model {place.model!r}, or no Messages API, at {place.url}: {fact}; check the model's name{local}"
        return UnknownModel(what), False
    if status in _PASSING or status >= 500 or not status:
        known = {429: "the rate limit of the key is used up", 529: "the service is overloaded"}
        return ModelUnavailable(f"{fact}; {known.get(status, 'the server failed')}, try again later"), status != 501
    return ModelRequestRejected(fact), False


def redirected(place: Place, status: int, location: str) -> Failure:
    """The server redirects. Following it would send the whole prompt, and perhaps the key, to another place."""
    host = ""
    with suppress(ValueError):
        host = urlsplit(location).hostname or ""
    where = f"host {place.scrub(host)[:100]!r}" if host else "another address"
    why = "redirects are not followed, since the whole prompt would go there"
    todo = "set ANTHROPIC_BASE_URL, or base_url, to the server itself"
    return Failure(ModelUnavailable(f"{place.url} answered {status} and points to {where}; {why}: {todo}"), False)


def from_body(place: Place, body: Any) -> Failure:
    """Translate an error that came after the status of a success: as an event of a stream, or instead of an answer."""
    error = body.get("error") if isinstance(body, dict) else None
    kind, code = (error.get("type"), error.get("code")) if isinstance(error, dict) else (None, None)
    status = _STATUS_OF_TYPE.get(kind, 0) if isinstance(kind, str) else 0
    if isinstance(code, int) and 400 <= code < 600:  # as vLLM says it
        status = status or code
    return from_status(place, status, body, {})


def unreadable(place: Place, error: Exception | str) -> Failure:
    """The answer could not be read. Another attempt may succeed."""
    return Failure(ModelResponseInvalid(place.scrub(f"cannot read the answer of {place.url}: {error}")), True)


def unreachable(place: Place, error: BaseException) -> Failure:
    """The connection could not be made, or broke."""
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    why = place.scrub(name_error(telling(cause)))
    todo = "is the server running?" if place.local else "check the network, the proxy and ANTHROPIC_BASE_URL"
    if "[SSL" in why:  # so begins what OpenSSL says
        todo = "does it speak https, and is its certificate trusted? SSL_CERT_FILE names a file of those that are"
    return Failure(ModelUnavailable(f"no connection to {place.url} ({why}); {todo}"), True)


def unsendable(place: Place, error: Exception | None = None) -> Failure:
    """The request cannot be written as JSON; or, without an error, the HTTP client refuses to send a header."""
    todo = "check the key, ANTHROPIC_CUSTOM_HEADERS and the betas for line breaks and outer spaces"
    header = f"a header has characters that none may have; {todo}"
    why = header if error is None else f"it cannot be written as JSON: {place.scrub(str(error))}"
    return Failure(ModelRequestRejected(f"no request to {place.url}: {why}"), False)


def idle_timeout(place: Place, seconds: float) -> Failure:
    """No content came for too long; pings do not count as content."""
    todo = "a slow local server needs a longer content_idle_timeout"
    return Failure(ModelTimeout(f"{place.url} sent no content for {seconds:g} s; {todo}"), True, begun=True)


def total_timeout(place: Place, seconds: float) -> Failure:
    """The answer was not complete in time. Another attempt would take as long, so there is none."""
    what = f"the answer of {place.url} was not complete after request_timeout={seconds:g} s"
    return Failure(ModelTimeout(what), False, begun=True)


def no_key(place: Place, why: str = "") -> Failure:
    """There are no credentials, or they cannot be read."""
    what = f"no key for {place.url}{f' ({place.scrub(why)})' if why else ''}"
    todo = "set ANTHROPIC_API_KEY, or ANTHROPIC_BASE_URL to a local server that needs none, or use the model 'offline'"
    return Failure(ModelAuthenticationError(f"{what}: {todo}"), False)


def _message_in(body: Any) -> str:
    """What an error body says: the message, and the plain facts beside it, such as a type, a code or ``n_ctx``."""
    error = body.get("error", body) if isinstance(body, dict) else body
    if isinstance(error, dict):
        said = next((name for name in ("message", "detail") if error.get(name)), None)
        if said is None:
            return excerpt(error) if error else ""
        details = error.get("details")
        facts = [
            f"{'' if name == 'type' else f'{name} '}{_words(value)}"
            for name, value in (error | details if isinstance(details, dict) else error).items()
            if name != said and value and isinstance(value, str | int)
        ]
        return f"{_words(error[said])} [{', '.join(facts)}]" if facts else _words(error[said])
    text = _words(error)
    return text if isinstance(body, dict) or len(text) <= 300 else f"{text[:300]}…"


def _words(value: object) -> str:
    """The text of a part of an error body, which may be of any type."""
    return value if isinstance(value, str) else excerpt(value) if value else ""
