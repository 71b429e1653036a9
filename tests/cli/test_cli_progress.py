"""The live picture and its lines, from events."""

from __future__ import annotations

import io
from operator import itemgetter
from typing import Any

import pytest
from cli_support import EVIL, EVIL_SHOWN
from rich.console import Console

from repertory.cli.live import Progress, draw
from repertory.cli.runs import in_tree, runs_table
from repertory.llm.model import Usage
from repertory.runs.events import (
    ContextEdited,
    EventsMissed,
    IterationStarted,
    ModelAnswered,
    ModelRetrying,
    RunResumed,
    RunSpawned,
    StateChanged,
    SummaryRefused,
    SummaryTaken,
    ToolEnded,
    ToolStarted,
)
from repertory.service.views import RunView


def about(run_id: str = "run-1", agent: str = "lead", iteration: int = 1) -> dict[str, Any]:
    """What every event says."""
    return {"run_id": run_id, "agent": agent, "iteration": iteration, "at": 0.0}


def feed(progress: Progress) -> None:
    """One of each event, untrusted text full of escape sequences."""
    child = about("run-1.a", "researcher")
    for event in (
        RunSpawned(**about(iteration=0), task=EVIL, model="m"),
        IterationStarted(**about(), view_tokens=1_000, record_tokens=1_000),
        ModelAnswered(
            **about(),
            usage=Usage(input_tokens=990),
            cost=0.25,
            stop_reason="tool_use",
            text="",
            tool_calls=1,
            duration=1.0,
        ),
        ToolStarted(**about(), call_id="1", tool="delegate", arguments={"task": EVIL}),
        RunSpawned(**{**child, "iteration": 0}, task="part", model="m", parent_id="run-1", depth=1),
        IterationStarted(**child, view_tokens=2_000, record_tokens=9_000),
        ModelRetrying(**child, attempt=2, delay=1.5, reason=EVIL),
        ContextEdited(**child, kind="pays", reason=f"it pays {EVIL}", tokens_saved=7_000),
        SummaryTaken(**child, first=0, last=9, strategy="extractive", tokens=100, replaced_tokens=4_000),
        SummaryRefused(**child, reason="too long"),
        ToolStarted(**child, call_id="2", tool="view", arguments={"path": "a"}),
        ToolStarted(**child, call_id="3", tool="view", arguments={"path": "b"}),
        ToolEnded(
            **child, call_id="2", tool="view", status="ok", characters=1, shown=1, duration=0.0, deduplicated=True
        ),
        ToolEnded(**child, call_id="4", tool="view", status="error", characters=1, shown=1, duration=0.0),
        RunResumed(**about("run-1.b", "researcher", 3), entries=12, interrupted_calls=2),
        EventsMissed(**child, count=5),
        StateChanged(**about("run-1.b", "researcher", 3), state="failed", error=f"boom {EVIL}"),
    ):
        progress.add(event)


def picture(progress: Progress, *, width: int = 100, height: int = 40) -> list[str]:
    """The picture as lines of text."""
    screen = Console(file=io.StringIO(), width=width, height=height, color_system=None)
    with screen.capture() as capture:
        screen.print(draw(progress, screen))
    return capture.get().split("\n")


def test_the_picture_shows_the_tree_and_what_each_agent_does() -> None:
    """State, iteration, tokens in view against tokens in the record, cost, and the call under way."""
    progress = Progress()
    feed(progress)
    rows = picture(progress)
    assert rows[0].split() == ["AGENT", "STATE", "ITER", "VIEW", "/", "RECORD", "COST", "NOW"]
    assert rows[1].startswith("lead             running      1      1.0k / 1.0k  $0.2500  delegate")
    assert rows[2].startswith("├ researcher 1   running      1      2.0k / 9.0k  $0.0000  view")
    assert rows[3].startswith("└ researcher 2   failed       3            0 / 0  $0.0000  boom")
    assert "1 summary " in "".join(rows)
    assert any("summary of entries 0–9 is ready: 4.0k → 100 tokens (extractive)" in row for row in rows)


