"""Records as rows: the one mapping that every journal stores by.

A row holds nothing that SQLite could refuse later: what cannot be kept exactly is refused here, in the caller's
own call, so that one bad value never stops the journal for everybody else.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Sequence
from inspect import get_annotations
from operator import attrgetter
from typing import Any, Final, cast, get_type_hints

import msgspec

from repertory.errors import JournalDamaged, RecordRefused
from repertory.llm.messages import decode_block, encode_block
from repertory.llm.model import Usage
from repertory.record.entries import Entry, Retrieved
from repertory.record.records import (
    ContentStored,
    DecisionMade,
    EntryAppended,
    EventLogged,
    ItemWritten,
    ModelCalled,
    ModelReplied,
    PayloadChange,
    PayloadChanged,
    PayloadConflict,
    Record,
    RunStarted,
    RunStateChanged,
    ScheduleSettled,
    ScopeMerged,
    ScopeOpened,
    SummaryStored,
    ToolFinished,
    ToolIntended,
    WebhookTried,
)

Value = str | bytes | int | float | None
Row = tuple[Value, ...]
EncodedRow = tuple[str, Row, int]  # table, values, and their checksum, to which the writer adds the row's number
EncodedRecord = tuple[EncodedRow, ...]  # a record's row, then that of its side table

MAX_TEXT: Final = 225_000_000  # characters of a row; SQLite's own limit is a thousand million bytes
_INT64: Final = 2**63
_SHORT: Final = 1_000_000


# --- values -----------------------------------------------------------------------------------------------


def encode_json(value: Any) -> str:
    """Write a value as JSON text that ``decode_json`` restores exactly, lone surrogates included.

    Raises:
        ValueError: It holds a number that JSON does not have.
        TypeError: It holds something that is no JSON at all.
    """
    try:
        text = msgspec.json.encode(value).decode()
    except UnicodeEncodeError:
        # A lone surrogate, say from a tool that decoded bytes with surrogateescape: escaped it is plain ASCII.
        return json.dumps(msgspec.to_builtins(value), allow_nan=False, separators=(",", ":"))
    if "null" in text:  # which is also what msgspec writes for the numbers that JSON lacks
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
        return json.loads(text)  # the standard library's reader takes escaped lone surrogates


def encode_text(text: str) -> Value:
    """Write text that SQLite takes; what is no UTF-8 becomes a blob, which tells it from text when read."""
    if len(text) > MAX_TEXT:
        raise ValueError(f"a text of {len(text)} characters is longer than {MAX_TEXT}")
    text = str(text)  # of a subclass, say an enumeration
    if text.isascii():
        return text
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def _encode_column(value: object, kind: type[Any]) -> Value:
    """Write one plain column as the kind that SQLite keeps there, so that it is read as it was written."""
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


def _encode_blocks(content: Any) -> str:
    return encode_json([encode_block(block) for block in content])


def _decode_blocks(text: Value) -> Any:
    return tuple(decode_block(raw) for raw in decode_json(text))


def _decode_retrieved(text: Value) -> Retrieved | None:
    return None if text is None else msgspec.convert(decode_json(text), Retrieved)


_Codec = tuple[Callable[[Any], Value], Callable[[Value], Any]]
# By what a field is annotated with.
_CODECS: Final[dict[str, _Codec]] = {
    "Json": (encode_json, decode_json),
    "tuple[Block, ...]": (_encode_blocks, _decode_blocks),
    "tuple[str, ...]": (encode_json, lambda text: tuple(decode_json(text))),
    "tuple[PayloadChange, ...]": (
        encode_json,
        lambda text: msgspec.convert(decode_json(text), tuple[PayloadChange, ...]),
    ),
    "tuple[PayloadConflict, ...]": (
        encode_json,
        lambda text: msgspec.convert(decode_json(text), tuple[PayloadConflict, ...]),
    ),
    "bool": (int, bool),
    "Retrieved | None": (lambda value: None if value is None else encode_json(value), _decode_retrieved),
}


def _kind(annotation: str) -> type[Any]:
    return float if annotation.startswith("float") else int if annotation.startswith(("int", "bool")) else str


def decode_text(value: Value) -> str:
    """Read what ``encode_text`` has written."""
    return value.decode("utf-8", "surrogatepass") if isinstance(value, bytes) else str(value)


def lenient_text(raw: bytes) -> str:
    """Read text that may not be UTF-8, so that it can be told apart from what was written."""
    return raw.decode("utf-8", "surrogateescape")


# --- checksums ---------------------------------------------------------------------------------------------

_pack: Final = msgspec.msgpack.Encoder().encode
# What reading something that is not as it was written may raise.
UNREADABLE: Final = (msgspec.MsgspecError, ValueError, TypeError, LookupError, AttributeError, RecursionError)


def _checksum(row: Sequence[Value], seed: int, number: Value) -> int | None:
    """The checksum that a row with this number has in the file, or None for what was never written so."""
    try:
        return zlib.crc32(_pack(row), seed) ^ number if isinstance(number, int) else None
    except UnicodeEncodeError:
        return None


# --- tables -----------------------------------------------------------------------------------------------


def _annotations(struct: type[Any]) -> dict[str, str]:
    found: dict[str, Any] = {}
    for base in reversed(struct.__mro__):
        found |= get_annotations(base)
    return {name: str(found[name]) for name in struct.__struct_fields__}


class Table:
    """How one type of record is kept: its name, and the fields that have a column of their own, in order.

    A file's checksums are over its columns in this order. The schema is made of it.

    Attributes:
        columns: Those after ``seq``. The last one, ``more``, holds as JSON whatever fields of the record
            have no column of their own, so that a new field is kept from the day it exists.
        kinds: What each of them holds: text, whole numbers or fractions; the side column's comes before the last.
        side: A second table for the one large field that must not swell this one's rows; None for most.
        side_expires: Its rows may be deleted once their time is over, or never be written; the field then reads as "".
        layout: All columns of the table, and of its side table.
    """

    def __init__(
        self,
        name: str,
        record: type[Any],
        fields: str,
        *,
        side: str | None = None,
        side_expires: bool = False,
        **nested: type[Any],
    ) -> None:
        self.name = name
        self.record = record
        self.side = side
        self.side_expires = side_expires
        # The table counts in a checksum too, so that no row passes for one of another table.
        self._seed, self._side_seed = zlib.crc32(name.encode()), zlib.crc32((side or "").encode())
        annotations: dict[str, str] = {}
        for outer, annotation in _annotations(record).items():
            inner = _annotations(nested[outer]) if outer in nested else {}
            annotations |= {f"{outer}.{field}": kind for field, kind in inner.items()} or {outer: annotation}
        paths = fields.split()
        types = {"": get_type_hints(record)} | {outer: get_type_hints(struct) for outer, struct in nested.items()}
        self._more = {  # with what each is annotated
            path: types[outer][field]
            for path in annotations
            if path not in paths
            for outer, _, field in [path.rpartition(".")]
        }
        self._get = attrgetter(*paths)
        self._get_more = attrgetter(*self._more, paths[0])  # of two or more fields, so that it makes a tuple
        codecs = {index: _CODECS[annotations[path]] for index, path in enumerate(paths) if annotations[path] in _CODECS}
        self._encoders = [(index, encode) for index, (encode, _) in codecs.items()]
        self._decoders = [(index, decode) for index, (_, decode) in codecs.items()]
        self._nested = nested
        self._places: dict[str, list[tuple[str, int]]] = {outer: [] for outer in ("", *nested)}
        for index, path in enumerate(paths):
            outer, _, field = path.rpartition(".")
            self._places[outer].append((field, index))
        self._unread = "{}" if len(paths) - 1 in codecs else ""  # for a side column that was not selected
        columns = [path.rpartition(".")[2] for path in paths]
        self.kinds: list[type[Any]] = [*(_kind(annotations[path]) for path in paths), str]
        # The side table's column comes last in every row, and is not one of this table's own.
        self.side_column = columns.pop() if side else ""
        self.columns: tuple[str, ...] = (*columns, "more")
        self.layout: dict[str, tuple[str, ...]] = {name: ("seq", *self.columns, "checksum")}
        if side:
            self.layout[side] = ("seq", self.side_column, "checksum")

    def encode(self, record: Record) -> EncodedRecord:
        """Turn a record into its row, and the row of its side table."""
        values: list[Any] = list(self._get(record))
        for index, encode in self._encoders:
            values[index] = encode(values[index])
        long = 0
        for index, (value, kind) in enumerate(zip(values, self.kinds, strict=False)):
            # What needs no care is recognized here: this loop runs for every column of every record.
            if value is None:
                continue
            if type(value) is kind:
                if kind is str:
                    if len(value) < _SHORT:
                        if value.isascii():
                            continue
                    else:
                        long += len(value)
                elif kind is int:
                    if -_INT64 <= value < _INT64:
                        continue
                elif value and not math.isnan(value):
                    continue
            values[index] = _encode_column(value, kind)
        if long > MAX_TEXT:
            raise ValueError(f"texts of {long} characters are longer than {MAX_TEXT}")
        more = encode_json(dict(zip(self._more, self._get_more(record), strict=False))) if self._more else None
        if self.side is None:
            row = (*values, more)
            return ((self.name, row, zlib.crc32(_pack(row), self._seed)),)
        row, body = (*values[:-1], more), (values[-1],)
        own = (self.name, row, zlib.crc32(_pack(row), self._seed))
        if self.side_expires and not body[0]:
            return (own,)
        return (
            own,
            (self.side, body, zlib.crc32(_pack(body), self._side_seed)),
        )

    def select(self, alias: str, side: str = "") -> str:
        """The columns that ``read`` reads, for a SELECT over the table, and its side table if that has an alias."""
        columns = [f"{alias}.{column}" for column in self.layout[self.name]]
        return ", ".join([*columns, f"{side}.{self.side_column}", f"{side}.checksum"] if side else columns)

    def select_from(self, *, side: bool = True) -> str:
        """SELECT and FROM over all rows, as ``t``, for ``read``; with the side table, if there is one and ``side``."""
        if not side or self.side is None:
            return f"SELECT {self.select('t')} FROM {self.name} t"
        return f"SELECT {self.select('t', 'b')} FROM {self.name} t LEFT JOIN {self.side} b ON b.seq = t.seq"

    def read(self, row: Sequence[Value]) -> tuple[int, Any]:
        """Turn a row of ``select`` back into the number and the record that were written.

        A side column that was not selected, or has expired, reads as "", or {} where it holds JSON.

        Raises:
            JournalDamaged: They are not what was written.
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
        except (*UNREADABLE, AssertionError) as error:  # written so, by another repertory
            raise self._damaged(row, f"cannot be read: {error}") from error

    def is_whole(self, name: str, row: Sequence[Value]) -> bool:
        """Whether a row of this table, or of its side table, is what was written: all of its ``layout``."""
        seed = self._seed if name == self.name else self._side_seed
        return row[-1] == _checksum(row[1:-1], seed, row[0])

    def _damaged(self, row: Sequence[Value], fact: str) -> JournalDamaged:
        names = {"run_id", "scope_id", "position", "iteration", "call", "call_id", "content_id"}
        where = ", ".join(
            f"{name} {value!r:.60}" for name, value in zip(self.columns, row[1:], strict=False) if name in names
        )
        return JournalDamaged(
            f"record {row[0]!r} in {self.name} ({where}) {fact}; restore the journal from a backup, and see "
            "repertory doctor --deep for all that is damaged"
        )

    def decode(self, row: Sequence[Value]) -> Any:
        """Turn a row (``columns``, then the side column) back into its record."""
        values: list[Any] = list(row)
        more = values.pop() if self.side is None else values.pop(-2)
        for index, value in enumerate(values):
            if type(value) is bytes:
                values[index] = value.decode("utf-8", "surrogatepass")
        for index, decode in self._decoders:
            values[index] = decode(values[index])
        found = {outer: {name: values[index] for name, index in places} for outer, places in self._places.items()}
        if more is not None:
            for path, value in decode_json(more).items():
                outer, _, name = path.rpartition(".")
                found[outer][name] = msgspec.convert(value, self._more[path])
        fields = found[""]
        for name, struct in self._nested.items():
            fields[name] = struct(**found[name])
        return self.record(**fields)


