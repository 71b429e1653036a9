"""The messages sent to a run from outside, and which of them its loop has not read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from repertory.errors import RunError
from repertory.llm.messages import Block, Text
from repertory.record import Draft
from repertory.record.entries import EntryKind
from repertory.record.records import ContentStored, EventLogged, Record

SAID: Final = "UserSaid"  # the type of the records of messages


@dataclass(frozen=True)
class Said:
    """A message to a run.

    Attributes:
        text: The message.
        sender: The id of the run above it, or "" for the user.
        attached: The id of the images and documents that are shown with it; "" for none.
        stored: The record of these, until it is written.
    """

    text: str
    sender: str = ""
    attached: str = ""
    stored: ContentStored | None = field(default=None, compare=False, repr=False)


def said_records(run_id: str, message_id: str, said: Said, *, at: float, iteration: int) -> list[Record]:
    """The records of a message to a run."""
    body = {"message_id": message_id, "text": said.text, "sender": said.sender, "attached": said.attached}
    event = EventLogged(run_id=run_id, type=SAID, body=body, at=at, iteration=iteration)
    return [event] if said.stored is None else [said.stored, event]


class Inbox:
    """The messages to one run, by message id.

    Args:
        lead: The name of the agent above it, to mark its messages.
    """

    def __init__(self, run_id: str, *, lead: str = "the lead") -> None:
        self._run_id = run_id
        self._lead = lead
        self._said: dict[str, Said] = {}
        self._unread: list[str] = []

    def __contains__(self, message_id: str) -> bool:
        """Whether there is a message with this id."""
        return message_id in self._said

    @property
    def has_unread(self) -> bool:
        """Whether there is a message that the loop has not read."""
        return bool(self._unread)

    @property
    def unread_attachments(self) -> list[str]:
        """The ids of the attachments of the messages that the loop has not read."""
        return [attached for message_id in self._unread if (attached := self._said[message_id].attached)]

    def is_unread(self, message_id: str) -> bool:
        """Whether the loop has not yet read this message."""
        return message_id in self._unread

    def is_new(self, message_id: str, said: Said) -> bool:
        """Whether there is no message with this id yet.

        Raises:
            RunError: Another message has this id.
        """
        known = self._said.get(message_id)
        if known is not None and known != said:
            before = f"was sent to run {self._run_id} before, with another text or other attachments"
            raise RunError(f"message {message_id!r} {before}")
        return known is None

    def put(self, message_id: str, said: Said, *, read: bool = False) -> None:
        """Add a message for the loop to read at its next boundary, unless it has read it already."""
        self._said[message_id] = replace(said, stored=None)
        if not read:
            self._unread.append(message_id)

    def take(self, *, iteration: int, attachments: Mapping[str, Sequence[Block]]) -> list[Draft]:
        """The messages since the last boundary, as ledger entries.

        Args:
            iteration: The one that has ended.
            attachments: What ``unread_attachments`` are.
        """
        ids, self._unread = self._unread, []
        drafts: list[Draft] = []
        for message_id in ids:
            said = self._said[message_id]
            # A sub-agent gets messages from users and from its lead; those from the lead are marked as such.
            from_lead = f"[from {self._lead}, the agent that gave you this task, not from the user]\n"
            text = f"{from_lead}{said.text}" if said.sender else said.text
            kind: EntryKind = "lead-input" if said.sender else "user-input"
            content = (*attachments.get(said.attached, ()), Text(text))
            drafts.append(Draft(role="user", kind=kind, content=content, iteration=iteration, message_id=message_id))
        return drafts
