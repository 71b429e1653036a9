"""Where messages go that nobody handles: counted and observable, never vanished."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

logger = logging.getLogger("repertory.actors")

DeadReason: TypeAlias = Literal["stopped", "dropped", "unhandled", "refused", "failed", "interrupted"]
"""Why a message is dead:

- ``stopped``: its receiver had stopped, or stopped before it came to it;
- ``dropped``: the mailbox was full and its overflow policy chose this message;
- ``unhandled``: the receiver has no handler for its type;
- ``refused``: its handler raised an error it declares as expected, and nobody was waiting for the answer;
- ``failed``: it crashed its receiver as often as allowed (a poison message); ``error`` holds the crash;
- ``interrupted``: its handler had begun and was cancelled; it may have had a part of its effect.
"""


class DeadLetter(msgspec.Struct, frozen=True):
    """One message that was not handled.

    Attributes:
        message: The message itself.
        recipient: The path of the actor it was for.
        reason: Why it is here.
        error: What its handler raised, for ``failed`` and ``refused``; else None.
    """

    message: Any
    recipient: str
    reason: DeadReason
    error: BaseException | None = None


class DeadLetters:
    """The dead letters of one system: all are counted, the last ``keep`` are kept."""

    __slots__ = ("_counts", "_observer", "_recent")

    def __init__(self, *, keep: int = 256, observer: Callable[[DeadLetter], None] | None = None) -> None:
        self._counts: Counter[DeadReason] = Counter()
        self._recent: deque[DeadLetter] = deque(maxlen=keep)
        self._observer = observer

    def put(self, letter: DeadLetter) -> None:
        """Count and keep a message, and show it to the observer."""
        self._counts[letter.reason] += 1
        self._recent.append(letter)
        if self._observer is not None:
            try:
                self._observer(letter)
            except Exception:  # an observer must not break the actor that is just stopping
                logger.exception("actors.dead_letter.observer_failed", extra={"recipient": letter.recipient})

    @property
    def total(self) -> int:
        """How many messages have ever come here."""
        return self._counts.total()

    @property
    def counts(self) -> Mapping[DeadReason, int]:
        """How many messages have ever come here, by reason."""
        return dict(self._counts)

    @property
    def recent(self) -> tuple[DeadLetter, ...]:
        """The latest ones, oldest first."""
        return tuple(self._recent)
