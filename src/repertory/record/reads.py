"""The base of all parts of a journal that read: it runs SQL and turns rows into records, on any engine."""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar
from weakref import WeakKeyDictionary

import anyio
import anyio.to_thread
import msgspec
from anyio.lowlevel import RunVar

from repertory.errors import JournalClosed
from repertory.record.forks import abandon_in_forks, forked_error
from repertory.record.records import Record
from repertory.record.rows import NO_LIMIT, TABLES, Value, decode_text, encode_json, encode_text
from repertory.record.search import FullText, SearchIndex
from repertory.record.tables import Tables, index_slice

T = TypeVar("T")

Numbered: TypeAlias = list[tuple[int, Any]]  # records, each with its number
Rows: TypeAlias = Iterable[Sequence[Value]]
OF_RUN: Final = "WHERE t.run_id = ? ORDER BY t.seq"


def marks(values: Collection[Value]) -> str:
    """The placeholders of values in an ``IN (…)``; ``NULL`` for no values, which matches nothing."""
    return ", ".join("?" * len(values)) or "NULL"


def row_as(kind: type[T], row: Sequence[Value]) -> T:
    """A row that is not a record, as a tuple of some type or a struct with its fields in this order."""
    values = [decode_text(value) if isinstance(value, str) else value for value in row]
    fields = getattr(kind, "__struct_fields__", None)
    return msgspec.convert(values if fields is None else dict(zip(fields, values, strict=True)), kind)


def json_list(values: Iterable[str | int]) -> str:
    """Ids or numbers for ``IN (SELECT value FROM json_each(?))``."""
    return encode_json([encode_text(value) if isinstance(value, str) else value for value in values])


def _to_compare(value: Value) -> Value:
    """A value for SQL to compare with columns. A number of more than 64 bits is as far from all of them as the last."""
    if isinstance(value, str):
        return encode_text(value)
    return max(-NO_LIMIT, min(value, NO_LIMIT)) if isinstance(value, int) else value


class Reader:
    """What a journal on a disk or a server reads with, in threads: drivers that need asyncio do not work under trio.

    Attributes:
        threads: How many of them read at once.
    """

    threads = 1

    def __init__(self, place: object) -> None:
        self._place = place  # for errors
        self._closed = self._forked = False
        self._turns = threading.Semaphore(self.threads)
        abandon_in_forks(self)

    def _check(self) -> None:
        if self._forked:
            raise forked_error(str(self._place))
        if self._closed:
            raise JournalClosed(f"{self._place} is closed; nothing was read")

    async def _in_thread(self, read: Callable[[], T]) -> T:
        """Read in a thread. If the call is cancelled, it stops waiting; a read that has begun runs to its end."""
        self._check()
        limiters = _limiters.get(None)
        if limiters is None:
            _limiters.set(limiters := WeakKeyDictionary())
        if (limiter := limiters.get(self)) is None:
            limiter = limiters[self] = anyio.CapacityLimiter(self.threads)
        abandoned = threading.Event()

        def read_in_turn() -> T:
            with self._turns:  # asyncio gives the limiter's place back as soon as a call is cancelled
                if abandoned.is_set():
                    raise JournalClosed("nobody waits for this read any more")
                return read()

        try:
            return await anyio.to_thread.run_sync(read_in_turn, abandon_on_cancel=True, limiter=limiter)
        finally:
            abandoned.set()

    def close(self) -> None:
        """Refuse further reads and end the current ones; blocks. Safe to call twice."""
        raise NotImplementedError

    def abandon(self) -> None:
        """In a forked child, which has no such threads: refuse everything, and never close a connection."""
        self._closed = self._forked = True
        self._turns = threading.Semaphore(self.threads)  # another thread of the parent may have one


_limiters: Final = RunVar[WeakKeyDictionary[Reader, anyio.CapacityLimiter]]("repertory-readers")


class Reads:
    """The base class of every part of a journal that reads."""

    _full_text: FullText = FullText()

    # --- access to the rows, defined by each engine -------------------------------------------------------

    async def _settle(self) -> None:
        """Wait until everything that was queued before this call is written, or has failed."""
        raise NotImplementedError

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Run a query and decode its rows; ``what`` names them in errors."""
        raise NotImplementedError

    async def _change(self, doing: str, work: Callable[[Tables], T]) -> T:
        """Do something in its own transaction, after what is queued; ``doing`` names it in errors."""
        raise NotImplementedError

    # --- reading records ----------------------------------------------------------------------------------

    async def _fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        await self._settle()
        return await self._query(what, sql, [*map(_to_compare, values)], decode)

    async def _rows(self, kind: type[T], what: str, sql: str, *values: Value) -> list[T]:
        """Read rows that are not records; see ``row_as``. What does not fit the type is damaged."""
        return await self._fetch(what, sql, values, lambda rows: [row_as(kind, row) for row in rows])

    async def _ids(self, what: str, sql: str, *values: Value) -> list[str]:
        return [run_id for (run_id,) in await self._rows(tuple[str], what, sql, *values)]

    async def _number(self, what: str, sql: str, *values: Value) -> int:
        """Read one number; 0 if it is NULL."""
        ((number,),) = await self._rows(tuple[int | None], what, sql, *values)
        return number or 0

    async def _read(self, kind: type[Any], rest: str, *values: Value, side: bool = True) -> Numbered:
        """Read records of one kind with their numbers.

        ``rest`` follows SELECT … FROM their table; ``side`` says whether to read the large field too.
        """
        table = TABLES[kind]
        whose = "".join(f" of {value!r:.60}" for value in values[:1] if isinstance(value, str))
        sql = f"{table.select_from(side=side)} {rest}"
        return await self._fetch(f"{table.name}{whose}", sql, values, lambda rows: [table.read(row) for row in rows])

    async def _records(self, kind: type[Any], rest: str, *values: Value, side: bool = True) -> list[Any]:
        return [record for _, record in await self._read(kind, rest, *values, side=side)]

    async def _indexed(self, index: SearchIndex, _records: Callable[[], Awaitable[Sequence[Record]]]) -> Reads:
        """A journal to search by an index: this one, once the words of all records until now are in the index.

        It is another one, with the records that ``_records`` reads, if this one's index may not be changed.
        """
        await self._complete_below()  # up to the first record that is still being written
        indexed, upto = 0, NO_LIMIT
        while indexed < upto:
            indexed, last = await self._change("index", partial(index_slice, index=index))
            upto = min(upto, last)  # the last records may have been removed meanwhile
        return self

    async def _of_run(self, kind: type[Any], run_id: str) -> list[Any]:
        return await self._records(kind, OF_RUN, run_id)

    async def _complete_below(self) -> int:
        """The number below which nothing more will be written, so that a reader can continue from there later."""
        return NO_LIMIT  # there is one writer
