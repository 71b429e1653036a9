"""``repertory stress``: many writers at once, and what became of every one of their appends."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.stopping import stopped_by_signals
from repertory.errors import ConfigurationError, RepertoryError

if TYPE_CHECKING:
    from repertory.agents.start import Backend
    from repertory.record import Snapshot
    from repertory.torture.appends import AppendsReport, Progress

_MOST = 5_000_000  # appends: each is remembered, to be compared with the record at the end
_SUMMARIZED = 100  # entries; a summary's cost must not grow with the record, or it would measure itself


def stress_appends(
    *, writers: int, appends: int, threads: int, durable: bool, db: Path | None, backend: Backend, as_json: bool
) -> None:
    """See ``repertory stress``.

    Raises:
        ConfigurationError: There would be too many appends to remember.
        RepertoryError: Something that was acknowledged is not as it was promised.
    """
    from repertory.torture.appends import run_appends

    if writers * appends > _MOST:
        raise ConfigurationError(f"{writers:,} writers with {appends:,} appends each are more than {_MOST:,} appends")
    screen = output.console(stderr=True)
    live = screen.is_terminal and not screen.is_dumb_terminal

    def show(progress: Progress) -> None:
        done = f"{progress.acknowledged:,} of {progress.total:,} appends, {progress.snapshots:,} snapshots"
        screen.print(f"{done}, {progress.seconds:.1f} s   ", end="\r")

    async def main() -> AppendsReport:
        async with stopped_by_signals() as stop:
            # Made where signals are waited for, so that none leaves it behind.
            with tempfile.TemporaryDirectory(prefix="repertory-") as folder:
                return await run_appends(
                    writers=writers,
                    appends=appends,
                    threads=threads,
                    path=db or Path(folder) / "stress.db",
                    durability="power" if durable else "process",
                    summarize=_summarize,
                    on_progress=show if live else None,
                )
        raise stop.interrupted("stopped before the end; nothing was found wrong so far")

    report = anyio.run(main, backend=backend)
    if live:
        screen.print()
    finish(report, as_json=as_json)


async def _summarize(snapshot: Snapshot) -> str:
    """The digest that a run's own summarizer falls back to, of the newest entries."""
    from repertory.context import digest, names_used

    newest = snapshot[-_SUMMARIZED:]
    return digest(newest, tokens=500, previous="", used=names_used(newest))


def finish(report: AppendsReport, *, as_json: bool) -> None:
    """Write what was found.

    Raises:
        RepertoryError: Something that was acknowledged is not as it was promised.
    """
    if as_json:
        output.print_json({**msgspec.to_builtins(report), "clean": report.clean})
    else:
        _print(report)
    if not report.clean:
        raise RepertoryError("the record is not what was acknowledged; please report it with the line above")


def _print(report: AppendsReport) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_column(style="dim")
    tasks = report.writers - report.threads
    rate = f"{report.appends_per_second:,.0f} a second, by {tasks} tasks and {report.threads} threads"
    survives = {"power": "each on disk before it was acknowledged", "process": "survive the process, not the power"}
    table.add_row("acknowledged", f"{report.acknowledged:,}", f"{rate}; {survives.get(report.durability, '')}")
    for name, count, among in (
        ("lost", report.lost, ""),
        ("duplicated", report.duplicated, ""),
        ("reordered", report.reordered, ""),
        ("snapshots that changed", report.snapshot_violations, f"of {report.snapshots_checked:,}"),
        ("summaries that knew too much", report.summary_violations, f"of {report.summaries_checked:,}"),
    ):
        table.add_row(name, Text(f"{count:,}", style="red" if count else "green"), among)
    output.show(output.console(), table)
