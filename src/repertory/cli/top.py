"""``repertory top``: an overview of all runs that refreshes itself."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import anyio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import open_source
from repertory.cli.options import At, option
from repertory.cli.runs import COLOURS, runs_table, unfinished_trees
from repertory.cli.signals import drawn_on
from repertory.cli.status import has_picture
from repertory.cli.stopping import stopped_by_signals

if TYPE_CHECKING:
    from repertory.service.sources import RunSource


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
        if not has_picture(screen):
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
    facts = [", ".join(f"{counts[state]} {state}" for state in COLOURS if counts[state]) or "no runs"]
    if waiting:
        facts.append("1 call waits" if waiting == 1 else f"{waiting} calls wait")
    facts.append(f"{output.tokens(sum(each.tokens_seen for each in figures))} tokens")
    facts.append(output.dollars(sum(each.cost for each in figures)))
    if found.more:
        facts.append(f"{output.count(found.more, 'older run')} left out")
    where = source.database if source.place is None else f"{source.place}, {source.database}"
    lines = [(output.one_line(f"{time.strftime('%H:%M:%S')}  {where}"), "dim")]
    lines.append(("   ".join([*facts, f"{found.seq:,} events"]), "bold"))
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
