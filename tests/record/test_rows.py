"""Records as rows: what can be kept comes back exactly, and what cannot is refused in time."""

from __future__ import annotations

import enum
import json
import math
import sqlite3
from contextlib import closing
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import journal_kit as kit
from repertory.errors import JournalDamaged, RecordRefused
from repertory.llm import Text, ToolResult, ToolUse
from repertory.record import Record
from repertory.record.rows import (
    MAX_TEXT,
    TABLES,
    Table,
    Value,
    decode_json,
    decode_text,
    encode_json,
    encode_records,
    encode_text,
)


def there_and_back(record: Record) -> Record:
    """Send a record through its row, and the row through SQLite itself."""
    (encoded,) = encode_records([record])
    flat: list[Value] = [7]
    for _, row, checksum in encoded:
        flat += [*row, checksum ^ 7]
    with closing(sqlite3.connect(":memory:")) as database, database:
        marks = ", ".join("?" * len(flat))
        restored = database.execute(f"SELECT {marks}", flat).fetchone()
    database.close()
    number, decoded = TABLES[type(record)].read(restored)
    assert number == 7
    found: Record = decoded
    return found


@pytest.mark.parametrize("record", kit.one_of_each(), ids=lambda record: type(record).__name__)
def test_every_kind_of_record_survives(record: Record) -> None:
    """A row holds every field of its record."""
    assert there_and_back(record) == record


def test_every_kind_of_record_has_a_table() -> None:
    """The sample used by the tests, the union of records and the tables agree."""
    assert {type(record) for record in kit.one_of_each()} == set(TABLES)


@given(kit.texts, kit.json_objects, kit.texts, kit.floats, kit.int64)
def test_any_text_and_any_json_survive_exactly(
    text: str, metadata: dict[str, Any], step: str, at: float, tokens: int
) -> None:
    """Lone surrogates, NUL, every float and every 64-bit number come back as they were."""
    record = kit.appended(
        "run-1",
        0,
        content=(Text(text), ToolUse("id", "name", metadata), ToolResult("id", text)),
        metadata=metadata,
        url=step,
        created_at=at,
        tokens=tokens,
    )
    back = there_and_back(record)
    assert back == record
    # But for the sign of zero, which SQLite's columns do not keep.
    assert math.copysign(1, back.entry.created_at) == math.copysign(1, at or 0.0)  # type: ignore[union-attr]


@given(kit.texts, kit.texts)
def test_text_that_some_engine_does_not_take_is_kept(one: str, other: str) -> None:
    """What is read is what was written; what is different stays different; a beginning stays a beginning."""
    for text in (one, other, one + other):
        kept = encode_text(text)
        assert "\0" not in kept
        kept.encode()
        assert decode_text(kept) == text
    assert encode_text(one + other) == encode_text(one) + encode_text(other)
    assert (encode_text(one) == encode_text(other)) == (one == other)


def test_a_text_of_a_subclass_is_kept_as_its_text() -> None:
    """Not as what ``str()`` says of it, which for an enumeration is the name of the member."""

    class Step(str, enum.Enum):  # noqa: UP042 - a StrEnum has another str()
        FIRST = "one é"

    back = there_and_back(kit.appended("r", 0, url=Step.FIRST))
    assert back.entry.url == "one é"  # type: ignore[union-attr]


@given(st.one_of(kit.json_values, kit.texts))
def test_json_comes_back_as_it_was(value: object) -> None:
    """What encode_json writes, decode_json restores, and any other JSON reader can read it too."""
    text = encode_json(value)
    text.encode()  # proper text
    assert decode_json(text) == value == json.loads(text)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (kit.appended("r", 0, metadata={"x": float("nan")}), "nan"),
        (kit.appended("r", 0, metadata={"x": [{"y": (1, float("inf"))}]}), "inf"),
        (kit.appended("r", 0, metadata={"x": float("nan"), "s": "\ud800"}), "Out of range|not JSON"),
        (kit.appended("r", 0, created_at=float("nan")), "nan"),
        (kit.appended("r", 2**63), "64 bits"),
        (kit.appended("r", 0, metadata={"x": object()}), "unsupported"),
        (kit.appended("r", 0, url=b"bytes"), "bytes"),
        (kit.appended("r", 0, content=None), "None"),
        ("no record", "not a record"),
    ],
)
def test_what_cannot_be_kept_is_refused_with_the_reason(record: Any, reason: str) -> None:
    """The caller hears of it in the call itself; SQLite never sees it."""
    with pytest.raises(RecordRefused, match=reason):
        encode_records([record])


def test_a_text_too_long_for_sqlite_is_refused() -> None:
    """A quarter of a gigabyte in one field is an error of the caller, not the end of the journal."""
    with pytest.raises(RecordRefused, match=f"longer than {MAX_TEXT}"):
        encode_records([kit.appended("r", 0, url="x" * (MAX_TEXT + 1))])


class Inner(msgspec.Struct, frozen=True):
    """What a record is made of."""

    known: int = 0
    maybe: str | None = None


class GrownInner(Inner, frozen=True):
    """The same after a release."""

    more: int = 3


class Before(msgspec.Struct, frozen=True):
    """A record as it was released."""

    run_id: str
    inner: Inner = Inner()
    pairs: tuple[tuple[int, int], ...] = ()
    large: str = ""


class Grown(msgspec.Struct, frozen=True):
    """The same record, which has grown a field since, and its part has."""

    run_id: str
    inner: GrownInner = GrownInner()
    pairs: tuple[tuple[int, int], ...] = ()
    later: tuple[int, ...] = (7,)
    large: str = ""


@pytest.mark.parametrize(("first", "side"), [((), None), (("large",), None), ((), "sides")])
def test_a_row_from_before_a_field_has_its_default(first: tuple[str, ...], side: str | None) -> None:
    """The columns are empty in old rows, and their checksums hold: behind a large one, and beside a side table."""
    ends = ("large",) if side else ()
    old = Table("grown", Before, last=(*first, *ends), side=side, inner=Inner)
    new = Table("grown", Grown, last=(*first, "inner.more", "later", *ends), side=side, inner=GrownInner)
    assert new.columns[:-2] == (old.columns if first or side else (*old.columns[:-1], "large"))
    before: Any = Before("r", Inner(1, "x"), ((1, 2),), "large")
    ((_, row, checksum), *sides) = old.encode(before)
    body = [(*row, checksum ^ 5) for _, row, checksum in sides]
    grown = Grown("r", GrownInner(1, "x"), ((1, 2),), large="large")
    assert new.read((5, *row, None, None, checksum ^ 5, *sum(body, ()))) == (5, grown)
    grown = Grown("r", GrownInner(1, more=4), later=(8,), large="large")
    ((_, row, checksum), *sides) = new.encode(grown)  # type: ignore[arg-type]
    assert new.read((5, *row, checksum ^ 5, *sum(body, ()))) == (5, grown)
    with pytest.raises(JournalDamaged, match="checksum"):
        new.read((5, *row[:-1], None, checksum ^ 5, *sum(body, ())))
