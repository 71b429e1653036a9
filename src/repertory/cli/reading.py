"""``repertory inspect`` and ``repertory ledger``: what the model saw, and the record behind it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import msgspec
from rich.console import Console, RenderableType
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import open_source_of
from repertory.cli.options import AS_JSON, FULL, RUN, At, option
from repertory.cli.output import clean, one_line, tokens
from repertory.cli.runs import coloured_state, nodes_of

if TYPE_CHECKING:
    from repertory.llm.messages import Json
    from repertory.record import RunStatistics
    from repertory.service.views import RunDetail

_PREVIEW = (8, 800)  # lines and characters shown of a text without --full
_ASKED = 2000  # characters shown of a call that a person is asked about
_NEWEST = 200  # entries and decisions shown of a long run without --full
_PAGE = 500  # entries of a record that are read at once
_COLOURS = {"shaped": "cyan", "stub": "yellow", "covered": "blue", "removed": "red", "expanded": "green"}


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
    async with open_source_of(run_id, at) as (source, found):
        detail = await source.read_run(found)
        shown = await source.read_inspection(found, iteration, newest=0 if full or as_json else _NEWEST)

    def show(screen: Console) -> None:
        output.show(screen, _standing(detail))
        _print(screen, shown, full=full)

    return Answer({"database": source.database, **msgspec.to_builtins(detail), **shown}, show)


def _standing(detail: RunDetail) -> RenderableType:
    """The state of a run in a few lines: its task, what it and its tree have spent, its limits, where it is defined."""
    run, own, tree = detail.run, detail.statistics, detail.tree_statistics
    facts = Text.assemble((one_line(run.agent), "bold"), f" {one_line(run.id)}, ", coloured_state(run.state))
    if run.machine:
        facts.append(f" on {one_line(run.machine)}")
    if run.error:
        facts.append(f": {one_line(run.error, 200)}")
    facts.append(f"\ntask: {one_line(run.task, 300)}\n")
    facts.append(f"spent: {_spent(own)}, {own.tool_calls} tool calls")
    below = sum(1 for _ in nodes_of(detail.tree)) - 1
    if below:
        facts.append(f"; with its {output.count(below, 'sub-agent')} {_spent(tree)}")
    limits = detail.options.get("limits") or {}
    if limits:
        facts.append(f"\nlimits: {one_line(', '.join(f'{name}={value}' for name, value in limits.items()))}")
    if detail.agent_ref:
        facts.append(f"\ndefined at {one_line(detail.agent_ref)}")
    return facts.append("\n")


def _spent(figures: RunStatistics) -> str:
    return f"{figures.iterations} iterations, {tokens(figures.tokens_seen)} tokens, {output.dollars(figures.cost_seen)}"


def _print(screen: Console, shown: Json, *, full: bool) -> None:
    output.show(screen, _heading(shown))
    output.show(screen, *_record_part(shown, full=full), "", *_view_part(shown["request"], full=full))


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
        heading.append(
            f"saw {tokens(shown['prompt_tokens'])} tokens ({tokens(usage['cache_read_tokens'])} from the "
            f"cache), wrote {tokens(usage['output_tokens'])}, {output.dollars(shown['cost'])}, "
            f"{shown['duration']:.1f} s; the whole record: {tokens(shown['record_tokens'])}\n"
        )
    return heading


def _record_part(shown: Json, *, full: bool) -> Iterator[RenderableType]:
    left_out = _left_out(shown["length"] - len(shown["record"]))
    yield Text(f"THE RECORD, and how each entry was shown{left_out}", style="bold")
    rows = [
        (
            str(entry["position"]),
            str(entry["iteration"]),
            Text(entry["shown"], style=_COLOURS.get(entry["shown"], "")),
            tokens(entry["tokens"]),
            one_line(entry["what"]),
        )
        for entry in shown["record"]
    ]
    yield output.Columns((">#", ">IT", "SHOWN", ">TOKENS", "WHAT"), rows)
    decisions = shown["decisions"] if full else shown["decisions"][-_NEWEST:]
    decided = "DECISIONS so far" if decisions else "No decision has changed the view so far."
    yield Text(f"\n{decided}{_left_out(len(shown['decisions']) - len(decisions))}", style="bold")
    for decision in decisions:
        yield Text(f"it {decision['iteration']:<3} {decision['kind']}: {one_line(decision['sentence'])}")


def _left_out(number: int) -> str:
    return f" ({number:,} older ones are left out; --full shows them)" if number else ""


def _view_part(request: Json, *, full: bool) -> Iterator[RenderableType]:
    yield Text("WHAT THE MODEL SAW", style="bold")
    tools = [tool.get("name", "?") for tool in request.get("tools", ())]
    yield Text(f"tools: {one_line(', '.join(tools)) or 'none'}", style="dim")
    for where, content in (
        ("system", request.get("system", ())),
        *((m["role"], m["content"]) for m in request["messages"]),
    ):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
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
    async with open_source_of(run_id, at) as (source, found):
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
    return kept if left <= 0 else f"{kept}… ({left:,} more characters)"


def describe_wire_block(block: dict[str, Any]) -> tuple[str, str]:
    """A label and the text of a content block in its wire format."""
    kind = block.get("type")
    if kind == "text":
        return "", clean(block["text"])
    if kind == "tool_use":
        return "calls", call_line(block["name"], block["input"])
    if kind == "tool_result":
        content: Any = block.get("content", "")
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        words = "\n".join(part["text"] if part.get("type") == "text" else f"({part.get('type')})" for part in parts)
        return "result" + (", an error" if block.get("is_error") else ""), clean(words)
    if kind == "thinking":
        return "thinks", clean(block["thinking"])
    return f"({one_line(kind)})", ""


def call_line(tool: str, arguments: dict[str, Any], width: int = 0) -> str:
    """A tool call on one line: ``search_files text="lock", folder="asyncio"``."""
    named = (f"{name}={json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items())
    return one_line(f"{tool} {', '.join(named)}", width)


def asked_line(tool: str, arguments: dict[str, Any]) -> str:
    """A tool call that a person decides on; if it is long, with how much is left out."""
    line = call_line(tool, arguments)
    left = len(line) - _ASKED
    return line if left <= 0 else f"{line[:_ASKED]}… ({left:,} more characters: repertory approvals shows them)"


def _whole(blocks: list[dict[str, Any]]) -> str:
    """The whole text of an entry."""
    parts: list[str] = []
    for block in blocks:
        label, text = describe_wire_block(block)
        parts.append(f"{label}: {text}" if label and label != "result" else text)
    return "\n".join(part for part in parts if part)
