"""Records as rows: the mapping that every journal uses.

A row holds nothing that an engine could refuse later. What cannot be kept exactly is refused here, in the caller's
own call, so that one bad value never stops the journal for everybody else.

Characters that some engine does not take, or cuts a text at, are written after an escape character, U+001A: NUL as
``0``, U+001A itself as ``1``, and a lone surrogate as its four hexadecimal digits. So equal texts stay equal, different
ones stay different, and a prefix of a text is written as a prefix. JSON escapes all three by itself.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from operator import attrgetter
from types import NoneType
from typing import Any, Final, Literal, TypeAlias, cast, get_args, get_origin, get_type_hints

import msgspec

from repertory._choices import show
from repertory._frozen import FrozenDict
from repertory.errors import JournalDamaged, RecordRefused
from repertory.llm.messages import Block, Json, decode_block, encode_block
from repertory.llm.model import Usage
from repertory.record.entries import Entry
from repertory.record.memory_records import ItemWritten, PayloadChanged, ScopeMerged, ScopeOpened
from repertory.record.records import (
    ContentStored,
    DecisionMade,
    EntryAppended,
    EventLogged,
    ModelCalled,
    ModelReplied,
    Record,
    RunStarted,
    RunStateChanged,
    ScheduleSettled,
    SummaryStored,
    ToolFinished,
    ToolIntended,
    WebhookTried,
)

Value = str | int | float | None
Row = tuple[Value, ...]
EncodedRow = tuple[str, Row, int]  # table, values, and their checksum, to which the writer adds the row's number
EncodedRecord = tuple[EncodedRow, ...]  # a record's row, then that of its side table

MAX_TEXT: Final = 225_000_000  # characters of a row; SQLite's own limit is a thousand million bytes
_INT64: Final = 2**63
NO_LIMIT: Final = _INT64 - 1  # the largest number that LIMIT accepts; it is above the number of every record
_SHORT: Final = 1_000_000
# Columns that SQL compares with parts of themselves, or with the beginnings of others: trees of runs, and ids of items.
_IDS: Final = frozenset({"run_id", "parent_id", "scope_id", "owner", "item_id"})
_ESCAPE: Final = "\x1a"
_TO_ESCAPE: Final = re.compile("[\0\x1a\ud800-\udfff]")
_ESCAPED: Final = re.compile("\x1a([01]|[d-f][0-9a-f]{3})")


_EMPTY: Final[dict[type[Any], str]] = {FrozenDict: "{}", tuple: "[]"}  # as most fields with JSON are

# --- values -----------------------------------------------------------------------------------------------


def encode_json(value: Any) -> str:
    """Write a value as JSON text that ``decode_json`` restores exactly, lone surrogates included.

    Raises:
        ValueError: It holds a number that JSON does not have.
        TypeError: It holds something that is not JSON at all.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # A lone surrogate, say from a tool that decoded bytes with surrogateescape: escaped it is plain ASCII.
        return json.dumps(msgspec.to_builtins(value), allow_nan=False, separators=(",", ":"))
    if "null" in text:  # msgspec also writes null for the numbers that JSON lacks
        _check_finite(value)
    return text


def _check_finite(value: Any) -> None:
    todo = [value]
    while todo:
        each = todo.pop()
        if isinstance(each, float):
            if not math.isfinite(each):
                raise ValueError(f"{each} is not a JSON number")
        elif isinstance(each, dict | list | tuple):
            todo.extend(cast(Iterable[Any], each.values() if isinstance(each, dict) else each))


def decode_json(text: Value) -> Any:
    """Read what ``encode_json`` wrote."""
    assert isinstance(text, str)
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return json.loads(text)  # the standard library's reader accepts escaped lone surrogates


def plain_text(text: str) -> str:
    """The same text as a ``str``; it may be of a subclass, such as an enumeration, whose ``str()`` says its name."""
    return str.__str__(text)


