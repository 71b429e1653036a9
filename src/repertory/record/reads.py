"""How a journal is read: questions become SQL, and rows become records again, wherever the rows are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from typing import Any, Final, TypeAlias, TypeVar

from repertory.record.rows import NO_LIMIT, TABLES, Value, decode_text, encode_json, encode_text
from repertory.record.search import FullText, SearchIndex
from repertory.record.tables import Tables, index_slice

T = TypeVar("T")

Numbered: TypeAlias = list[tuple[int, Any]]  # records, each with its number
Rows: TypeAlias = Iterable[Sequence[Value]]
OF_RUN: Final = "WHERE t.run_id = ? ORDER BY t.seq"


def number_of(rows: Rows) -> int:
    """The one number that was asked for; 0 where there is none."""
    return int(next(iter(rows))[0] or 0)


def ids_of(rows: Rows) -> list[str]:
    """The ids that were asked for."""
    return [decode_text(row[0]) for row in rows]


def marks(values: Collection[Value]) -> str:
    """The marks of values in an IN; of none, what nothing is in."""
    return ", ".join("?" * len(values)) or "NULL"


class Reads:
    """What every part of a journal that reads it stands on."""

    _full_text: FullText = FullText()

    # --- where the rows are -------------------------------------------------------------------------------

    async def _settle(self) -> None:
        """Wait until everything that was queued before this call is written, or has failed."""
        raise NotImplementedError

    async def _query(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        """Ask for rows, of ``what`` as an error names it, and decode them."""
        raise NotImplementedError

    async def _change(self, doing: str, work: Callable[[Tables], T]) -> T:
        """Do something in a transaction of its own, behind what is queued; ``doing`` is its name for an error."""
        raise NotImplementedError

    # --- what is made of them -----------------------------------------------------------------------------

    async def _fetch(self, what: str, sql: str, values: Sequence[Value], decode: Callable[[Rows], T]) -> T:
        await self._settle()
        return await self._query(
            what, sql, [self._text(value) if isinstance(value, str) else value for value in values], decode
        )

    def _text(self, text: str) -> Value:
        """A text as it stands in a column."""
        return encode_text(text)

    def _list(self, values: Iterable[object]) -> str:
        """Values for ``IN (SELECT value FROM json_each(?))``."""
        return encode_json(list(values))

    async def _read(self, kind: type[Any], rest: str, *values: Value, side: bool = True) -> Numbered:
        """Records of one kind: SELECT their columns FROM their table ``rest``; with the large field if ``side``."""
        table = TABLES[kind]
        whose = "".join(f" of {value!r:.60}" for value in values[:1] if isinstance(value, str))
        sql = f"{table.select_from(side=side)} {rest}"
        return await self._fetch(f"{table.name}{whose}", sql, values, lambda rows: [table.read(row) for row in rows])

    async def _records(self, kind: type[Any], rest: str, *values: Value, side: bool = True) -> list[Any]:
        return [record for _, record in await self._read(kind, rest, *values, side=side)]

    async def _catch_up(self, index: SearchIndex) -> None:
        """Index the words of everything that was written before this call, below what is still being written."""
        await self._complete_below()
        indexed, upto = 0, NO_LIMIT
        while indexed < upto:
            indexed, last = await self._change("index", partial(index_slice, index=index))
            upto = min(upto, last)  # the last ones may have been removed meanwhile

    async def _of_run(self, kind: type[Any], run_id: str) -> list[Any]:
        return await self._records(kind, OF_RUN, run_id)

    async def _complete_below(self) -> int:
        """Below which number everything that will ever be written can be read now, for whoever goes on from there."""
        return NO_LIMIT  # there is one writer
