"""``repertory torture``: try to make repertory lose data, and report the result."""

from __future__ import annotations

import random
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from repertory._postgres_address import PostgresAddress, postgres_address
from repertory.cli import output, signals
from repertory.cli.commands import Answer, command
from repertory.cli.databases import db_option
from repertory.cli.options import option
from repertory.cli.status import status_line
from repertory.errors import ConfigurationError, RepertoryError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from repertory.torture import Report, ScenarioReport


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

    Power cuts, kills, storms of cancellation and mutated answers, drawn from a seed. Nothing may be lost, doubled or
    damaged, and each scenario's negative controls, which break a promise on purpose, must be caught. What failed is
    listed with the command that repeats it.
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
    with signals.told_to(told.append), status_line() as show:
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


def finish(report: Report, *, ended_by: Sequence[int] = (), address: PostgresAddress | None = None) -> Answer:
    """The answer of a report; with an error if a promise was broken, or a negative control did not fail."""
    error: BaseException | None = typer.Exit(128 + ended_by[0]) if ended_by else None
    if not report.clean:
        error = RepertoryError("not every promise was kept; please report this with the lines above")
    show = partial(_print_scenarios, report=report, address=address)
    return Answer({**msgspec.to_builtins(report), "clean": report.clean}, show, error)


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
    headers = ("scenario", ">cases", ">failures", "controls", ">time")
    output.print_table(screen, headers, rows, gap=False)
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
