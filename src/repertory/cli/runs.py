"""``repertory ps`` and ``top`` show runs as trees; ``repertory`` alone suggests what to do next."""

from __future__ import annotations

import os
import shutil
import sys
import textwrap
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeVar

import anyio
from msgspec.structs import asdict
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from repertory._counting import counted
from repertory._ids import unit_of
from repertory._version import __version__
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import at_option, locate, named_database, open_source
from repertory.cli.options import At, option
from repertory.cli.sections import COMMANDS
from repertory.cli.signals import drawn_on
from repertory.cli.stopping import stopped_by_signals
from repertory.errors import RepertoryError
from repertory.llm.messages import Json
from repertory.offline import OfflineModel
from repertory.runs import open_model
from repertory.service.places import Place
from repertory.service.requests import MAX_TREES
from repertory.service.sources import RunSource
from repertory.service.views import RunFigures, RunList, RunNode, RunView

_BEGIN = ("demo", 'run "TASK" --root DIR', "up company.toml")
_LOOK = ("ps -a", "stats --tree", "inspect")
_SERVED = ("start AGENT TASK", "attach", "top")
_NARROW = 20  # columns; in fewer a sentence is no column beside its command


@command
async def ps(*, everything: bool = option("-a, --all", "Show runs that have ended, too.", False), at: At) -> Answer:
    """List runs as a tree; those of the service, if one is running.

    Tokens are summed over all prompts. A run that no process works on any more is shown as interrupted; resume it to
    continue.
    """
    try:
        return await _list(at, everything=everything)
    except output.NothingThere:
        if named_database(at.db) is not None:
            raise
        return Answer({"database": None, "service": None, "runs": [], "more": 0}, lambda _: welcome())


async def _list(at: At, *, everything: bool) -> Answer:
    async with open_source(at) as source:
        database, place = source.database, source.place
        found = await source.list_runs(sys.maxsize if everything else MAX_TREES)
    shown = found.runs if everything else unfinished_trees(found.runs)

    def show(screen: Console) -> None:
        if shown:
            output.show(screen, runs_table(shown))
        hint = _hint(found, shown, place, at_option(at), everything=everything)
        if hint:
            output.write(f"\n{hint}" if shown else hint)

    fields = {"database": database, "service": place and str(place), "runs": shown, "more": found.more}
    return Answer(fields, show)


def unfinished_trees(runs: Sequence[RunView]) -> list[RunView]:
    """The runs of all trees whose root has not ended."""
    kept: set[str] = set()
    for run in runs:
        if run.parent_id in kept or (run.parent_id is None and run.state not in ("done", "failed", "stopped")):
            kept.add(run.id)
    return [run for run in runs if run.id in kept]


def _hint(found: RunList, shown: Sequence[RunView], place: Place | None, where: str, *, everything: bool) -> str:
    """A suggestion for what to do next; "" if the table is enough."""
    resumable = [run.id for run in shown if run.resumable]
    if resumable:
        return f"Continue with: repertory resume {resumable[-1]}{where}"
    if shown:
        return f"{counted(found.more, 'older run')} left out." if found.more and everything else ""
    begin = f"\nStart one: repertory start AGENT TASK{where}" if place is not None else ""
    ended = sum(run.parent_id is None for run in found.runs) + found.more
    if not ended:
        return f"No runs yet.{begin}"
    return f"No runs in progress. {counted(ended, 'run')} ended: repertory ps -a{where} lists all.{begin}"


def runs_table(runs: Sequence[RunView]) -> output.Columns:
    """Make a table of runs as trees, with their figures."""
    rows: list[Json] = []
    for run in runs:
        said = {"state": _standing(run), "task": _about(run)}
        rows.append({**asdict(run), **asdict(run.figures or RunFigures()), **said})
    columns = "RUN=tree AGENT STATE >AGE=started_at >ITER=iterations >TOKENS=tokens_seen >COST TASK"
    return tree_table(columns, rows, itemgetter("id", "parent_id"), state=itemgetter("state"))


def _standing(run: RunView) -> Text:
    """The state of a run, with its priority if it is queued, and its machine if it is not its lead's."""
    state = output.coloured_state(run.state)
    if run.machine and unit_of(run.id) == run.id:
        state.append(f" on {output.one_line(run.machine, 40)}", style="dim")
    return state.append(f" {run.priority:+}") if run.state == "queued" and run.priority else state


def _about(run: RunView) -> str:
    """The task of a run, or its error."""
    waits_for = f"({run.reason}) " if run.state == "queued" and run.reason else ""
    return output.one_line(run.error or f"{waits_for}{run.task}", 200)


def nodes_of(node: RunNode) -> Iterator[RunNode]:
    """A run and its sub-agents, parents first."""
    yield node
    for child in node.children:
        yield from nodes_of(child)


def own_id(run_id: str, parent_id: str | None) -> str:
    """A sub-agent's own part of its id, which follows that of its parent."""
    return output.one_line(run_id.removeprefix(parent_id or ""))


T = TypeVar("T")


