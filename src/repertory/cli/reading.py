"""What a run's model saw, the record behind it, and what that cost: ``inspect``, ``ledger`` and ``stats``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from operator import itemgetter
from typing import Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from repertory._counting import counted
from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import need_run, open_source
from repertory.cli.options import AS_JSON, FULL, RUN, At, option
from repertory.cli.output import clean, cost, one_line, tokens
from repertory.cli.runs import nodes_of, own_id, tree_table
from repertory.llm.messages import Json
from repertory.record import RunStatistics
from repertory.replay.chart import bars
from repertory.service.marks import wire_blocks
from repertory.service.reports import call_text
from repertory.service.views import RunDetail

_PREVIEW = (8, 800)  # lines and characters shown of a text without --full
_ASKED = 2000  # characters shown of a call that a person is asked about
_NEWEST = 200  # entries and decisions shown of a long run without --full
_PAGE = 500  # entries of a record that are read at once


@command
async def inspect(
    run_id: str | None = RUN,
    *,
    iteration: int | None = option("-i, --iteration N", "Which one. Default: the newest.", min=1),
    full: bool = FULL,
    at: At,
    as_json: bool = AS_JSON,
) -> Answer:
    """Show the state of a run, and what its model saw at an iteration.

    Before it comes the record: how each entry was shown, and which decisions made it so. Of a long record these are the
    newest entries and those that the model saw.
    """
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        detail = await source.read_run(found)
        shown = await source.read_inspection(found, iteration, newest=0 if full or as_json else _NEWEST)

    def show(screen: Console) -> None:
        output.show(screen, _standing(detail), _heading(shown))
        output.show(screen, *_record_part(shown, full=full), "", *_view_part(shown["request"], full=full))

    return Answer({"database": source.database, **msgspec.to_builtins(detail), **shown}, show)


def _standing(detail: RunDetail) -> RenderableType:
    """The state of a run in a few lines: its task, what it and its tree have spent, its limits, where it is defined."""
    run, own, tree = detail.run, detail.statistics, detail.tree_statistics
    facts = Text.assemble((one_line(run.agent), "bold"), f" {one_line(run.id)}, ", output.coloured_state(run.state))
    if run.machine:
        facts.append(f" on {one_line(run.machine)}")
    if run.error:
        facts.append(f": {one_line(run.error, 200)}")
    facts.append(f"\ntask: {one_line(run.task, 300)}\n")
    facts.append(f"spent: {_spent(own)}, {counted(own.tool_calls, 'tool call')}")
    below = sum(1 for _ in nodes_of(detail.tree)) - 1
    if below:
        facts.append(f"; with its {counted(below, 'sub-agent')} {_spent(tree)}")
    limits = detail.options.get("limits") or {}
    if limits:
        facts.append(f"\nlimits: {one_line(', '.join(f'{name}={value}' for name, value in limits.items()))}")
    if detail.agent_ref:
        facts.append(f"\ndefined at {one_line(detail.agent_ref)}")
    return facts.append("\n")


def _spent(figures: RunStatistics) -> str:
    iterations = counted(figures.iterations, "iteration")
    return f"{iterations}, {tokens(figures.tokens_seen)} tokens, {output.dollars(figures.cost_seen)}"


def _heading(shown: Json) -> RenderableType:
    heading = Text.assemble(
        (f"iteration {shown['iteration']} of {shown['iterations']}", "bold"),
        f", {one_line(shown['model'])}, {output.timestamp(shown['at'])}\n",
    )
    usage = shown["usage"]
    if usage is None:
        heading.append(f"no answer yet; about {tokens(shown['prompt_estimate'])} tokens were sent\n")
    elif shown["error"] is not None:
        heading.append(f"failed: {one_line(shown['error'])}\n", style="red")
    else:
        record = max(shown["record_tokens"], shown["prompt_tokens"])  # an estimate, and what was billed
        heading.append(
            f"saw {tokens(shown['prompt_tokens'])} of {tokens(record)} tokens "
            f"({tokens(usage['cache_read_tokens'])} from the cache), wrote {tokens(usage['output_tokens'])}, "
            f"{output.dollars(shown['cost'])}, {shown['duration']:.1f} s\n"
        )
    return heading


def _record_part(shown: Json, *, full: bool) -> Iterator[RenderableType]:
    left_out = _left_out(shown["length"] - len(shown["record"]))
    yield Text(f"THE RECORD, and how each entry was shown{left_out}", style="bold")
    columns = ">#=position >IT=iteration SHOWN >TOKENS WHAT"
    yield output.table(columns, shown["record"])
    decisions = shown["decisions"] if full else shown["decisions"][-_NEWEST:]
    decided = "DECISIONS so far" if decisions else "No decision has changed the view so far."
    yield Text(f"\n{decided}{_left_out(len(shown['decisions']) - len(decisions))}", style="bold")
    for decision in decisions:
        yield Text(f"it {decision['iteration']:<3} {decision['kind']}: {one_line(decision['sentence'])}")


def _left_out(number: int) -> str:
    return f" ({counted(number, 'older one')} left out; --full shows all)" if number else ""


def _view_part(request: Json, *, full: bool) -> Iterator[RenderableType]:
    yield Text("WHAT THE MODEL SAW", style="bold")
    tools = [tool.get("name", "?") for tool in request.get("tools", ())]
    yield Text(f"tools: {one_line(', '.join(tools)) or 'none'}", style="dim")
    for where, content in (
        ("system", request.get("system", ())),
        *((m["role"], m["content"]) for m in request["messages"]),
    ):
        for block in wire_blocks(content):
            label, text = describe_wire_block(block)
            marked = "  ⟵ cached up to here" if "cache_control" in block else ""
            yield Text(f"{where} {label}{marked}", style="magenta" if where == "system" else "cyan")
            yield Text(_preview(text, full=full), overflow="fold")
    if not full:
        yield Text("--full shows every message whole, --json the whole request", style="dim")


# --- the record -------------------------------------------------------------------------------------------


@command
async def ledger(
    run_id: str | None = RUN,
    *,
    lines: int = option("-n, --lines N", "Only the last N entries; 0 for all.", 0, min=0),
    full: bool = FULL,
    at: At,
    as_json: bool = AS_JSON,
) -> None:
    """Show the full record of a run."""
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        run = (await source.read_run(found)).run  # before the entries, so that an ended run has all of them
        page = await source.read_record(found, 0, 0)
        at_entry = max(0, page["length"] - lines) if lines else 0
        record: Json = {"database": source.database, **page, "state": run.state}
        screen = output.console()
        if not as_json:
            facts = f" {one_line(found)}, {one_line(run.model)}\n"
            screen.print(Text.assemble((one_line(run.agent), "bold"), facts))
        while entries := (await source.read_record(found, at_entry, at_entry + _PAGE))["entries"]:
            at_entry += len(entries)
            if as_json:
                record["entries"] += entries
                continue
            for entry in entries:
                _print_entry(screen, entry, full=full)
    if as_json:
        output.print_json(record)
    elif run.error is not None:
        output.say(f"the run failed: {run.error}")


def _print_entry(screen: Console, entry: Json, *, full: bool) -> None:
    who = entry["kind"] if entry["tool"] is None else f"{entry['tool']} → result"
    facts = f"  {tokens(entry['tokens'])} tokens"
    if entry["original_length"]:
        facts += f", shortened from {entry['original_length']:,} characters"
    if entry["content_id"] is not None:
        facts += f", whole: repertory content show {one_line(entry['content_id'])}"
    line = Text.assemble(
        (f"#{entry['position']:<4}", "bold"),
        (f"it {entry['iteration']:<3} {one_line(who)}", "cyan" if entry["role"] == "user" else "green"),
        (facts, "dim"),
    )
    parts = [line, Text(_preview(_whole(entry["content"]), full=full))]
    if full and entry["traceback"]:
        trace = clean(entry["traceback"]).rstrip()
        parts.append(Text(_preview(f"what the tool raised:\n{trace}", full=True), style="dim"))
    screen.print(*parts, "", sep="\n", soft_wrap=True)


# --- entries and blocks -----------------------------------------------------------------------------------


def _preview(text: str, *, full: bool) -> str:
    """The beginning of a text, with how much is left out; the whole text if ``full``."""
    if full:
        return text
    lines, characters = _PREVIEW
    kept = "\n".join(text[:characters].split("\n")[:lines])
    left = len(text) - len(kept)
    return kept if left <= 0 else f"{kept}… ({counted(left, 'more character')})"


def describe_wire_block(block: dict[str, Any]) -> tuple[str, str]:
    """A label and the text of a content block in its wire format."""
    kind = block.get("type")
    if kind == "text":
        return "", clean(block["text"])
    if kind == "tool_use":
        return "calls", call_line(block["name"], block["input"])
    if kind == "tool_result":
        parts = wire_blocks(block.get("content", ""))
        words = "\n".join(part["text"] if part.get("type") == "text" else f"({part.get('type')})" for part in parts)
        return "result" + (", an error" if block.get("is_error") else ""), clean(words)
    if kind == "thinking":
        return "thinks", clean(block["thinking"])
    return f"({one_line(kind)})", ""


def call_line(tool: str, arguments: dict[str, Any], width: int = 0) -> str:
    """A tool call on one line."""
    return one_line(call_text(tool, arguments), width)


def asked_line(tool: str, arguments: dict[str, Any]) -> str:
    """A tool call that a person decides on; if it is long, with how much is left out."""
    line = call_line(tool, arguments)
    left = len(line) - _ASKED
    return line if left <= 0 else f"{line[:_ASKED]}… ({counted(left, 'more character')}: repertory approvals shows all)"


def awaited_line(tool: str, note: str, width: int = 0) -> str:
    """A call that waits for its result, with what its tool says that it waits for."""
    return one_line(f"{tool} waits for its result{f': {note}' if note else ''}", width)


def _whole(blocks: list[dict[str, Any]]) -> str:
    """The whole text of an entry."""
    parts: list[str] = []
    for block in blocks:
        label, text = describe_wire_block(block)
        parts.append(f"{label}: {text}" if label and label != "result" else text)
    return "\n".join(part for part in parts if part)


# --- what it cost --------------------------------------------------------------------------------------


_DECISIONS = 12  # how many are listed; --json has them all
_BAR = 0.03  # how far the token estimate may be off in 95 of 100 prompts
_HEIGHT = 8  # lines of the chart
_TREE = "RUN=tree AGENT STATE >ITER=iterations >SEEN=tokens_seen >PLAIN=tokens_plain >COST=cost_seen >ALERTS TASK"


@command
async def stats(
    run_id: str | None = RUN, *, tree: bool = option("--tree", "Include its sub-agents.", False), at: At
) -> Answer:
    """Show what a run saw and cost, beside what a plain loop would send.

    Iteration by iteration: its context, the prompt cache, the cost by purpose, tools and retrievals,
    summaries, the decisions with what they saved, how good the token estimate was, and alerts.
    """
    async with open_source(at) as source:
        found = await need_run(source, run_id, at.db)
        shown: Json = {"database": source.database, **await source.read_stats(found, tree=tree)}
        states = {node.run.id: node.run.state for node in nodes_of((await source.read_run(found)).tree)}
    for run in shown["runs"]:  # on record, what no process runs any more is still running
        run["state"] = states.get(run["run_id"], run["state"])
    return Answer(shown, partial(_print_stats, runs=shown["runs"], total=shown["total"], tree=tree))


def _print_stats(screen: Console, *, runs: Sequence[Json], total: Json, tree: bool) -> None:
    first = runs[0]
    facts = [f" {one_line(first['run_id'])}", one_line(first["model"]), first["state"]]
    facts.append(counted(len(runs), "run") if tree else "")
    output.show(screen, Text.assemble((one_line(first["agent"]), "bold"), ", ".join(filter(None, facts))), "")
    _print_chart(screen, first["iterations"])
    output.print_table(screen, output.Columns(("", "", ""), list(overview(total))))
    if tree:
        lines = [{**run, **run["statistics"], "alerts": len(run["alerts"])} for run in runs]
        output.print_table(screen, tree_table(_TREE, lines, itemgetter("run_id", "parent_id")))
    purposes = [{"for": name, **of} for name, of in total["purposes"].items()]
    output.print_table(screen, output.table("FOR >CALLS >FAILED >TOKENS=prompt_tokens >COST", purposes))
    tools = sorted(({"tool": name, **of} for name, of in total["tools"].items()), key=lambda of: -of["calls"])
    output.print_table(screen, output.table("TOOL >CALLS >ERRORS >RETRIEVALS >DEDUPLICATED", tools))
    _print_decisions(screen, runs)
    for run in runs:
        for reason in run["alerts"]:
            output.show(screen, Text(f"ALERT {one_line(run['agent'])}: {one_line(reason)}", style="yellow"))


def _print_chart(screen: Console, iterations: Sequence[Json]) -> None:
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
    """Lines of a table: the fields of ``RunStatistics`` beside those of a plain loop, and ``estimate`` if known."""
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


def _print_decisions(screen: Console, runs: Sequence[Json]) -> None:
    lines = [(run, line) for run in runs for line in run["decisions"] if line["tokens_before"]]
    names = {
        run["run_id"]: own_id(run["run_id"], run["parent_id"]) if run["parent_id"] else run["agent"] for run in runs
    }
    rows = [{**line, "run": names[run["run_id"]]} for run, line in lines[-_DECISIONS:]]
    columns = "RUN >ITER=iteration DECISION=kind >BEFORE=tokens_before >AFTER=tokens_after >COST=cost_now >SAVED REASON"
    # For a single run, its column is left out.
    output.print_table(screen, output.table(columns if len(runs) > 1 else columns.removeprefix("RUN "), rows))
    if len(lines) > len(rows):
        output.show(screen, Text(f"the last {len(rows)} of {len(lines)} decisions; --json has them all", style="dim"))
