"""A ledger up to a position."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import overload

from repertory.record.entries import Entry


class Snapshot(Sequence[Entry]):
    """The first entries of a run's ledger: immutable, and made in the same time whatever their number.

    It is a list that only ever grows, shared with the ledger, and a length; a later append is beyond the length.
    An entry's position is its index.
    """

    __slots__ = ("_entries", "_length", "_run_id")

    def __init__(self, run_id: str, entries: Iterable[Entry] = ()) -> None:
        """Make a snapshot of entries that are at hand (in tests and tools); copies them."""
        self._run_id = run_id
        self._entries = list(entries)
        self._length = len(self._entries)

    @classmethod
    def view(cls, run_id: str, entries: list[Entry], length: int) -> Snapshot:
        """Make a snapshot of the first ``length`` items of a list whose owner promises never to change those."""
        snapshot = cls.__new__(cls)
        snapshot._run_id = run_id
        snapshot._entries = entries
        snapshot._length = length
        return snapshot

    @property
    def run_id(self) -> str:
        """The run."""
        return self._run_id

    @property
    def position(self) -> int:
        """The number of entries, which is the position that the next one would get."""
        return self._length

    def upto(self, position: int) -> Snapshot:
        """The same ledger up to an earlier position, not included.

        Raises:
            ValueError: The position is not within this snapshot.
        """
        if not 0 <= position <= self._length:
            raise ValueError(f"position {position} is not within this snapshot of {self._length} entries")
        return Snapshot.view(self.run_id, self._entries, position)

    def entries(self, start: int = 0, stop: int | None = None) -> list[Entry]:
        """The entries from position ``start`` up to, not including, ``stop``; None means all that follow."""
        return self[start:stop]

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Entry: ...

    @overload
    def __getitem__(self, index: slice) -> list[Entry]: ...

    def __getitem__(self, index: int | slice) -> Entry | list[Entry]:
        if isinstance(index, slice):
            start, stop, step = index.indices(self._length)
            if step > 0:
                return self._entries[start:stop:step]
            # Backwards, the bounds may be -1, which as an index would mean the end of the shared list.
            return [self._entries[position] for position in range(start, stop, step)]
        if not -self._length <= index < self._length:
            raise IndexError(f"position {index} is not within this snapshot of {self._length} entries")
        return self._entries[index if index >= 0 else self._length + index]

    def __iter__(self) -> Iterator[Entry]:
        return islice(self._entries, self._length)

    def __reversed__(self) -> Iterator[Entry]:
        return (self._entries[index] for index in range(self._length - 1, -1, -1))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Snapshot):
            return NotImplemented
        if (self.run_id, self._length) != (other.run_id, other._length):
            return False
        return self._entries is other._entries or self.entries() == other.entries()

    def __hash__(self) -> int:
        return hash((self.run_id, self._length))

    def __repr__(self) -> str:
        return f"<Snapshot of {self.run_id} at position {self._length}>"