def encode_text(text: str) -> str:
    """Write text as every engine keeps it; ``decode_text`` restores it exactly."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of {len(text)} characters is longer than {MAX_TEXT}")
    text = plain_text(text)
    with suppress(UnicodeEncodeError):
        text.encode()  # many times faster than to look for surrogates
        if "\0" not in text and _ESCAPE not in text:
            return text
    return _TO_ESCAPE.sub(_escaped, text)


def _escaped(match: re.Match[str]) -> str:
    return _ESCAPE + {"\0": "0", _ESCAPE: "1"}.get(match[0], f"{ord(match[0]):x}")


def decode_text(text: str) -> str:
    """Read what ``encode_text`` has written."""
    return _ESCAPED.sub(_meant, text) if _ESCAPE in text else text


def _meant(match: re.Match[str]) -> str:
    return {"0": "\0", "1": _ESCAPE}.get(match[1]) or chr(int(match[1], 16))


def _encode_column(value: object, kind: type[Any]) -> Value:
    """Encode one plain column as the type that SQLite keeps there, so that it is read as it was written."""
    if kind is str and isinstance(value, str):
        return encode_text(value)
    if kind is int and isinstance(value, int):
        if not -_INT64 <= value < _INT64:
            raise ValueError(f"the number {value} has more than 64 bits")
        return int(value)
    if kind is float and isinstance(value, int | float):
        if math.isnan(value):
            raise ValueError("nan is not a number that can be kept")
        return float(value) or 0.0  # the file knows no negative zero
    raise TypeError(f"expected {kind.__name__}, got {type(value).__name__}")


_Codec: TypeAlias = tuple[Callable[[Any], Value], Callable[[Value], Any]]


def _column(hint: Any) -> tuple[type[Any], _Codec | None]:
    """The type of a field's column, and how to encode and decode the field if its own type differs."""
    if get_origin(hint) is Literal:
        return str, None
    if hint in (str, int, float):
        return hint, None
    if hint is bool:
        return int, (int, bool)
    if hint == Json:
        return str, (encode_json, decode_json)
    if hint == tuple[Block, ...]:
        return str, (
            lambda content: encode_json([*map(encode_block, content)]),
            lambda text: tuple(map(decode_block, decode_json(text))),
        )
    return str, (encode_json, lambda text: msgspec.convert(decode_json(text), hint))


def lenient_text(raw: bytes) -> str:
    """Decode text that may not be UTF-8, so that a difference from what was written is detected."""
    return raw.decode("utf-8", "surrogateescape")


# --- checksums ---------------------------------------------------------------------------------------------

_pack: Final = msgspec.msgpack.Encoder().encode
# What encoding a value that cannot be kept may raise.
NOT_KEPT: Final = (TypeError, ValueError, AttributeError, ArithmeticError, BufferError, RecursionError)
# What decoding a damaged value may raise.
UNREADABLE: Final = (
    msgspec.MsgspecError,
    ValueError,
    TypeError,
    LookupError,
    AttributeError,
    ArithmeticError,
    RecursionError,
)


def _sum(row: Sequence[Value], seed: int) -> int:
    end = len(row)
    while end and row[end - 1] is None:  # such as the columns of fields that did not exist when it was written
        end -= 1
    return zlib.crc32(_pack(row if end == len(row) else row[:end]), seed)


def _checksum(row: Sequence[Value], seed: int, number: Value) -> int | None:
    """The checksum that a row with this number has in the file; None for a row that cannot have been written."""
    try:
        return _sum(row, seed) ^ number if isinstance(number, int) else None
    except UnicodeEncodeError:
        return None


# --- tables -----------------------------------------------------------------------------------------------


