"""Memory that a lead shares with a run on another machine: the requests are relayed to the lead's machine.

Used only if several supervisors share a journal; see ``repertory.machines``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec

from repertory._ids import new_id
from repertory.memory.messages import Change, Pending
from repertory.memory.relaying import decode_answer, decode_request, encode_answer, encode_request
from repertory.record.journal import Journal
from repertory.record.records import EventLogged, Record
from repertory.record.waiting import Ticket
from repertory.runs.live import LiveRun

if TYPE_CHECKING:
    from repertory.machines.commands import Command, Commands

_DONE: Final = "MemoryAnswered"  # the type of the records of answers to commands


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
            request: The encoded request.
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
