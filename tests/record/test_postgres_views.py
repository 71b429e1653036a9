"""The views for users are the same on both engines."""

from __future__ import annotations

import re
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import journal_kit as kit
from backends import RunAsync
from postgres_server import PostgresServer
from repertory.llm import Usage
from repertory.record import EventLogged, Record, open_journal
from repertory.record.memory_records import PayloadChange, PayloadChanged
from repertory.record.records import DecisionMade, ModelReplied, RunStateChanged, ToolFinished, ToolIntended
from repertory.record.schema import VIEWS

NAMES = [*re.findall(r"CREATE VIEW (\w+)", "\n".join(VIEWS)), "llm_calls"]


def event(kind: str, **body: Any) -> EventLogged:
    """An event of the run's."""
    return EventLogged(run_id="run-1", type=kind, at=1.5, body=body)


def records() -> list[Record]:
    """What has something to show in every view, and what a view could stumble over."""
    arithmetic = {
        "prompt_before": 90,
        "prompt_after": 60,
        "cleared_tokens": 30,
        "cost_now": 0.5,
        "saving_per_call": 0.1,
    }
    request = {"model": "m", "messages": [{"role": "user", "content": [{"type": "text", "text": 'a "b" \u2028 é'}]}]}
    literal = {"type": "entry", "position": 0, "block": 1}
    longer = {"messages": [{"role": "assistant", "content": [literal, {"type": "text", "text": "nul \0"}]}]}
    asked = {"tool": "pay", "arguments": {"to": ["x", 1.5, None]}, "reason": "why", "expires_at": 99.0}
    return [
        *kit.one_of_each(),
        kit.started("run-2", 3.25),
        RunStateChanged(run_id="run-2", state="paused", at=4.0, iteration=1),
        kit.called(5, request, "run-2", iteration=1, purpose="agent", expected_tokens=7),
        kit.called(6, request, "run-2", iteration=2, purpose="agent", expected_tokens=9),
        kit.called(7, longer, "run-1", base_call=1, shared_messages=1, shared_blocks=0, purpose="agent"),
        ModelReplied(run_id="run-2", call=5, at=5.0, usage=Usage(1, 2, 4, 8, 16), cost=0.5, plain_tokens=60),
        ModelReplied(run_id="run-2", call=6, at=6.0, usage=Usage(3), cost=0.25, plain_tokens=70, plain_cost=1.5),
        ModelReplied(run_id="run-1", call=7, at=6.0, error="down", cost_lost=0.5, tokens_lost=9),
        DecisionMade(run_id="run-1", iteration=1, kind="k", body={"reason": "why", "arithmetic": arithmetic}, at=1.0),
        DecisionMade(run_id="run-1", iteration=2, kind="k", body={"edits": [1, 2]}, at=1.0, covers=2),
        ToolIntended(
            run_id="run-1",
            call_id="a",
            tool="pay",
            effect="unsafe",
            arguments={"x": "\0"},
            arguments_digest="d",
            idempotency_key="k",
            iteration=1,
            at=1.0,
        ),
        ToolFinished(run_id="run-1", call_id="a", tool="pay", status="interrupted", at=1.0, duration=0.5),
        event("SummaryTaken", failure=""),
        event("SummaryTaken", failure="down"),
        event("SummaryRefused", reason="late"),
        event("ApprovalRequested", call_id="a", **asked),
        event("ApprovalDecided", call_id="a", allowed=True, by="me", arguments={"to": []}),
        event("ApprovalRequested", call_id="b", **asked),
        event("ApprovalDecided", call_id="b", allowed=False, reason="no"),
        event("ApprovalRequested", call_id="c", **asked),
        event("ResultAwaited", call_id="a", round=1, tool="pay", note="soon", expires_at=7.5),
        event("ResultGiven", call_id="a", round=1, is_error=True),
        PayloadChanged(
            run_id="run-1",
            version=3,
            author="tool",
            base=2,
            changes=tuple(
                PayloadChange(path=("p", n), value=value) for n, value in enumerate([True, 1, "text", [1, {}]])
            ),
            at=0.5,
        ),
    ]


def shown(value: object) -> object:
    """A value, whatever type the engine gives it: numbers as numbers, and what a server shows for a NUL as one."""
    if isinstance(value, bool | int | float):
        return float(value)
    if value is None:
        return None
    text = str(value).replace("\\u0000", "\\ufffd")
    try:
        return float(text)
    except ValueError:
        return text


def test_every_view_shows_the_same(tmp_path: Path, run_async: RunAsync, postgres: PostgresServer) -> None:
    """All columns of all rows, for records of every kind."""
    uri = postgres.emptied_journal()

    async def main() -> None:
        for place in (tmp_path / "journal.db", uri):
            async with open_journal(place) as journal:
                await journal.write(records())

    run_async(main)
    assert len(NAMES) >= 11
    with closing(sqlite3.connect(tmp_path / "journal.db")) as file, postgres.connect(uri) as server:
        for view in NAMES:
            ours, theirs = file.execute(f"SELECT * FROM {view}"), server.execute(f"SELECT * FROM {view}")
            columns = [[column[0] for column in cursor.description] for cursor in (ours, theirs)]
            assert columns[0] == columns[1], view
            kept = [
                index for index, name in enumerate(columns[0]) if name not in ("seq", "id")
            ]  # which have gaps there
            found = [
                sorted([[shown(row[index]) for index in kept] for row in rows], key=repr)
                for rows in (ours.fetchall(), theirs.fetchall())
            ]
            assert found[0], f"nothing is in {view}"
            assert found[0] == found[1], view


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (r"\u0000\u0000", "\ufffd\ufffd"),
        (r"\\u0000 \\\u0000", "\\u0000 \\\ufffd"),
        (r"\ud83d\ude00", "\U0001f600"),
        (r"\ud83d \ude00 \ud83d\ud83d\ude00", "\ufffd \ufffd \ufffd\U0001f600"),
        (r"\\ud800", "\\ud800"),
    ],
)
def test_a_text_in_json_can_be_looked_into_whatever_it_says(written: str, read: str, postgres: PostgresServer) -> None:
    """What is no text becomes the character for what is unknown, and nothing else does."""
    body = f'{{"a": {{"b": "{written}"}}, "c": ["{written}"]}}'
    with postgres.connect(postgres.emptied_journal()) as server:
        assert server.execute("SELECT json_extract(%s, '$.a.b')", [body]).fetchone() == (read,)
        assert server.execute("SELECT value FROM json_each(json_extract(%s, '$.c'))", [body]).fetchone() == (read,)
