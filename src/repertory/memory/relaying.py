"""Memory requests and answers as text, for a run whose lead shares its memory from another machine."""

from __future__ import annotations

import base64
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Final, get_args

import msgspec

from repertory._ids import new_id
from repertory.errors import ConfigurationError, RecordRefused
from repertory.memory.items import Item
from repertory.memory.merging import Conflict, MergeReport
from repertory.memory.messages import Change, OpenScope, ScopeMessage
from repertory.record.memory_records import ItemInfo, ScopeOpened
from repertory.record.rows import NOT_KEPT, UNREADABLE

_REQUESTS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(ScopeMessage)}
_ANSWERS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Item, ItemInfo, ScopeOpened, MergeReport)}


def encode_request(message: Any, redact: Callable[[Any], Any]) -> str:
    """Encode a message to the memory actor, without what must not be kept and its ``write``, which stays here.

    Raises:
        RecordRefused: It holds something that cannot be kept.
    """
    if isinstance(message, Change):
        message = msgspec.structs.replace(message, write=None)
    elif isinstance(message, OpenScope):  # a fixed id, so that carrying it out twice opens only one scope
        message = msgspec.structs.replace(message, scope_id=message.scope_id or new_id("scope"))
    return _encode([type(message).__name__, redact(message)])


def decode_request(text: str) -> Any:
    """Decode what ``encode_request`` made.

    Raises:
        ConfigurationError: It is not a request that can be relayed.
    """
    with _same_version("request"):
        kind, fields = _decode(text)
        return msgspec.convert(fields, _REQUESTS[kind])


@contextmanager
def _same_version(what: str) -> Generator[None]:
    """Explain errors in decoding something by the version of the machine that it comes from."""
    try:
        yield
    except UNREADABLE as error:
        raise ConfigurationError(
            f"memory here knows no {what} of this form ({error}); is that machine's repertory another version?"
        ) from error


def encode_answer(answer: Any) -> str:
    """Encode the memory actor's answer."""
    kind = type(answer[0] if isinstance(answer, list) and answer else answer).__name__
    return _encode([kind, answer])


def decode_answer(text: str) -> Any:
    """Decode what ``encode_answer`` made.

    Raises:
        ConfigurationError: It is not an answer that memory gives.
    """
    with _same_version("answer"):
        kind, answer = _decode(text)
        made = _ANSWERS.get(kind)
        if made is None:
            return answer
        return [made(**each) for each in answer] if isinstance(answer, list) else _made(made, answer)


def _made(kind: Any, fields: dict[str, Any]) -> Any:
    if kind is MergeReport:
        fields |= {name: tuple(fields[name]) for name in ("written", "deleted")}
        fields["conflicts"] = tuple(map(_conflict, fields["conflicts"]))
    return kind(**fields)


def _conflict(fields: dict[str, Any]) -> Conflict:
    versions: dict[str, Any] = {
        name: Item(**each) for name in ("base", "child", "parent") if (each := fields[name]) is not None
    }
    return Conflict(**fields | versions)


def _encode(value: Any) -> str:
    try:
        return base64.b64encode(msgspec.msgpack.encode(value)).decode()
    except NOT_KEPT as error:
        raise RecordRefused(
            f"memory takes text, bytes or a value that JSON has: {error}; nothing was written"
        ) from error


def _decode(text: str) -> Any:
    return msgspec.msgpack.decode(base64.b64decode(text))
