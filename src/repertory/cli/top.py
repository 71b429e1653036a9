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
    from repertory.service.views import RunView

_STATES: Final = ("queued", "running", "waiting", "paused", "interrupted", "failed", "stopped", "done")


@dataclass(frozen=True, kw_only=True)
class Glance:
    """The state of all runs at one time.

    Attributes:
        service: The address of the service; None if the database was read.
        at: Seconds since 1970.
        states: How many runs are in each state; sub-agents count.
        waiting: How many tool calls wait for a person or for their result.
        tokens_seen: The tokens of all prompts of the runs together.
        cost: The cost of the runs in US dollars.
        seq: The number of the newest event.
        more: How many older trees of runs are left out.
        runs: The runs of trees that have not ended.
    """

    database: str
    service: str | None
    at: float
    states: dict[str, int]
    waiting: int
    tokens_seen: int
    output_tokens: int
    cost: float
    seq: int
    more: int
    runs: list[RunView]


@command
async def top(
    *,
    interval: float = option("--interval SECONDS", "How long between two updates.", 1.0, min=0.1, max=3600),
    once: bool = option("--once", "Show it once and exit.", False),
    at: At,
    as_json: bool = option("--json", "Write one JSON object and exit.", False),
) -> None:
    """Show what is running, what waits, and all costs, until Ctrl-C.

    Without a terminal it writes one line each time.
    """
    async with open_source(at, quiet=as_json) as source:
        glance = await _look(source)
        screen = output.console()
        if as_json:
            output.print_json(glance)
        elif once:
            output.show(screen, *_draw(glance, None, screen.width, sys.maxsize))
        else:
            async with stopped_by_signals():
                await (_redraw if has_picture(screen) else _write_lines)(source, glance, interval)


async def _look(source: RunSource) -> Glance:
    found = await source.list_runs()
    figures = [run.figures for run in found.runs if run.figures is not None]
    return Glance(
        database=source.database,
        service=None if source.place is None else str(source.place),
        at=time.time(),
        states=dict(Counter(run.state for run in found.runs)),
        waiting=len(await source.waiting()),
        tokens_seen=sum(each.tokens_seen for each in figures),
        output_tokens=sum(each.output_tokens for each in figures),
        cost=sum(each.cost for each in figures),
        seq=found.seq,
        more=found.more,
        runs=unfinished_trees(found.runs),
    )


async def _redraw(source: RunSource, glance: Glance, interval: float) -> None:
    screen = output.console()
    before: Glance | None = None
    with drawn_on(screen.file.fileno()), Live(console=screen, auto_refresh=False, screen=True) as picture:
        while True:
            picture.update(Group(*_draw(glance, before, screen.width, screen.height)), refresh=True)
            await anyio.sleep(interval)
            before, glance = glance, await _look(source)


async def _write_lines(source: RunSource, glance: Glance, interval: float) -> None:
    before: Glance | None = None
    while True:
        output.write(f"{output.timestamp(glance.at)}  {'  '.join(_facts(glance, before))}")
        await anyio.sleep(interval)
        before, glance = glance, await _look(source)


def _facts(glance: Glance, before: Glance | None) -> Sequence[str]:
    states = [f"{count} {state}" for state in _STATES if (count := glance.states.get(state, 0))]
    facts = [", ".join(states) or "no runs"]
    if glance.waiting:
        facts.append("1 call waits" if glance.waiting == 1 else f"{glance.waiting} calls wait")
    facts += [f"{output.tokens(glance.tokens_seen)} tokens", output.dollars(glance.cost)]
    if before is None:
        return [*facts, f"{glance.seq:,} events"]
    rate = (glance.seq - before.seq) / max(0.001, glance.at - before.at)
    return [*facts, f"{glance.seq:,} events, {rate:.1f}/s"]


def _draw(glance: Glance, before: Glance | None, width: int, height: int) -> Sequence[RenderableType]:
    where = glance.database if glance.service is None else f"{glance.service}, {glance.database}"
    parts: list[RenderableType] = [
        Text(output.one_line(f"{time.strftime('%H:%M:%S', time.localtime(glance.at))}  {where}"), style="dim"),
        Text("   ".join(_facts(glance, before)), style="bold"),
    ]
    for part in parts:
        assert isinstance(part, Text)
        part.no_wrap, part.overflow = True, "ellipsis"
    if glance.waiting:
        parts.append(Text("repertory approvals lists waiting calls", style="yellow", no_wrap=True, overflow="ellipsis"))
    if not glance.runs:
        return [*parts, "", Text("No runs in progress; repertory ps -a lists those that have ended.")]
    fitting = max(1, height - len(parts) - 3)
    parts += ["", runs_table(glance.runs[-fitting:], width)]
    if len(glance.runs) > fitting:
        parts.append(Text(f"… {len(glance.runs) - fitting} older", style="dim"))
    return parts