class Table:
    """How one type of record is stored: a column for each of its fields, in their order. The schema is made from it.

    A file's checksums are over the columns in this order. So a field that is added after a release must have its column
    after the others (see ``last``); older rows have nothing there, which is read as the field's default.

    Attributes:
        columns: The columns after ``seq``.
        kinds: The type of each column: text, whole numbers or floats; that of the side column comes last.
        side: A second table for one large field, to keep this table's rows small; None for most.
        side_expires: Whether rows of the side table may be deleted when they expire, or never be written; the field
            then reads as "".
        layout: All columns of the table and of its side table.
    """

    def __init__(
        self,
        name: str,
        record: type[Any],
        *,
        last: tuple[str, ...] = (),
        side: str | None = None,
        side_expires: bool = False,
        **nested: type[Any],
    ) -> None:
        """Make the table of a type of record.

        Args:
            last: Fields whose columns come after the others, in this order: one that may be large, so that the others
                are read without it, and those that were added after a release.
            side: The name of the side table, which holds the last of these fields.
            side_expires: Whether the field may be missing there.
            nested: Fields that have a column for each of their own fields, with their types.
        """
        self.name = name
        self.record = record
        self.side = side
        self.side_expires = side_expires
        # The checksum includes the table, so that no row is mistaken for one of another table.
        self._seed, self._side_seed = zlib.crc32(name.encode()), zlib.crc32((side or "").encode())
        hints: dict[str, Any] = {}
        for field, hint in _hints(record).items():
            inner = {f"{field}.{each}": its for each, its in _hints(nested[field]).items()} if field in nested else {}
            hints |= inner or {field: hint}
        for field in last:
            hints[field] = hints.pop(field)
        self._get = attrgetter(*hints)
        self.kinds: list[type[Any]] = []
        self._optional: set[int] = set()
        self._codecs: list[tuple[int, Callable[[Any], Value], Callable[[Value], Any]]] = []
        self._nested = nested
        self._places: dict[str, list[tuple[str, int]]] = {outer: [] for outer in ("", *nested)}
        for index, (path, hint) in enumerate(hints.items()):
            of_it = [each for each in get_args(hint) if each is not NoneType]
            if NoneType in get_args(hint):
                self._optional.add(index)
            kind, codec = _column(of_it[0] if index in self._optional else hint)
            self.kinds.append(kind)
            if codec is not None:
                self._codecs.append((index, *codec))
            outer, _, field = path.rpartition(".")
            self._places[outer].append((field, index))
        self._unread = "{}" if hints[[*hints][-1]] == Json else ""  # for a side column that was not selected
        columns = [path.rpartition(".")[2] for path in hints]
        self._ids = [index for index, column in enumerate(columns) if column in _IDS]
        # The side table's column comes last in every row, and is not one of this table's own.
        self.side_column = columns.pop() if side else ""
        self.columns: tuple[str, ...] = tuple(columns)
        self.layout: dict[str, tuple[str, ...]] = {name: ("seq", *self.columns, "checksum")}
        if side:
            self.layout[side] = ("seq", self.side_column, "checksum")

    def encode(self, record: Record) -> EncodedRecord:
        """Turn a record into its row, and the row of its side table."""
        values: list[Any] = list(self._get(record))
        for index in self._ids:
            value = values[index]
            # Most ids are printable, and to see that takes a third of the time of the search.
            if isinstance(value, str) and not value.isprintable() and _TO_ESCAPE.search(value):
                raise ValueError(
                    f"{self.columns[index]} must be without NUL, U+001A and half characters, got {show(value)}"
                )
        for index, encode, _ in self._codecs:
            value = values[index]
            if not value and value.__class__ in _EMPTY:
                values[index] = _EMPTY[value.__class__]
            elif value is not None or index not in self._optional:
                values[index] = encode(value)
        long = 0
        for index, (value, kind) in enumerate(zip(values, self.kinds, strict=True)):
            # The common case is handled here first, because this loop runs for every column of every record.
            if type(value) is kind:
                if kind is str:
                    if len(value) < _SHORT:
                        if value.isascii() and "\0" not in value and _ESCAPE not in value:
                            continue
                    else:
                        long += len(value)
                elif kind is int:
                    if -_INT64 <= value < _INT64:
                        continue
                elif value and not math.isnan(value):
                    continue
            elif value is None and index in self._optional:
                continue
            values[index] = _encode_column(value, kind)
        if long > MAX_TEXT:
            raise ValueError(f"texts of {long} characters are longer than {MAX_TEXT}")
        if self.side is None:
            return ((self.name, tuple(values), _sum(values, self._seed)),)
        body = (values.pop(),)
        own = (self.name, tuple(values), _sum(values, self._seed))
        if self.side_expires and not body[0]:
            return (own,)
        return own, (self.side, body, _sum(body, self._side_seed))

    def select(self, alias: str, side: str = "") -> str:
        """The columns for ``read``, for a SELECT over the table, and over its side table if that has an alias."""
        columns = [f"{alias}.{column}" for column in self.layout[self.name]]
        return ", ".join([*columns, f"{side}.{self.side_column}", f"{side}.checksum"] if side else columns)

    def select_from(self, *, side: bool = True) -> str:
        """SELECT and FROM over all rows for ``read``, the table as ``t``; with ``side`` also its side table, if any."""
        if not side or self.side is None:
            return f"SELECT {self.select('t')} FROM {self.name} t"
        return f"SELECT {self.select('t', 'b')} FROM {self.name} t LEFT JOIN {self.side} b ON b.seq = t.seq"

    def read(self, row: Sequence[Value]) -> tuple[int, Any]:
        """Turn a row of ``select`` back into the number and the record that were written.

        A side column that was not selected, or has expired, reads as "", or as {} if it holds JSON.

        Raises:
            JournalDamaged: The row is not what was written.
        """
        width = len(self.columns) + 1
        own, found, side = row[1:width], row[width], row[width + 1 :]
        if self.side_expires and side and side[0] is side[1] is None:
            side = ()
        if found != _checksum(own, self._seed, row[0]) or (
            side and side[1] != _checksum(side[:1], self._side_seed, row[0])
        ):
            raise self._damaged(row, "is not what was written: its checksum is wrong")
        try:
            return int(row[0] or 0), self.decode((*own, *(side[:1] or (self._unread,))) if self.side else own)
        except (*UNREADABLE, AssertionError) as error:  # another version of repertory wrote it like this
            raise self._damaged(row, f"cannot be read: {error}") from error

    def is_whole(self, name: str, row: Sequence[Value]) -> bool:
        """Whether a row of this table, or of its side table, is what was written: all of its ``layout``."""
        seed = self._seed if name == self.name else self._side_seed
        return row[-1] == _checksum(row[1:-1], seed, row[0])

    def _damaged(self, row: Sequence[Value], fact: str) -> JournalDamaged:
        names = ("run_id", "scope_id", "call", "call_id", "content_id", "position", "iteration")
        values = dict(zip(self.columns, row[1:], strict=False))
        where = ", ".join(f"{name} {values[name]!r:.60}" for name in names if values.get(name) is not None)
        return JournalDamaged(
            f"record {row[0]!r} in {self.name} ({where}) {fact}; restore the journal from a backup, and see "
            "repertory doctor --deep for all that is damaged"
        )

    def decode(self, row: Sequence[Value]) -> Any:
        """Turn a row (``columns``, then the side column) back into its record."""
        values: list[Any] = list(row)
        for index, value in enumerate(values):
            if type(value) is str and _ESCAPE in value:
                values[index] = decode_text(value)
        for index, _, decode in self._codecs:
            if values[index] is not None:
                values[index] = decode(values[index])
        found = {
            outer: {name: values[index] for name, index in places if values[index] is not None}
            for outer, places in self._places.items()
        }
        fields = found[""]
        for name, struct in self._nested.items():
            fields[name] = struct(**found[name])
        return self.record(**fields)