def in_tree(runs: Sequence[T], ids: Callable[[T], tuple[str, str | None]]) -> Iterator[tuple[str, T]]:
    """Yield each run after its parent, with the branch to draw before it. A run whose parent is missing is a root.

    ``ids`` gives the id of a run and that of its parent.
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


def tree_table(
    columns: str, rows: Sequence[Json], ids: Callable[[Json], tuple[str, str | None]], **cells: Callable[[Any], Text]
) -> output.Columns:
    """Make an ``output.table`` of rows in trees; their field ``tree`` has the branch and an id. See ``in_tree``."""
    drawn: list[Json] = []
    for branch, row in in_tree(rows, ids):
        name = own_id(*ids(row)) if branch else output.one_line(ids(row)[0])
        drawn.append({**row, "tree": f"{branch}{name}"})
    return output.table(columns, drawn, tree=itemgetter("tree"), **cells)


# --- what to do next --------------------------------------------------------------------------------------


def welcome() -> None:
    """Show which model answers, what ``ps`` shows, and what to type next; a missing database is no error."""
    screen = output.console()
    output.show(screen, Text(f"repertory {__version__}", style="bold"), Text(_model_in_use()), "")
    commands: tuple[str, ...] = ()
    try:
        listed = anyio.run(partial(_list, At(), everything=False))
        commands = (*_LOOK, *_BEGIN) if listed.fields["service"] is None else (*_SERVED, *_LOOK)
        listed.show(screen)
    except output.NothingThere:
        output.write(f"No runs yet in {locate(None)[0]}. Start with:")
        commands = _BEGIN
    except RepertoryError as error:
        output.write(f"The database cannot be read: {output.one_line(error)}")
    output.write("")
    suggest(screen, (*commands, "doctor", "--help"))


def _model_in_use() -> str:
    """The default model, and whether it costs money."""
    try:
        model = open_model()
    except RepertoryError as error:
        return output.one_line(f"No model: {error}")
    if isinstance(model, OfflineModel):
        return "Model: offline, rules that search and quote; nothing is sent. Set ANTHROPIC_API_KEY to use Claude."
    return output.one_line(f"Model: {model.name}, whose calls may cost money; --model offline costs nothing.")


def suggest(screen: Console, commands: Sequence[str]) -> None:
    """List commands to type, each with the first sentence of its help."""
    widest = max(map(len, commands))
    for words in commands:
        what = "All commands." if words == "--help" else COMMANDS[words.split()[0]][1]
        line = output.clean(f"  {_program()} {words:<{widest}}   ")
        room = screen.width - len(line)
        parts = textwrap.wrap(what, room) if screen.is_terminal and room >= _NARROW else [what]
        screen.print(Text.assemble(line, (f"\n{'':{len(line)}}".join(parts), "dim")), soft_wrap=True)


def _program() -> str:
    """The command to type here: in a checkout, .venv/bin/repertory is not on the path."""
    started = sys.argv[0]
    is_command = os.path.basename(started) == "repertory"
    return os.path.relpath(started) if is_command and not shutil.which("repertory") else "repertory"


@command
async def top(
    *,
    interval: float = option("--interval SECONDS", "How long between two updates.", 1.0, min=0.1, max=3600),
    at: At,
) -> None:
    """Show what is running, what waits, and all costs, until Ctrl-C.

    Without a terminal it writes them once.
    """
    screen = output.console()
    async with open_source(at) as source:
        if not output.has_picture(screen):
            output.show(screen, *await _look(source, sys.maxsize))
            return
        async with stopped_by_signals():
            with drawn_on(screen.file.fileno()), Live(console=screen, auto_refresh=False, screen=True) as picture:
                while True:
                    picture.update(Group(*await _look(source, screen.height)), refresh=True)
                    await anyio.sleep(interval)


async def _look(source: RunSource, height: int) -> Sequence[RenderableType]:
    """What there is, in at most so many lines."""
    found, waiting = await source.list_runs(), len(await source.waiting())
    counts = Counter(run.state for run in found.runs)
    figures = [run.figures for run in found.runs if run.figures is not None]
    facts = [", ".join(f"{counts[state]} {state}" for state in output.COLOURS if counts[state]) or "no runs"]
    if waiting:
        facts.append("1 call waits" if waiting == 1 else f"{waiting} calls wait")
    facts.append(f"{output.tokens(sum(each.tokens_seen for each in figures))} tokens")
    facts.append(output.dollars(sum(each.cost for each in figures)))
    if found.more:
        facts.append(f"{counted(found.more, 'older run')} left out")
    where = source.database if source.place is None else f"{source.place}, {source.database}"
    lines = [(output.one_line(f"{time.strftime('%H:%M:%S')}  {where}"), "dim")]
    lines.append(("   ".join([*facts, counted(found.seq, "event")]), "bold"))
    if waiting:
        lines.append(("repertory approvals lists waiting calls", "yellow"))
    parts: list[RenderableType] = [Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in lines]
    runs = unfinished_trees(found.runs)
    if not runs:
        return [*parts, "", Text("No runs in progress; repertory ps -a lists those that have ended.")]
    fitting = max(1, height - len(parts) - 3)
    parts += ["", runs_table(runs[-fitting:])]
    if len(runs) > fitting:
        parts.append(Text(f"… {len(runs) - fitting} older", style="dim"))
    return parts
