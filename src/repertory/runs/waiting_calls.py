"""Tool calls that wait for somebody outside: for an approval before they are made, or for their result afterwards.

All of this is recorded as events, so a run that is read back has the same waiting calls and decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any, Final, Literal, TypeAlias

from repertory._frozen import EMPTY_DICT, Frozen
from repertory.llm.messages import Json
from repertory.record.records import EventLogged
from repertory.record.waiting import Ticket
from repertory.runs.events import ApprovalDecided, ApprovalRequested, ResultAwaited, ResultGiven, from_record

FromOutside: TypeAlias = ApprovalDecided | ResultGiven
WAITING_EVENTS: Final = frozenset(
    kind.__name__ for kind in (ApprovalRequested, ApprovalDecided, ResultAwaited, ResultGiven)
)


class WaitingCall(Frozen, frozen=True, kw_only=True):
    """A tool call that waits.

    Attributes:
        run_id: The run whose call it is.
        kind: Whether it waits for an ``approval`` before it is made, or for its ``result``.
        arguments: The arguments of a call that waits for an approval; for a call that waits for its result they are in
            the record.
        call_id: The id with which to answer. If a call waits for a second time, ``.2`` is appended, and so on, so a
            repeated answer is never taken for the next one.
        reason: Who requires the approval, or what the tool says it waits for.
        schema: JSON schema that the result must fit; None for any result.
        since: When it began to wait, in seconds since 1970.
        expires_at: When it stops waiting, in seconds since 1970; None for never.
    """

    run_id: str
    agent: str
    call_id: str
    tool: str
    kind: Literal["approval", "result"]
    arguments: Json = EMPTY_DICT
    reason: str = ""
    since: float = 0.0
    expires_at: float | None = None
    schema: Json | None = None


def waiting_id(event: ResultAwaited | ResultGiven) -> str:
    """The id with which a result is given, see ``WaitingCall.call_id``. Providers' own ids have no dot."""
    return event.call_id if event.round == 1 else f"{event.call_id}.{event.round}"


def answer_id(event: FromOutside) -> str:
    """The id that an answer was given with."""
    return waiting_id(event) if isinstance(event, ResultGiven) else event.call_id


class WaitingCalls:
    """The calls of one run that wait or have waited.

    Attributes:
        requested: Approvals that were asked for, by call id.
        decided: Decisions, by call id.
        awaited: Results that are to come from outside, by ``waiting_id``.
        newest: What each call waits for, or waited for last, by call id.
        given: Results that were given, by ``waiting_id``.
        making: Calls whose tool is running; a result may be given before the tool says that it comes later.
        held: For how many calls the loop in this process waits.
    """

    def __init__(self) -> None:
        self.requested: dict[str, ApprovalRequested] = {}
        self.decided: dict[str, ApprovalDecided] = {}
        self.awaited: dict[str, ResultAwaited] = {}
        self.newest: dict[str, ResultAwaited] = {}
        self.given: dict[str, ResultGiven] = {}
        self.making: set[str] = set()
        self.held = 0
        self.permit_edit: dict[str, Callable[[Json], None]] = {}
        self._tickets: dict[tuple[str, type[FromOutside]], Ticket] = {}
        self._closed: set[str] = set()

    def read_back(self, record: EventLogged, *, agent: str, answered: Container[str | None]) -> None:
        """Restore what an earlier process recorded; ``answered`` are the calls that have a result."""
        event = from_record(record, agent=agent)
        match event:
            case ApprovalRequested():
                self.requested[event.call_id] = event
            case ApprovalDecided():
                self.decided[event.call_id] = event
            case ResultAwaited():
                self.leave_open(event)
            case ResultGiven():
                self.given[waiting_id(event)] = event
            case _:
                return
        if event.call_id in answered:
            self.close(event.call_id)

    def leave_open(self, event: ResultAwaited) -> None:
        """Let a call wait for its result. If it waits several times, call this in that order."""
        self.awaited[waiting_id(event)] = self.newest[event.call_id] = event

    def close(self, call_id: str) -> None:
        """Note that a call has its result."""
        self._closed.add(call_id)
        self.permit_edit.pop(call_id, None)

    def knows(self, call_id: str) -> bool:
        """Whether a call waits, or has waited."""
        return call_id in self.requested or call_id in self.awaited or call_id in self.making

    def take(self, event: FromOutside, ticket: Ticket) -> None:
        """Add a decision or a result that is being written to the disk."""
        if isinstance(event, ApprovalDecided):
            self.decided[event.call_id] = event
        else:
            self.given[waiting_id(event)] = event
        self._tickets[answer_id(event), type(event)] = ticket

    async def durable(self, event: FromOutside) -> None:
        """Wait until a decision or result is on disk. Raises ``JournalError``."""
        ticket = self._tickets.get((answer_id(event), type(event)))
        if ticket is not None:  # else an earlier process wrote it
            await ticket.wait()

    def is_open(self, call_id: str) -> bool:
        """Whether a call has no result yet."""
        return call_id not in self._closed

    def list(self) -> list[WaitingCall]:
        """The calls that wait, oldest first."""
        asked = [
            self._call(each, each.call_id, "approval", each.reason, arguments=each.arguments)
            for each in self.requested.values()
            if each.call_id not in self.decided and self.is_open(each.call_id)
        ]
        awaited = [
            self._call(each, waiting_id(each), "result", each.note, schema=each.schema)
            for each in self.awaited.values()
            if waiting_id(each) not in self.given and self.is_open(each.call_id)
        ]
        return sorted([*asked, *awaited], key=lambda call: call.since)

    @staticmethod
    def _call(
        event: ApprovalRequested | ResultAwaited,
        call_id: str,
        kind: Literal["approval", "result"],
        reason: str,
        **more: Any,
    ) -> WaitingCall:
        return WaitingCall(
            run_id=event.run_id,
            agent=event.agent,
            call_id=call_id,
            tool=event.tool,
            kind=kind,
            reason=reason,
            since=event.at,
            expires_at=event.expires_at,
            **more,
        )
