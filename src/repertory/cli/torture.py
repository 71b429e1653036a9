"""``repertory stress`` and ``repertory torture``: try to make repertory lose data, and report the result."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import platformdirs
import typer
from rich.console import Console
from rich.text import Text

from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli import output, signals
from repertory.cli.commands import Answer, command
from repertory.cli.databases import db_option
from repertory.cli.options import BACKEND, Backend, option
from repertory.cli.stopping import stopped_by_signals
from repertory.errors import ConfigurationError, RepertoryError
from repertory.llm.messages import text_of
from repertory.record import Snapshot
from repertory.torture import Report, ScenarioReport, choose, run_torture
from repertory.torture.appends import AppendsReport, run_appends
from repertory.torture.scenarios import SCENARIOS

_MOST = 5_000_000  # appends: each is remembered, to be compared with the record at the end
_SUMMARIZED = 100  # entries; if a summary's cost grew with the record, the test would measure the summaries


@command
async def stress(
    *,
    writers: int = option("--writers N", "How many append at once.", 50, min=1, max=10_000),
    appends: int = option("--appends N", "Appends of each writer.", 2000, min=1, max=1_000_000),
    threads: int = option("--threads N", "How many of the writers are OS threads.", 8, min=0, max=1000),
    durable: bool = option(
        "--durable", "Acknowledge what survives a power failure, not just a crash of the process.", False
    ),
    db: str | None = option("--db FILE", "The database. Default: a temporary one."),
    backend: Backend = BACKEND,
) -> Answer:
    """Append from many tasks at once, and check what was written.

    Nothing may be lost, doubled or out of order, and no snapshot may show what came after it.
    """
    if writers * appends > _MOST:
        raise ConfigurationError(f"{writers:,} writers with {appends:,} appends each are more than {_MOST:,} appends")

    async with stopped_by_signals() as stop:
        # Created where signals are handled, so that a signal does not leave it behind.
        with tempfile.TemporaryDirectory(prefix="repertory-") as folder, output.status_line() as show:
            report = await run_appends(
                writers=writers,
                appends=appends,
                threads=threads,
                path=db or Path(folder) / "stress.db",
                durability="power" if durable else "process",
                summarize=_summarize,
                on_progress=lambda done, seconds: show(f"{done:,} of {writers * appends:,} appends, {seconds:.0f} s"),
            )
            return finish(report)
    raise stop.interrupted("stopped before the end; nothing wrong was found so far")


async def _summarize(snapshot: Snapshot) -> str:
    """Return the newest entries: a summary that contains all it could know."""
    return "\n".join(text_of(entry.content) for entry in snapshot[-_SUMMARIZED:])


@command
def torture(
    *,
    profile: Literal["short", "full"] = option(
        "--profile short|full", "A minute, or half an hour on two cores.", "short"
    ),
    only: list[str] = option("--only NAME", "Play this scenario only. May be repeated.", ()),
    seed: int | None = option("--seed N", "The seed of every case. Default: a new one.", min=0),
    case: int | None = option("--case N", "Play this case alone, and no controls.", min=0),
    traces: Path | None = option("--traces DIR", "Look again at what a failed case of power cuts left."),
    workers: int = option("--workers N", "How many processes to use.", 2, min=1),
    db: str | None = option("--db ADDRESS", "Kill on databases of a PostgreSQL server: the address of one of them."),
) -> Answer:
    """Try to make repertory lose data.

    Power cuts and kills, drawn from a seed. Nothing may be lost, doubled or damaged, and each scenario's negative
    controls, which break a promise on purpose, must be caught. What failed is listed with the command that repeats it.
    """
    address = postgres_address(db)
    if db is not None and address is None:
        raise ConfigurationError(f"--db takes postgresql://…, got {db}; without it all cases use files")
    if (case is not None or traces is not None) and len(only) != 1:
        raise ConfigurationError("a case belongs to one scenario: name it with --only")
    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    told: list[int] = []
    with signals.told_to(told.append), output.status_line() as show:
        report = run_torture(
            choose([each for each in SCENARIOS if db is None or each.on_servers], only),
            profile=profile,
            seed=seed,
            case=case,
            traces=traces,
            keep=platformdirs.user_cache_path("repertory") / f"torture-{seed}",
            server=db or "",
            workers=workers,
            on_progress=lambda each: show(
                f"{each.seconds:4.0f} s  {each.name}, {each.failed} failures: {_tried(each)}"
            ),
            is_stopped=lambda: bool(told),
        )
    return finish(report, ended_by=told[:1], address=address)


def finish(
    report: AppendsReport | Report, *, ended_by: Sequence[int] = (), address: PostgresAddress | None = None
) -> Answer:
    """The answer of a report; with an error if a promise was broken, or a negative control did not fail."""
    error: BaseException | None = typer.Exit(128 + ended_by[0]) if ended_by else None
    if not report.clean:
        error = RepertoryError("not every promise was kept; please report this with the lines above")
    fields = {**msgspec.to_builtins(report), "clean": report.clean}

    def show(screen: Console) -> None:
        if isinstance(report, Report):
            _print_scenarios(screen, report, address)
        else:
            output.show(screen, output.figures(fields))

    return Answer(fields, show, error)


def _print_scenarios(screen: Console, report: Report, address: PostgresAddress | None) -> None:
    def controls(each: ScenarioReport) -> Text:
        caught, count = sum(hits > 0 for hits in each.controls.values()), len(each.controls)
        return Text(f"{caught} of {count} caught" * bool(count), style="green" if caught == count else "red")

    played = output.table(
        "SCENARIO=name >CASES >FAILURES=failed CONTROLS >TIME=seconds",
        [each for each in report.scenarios if not each.left_out],
        cases=lambda each: f"{each.cases:,}" + (f" of {each.planned:,}" if each.cases != each.planned else ""),
        failed=lambda each: Text(f"{each.failed:,}", style="red" if each.failed else "green"),
        controls=controls,
        seconds=lambda each: f"{each.seconds:,.0f} s",
    )
    output.print_table(screen, played, gap=False)
    early = ", ended early" if report.interrupted else ""
    for line in (f"seed {report.seed}, profile {report.profile}{early}", *_details(report, address)):
        screen.print(line, soft_wrap=True)


def _details(report: Report, address: PostgresAddress | None) -> Iterator[str]:
    """What was tried, then the failures, each with the command that repeats it."""
    for each in report.scenarios:
        yield f"{each.name}: {f'left out: {each.left_out}' if each.left_out else _tried(each)}"
    for each in report.scenarios:
        yield from (
            f"{each.name}: the control {name!r} did not fail" for name, hits in each.controls.items() if not hits
        )
        shown: set[int] = set()
        for failure in each.failures:
            yield f"{each.name}, case {failure.case}: {output.one_line(failure.what)}"
            if failure.case not in shown:
                shown.add(failure.case)
                which = f"--seed {report.seed} --only {each.name} --case {failure.case}"
                again = f"repertory torture {which}{db_option(address)}"
                yield f"    again:      {again}"
                if failure.evidence:
                    yield f"    as it was:  {again} --traces {failure.evidence}"
        if each.failed > len(each.failures):
            yield f"{each.name}: {each.failed - len(each.failures)} more failures"


def _tried(report: ScenarioReport) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in report.counts.items()) or "nothing yet"
