"""``repertory ps``: the runs of a database, as a tree."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.databases import databases_to_read, is_owned, kept_databases, named_database, open_to_read
from repertory.cli.tree import in_tree

if TYPE_CHECKING:
    from rich.text import Text

    from repertory.record import Journal, RunRow, RunStatistics

COLOURS = {
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "interrupted": "magenta",
}


class RunLine(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list; what ``ps --json`` gives for each.

    Attributes:
        state: As in the record; ``interrupted`` where the record says that it goes on but no process has the
            database.
        iterations: Model calls of its loop that were answered.
        tokens_seen: Prompt tokens of those, as billed.
        cost: US dollars of all its model calls, the summarizer's included.
    """

    run_id: str
    parent_id: str | None
    agent: str
    model: str
    task: str
    state: str
    started_at: float
    updated_at: float
    iterations: int
    tokens_seen: int
    output_tokens: int
    cost: float
    result: str | None
    error: str | None
    resumable: bool


def state_of(row: RunRow, *, owned: bool) -> str:
    """A run's state as a person should read it."""
    from repertory.record import FINAL_STATES

    return row.state if owned or row.state in FINAL_STATES else "interrupted"


def run_line(row: RunRow, figures: RunStatistics, *, owned: bool) -> RunLine:
    """What a list says about one run."""
    state = state_of(row, owned=owned)
    started = row.started
    return RunLine(
        run_id=started.run_id,
        parent_id=started.parent_id,
        agent=started.agent,
        model=started.model,
        task=started.task,
        state=state,
        started_at=started.at,
        updated_at=max(row.updated_at, figures.replied_at),
        iterations=figures.iterations,
        tokens_seen=figures.tokens_seen,
        output_tokens=figures.output_tokens,
        cost=figures.cost_seen,
        result=row.result,
        error=row.error,
        resumable=started.parent_id is None and state in ("interrupted", "failed", "stopped"),
    )


def list_runs(*, db: Path | None, everything: bool, as_json: bool) -> None:
    """See ``repertory ps``."""
    if named_database(db) is None and not kept_databases():
        if as_json:
            output.print_json({"database": None, "owned": False, "runs": []})
        else:
            print(_hint([], [], ""))  # noqa: T201 - a command's own answer
        return
    paths = databases_to_read(db)
    lines, owned = anyio.run(_read_lines, paths[0])
    shown = lines if everything else _unfinished_trees(lines)
    if as_json:
        output.print_json({"database": str(paths[0]), "owned": owned, "runs": [msgspec.to_builtins(r) for r in shown]})
        return
    if named_database(db) is None:
        more = f"; {len(paths) - 1} older beside it, --db FILE picks one" if len(paths) > 1 else ""
        output.say(f"reading {paths[0]}{more}")
    if shown:
        _print_table(shown)
    hint = _hint(lines, shown, "" if named_database(db) is None else f" --db {paths[0]}")
    if hint:
        print(f"\n{hint}" if shown else hint)  # noqa: T201 - a command's own answer


async def _read_lines(path: Path) -> tuple[list[RunLine], bool]:
    owned = is_owned(path)
    async with open_to_read(path) as journal:
        return await read_lines(journal, owned=owned), owned


async def read_lines(journal: Journal, *, owned: bool) -> list[RunLine]:
    """Read the list: two questions to the database, however many runs it holds."""
    from repertory.record import RunStatistics

    rows, figures = await journal.read_runs(), await journal.read_statistics()
    return [run_line(row, figures.get(row.started.run_id, RunStatistics()), owned=owned) for row in rows]


def _unfinished_trees(lines: Sequence[RunLine]) -> list[RunLine]:
    """The trees whose root has not come to an end, whole."""
    kept: set[str] = set()
    for line in lines:
        root_goes_on = line.parent_id is None and line.state not in ("done", "failed", "stopped")
        if root_goes_on or line.parent_id in kept:
            kept.add(line.run_id)
    return [line for line in lines if line.run_id in kept]


def _hint(lines: Sequence[RunLine], shown: Sequence[RunLine], where: str) -> str:
    """What a person may want to do next; "" where the table says it all."""
    resumable = [line for line in shown if line.resumable]
    if resumable:
        return f"Go on with: repertory resume {resumable[-1].run_id}{where}"
    if shown:
        return ""
    if not lines:
        return 'No runs yet. Start one: repertory demo, or repertory run "TASK" --root DIR'
    return f"Nothing is under way. {len(lines)} runs have ended: repertory ps -a{where} shows them."


def _print_table(lines: Sequence[RunLine]) -> None:
    now = time.time()
    rows: list[tuple[str | Text, ...]] = []
    for branch, line in in_tree(lines):
        # A sub-agent's id is its parent's and a part of its own.
        own = line.run_id.removeprefix(line.parent_id or "") if branch else line.run_id
        rows.append(
            (
                f"{branch}{output.one_line(own)}",
                output.one_line(line.agent),
                coloured_state(line.state),
                output.duration(now - line.started_at),
                str(line.iterations),
                output.tokens(line.tokens_seen),
                output.dollars(line.cost),
                output.one_line(line.error or line.task, 200),
            )
        )
    headers = ("RUN", "AGENT", "STATE", "AGE", "ITER", "TOKENS", "COST", "TASK")
    screen = output.console()
    output.show(screen, output.table(headers, rows, width=screen.width, right="AGE|ITER|TOKENS|COST"))


def coloured_state(state: str) -> Text:
    """A state in its colour."""
    from rich.text import Text

    return Text(state, style=COLOURS.get(state.strip(), ""))