TABLES: Final[dict[type[Any], Table]] = {
    table.record: table
    for table in (
        Table(
            "runs",
            RunStarted,
            "run_id agent task model agent_digest agent_ref parent_id parent_call_id depth scope_id priority client at "
            "options",
        ),
        Table("run_states", RunStateChanged, "run_id state at iteration result error"),
        Table(
            "entries",
            EntryAppended,
            "run_id entry.position entry.iteration entry.role entry.kind entry.tool entry.tool_call_id "
            "entry.content_id entry.original_length entry.url entry.step_id entry.stop_reason entry.message_id "
            "entry.deduplicated_from entry.retrieved entry.covered entry.created_at entry.tokens entry.facts "
            "entry.metadata entry.content",
            entry=Entry,
        ),
        Table("decisions", DecisionMade, "run_id iteration kind at covers body"),
        Table(
            "tool_intents",
            ToolIntended,
            "run_id call_id tool effect arguments_digest idempotency_key iteration at arguments",
        ),
        Table(
            "tool_outcomes",
            ToolFinished,
            "run_id call_id tool status at duration deduplicated_from retrieval covered characters shown",
        ),
        Table(
            "model_calls",
            ModelCalled,
            "run_id call iteration model purpose position digest base_call shared_messages prompt_estimate "
            "expected_tokens at body",
            side="request_bodies",
        ),
        Table(
            "model_replies",
            ModelReplied,
            "run_id call at purpose usage.input_tokens usage.output_tokens usage.cache_read_tokens "
            "usage.cache_write_tokens usage.cache_write_1h_tokens cost cost_lost tokens_lost plain_tokens plain_cost "
            "stop_reason error duration content",
            usage=Usage,
        ),
        Table(
            "contents",
            ContentStored,
            "content_id run_id source_type source url format length at expires_at retention metadata body",
            side="content_bodies",
            side_expires=True,
        ),
        Table(
            "summaries",
            SummaryStored,
            "run_id summary_id first last strategy model tokens replaced_tokens at content",
        ),
        Table("scopes", ScopeOpened, "scope_id owner mode at parent_id position"),
        Table("scope_merges", ScopeMerged, "scope_id at position open"),
        Table(
            "items",
            ItemWritten,
            "scope_id item_id position type format media_type size digest source at deleted tags related_to metadata "
            "content",
            side="item_bodies",
        ),
        Table("payloads", PayloadChanged, "run_id version author base call_id source at conflicts changes"),
        Table("events", EventLogged, "run_id type iteration at elapsed body"),
        Table("schedules", ScheduleSettled, "schedule due outcome run_id rule reason count at"),
        Table("webhook_attempts", WebhookTried, "run_id url change outcome attempt at status error next_at"),
    )
}
_COLUMNS: Final = {table.name: table.columns for table in TABLES.values()}

AFTER_REFUSED: Final = "a batch that it builds on was refused"
# What to ask where a table has what a batch brings already.
_HINTS: Final = {
    "UNIQUE constraint failed: runs.": "; is there a run of this id already?",
    "UNIQUE constraint failed: entries.": "; are there two ledgers for one run?",
    "UNIQUE constraint failed: payloads.": "; do two processes change one payload?",
}


def refuse_batch(records: Sequence[EncodedRecord], fact: object) -> RecordRefused:
    """The error of a batch that contradicts what is kept already; ``fact`` says in what."""
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
            raise RecordRefused(f"cannot keep a {type(record).__name__}: it is not a record") from None
        except (TypeError, ValueError, OverflowError, AttributeError, RecursionError) as error:
            raise RecordRefused(f"cannot keep this {type(record).__name__}: {error}; nothing was written") from error
    return out
