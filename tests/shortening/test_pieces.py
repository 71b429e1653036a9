"""Pieces of a very long line: each can be read by itself."""

from __future__ import annotations

import json

import pytest

from repertory.shortening.pieces import LONG_LINE, join_records, pieces_of

RECORDS = [{"id": n, "who": {"name": f"Ann {n}"}, "items": [{"no": 1}, {"no": n}], "state": "paid"} for n in range(40)]
ROWS = [f'<tr><td><a href="/d/{n}">Ann &amp; Co {n}</a><br>2.&nbsp;floor</td><td>+49 {n}</td></tr>' for n in range(40)]
RULES = [f".a{n}:hover{{margin:0;padding:{n}px}}" for n in range(40)]
STATEMENTS = [f"var a{n}=function(b){{if(b<{n}&&c>d){{return e[{n}];}}return f;}};" for n in range(40)]
SENTENCES = [f"合同{n}的负责人是王伟，金额为{n}元。" for n in range(40)]


@pytest.mark.parametrize(
    ("line", "whole"),
    [
        (json.dumps(RECORDS), [json.dumps(record) for record in RECORDS]),
        (json.dumps({"rows": RECORDS}, separators=(",", ":")), [json.dumps(r, separators=(",", ":")) for r in RECORDS]),
        (str(RECORDS), list(map(str, RECORDS))),
        (f"<table>{''.join(ROWS)}</table>", ROWS),
        ("".join(RULES), RULES),
        ("".join(STATEMENTS), STATEMENTS),
        ("".join(SENTENCES), SENTENCES),
        (" ".join(f"Did item {n} pass? It did, by {n}. " for n in range(40)), [f"It did, by {n}." for n in range(40)]),
    ],
)
def test_what_belongs_together_stays_together(line: str, whole: list[str]) -> None:
    """The end of one record, before the beginning of another, would say something of that one."""
    pieces = list(pieces_of(line))
    assert all(any(part in piece for piece in pieces) for part in whole)
    assert "".join("".join(pieces).split()) == "".join(line.split())
    assert max(map(len, pieces)) <= LONG_LINE


def test_a_large_record_is_split_between_its_fields() -> None:
    """As near to its outside as possible, and its text between sentences."""
    record = {f"field_{n}": {"values": [n] * 20, "unit": "metre"} for n in range(20)}
    pieces = list(pieces_of(json.dumps(record)))
    assert all(piece.startswith('"field_') for piece in pieces[1:])
    prose = json.dumps([{"text": "The crane stands still. " * 40, "at": n} for n in range(3)])
    assert sum(piece.startswith('{"text"') for piece in pieces_of(prose)) == 2
    assert all(piece.endswith((".", "},", "]", ",")) for piece in pieces_of(prose))


def test_pieces_have_the_indentation_of_their_line() -> None:
    """Or they would seem to belong to something else."""
    assert all(piece.startswith("    ") and piece[4] != " " for piece in pieces_of(f"    {json.dumps(RECORDS)}"))


@pytest.mark.parametrize(
    "line", ["x" * 1_000, "[1,[2," * 400, "],}," * 300, "<a " * 400, " " * 900 + "x", "👩‍👩‍👧‍👦" * 200]
)
def test_any_line_is_split(line: str) -> None:
    """Also one without any structure, or with a broken one."""
    assert "".join("".join(pieces_of(line)).split()) == "".join(line.split())


def test_the_lines_of_a_record_in_a_list_are_joined() -> None:
    """One of them alone would pass for a part of the record above it; a member with a name tells what it is."""
    lines = json.dumps({"name": "orders", "in": {"a": 1, "b": "x"}, "rows": RECORDS}, indent=2).splitlines()
    joined = join_records(lines)
    assert joined[:7] == lines[:7]
    assert joined[-2:] == lines[-2:]
    assert [line[:5] for line in joined[7:-2]] == ["    {"] * 40
    assert json.loads("".join(joined)) == json.loads("".join(lines))


@pytest.mark.parametrize(
    "text",
    [
        json.dumps([{f"field_{n}": "metre" for n in range(40)}] * 3, indent=2),
        "for (const a of [\n  {\n    b: 1,\n  },\n]) {\n  run(a);\n}",
        "x = [\n    [\n        f(1),\n    ],\n]",
        "[\n" * 3_000,
        '[\n{\n"a": "' + '\\"' * 3_000 + "\n}\n]",
    ],
)
def test_other_lines_are_not_joined(text: str) -> None:
    """Those of a long record, of code, and of what is broken."""
    assert join_records(text.splitlines()) == text.splitlines()
