"""Who is told of what has become durable."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from repertory.record.records import Record

Committed = Callable[[Sequence[Record]], None]


class Observers:
    """The functions that a journal calls with every batch that is durable."""

    def __init__(self) -> None:
        self._observers: tuple[Committed, ...] = ()  # replaced, never changed: the writer's thread may be reading it

    def add(self, observer: Committed) -> Callable[[], None]:
        """Add one; returns what takes it away again."""
        self._observers = (*self._observers, observer)

        def remove() -> None:
            self._observers = tuple(other for other in self._observers if other is not observer)

        return remove

    def wrap(self, records: Sequence[Record], on_commit: Callable[[], None] | None) -> Callable[[], None] | None:
        """What is to be called once the batch is durable: the observers, then ``on_commit``; None for nothing."""
        observers, batch = self._observers, tuple(records)
        if not observers or not batch:
            return on_commit

        def committed() -> None:
            for observer in observers:
                observer(batch)
            if on_commit is not None:
                on_commit()

        return committed
