"""``repertory top``: an overview of all runs that refreshes itself."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import anyio
from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import command
from repertory.cli.databases import open_source
from repertory.cli.options import At, option
from repertory.cli.runs import runs_table, unfinished_trees
from repertory.cli.signals import drawn_on
from repertory.cli.status import has_picture
from repertory.cli.stopping import stopped_by_signals

if TYPE_CHECKING:
    from repertory.service.sources import RunSource
    from repertory.service.views import RunList

_STATES: Final = ("queued", "running", "waiting", "paused", "interrupted", "failed", "stopped", "done")


@dataclass(frozen=True)
class _Glance:
    """All runs at one time.

    Attributes:
        at: Seconds since 1970.
        found: The runs.
        waiting: How many tool calls wait for a person or for their result.
    """

    at: float
    found: RunList
    waiting: int


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
        where = source.database if source.place is None else f"{source.place}, {source.database}"
        glance, before = await _look(source), None
        if not has_picture(screen):
            output.show(screen, *_draw(where, glance, None, sys.maxsize))
            return
        async with stopped_by_signals():
            with drawn_on(screen.file.fileno()), Live(console=screen, auto_refresh=False, screen=True) as picture:
                while True:
                    picture.update(Group(*_draw(where, glance, before, screen.height)), refresh=True)
                    await anyio.sleep(interval)
                    before, glance = glance, await _look(source)


async def _look(source: RunSource) -> _Glance:
    return _Glance(time.time(), await source.list_runs(), len(await source.waiting()))


def _facts(glance: _Glance, before: _Glance | None) -> str:
    counts = Counter(run.state for run in glance.found.runs)
    figures = [run.figures for run in glance.found.runs if run.figures is not None]
    facts = [", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state]) or "no runs"]
    if glance.waiting:
        facts.append("1 call waits" if glance.waiting == 1 else f"{glance.waiting} calls wait")
    facts.append(f"{output.tokens(sum(each.tokens_seen for each in figures))} tokens")
    facts.append(output.dollars(sum(each.cost for each in figures)))
    if glance.found.more:
        facts.append(f"{output.count(glance.found.more, 'older run')} left out")
    events = f"{glance.found.seq:,} events"
    if before is not None:
        events += f", {(glance.found.seq - before.found.seq) / max(0.001, glance.at - before.at):.1f}/s"
    return "   ".join([*facts, events])


def _draw(where: str, glance: _Glance, before: _Glance | None, height: int) -> Sequence[RenderableType]:
    clock = time.strftime("%H:%M:%S", time.localtime(glance.at))
    lines = [(output.one_line(f"{clock}  {where}"), "dim"), (_facts(glance, before), "bold")]
    if glance.waiting:
        lines.append(("repertory approvals lists waiting calls", "yellow"))
    parts: list[RenderableType] = [Text(line, style=style, no_wrap=True, overflow="ellipsis") for line, style in lines]
    runs = unfinished_trees(glance.found.runs)
    if not runs:
        return [*parts, "", Text("No runs in progress; repertory ps -a lists those that have ended.")]
    fitting = max(1, height - len(parts) - 3)
    parts += ["", runs_table(runs[-fitting:])]
    if len(runs) > fitting:
        parts.append(Text(f"… {len(runs) - fitting} older", style="dim"))
    return parts