def _hints(struct: type[Any]) -> dict[str, Any]:
    hints = get_type_hints(struct)
    return {field: hints[field] for field in struct.__struct_fields__}


TABLES: Final[dict[type[Any], Table]] = {
    table.record: table
    for table in (
        Table("runs", RunStarted),
        Table("run_states", RunStateChanged),
        Table("entries", EntryAppended, last=("entry.content",), entry=Entry),
        Table("decisions", DecisionMade, last=("body",)),
        Table("tool_intents", ToolIntended, last=("arguments",)),
        Table("tool_outcomes", ToolFinished),
        Table("model_calls", ModelCalled, last=("body",), side="request_bodies"),
        Table("model_replies", ModelReplied, last=("content",), usage=Usage),
        Table("contents", ContentStored, last=("body",), side="content_bodies", side_expires=True),
        Table("summaries", SummaryStored, last=("content",)),
        Table("scopes", ScopeOpened),
        Table("scope_merges", ScopeMerged),
        Table("items", ItemWritten, last=("content",), side="item_bodies"),
        Table("payloads", PayloadChanged, last=("changes",)),
        Table("events", EventLogged, last=("body",)),
        Table("schedules", ScheduleSettled),
        Table("webhook_attempts", WebhookTried),
    )
}
_COLUMNS: Final = {table.name: table.columns for table in TABLES.values()}
_NEWEST: Final = " UNION ALL ".join(f"SELECT max(seq) AS seq FROM {table.name}" for table in TABLES.values())
NEWEST: Final = f"SELECT coalesce(max(seq), 0) FROM ({_NEWEST}) tables"
"""SQL for the number of the newest record; 0 if there is none."""

AFTER_REFUSED: Final = "a batch that it builds on was refused"
# Hints for the error when a table already has a row that a batch wants to write.
_HINTS: Final = {
    "UNIQUE constraint failed: runs.": "; is there a run of this id already?",
    "UNIQUE constraint failed: entries.": "; are there two ledgers for one run?",
    "UNIQUE constraint failed: payloads.": "; do two processes change one payload?",
}


def refuse_batch(records: Sequence[EncodedRecord], fact: object) -> RecordRefused:
    """The error for a batch that contradicts existing records; ``fact`` says how."""
    owners = [dict(zip(_COLUMNS[table], row, strict=True)).get("run_id") for (table, row, _), *_ in records]
    runs = ", ".join(dict.fromkeys(repr(str(run_id)) for run_id in owners if run_id is not None))
    hint = "".join(hint for begun, hint in _HINTS.items() if str(fact).startswith(begun))
    return RecordRefused(
        f"nothing of a batch of {runs or 'no run'} was written, and the journal goes on without it: {fact}{hint}"
    )


def encode_records(records: Sequence[Record]) -> list[EncodedRecord]:
    """Turn a batch into rows.

    Raises:
        RecordRefused: A record cannot be kept exactly. Nothing of the batch may be written then.
    """
    out: list[EncodedRecord] = []
    for record in records:
        try:
            out.append(TABLES[type(record)].encode(record))
        except KeyError:
            raise RecordRefused(f"cannot keep a value of type {type(record).__name__}: it is not a record") from None
        except NOT_KEPT as error:
            raise RecordRefused(f"cannot keep this {type(record).__name__}: {error}; nothing was written") from error
    return out
