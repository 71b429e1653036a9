"""Observing a running system: counts at one instant, why actors ended, and dead letters."""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeAlias

import msgspec

from repertory._log import Log

log = Log("repertory.actors")

ActorState: TypeAlias = Literal["new", "starting", "running", "paused", "stopping", "restarting", "stopped"]


class StopReason(msgspec.Struct, frozen=True):
    """Why an actor has stopped for good.

    Attributes:
        kind: ``"stopped"`` by itself or by ``stop()``; ``"killed"`` by ``kill()`` or by cancellation of the tree
            above it; ``"failed"`` by a crash after which its supervisor did not restart it.
        error: The crash, for ``"failed"``; otherwise None.
    """

    kind: Literal["stopped", "killed", "failed"]
    error: BaseException | None = None


DeadReason: TypeAlias = Literal["stopped", "dropped", "unhandled", "refused", "failed", "interrupted"]
"""Why a message is dead:

- ``stopped``: the receiver had stopped, or stopped before it handled the message;
- ``dropped``: the mailbox was full and its overflow policy chose this message;
- ``unhandled``: the receiver has no handler for its type;
- ``refused``: the handler raised an error that it declares as expected, and nobody was waiting for the answer;
- ``failed``: the message crashed its receiver as often as allowed (a poison message); ``error`` holds the crash;
- ``interrupted``: the handler had begun and was cancelled; it may have had part of its effect.
"""


class DeadLetter(msgspec.Struct, frozen=True):
    """One message that was not handled.

    Attributes:
        message: The message itself.
        recipient: The path of the actor it was sent to.
        reason: Why it was not handled.
        error: What its handler raised, for ``failed`` and ``refused``; otherwise None.
    """

    message: Any
    recipient: str
    reason: DeadReason
    error: BaseException | None = None


class DeadLetters:
    """The messages that were not handled: all are counted, and the latest are kept."""

    def __init__(self, observer: Callable[[DeadLetter], None] | None) -> None:
        self._counts: Counter[DeadReason] = Counter()
        self._recent: deque[DeadLetter] = deque(maxlen=256)  # enough to see a pattern, too few to fill the memory
        self._observer = observer
        self._is_shown = False  # the observer is being shown one

    def put(self, letter: DeadLetter) -> None:
        """Count and keep a message, and show it to the observer, unless a message of the observer led to it."""
        self._counts[letter.reason] += 1
        self._recent.append(letter)
        if self._observer is not None and not self._is_shown:
            self._is_shown = True
            try:
                self._observer(letter)
            except Exception as error:  # noqa: BLE001 - an observer must not break the actor that is just stopping
                log(logging.ERROR, "actors.dead_letter.observer_failed", exc_info=error, recipient=letter.recipient)
            finally:
                self._is_shown = False

    @property
    def total(self) -> int:
        """How many messages were ever not handled."""
        return self._counts.total()

    @property
    def counts(self) -> Mapping[DeadReason, int]:
        """How many messages were ever not handled, by reason."""
        return dict(self._counts)

    @property
    def recent(self) -> tuple[DeadLetter, ...]:
        """The latest dead letters, oldest first."""
        return tuple(self._recent)


class ActorStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """An actor's figures at one instant.

    Attributes:
        path: Its place in the tree, such as ``/lead/researcher``.
        state: Its state.
        mailbox_length: Messages waiting.
        mailbox_capacity: How many may wait.
        senders_waiting: Tasks that wait for room in ``send`` or ``ask``.
        handled: Messages handled to the end, including inline ones and those answered with an expected error.
        inline: How many of these ran inside the asker's task.
        withdrawn: Asks given up by the asker (cancelled, timed out) before they began.
        dead_lettered: Messages to this actor that went to dead letters.
        crashes: How often it crashed.
        restarts: How often it was restarted.
        children: Living children.
        tasks: Living background tasks.
    """

    path: str
    state: ActorState
    mailbox_length: int
    mailbox_capacity: int
    senders_waiting: int
    handled: int
    inline: int
    withdrawn: int
    dead_lettered: int
    crashes: int
    restarts: int
    children: int
    tasks: int


class SystemStatistics(msgspec.Struct, frozen=True, kw_only=True):
    """A system's figures at one instant.

    Attributes:
        actors: Living actors.
        spawned: Actors ever spawned.
        crashes: Crashes of all actors ever.
        restarts: Restarts of all actors ever.
        asks_timed_out: Asks that ended with ``AskTimeout``.
        asks_with_deadline: Asks now waiting that have a deadline.
        dead_letters: Messages in dead letters ever, by reason.
    """

    actors: int
    spawned: int
    crashes: int
    restarts: int
    asks_timed_out: int
    asks_with_deadline: int
    dead_letters: Mapping[DeadReason, int]
