"""``repertory ps`` and ``tree``, runs as trees, and bare ``repertory``, what one may want to do next."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from repertory._version import __version__
from repertory.cli import output
from repertory.cli.databases import (
    data_dir,
    databases_to_read,
    kept_databases,
    named_database,
    open_to_read,
    read_run,
)
from repertory.cli.options import AS_JSON, DATABASE, RUN, option
from repertory.errors import RepertoryError

if TYPE_CHECKING:
    from rich.text import Text

    from repertory.llm.messages import Json
    from repertory.record import Journal, RunRow

COLOURS = {
    "running": "cyan",
    "waiting": "blue",
    "paused": "yellow",
    "done": "green",
    "failed": "red",
    "stopped": "yellow",
    "interrupted": "magenta",
}
_LISTED = 3  # runs that did not finish
_BEGIN = (
    ("repertory demo", "watch a team of agents answer a question"),
    ('repertory run "TASK" --root DIR', "have a team read a folder of yours"),
)
_LOOK = (
    ("repertory ps -a", "every run"),
    ("repertory stats --tree", "what the newest one saw and cost"),
    ("repertory inspect", "what its model saw last, beside the record"),
)
_ALWAYS = (
    ("repertory doctor", "check this machine and its settings"),
    ("repertory --help", "every command"),
)


def ps(
    *,
    db: Path | None = DATABASE,
    everything: bool = option("-a, --all", "Show runs that have ended, too.", False),
    as_json: bool = AS_JSON,
) -> None:
    """List runs as a tree.

    Tokens are those of all prompts together. A run that no process works on any more is interrupted: resume it.
    """
    if named_database(db) is None and not kept_databases():
        if as_json:
            output.print_json({"database": None, "owned": False, "runs": []})
        else:
            welcome()
        return
    path, *others = databases_to_read(db)
    runs, owned = _read_runs(path)
    shown = runs if everything else _unfinished_trees(runs)
    if as_json:
        output.print_json({"database": str(path), "owned": owned, "runs": shown})
        return
    if named_database(db) is None:
        more = f"; {len(others)} older beside it, --db FILE picks one" if others else ""
        output.say(f"reading {path}{more}")
    _print(shown)
    hint = _hint(runs, shown, "" if named_database(db) is None else f" --db {path}")
    if hint:
        sys.stdout.write(f"\n{hint}\n" if shown else f"{hint}\n")


def _read_runs(path: Path) -> tuple[list[Json], bool]:
    """The runs of a database, and whether a process may write to it."""
    import anyio

    from repertory.record.sqlite_file import is_owned
    from repertory.service.reports import read_runs

    owned = is_owned(path)

    async def read() -> list[Json]:
        async with open_to_read(path) as journal:
            return await read_runs(journal, live=owned)

    return anyio.run(read), owned


def _unfinished_trees(runs: Sequence[Json]) -> list[Json]:
    """The trees whose root has not come to an end, whole."""
    kept: set[str] = set()
    for run in runs:
        if run["parent_id"] in kept or (run["parent_id"] is None and run["state"] not in ("done", "failed", "stopped")):
            kept.add(run["run_id"])
    return [run for run in runs if run["run_id"] in kept]


def _hint(runs: Sequence[Json], shown: Sequence[Json], where: str) -> str:
    """What a person may want to do next; "" where the table says it all."""
    resumable = [run["run_id"] for run in shown if run["resumable"]]
    if resumable:
        return f"Go on with: repertory resume {resumable[-1]}{where}"
    if shown:
        return ""
    return f"Nothing is under way. {len(runs)} runs have ended: repertory ps -a{where} shows them."


def _print(runs: Sequence[Json]) -> None:
    rows = [
        (
            f"{branch}{own_id(run) if branch else output.one_line(run['run_id'])}",
            output.one_line(run["agent"]),
            coloured_state(run["state"]),
            output.duration(time.time() - run["started_at"]),
            str(run["iterations"]),
            output.tokens(run["tokens_seen"]),
            output.dollars(run["cost"]),
            output.one_line(run["error"] or run["task"], 200),
        )
        for branch, run in in_tree(runs)
    ]
    if rows:
        headers = ("RUN", "AGENT", "STATE", "AGE", "ITER", "TOKENS", "COST", "TASK")
        screen = output.console()
        output.show(screen, output.table(headers, rows, width=screen.width, right="AGE|ITER|TOKENS|COST"))


def tree(run_id: str | None = RUN, *, db: Path | None = DATABASE, as_json: bool = AS_JSON) -> None:
    """Show a run and those below it as a tree, with what each has spent and whose memory it uses.

    MEMORY is root for a memory of its own from the start; for a sub-agent it is what it was given of the one above:
    shared, a snapshot, or isolated from it. Tokens are those of all prompts together.
    """
    from repertory.record.sqlite_file import is_owned
    from repertory.service.reports import read_tree

    async def read(path: Path, journal: Journal, row: RunRow) -> tuple[Path, list[Json]]:
        return path, await read_tree(journal, row.started.run_id, live=is_owned(path))

    path, runs = read_run(run_id, db, read)
    total = {name: sum(run[name] for run in runs) for name in ("iterations", "tokens_seen", "output_tokens", "cost")}
    if as_json:
        output.print_json({"database": str(path), "total": {"runs": len(runs), **total}, "runs": runs})
        return
    rows: list[tuple[str | Text, ...]] = [
        (
            f"{branch}{own_id(run) if branch else output.one_line(run['run_id'])}",
            output.one_line(run["agent"]),
            coloured_state(run["state"]),
            str(run["iterations"]),
            output.tokens(run["tokens_seen"]),
            output.dollars(run["cost"]),
            run["memory"] or "–",
            output.one_line(run["error"] or run["task"], 200),
        )
        for branch, run in in_tree(runs)
    ]
    figures = (str(total["iterations"]), output.tokens(total["tokens_seen"]), output.dollars(total["cost"]))
    if len(rows) > 1:
        rows.append((f"{len(rows)} runs", "", "", *figures, "", ""))
    headers = ("RUN", "AGENT", "STATE", "ITER", "TOKENS", "COST", "MEMORY", "TASK")
    screen = output.console()
    output.show(screen, output.table(headers, rows, width=screen.width, right="ITER|TOKENS|COST"))


def own_id(run: Json) -> str:
    """A sub-agent's id is its parent's and a part of its own; that part."""
    return output.one_line(run["run_id"].removeprefix(run["parent_id"] or ""))


def coloured_state(state: str) -> Text:
    """A state in its colour."""
    from rich.text import Text

    return Text(state, style=COLOURS.get(state.strip(), ""))


T = TypeVar("T")


def in_tree(
    runs: Sequence[T], ids: Callable[[Any], tuple[str, str | None]] = itemgetter("run_id", "parent_id")
) -> Iterator[tuple[str, T]]:
    """Each run after its parent, with what to draw before it. Whose parent is not among them is a root.

    Args:
        runs: The runs.
        ids: Gives the id of a run and that of its parent.
    """
    known = {ids(run)[0] for run in runs}
    children: dict[str | None, list[T]] = {}
    for run in runs:
        parent_id = ids(run)[1]
        children.setdefault(parent_id if parent_id in known else None, []).append(run)

    def below(parent: str | None, indent: str) -> Iterator[tuple[str, T]]:
        siblings = children.get(parent, [])
        for run in siblings:
            branch, further = ("└ ", "  ") if run is siblings[-1] else ("├ ", "│ ")
            if parent is None:
                branch = further = ""
            yield indent + branch, run
            yield from below(ids(run)[0], indent + further)

    return below(None, "")


# --- what to do next --------------------------------------------------------------------------------------


def welcome() -> None:
    """See what there is, and say what to do with it. Nothing is written, and nothing that is there is an error."""
    try:
        paths = databases_to_read(None)
    except output.NothingThere:
        where = named_database(None) or data_dir()
        _print_next(f"No runs yet in {where}. Begin:", _BEGIN, _ALWAYS)
        return
    try:
        roots = [run for run in _read_runs(paths[0])[0] if run["parent_id"] is None]
    except RepertoryError as error:
        _print_next(f"The newest database cannot be read: {error}", _ALWAYS)
        return
    left = [run for run in roots if run["resumable"]]
    going = sum(run["state"] != "done" for run in roots) - len(left)
    more = f", {_count(len(paths) - 1, 'older database')} beside it" if len(paths) > 1 else ""
    facts = f"{paths[0]}: {_count(len(roots), 'run')}, {going} under way, {len(left)} not finished{more}."
    if going:
        _print_next(facts, (("repertory ps", "the runs under way"), *_LOOK[1:]), _ALWAYS)
    elif left:
        newest = left[: -_LISTED - 1 : -1]
        resuming = [(f"repertory resume {run['run_id']}", output.one_line(run["task"], 40)) for run in newest]
        _print_next(f"{facts} Go on:", resuming, _LOOK, _ALWAYS)
    else:
        _print_next(facts, _LOOK, _BEGIN, _ALWAYS)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _model_in_use() -> str:
    """Who answers where nothing else is said, and whether that costs anything."""
    from repertory.llm import OfflineModel, open_model

    try:
        model = open_model()
    except RepertoryError as error:
        return output.one_line(f"No model: {error}")
    if isinstance(model, OfflineModel):
        return "Model: offline, rules that search and quote; nothing is sent. ANTHROPIC_API_KEY brings Claude."
    return output.one_line(f"Model: {model.name}, whose calls may cost money; --model offline costs nothing.")


def _print_next(facts: str, *groups: Sequence[tuple[str, str]]) -> None:
    from rich.text import Text

    screen = output.console()
    output.show(
        screen, Text(f"repertory {__version__}", style="bold"), Text(_model_in_use()), Text(output.one_line(facts))
    )
    widest = max(len(command) for group in groups for command, _ in group)
    for group in groups:
        rows = [(f"  {command.ljust(widest)}", what) for command, what in group]
        output.show(screen, Text(), output.table(("", ""), rows, width=screen.width))
