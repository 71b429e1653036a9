"""``repertory stats``: what a run saw and cost, and why."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import open_source_of
from repertory.cli.options import RUN, At, option
from repertory.cli.output import cost, dollars, one_line, tokens
from repertory.cli.runs import coloured_state, in_tree, nodes_of, own_id

if TYPE_CHECKING:
    from repertory.llm.messages import Json

_DECISIONS = 12  # how many are listed; --json has them all
_BAR = 0.03  # how far the token estimate may be off in 95 of 100 prompts
_HEIGHT = 8  # lines of the chart


@command
async def stats(
    run_id: str | None = RUN, *, tree: bool = option("--tree", "Include its sub-agents.", False), at: At
) -> Answer:
    """Show what a run saw and cost, beside what a plain loop would send.

    Iteration by iteration: its context, the prompt cache, the cost by purpose, tools and retrievals,
    summaries, the decisions with what they saved, how good the token estimate was, and alerts.
    """
    async with open_source_of(run_id, at) as (source, found):
        shown: Json = {"database": source.database, **await source.read_stats(found, tree=tree)}
        states = {node.run.id: node.run.state for node in nodes_of((await source.read_run(found)).tree)}
    for run in shown["runs"]:  # on record, what no process runs any more is still running
        run["state"] = states.get(run["run_id"], run["state"])
    return Answer(shown, partial(_print, runs=shown["runs"], total=shown["total"], tree=tree))


def _print(screen: Console, *, runs: Sequence[Json], total: Json, tree: bool) -> None:
    first = runs[0]
    facts = [f" {one_line(first['run_id'])}", one_line(first["model"]), first["state"]]
    facts.append(output.count(len(runs), "run") if tree else "")
    output.show(screen, Text.assemble((one_line(first["agent"]), "bold"), ", ".join(filter(None, facts))), "")
    _print_chart(screen, first["iterations"])
    output.print_table(screen, ("", "", ""), list(overview(total)))
    if tree:
        _print_tree(screen, runs)
    purposes = [
        (name, str(of["calls"]), str(of["failed"]), tokens(of["prompt_tokens"]), cost(of["cost"], of["prompt_tokens"]))
        for name, of in total["purposes"].items()
    ]
    headers = ("FOR", ">CALLS", ">FAILED", ">TOKENS", ">COST")
    output.print_table(screen, headers, purposes)
    ranked = sorted(total["tools"].items(), key=lambda tool: -tool[1]["calls"])
    keys = ("calls", "errors", "retrievals", "deduplicated")
    tools = [(one_line(name), *(str(of[key]) for key in keys)) for name, of in ranked]
    output.print_table(screen, ("TOOL", *(f">{key.upper()}" for key in keys)), tools)
    _print_decisions(screen, runs)
    for run in runs:
        for reason in run["alerts"]:
            output.show(screen, Text(f"ALERT {one_line(run['agent'])}: {one_line(reason)}", style="yellow"))


def _print_chart(screen: Console, iterations: Sequence[Json]) -> None:
    from repertory.replay.chart import bars

    if not iterations:
        return
    view = [step["prompt_tokens"] for step in iterations]
    plain = [step["plain_tokens"] for step in iterations]
    label = tokens(max([*view, *plain]))
    for line in bars(plain, view, width=min(100, max(10, screen.width - 10)), height=_HEIGHT):
        screen.print(Text(f"{label:>8} {line}"), no_wrap=True, overflow="crop")
        label = ""
    caption = f"{'':>8} prompt tokens of iterations 1 to {len(view)}: █ seen, ░ what a plain loop adds"
    output.show(screen, Text(caption, style="dim"), "")


def overview(total: Json) -> Iterator[tuple[str, str, str]]:
    """The figures of a run or a tree, beside those of a plain loop, as lines of a table.

    Args:
        total: The fields of ``RunStatistics``, with ``estimate`` if it is known.
    """
    iterations, calls = max(1, total["iterations"]), max(1, total["tool_calls"])
    seen, plain = total["tokens_seen"], total["tokens_plain"]
    priced = f"plain {cost(total['cost_plain'], plain)}"
    if total["cost_plain"]:
        priced += f", {output.ratio(total['cost_seen'], total['cost_plain'])}"
    yield "iterations", str(total["iterations"]), ""
    yield "prompt tokens", tokens(seen), f"plain {tokens(plain)}, {output.ratio(seen, plain)}"
    yield "per iteration", tokens(round(seen / iterations)), f"plain {tokens(round(plain / iterations))}"
    yield "largest prompt", tokens(total["largest_prompt"]), ""
    yield "read from cache", tokens(total["cache_read_tokens"]), ""
    yield "written to cache", tokens(total["cache_write_tokens"]), ""
    yield "cost", cost(total["cost_seen"], seen), priced
    if total["cost_lost"] or total["tokens_lost"]:
        yield "broken off", output.dollars(total["cost_lost"]), "at most, for attempts without a complete answer"
    yield "tool calls", str(total["tool_calls"]), ""
    yield "retrievals", str(total["retrievals"]), f"{total['retrievals'] / calls:.1%} of the tool calls"
    yield "deduplicated", str(total["dedup_hits"]), f"{total['dedup_hits'] / calls:.1%} of the tool calls"
    used, refused, fallbacks = total["summaries"], total["summaries_refused"], total["summaries_fallback"]
    yield "summaries", str(total["summaries_written"]), f"{used} swapped in, {refused} refused, {fallbacks} fallbacks"
    estimate = total.get("estimate")
    if estimate and estimate["prompts"]:
        verdict = "within" if estimate["p95"] <= _BAR else "beyond"
        facts = f"p95 {estimate['p95']:.1%} of {estimate['prompts']} prompts, {verdict} {_BAR:.0%}"
        yield "estimate off by", f"{estimate['p50']:.1%}", facts


def _print_tree(screen: Console, runs: Sequence[Json]) -> None:
    rows = []
    for branch, run in in_tree(runs, itemgetter("run_id", "parent_id")):
        figures = run["statistics"]
        row = (
            f"{branch}{own_id(run['run_id'], run['parent_id'])}",
            one_line(run["agent"]),
            coloured_state(run["state"]),
            str(figures["iterations"]),
            tokens(figures["tokens_seen"]),
            tokens(figures["tokens_plain"]),
            cost(figures["cost_seen"], figures["tokens_seen"]),
            str(len(run["alerts"])),
            one_line(run["task"], 200),
        )
        rows.append(row)
    headers = ("RUN", "AGENT", "STATE", ">ITER", ">SEEN", ">PLAIN", ">COST", ">ALERTS", "TASK")
    output.print_table(screen, headers, rows)


def _print_decisions(screen: Console, runs: Sequence[Json]) -> None:
    lines = [(run, line) for run in runs for line in run["decisions"] if line["tokens_before"]]
    rows = [
        (
            own_id(run["run_id"], run["parent_id"]) if run["parent_id"] is not None else one_line(run["agent"], 12),
            str(line["iteration"]),
            line["kind"],
            f"{tokens(line['tokens_before'])} → {tokens(line['tokens_after'])}",
            dollars(line["cost_now"]),
            dollars(line["saved"]),
            one_line(line["reason"], 200),
        )
        for run, line in lines[-_DECISIONS:]
    ]
    headers = ("RUN", ">ITER", "DECISION", ">PROMPT", ">COST", ">SAVED", "REASON")
    first = 0 if len(runs) > 1 else 1  # for a single run, its column is left out
    output.print_table(screen, headers[first:], [row[first:] for row in rows])
    if len(lines) > len(rows):
        output.show(screen, Text(f"the last {len(rows)} of {len(lines)} decisions; --json has them all", style="dim"))
