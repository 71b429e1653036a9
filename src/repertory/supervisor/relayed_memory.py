"""Memory that a lead shares with a run on another machine: requests and answers are relayed as text.

Used only if several supervisors share a journal; see ``repertory.machines``.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Final, get_args

import msgspec

from repertory._ids import new_id
from repertory.errors import ConfigurationError, RecordRefused
from repertory.memory.items import Item
from repertory.memory.merging import Conflict, MergeReport
from repertory.memory.messages import Change, OpenScope, Pending, ScopeMessage
from repertory.record.journal import Journal
from repertory.record.memory_records import ItemInfo, ScopeOpened
from repertory.record.records import EventLogged, Record
from repertory.record.rows import NOT_KEPT, UNREADABLE
from repertory.record.waiting import Ticket
from repertory.runs.live import LiveRun

if TYPE_CHECKING:
    from repertory.machines.commands import Command, Commands

_DONE: Final = "MemoryAnswered"  # the type of the records of answers to commands
_REQUESTS: Final[dict[str, Any]] = {kind.__name__: kind for kind in get_args(ScopeMessage)}
_ANSWERS: Final[dict[str, Any]] = {kind.__name__: kind for kind in (Item, ItemInfo, ScopeOpened, MergeReport)}


class RelayedMemory:
    """The memory of a run whose lead shares its own with it."""

    def __init__(self, lead_id: str, commands: Commands, journal: Journal) -> None:
        self._lead_id = lead_id
        self._commands = commands
        self._journal = journal

    async def ask(self, request: Any, /) -> Pending[Any]:
        """Send a request through the lead's machine."""
        return partial(self._carry, request)

    async def _carry(self, request: Any) -> Any:
        text = encode_request(request, self._journal.redact)
        answer = decode_answer(await self.relay(text, command_id=new_id("cmd"), once=True))
        write = getattr(request, "write", None)
        if write is not None:  # records that belong with the item, whose own record is on the other machine
            await write(answer, []).wait()
        return answer

    async def relay(self, request: str, *, command_id: str, once: bool) -> str:
        """Send an encoded request; returns the encoded answer.

        It waits for as long as no machine has the lead, or that machine stands still: the model should not be told of a
        change that failed and is then made, nor that it cannot delegate because a machine was lost.

        Args:
            command_id: The command's id, the same if the request is repeated.
            once: Whether the request is never repeated under this id, so that its answer need not be kept.
        """
        body = {"request": request}
        return await self._commands.ask(
            self._lead_id, "memory", body, command_id=command_id, within=math.inf, once=once
        )


async def answer_memory(live: LiveRun, command: Command, *, request: str) -> str:
    """Carry out a request to the memory of a run here, once: a change and its answer are recorded in one transaction.

    Returns:
        The answer.

    Raises:
        MemoryStoreError, ConfigurationError: As memory does.
    """
    asked, journal, ref = decode_request(request), live.shared.journal, live.memory.ref
    changes = isinstance(asked, Change)
    if isinstance(ref, RelayedMemory):  # this run was placed too, and shares its own lead's memory
        return await ref.relay(request, command_id=f"{command.command_id}/relayed", once=not changes)
    if changes:
        for _, record in await journal.read_events(live.run_id, types=[_DONE]) if command.again else ():
            if record.body["command"] == command.command_id:
                return str(record.body["answer"])

        def write(answer: Any, records: Sequence[Record]) -> Ticket:
            body = {"command": command.command_id, "answer": encode_answer(answer)}
            done = EventLogged(
                run_id=live.run_id, type=_DONE, body=body, at=live.shared.clock(), iteration=live.iteration
            )
            return journal.submit([*records, done])

        asked = msgspec.structs.replace(asked, write=write)
    return encode_answer(await (await ref.ask(asked))())


# --- as text ----------------------------------------------------------------------------------------------


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
