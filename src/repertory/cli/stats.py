"""``repertory stats``: what a run saw and cost, and why."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repertory.cli import output
from repertory.cli.tree import in_tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from repertory.cli.figures import RunFigures
    from repertory.record import RunRow

_DECISIONS = 12  # lines; --json has them all
_BAR = 0.03  # how far the token estimate may be off in 95 of 100 prompts
_HEIGHT = 8


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(stats)


def stats(
    run_id: Annotated[
        str | None,
        typer.Argument(
            metavar="RUN", help="A run's id, or any part of it that fits one run only. Default: the newest."
        ),
    ] = None,
    *,
    tree: Annotated[bool, typer.Option("--tree", help="Add the runs below it.")] = False,
    db: Annotated[
        Path | None,
        typer.Option("--db", metavar="FILE", help="The database. Default: $REPERTORY_DB, else the newest kept."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Write one JSON object to standard output, and nothing else.")
    ] = False,
) -> None:
    """Show what a run saw and cost, iteration by iteration, beside what a plain loop would have sent.

    That is its context, the prompt cache, the cost by purpose, tools and retrievals, summaries, the decisions with
    what they saved, how good the token estimate was, and alerts.
    """
    import anyio

    path, runs = anyio.run(_read, run_id, tree, db)
    if as_json:
        listed = [_json(run) for run in runs]
        output.print_json({"database": str(path), "tree": tree, "total": _total(runs), "runs": listed})
    else:
        _print(output.console(), runs, tree=tree)


async def _read(run_id: str | None, tree: bool, db: Path | None) -> tuple[Path, list[RunFigures]]:
    from repertory.cli.databases import open_run
    from repertory.cli.figures import read_figures

    async with open_run(run_id, db) as (path, journal, found):
        rows = _below(await journal.read_runs(), found.started.run_id) if tree else [found]
        return path, [await read_figures(journal, row) for row in rows]


def _below(rows: Sequence[RunRow], run_id: str) -> list[RunRow]:
    """A run and all below it; parents come before their children."""
    known = {run_id}
    for row in rows:
        if row.started.parent_id in known:
            known.add(row.started.run_id)
    return [row for row in rows if row.started.run_id in known]


def _json(run: RunFigures) -> dict[str, Any]:
    import msgspec

    from repertory.cli.figures import percentile

    fields: dict[str, Any] = msgspec.to_builtins(run)
    errors = fields.pop("estimate_errors")
    return fields | {
        "estimate": {"prompts": len(errors), "p50": percentile(errors, 0.5), "p95": percentile(errors, 0.95)}
    }


def _total(runs: Sequence[RunFigures]) -> dict[str, Any]:
    """The sums over runs, with the shares that follow from them."""
    from functools import reduce

    import msgspec

    from repertory.cli.figures import percentile, together

    figures = reduce(lambda one, other: one + other, (run.statistics for run in runs))
    errors = [error for run in runs for error in run.estimate_errors]
    calls = max(1, figures.tool_calls)
    sums: dict[str, Any] = msgspec.to_builtins(figures)
    return sums | {
        "average_context": round(figures.tokens_seen / figures.iterations) if figures.iterations else 0,
        "peak_context": figures.largest_prompt,
        "retrieval_share": figures.retrievals / calls,
        "dedup_rate": figures.dedup_hits / calls,
        "purposes": msgspec.to_builtins(together(run.purposes for run in runs)),
        "tools": msgspec.to_builtins(together(run.tools for run in runs)),
        "saved_by_decisions": sum(line.saved for run in runs for line in run.decisions),
        "alerts": sum(len(run.alerts) for run in runs),
        "estimate": {"prompts": len(errors), "p50": percentile(errors, 0.5), "p95": percentile(errors, 0.95)},
    }


# --- for a person -----------------------------------------------------------------------------------------


def _print(screen: Console, runs: Sequence[RunFigures], *, tree: bool) -> None:
    from rich.text import Text

    first, total = runs[0], _total(runs)
    head = Text()
    head.append(f"{output.one_line(first.agent)} ", style="bold")
    head.append(f"{output.one_line(first.run_id)}, {output.one_line(first.model)}, {first.state}")
    if tree:
        head.append(f", {len(runs)} runs")
    output.show(screen, head, Text())
    _print_chart(screen, first)
    priced = all(run.statistics.cost_plain or not run.statistics.tokens_plain for run in runs)
    output.show(screen, output.table(("", "", ""), _overview(total, priced=priced), width=screen.width), Text())
    if tree:
        rows = [
            (
                f"{branch}{_own_id(run)}",
                output.one_line(run.agent),
                str(run.statistics.iterations),
                output.tokens(run.statistics.tokens_seen),
                output.tokens(run.statistics.tokens_plain),
                output.cost(run.statistics.cost_seen, run.statistics.tokens_seen),
                str(len(run.alerts)),
                output.one_line(run.task, 200),
            )
            for branch, run in in_tree(runs)
        ]
        headers = ("RUN", "AGENT", "ITER", "SEEN", "PLAIN", "COST", "ALERTS", "TASK")
        right = "ITER|SEEN|PLAIN|COST|ALERTS"
        output.show(screen, output.table(headers, rows, width=screen.width, right=right), Text())
    _print_tables(screen, total)
    _print_decisions(screen, runs)
    for run in runs:
        for reason in run.alerts:
            output.show(screen, Text(f"ALERT {output.one_line(run.agent)}: {output.one_line(reason)}", style="yellow"))


def _print_chart(screen: Console, run: RunFigures) -> None:
    from rich.text import Text

    from repertory.replay import bars

    view = [iteration.prompt_tokens for iteration in run.iterations]
    plain = [iteration.plain_tokens for iteration in run.iterations]
    if not view:
        return
    top = max([*view, *plain])
    lines = bars(plain, view, width=min(100, max(10, screen.width - 10)), height=_HEIGHT)
    label = output.tokens(top)
    for number, line in enumerate(lines):
        screen.print(Text(f"{label if number == 0 else '':>8} {line}"), no_wrap=True, overflow="crop")
    caption = f"{'':>8} prompt tokens of iterations 1 to {len(view)}: █ seen, ░ what a plain loop adds"
    output.show(screen, Text(caption, style="dim"), Text())


def _overview(total: dict[str, Any], *, priced: bool) -> list[tuple[str, str, str]]:
    iterations = total["iterations"]
    seen, whole = total["tokens_seen"], total["tokens_plain"]
    each, plain = total["average_context"], round(whole / iterations) if iterations else 0
    estimate = total["estimate"]
    rows = [
        ("iterations", str(iterations), ""),
        (
            "prompt tokens",
            output.tokens(seen),
            f"plain {output.tokens(whole)}, {output.ratio(seen, whole)}",
        ),
        ("per iteration", output.tokens(each), f"plain {output.tokens(plain)}"),
        ("largest prompt", output.tokens(total["peak_context"]), ""),
        ("read from cache", output.tokens(total["cache_read_tokens"]), ""),
        ("written to cache", output.tokens(total["cache_write_tokens"]), ""),
        (
            "cost",
            output.cost(total["cost_seen"], seen),
            f"plain {output.dollars(total['cost_plain'])}, {output.ratio(total['cost_seen'], total['cost_plain'])}"
            if priced
            else "plain unknown",
        ),
        ("tool calls", str(total["tool_calls"]), ""),
        ("retrievals", str(total["retrievals"]), f"{total['retrieval_share']:.1%} of the tool calls"),
        ("deduplicated", str(total["dedup_hits"]), f"{total['dedup_rate']:.1%} of the tool calls"),
    ]
    used, refused, fallbacks = total["summaries"], total["summaries_refused"], total["summaries_fallback"]
    facts = f"{used} swapped in, {refused} refused, {fallbacks} fallbacks"
    rows.append(("summaries", str(total["summaries_written"]), facts))
    if estimate["prompts"]:
        verdict = "within" if estimate["p95"] <= _BAR else "beyond"
        facts = f"p95 {estimate['p95']:.1%} of {estimate['prompts']} prompts, {verdict} {_BAR:.0%}"
        rows.append(("estimate off by", f"{estimate['p50']:.1%}", facts))
    return rows


def _print_tables(screen: Console, total: dict[str, Any]) -> None:
    from rich.text import Text

    purposes = [
        (
            name,
            *map(str, (of["calls"], of["failed"])),
            output.tokens(of["prompt_tokens"]),
            output.cost(of["cost"], of["prompt_tokens"]),
        )
        for name, of in total["purposes"].items()
    ]
    if purposes:
        headers = ("FOR", "CALLS", "FAILED", "TOKENS", "COST")
        right = "CALLS|FAILED|TOKENS|COST"
        output.show(screen, output.table(headers, purposes, width=screen.width, right=right), Text())
    tools = [
        (output.one_line(name), *(str(of[key]) for key in ("calls", "errors", "retrievals", "deduplicated")))
        for name, of in sorted(total["tools"].items(), key=lambda pair: -pair[1]["calls"])
    ]
    if tools:
        headers = ("TOOL", "CALLS", "ERRORS", "RETRIEVALS", "DEDUPLICATED")
        right = "CALLS|ERRORS|RETRIEVALS|DEDUPLICATED"
        output.show(screen, output.table(headers, tools, width=screen.width, right=right), Text())


def _print_decisions(screen: Console, runs: Sequence[RunFigures]) -> None:
    from rich.text import Text

    lines = [(run, line) for run in runs for line in run.decisions if line.tokens_before]
    several = len(runs) > 1
    rows = [
        (
            *((_own_id(run) if run.parent_id is not None else output.one_line(run.agent, 12),) if several else ()),
            str(line.iteration),
            line.kind,
            f"{output.tokens(line.tokens_before)} → {output.tokens(line.tokens_after)}",
            _signed(line.cost_now),
            _signed(line.saved),
            output.one_line(line.reason, 200),
        )
        for run, line in lines[-_DECISIONS:]
    ]
    if rows:
        headers = (*(("RUN",) if several else ()), "ITER", "DECISION", "PROMPT", "COST", "SAVED", "REASON")
        right = "ITER|PROMPT|COST|SAVED"
        output.show(screen, output.table(headers, rows, width=screen.width, right=right), Text())
    if len(lines) > len(rows):
        output.show(screen, Text(f"the last {len(rows)} of {len(lines)} decisions; --json has them all", style="dim"))


def _own_id(run: RunFigures) -> str:
    """A sub-agent's id is its parent's and a part of its own; that part."""
    return output.one_line(run.run_id.removeprefix(run.parent_id or ""))


def _signed(amount: float) -> str:
    return output.dollars(amount) if amount >= 0 else f"-{output.dollars(-amount)}"
