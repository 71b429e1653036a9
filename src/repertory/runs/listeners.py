"""Lifecycle listeners: functions of the application that are told what happens to each message of a run."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TypeAlias

import msgspec

from repertory._cancelling import crash_of
from repertory.context import MessageEvent
from repertory.context.lifecycle import added
from repertory.record import Ledger
from repertory.runs.log import log

Listener: TypeAlias = Callable[[MessageEvent], object]


class Listeners:
    """The listeners of one run.

    Args:
        ledger: Its ledger; an earlier process has told of what is in it.
        own: The listener of its agent; None for none.

    Attributes:
        errors: How often a listener has raised an error in this process.
    """

    def __init__(self, run_id: str, ledger: Ledger, own: Listener | None) -> None:
        self.errors = 0
        self._run_id = run_id
        self._ledger = ledger
        self._told = len(ledger.snapshot())
        self._own = own
        self._others: list[Listener] = []

    def add(self, listener: Listener) -> None:
        """Tell another function, too, unless it is told already."""
        if listener not in (self._own, *self._others):
            self._others.append(listener)

    def take_over(self, earlier: Listeners) -> None:
        """Tell whom an earlier object of the same run was made to tell; no record has them."""
        self._others, self.errors = earlier._others, earlier.errors
        self._told = min(self._told, earlier._told)

    @property
    def _all(self) -> list[Listener]:
        return [each for each in (self._own, *self._others) if each is not None]

    def tell(self, events: Iterable[MessageEvent]) -> None:
        """Tell what happened to messages; errors that the listeners raise are only logged and counted."""
        listeners, run_id = self._all, self._run_id
        named = [msgspec.structs.replace(event, run_id=run_id) for event in events] if listeners else []
        for listener in listeners:
            for event in named:
                try:
                    listener(event)
                except BaseException as raised:  # noqa: BLE001 - an application's callback can never break the run
                    error = crash_of(raised)
                    self.errors += 1
                    log(logging.WARNING, "listener.failed", run=run_id, kind=event.kind, exc_info=error)

    def tell_added(self) -> None:
        """Tell of the entries added since the last call."""
        if self._all:
            snapshot = self._ledger.snapshot()
            told, self._told = self._told, len(snapshot)
            self.tell(added(snapshot[told:]))
