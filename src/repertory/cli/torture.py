"""``repertory stress`` and ``repertory torture``: try to make repertory lose data, and report the result."""

from __future__ import annotations

import random
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import anyio
import msgspec
import typer
from rich.console import Console
from rich.text import Text

from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli import output, signals
from repertory.cli.commands import Answer, command
from repertory.cli.databases import db_option
from repertory.cli.options import BACKEND, Backend, option
from repertory.errors import ConfigurationError, RepertoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repertory.record import Snapshot
    from repertory.torture import Report, ScenarioReport
    from repertory.torture.appends import AppendsReport

_MOST = 5_000_000  # appends: each is remembered, to be compared with the record at the end
_SUMMARIZED = 100  # entries; if a summary's cost grew with the record, the test would measure the summaries


@command
def stress(
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
    from repertory.cli.stopping import stopped_by_signals
    from repertory.torture.appends import run_appends

    if writers * appends > _MOST:
        raise ConfigurationError(f"{writers:,} writers with {appends:,} appends each are more than {_MOST:,} appends")

    async def main() -> AppendsReport:
        async with stopped_by_signals() as stop:
            # Created where signals are handled, so that a signal does not leave it behind.
            with tempfile.TemporaryDirectory(prefix="repertory-") as folder, output.status_line() as show:
                return await run_appends(
                    writers=writers,
                    appends=appends,
                    threads=threads,
                    path=db or Path(folder) / "stress.db",
                    durability="power" if durable else "process",
                    summarize=_summarize,
                    on_progress=lambda done, seconds: show(
                        f"{done:,} of {writers * appends:,} appends, {seconds:.0f} s"
                    ),
                )
        raise stop.interrupted("stopped before the end; nothing wrong was found so far")

    return finish(anyio.run(main, backend=backend))


async def _summarize(snapshot: Snapshot) -> str:
    """Return the newest entries: a summary that contains all it could know."""
    from repertory.llm.messages import text_of

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
    from platformdirs import user_cache_path

    from repertory.torture import choose, run_torture
    from repertory.torture.scenarios import SCENARIOS

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
            keep=user_cache_path("repertory") / f"torture-{seed}",
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
    from repertory.torture import Report

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
    rows: list[tuple[str | Text, ...]] = []
    for each in report.scenarios:
        if each.left_out:
            rows.append((each.name, "left out", "", "", ""))
            continue
        caught, controls = sum(count > 0 for count in each.controls.values()), len(each.controls)
        rows.append(
            (
                each.name,
                f"{each.cases:,}" + (f" of {each.planned:,}" if each.cases != each.planned else ""),
                Text(f"{each.failed:,}", style="red" if each.failed else "green"),
                Text(f"{caught} of {controls} caught" * bool(controls), style="green" if caught == controls else "red"),
                f"{each.seconds:,.0f} s",
            )
        )
    output.show(screen, output.Columns(("scenario", ">cases", ">failures", "controls", ">time"), rows))
    early = ", ended early" if report.interrupted else ""
    for line in (f"seed {report.seed}, profile {report.profile}{early}", *_details(report, address)):
        screen.print(line, soft_wrap=True)


def _details(report: Report, address: PostgresAddress | None) -> Iterator[str]:
    """What was tried, then the failures, each with the command that repeats it."""
    yield from (f"{each.name}: {each.left_out or _tried(each)}" for each in report.scenarios)
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