@pytest.mark.parametrize("width", [60, 80, 140])
def test_the_picture_fits_its_terminal(width: int) -> None:
    """No line is wider than the terminal, or it would be broken and the redrawing would go wrong."""
    progress = Progress()
    feed(progress)
    assert max(len(row.rstrip()) for row in picture(progress, width=width)) <= width


@pytest.mark.parametrize(("said", "shown"), [("It \nis", "It is"), ("x" * 90 + " the end", f"…{'x' * 27} the end")])
def test_what_is_being_said_is_shown_by_its_end(said: str, shown: str) -> None:
    """On the one line that there is for it."""
    progress = Progress()
    progress.add(RunSpawned(**about(), task="x", model="m"))
    progress.agents["run-1"].said = said
    assert picture(progress, width=95)[1].endswith(f"  {shown}")


def test_a_tree_larger_than_the_terminal_is_cut() -> None:
    """What does not fit is counted."""
    progress = Progress()
    for number in range(40):
        progress.add(RunSpawned(**about(f"run-{number}"), task="x", model="m"))
    assert any("… 31 more" in row for row in picture(progress, height=20))


def test_an_empty_picture_can_be_drawn() -> None:
    """Before the first event there is nothing to show, and that is no error."""
    assert picture(Progress())[0].startswith("AGENT")


def test_lines_and_picture_are_free_of_escape_sequences() -> None:
    """A task, an argument, a reason and an error that are full of them come out spelled out."""
    lines: list[str] = []
    progress = Progress(lines.append)
    feed(progress)
    text = "\n".join([*lines, *picture(progress, width=2_000)])
    assert EVIL_SHOWN in text
    assert not set(text) & set("\x1b\x07\x9b\x00\u202e\u2066")
    assert any("continues from its record of 12 entries, 2 calls were interrupted" in line for line in lines)
    assert any("already called, the earlier result is used again" in line for line in lines)


def test_words_that_fill_screens_are_cut_line_by_line() -> None:
    """Where there is no picture; such as the notes of the offline model, which are one line of 10,000 characters."""
    lines: list[str] = []
    said: dict[str, Any] = {"usage": Usage(), "cost": 0.0, "stop_reason": "tool_use", "tool_calls": 1, "duration": 1.0}
    Progress(lines.append).add(ModelAnswered(**about(), **said, text=f"First\n  {'x' * 10_000}\n\nlast"))
    words = [line.partition("│ ")[2] for line in lines if "│" in line]
    assert words == ["First", f"  {'x' * 498}…", "last"]


def test_one_call_that_was_interrupted_is_one_call() -> None:
    """A resumed run says how many calls have an unknown effect, in grammar too."""
    lines: list[str] = []
    Progress(lines.append).add(RunResumed(**about(), entries=2, interrupted_calls=1))
    assert lines[0].endswith("continues from its record of 2 entries, 1 call was interrupted")


def test_a_tree_is_drawn_with_its_branches() -> None:
    """Children follow their parents, and the lines go on past the younger ones."""

    parents = {"a": None, "b": "a", "c": "a", "d": "b", "e": "gone"}
    runs = [{"run_id": run_id, "parent_id": parent_id} for run_id, parent_id in parents.items()]
    drawn = [f"{branch}{run['run_id']}" for branch, run in in_tree(runs, itemgetter("run_id", "parent_id"))]
    assert drawn == ["a", "├ b", "│ └ d", "└ c", "e"]


def test_a_table_of_runs_shows_who_is_below_whom() -> None:
    """Also where only blanks stand before a branch."""
    shared: dict[str, Any] = dict.fromkeys(("agent", "model", "task"), "")
    shared |= dict.fromkeys(("depth", "iteration", "started_at", "updated_at"), 0)
    shared |= {"state": "done", "live": False, "resumable": False}
    parents = {"r": None, "r.1": "r", "r.1.1": "r.1"}
    runs = [RunView(id=run_id, parent_id=above, **shared) for run_id, above in parents.items()]
    assert [row[0] for row in runs_table(runs).rows] == ["r", "└ .1", "  └ .1"]
