"""``repertory torture``: the scenarios of ``repertory.torture``, played and tabled."""

from __future__ import annotations

import random
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from repertory.cli import output, signals
from repertory.errors import ConfigurationError, RepertoryError

if TYPE_CHECKING:
    from repertory.torture import Report, ScenarioReport


class Profile(StrEnum):
    """How much is played."""

    short = "short"
    full = "full"


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(torture)


def torture(
    *,
    profile: Annotated[
        Profile, typer.Option("--profile", metavar="short|full", help="A minute, or half an hour on two cores.")
    ] = Profile.short,
    only: Annotated[
        list[str] | None, typer.Option("--only", metavar="NAME", help="Play this scenario only. May be repeated.")
    ] = None,
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Decides every case. Default: a new one.")
    ] = None,
    case: Annotated[
        int | None, typer.Option("--case", metavar="N", min=0, help="Play this case alone, and no controls.")
    ] = None,
    traces: Annotated[
        Path | None,
        typer.Option("--traces", metavar="DIR", help="Look again at what a failed case of power cuts left."),
    ] = None,
    workers: Annotated[int, typer.Option("--workers", metavar="N", min=1, help="Processes that play.")] = 2,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")
    ] = False,
) -> None:
    """Try to make it lose something.

    Power cuts, kills, storms of cancellation and mutated answers, drawn from a seed. Nothing may be lost, doubled or
    damaged, and each scenario's negative controls, which break a promise on purpose, must be caught. What failed is
    listed with the command that plays it again.
    """
    from platformdirs import user_cache_path

    from repertory.torture import choose, run_torture
    from repertory.torture.scenarios import SCENARIOS

    if (case is not None or traces is not None) and len(only or []) != 1:
        raise ConfigurationError("a case belongs to one scenario: name it with --only")
    screen = output.console(stderr=True)
    live = screen.is_terminal and not screen.is_dumb_terminal

    def show(report: ScenarioReport) -> None:
        line = f"{report.name}: {report.cases} of {report.planned} cases, {report.failed} failures, {_tried(report)}"
        screen.print(
            f"{output.one_line(line, screen.width - 10):<{screen.width - 10}} {report.seconds:4.0f} s", end="\r"
        )

    seed = random.SystemRandom().randrange(10**6) if seed is None else seed
    told: list[int] = []
    with signals.told_to(told.append):
        report = run_torture(
            choose(SCENARIOS, only or []),
            profile=profile.value,
            seed=seed,
            case=case,
            traces=traces,
            keep=user_cache_path("repertory") / f"torture-{seed}",
            workers=workers,
            on_progress=show if live else lambda report: None,
            is_stopped=lambda: bool(told),
        )
    if live:
        screen.print(" " * (screen.width - 1), end="\r")
    finish(report, as_json=as_json)
    if told:
        raise typer.Exit(128 + told[0])


def finish(report: Report, *, as_json: bool) -> None:
    """Write what was found.

    Raises:
        RepertoryError: Something is not as promised, or a negative control did not fail.
    """
    import msgspec

    if as_json:
        output.print_json({**msgspec.to_builtins(report), "clean": report.clean})
    else:
        _print(report)
    if not report.clean:
        raise RepertoryError("not everything is as promised; please report it with the lines above")


def _tried(report: ScenarioReport) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in report.counts.items()) or "nothing yet"


def _print(report: Report) -> None:
    from rich.text import Text

    screen = output.console()
    rows: list[list[str | Text]] = []
    for each in report.scenarios:
        caught = sum(count > 0 for count in each.controls.values())
        cases = f"{each.cases:,}" if each.cases == each.planned else f"{each.cases:,} of {each.planned:,}"
        rows.append(
            [
                each.name,
                "left out" if each.left_out else cases,
                "" if each.left_out else Text(f"{each.failed:,}", style="red" if each.failed else "green"),
                Text(
                    f"{caught} of {len(each.controls)} caught" if each.controls else "",
                    style="green" if caught == len(each.controls) else "red",
                ),
                "" if each.left_out else f"{each.seconds:,.0f} s",
            ]
        )
    headers = ["scenario", "cases", "failures", "controls", "time"]
    output.show(screen, output.table(headers, rows, width=screen.width, right="cases|failures|time"))
    lines = [f"seed {report.seed}, profile {report.profile}" + (", ended early" if report.interrupted else "")]
    lines += [f"{each.name}: {each.left_out or _tried(each)}" for each in report.scenarios]
    again = f"repertory torture --seed {report.seed} --only"
    for each in report.scenarios:
        lines += [f"{each.name}: the control {name!r} did not fail" for name, hits in each.controls.items() if not hits]
        shown: set[int] = set()
        for failure in each.failures:
            lines.append(f"{each.name}, case {failure.case}: {output.one_line(failure.what)}")
            if failure.case not in shown:
                shown.add(failure.case)
                lines.append(f"    again:      {again} {each.name} --case {failure.case}")
                if failure.evidence:
                    lines.append(
                        f"    as it was:  {again} {each.name} --case {failure.case} --traces {failure.evidence}"
                    )
        if each.failed > len(each.failures):
            lines.append(f"{each.name}: and {each.failed - len(each.failures)} failures more")
    for line in lines:
        screen.print(line, soft_wrap=True)
