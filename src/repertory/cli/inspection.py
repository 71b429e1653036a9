"""``repertory inspect``: what the model saw at one iteration, beside the record it was made from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import anyio
import msgspec

from repertory.cli import output
from repertory.cli.databases import open_run
from repertory.cli.entries import describe_entry, describe_wire_block, preview

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repertory.context import Decision, Plan
    from repertory.llm.messages import Json
    from repertory.record import Entry, Journal, ModelCallRow, RunRow

WIDE = 120  # columns from which the record and the view stand side by side
_COLOURS = {
    "verbatim": "",
    "shaped": "cyan",
    "stub": "yellow",
    "covered": "blue",
    "removed": "red",
    "expanded": "green",
}


class Inspection(msgspec.Struct, frozen=True, kw_only=True):
    """One model call of a run, with all that explains it."""

    row: RunRow
    call: ModelCallRow
    request: Json
    plan: Plan
    decisions: Sequence[Decision]
    entries: Sequence[Entry]
    iterations: int

    def to_json(self) -> Json:
        """What ``inspect --json`` gives."""
        called, replied = self.call.called, self.call.replied
        return {
            "run_id": called.run_id,
            "agent": self.row.started.agent,
            "model": called.model,
            "iteration": called.iteration,
            "iterations": self.iterations,
            "call": called.call,
            "at": called.at,
            "digest": called.digest,
            "prompt_estimate": called.prompt_estimate,
            "record_tokens": sum(entry.tokens for entry in self.entries),
            "request": self.request,
            "record": [
                {
                    "position": entry.position,
                    "iteration": entry.iteration,
                    "kind": entry.kind,
                    "role": entry.role,
                    "tool": entry.tool,
                    "content_id": entry.content_id,
                    "tokens": entry.tokens,
                    "original_length": entry.original_length,
                    "shown": self.plan.representation(entry),
                }
                for entry in self.entries
            ],
            "decisions": [
                {
                    "iteration": decision.iteration,
                    "kind": decision.kind,
                    "reason": decision.reason,
                    "sentence": decision.sentence,
                    "arithmetic": msgspec.to_builtins(decision.arithmetic),
                    "edits": len(decision.edits),
                }
                for decision in self.decisions
            ],
            "usage": None if replied is None else msgspec.to_builtins(replied.usage),
            "prompt_tokens": None if replied is None else replied.usage.prompt_tokens,
            "cost": None if replied is None else replied.cost,
            "duration": None if replied is None else replied.duration,
            "stop_reason": None if replied is None else replied.stop_reason,
            "error": None if replied is None else replied.error,
        }


async def read_inspection(journal: Journal, row: RunRow, iteration: int | None) -> Inspection:
    """Read one iteration of a run back.

    Raises:
        NothingThere: The run made no such iteration.
    """
    from repertory.context import decode_decision, replay, sent_body

    run_id = row.started.run_id
    calls = [call for call in await journal.read_model_calls(run_id) if call.called.purpose == "agent"]
    made = sorted({call.called.iteration for call in calls})
    if not made:
        raise output.NothingThere(
            f"run {run_id} has not called a model yet; repertory ledger {run_id} shows its record"
        )
    wanted = made[-1] if iteration is None else iteration
    if wanted not in made:
        raise output.NothingThere(f"run {run_id} has no iteration {wanted}; it made {made[0]} to {made[-1]}")
    call = [call for call in calls if call.called.iteration == wanted][-1]
    bodies = [decision.body for decision in await journal.read_decisions(run_id) if decision.iteration <= wanted]
    return Inspection(
        row=row,
        call=call,
        request=sent_body(await journal.read_request(run_id, call.called.call)),
        plan=replay(bodies),
        decisions=[decode_decision(body) for body in bodies],
        entries=await journal.read_entries(run_id, stop=call.called.position),
        iterations=made[-1],
    )


def inspect_run(run_id: str | None, *, iteration: int | None, full: bool, db: Path | None, as_json: bool) -> None:
    """See ``repertory inspect``."""

    async def read() -> Inspection:
        async with open_run(run_id, db) as (_, journal, row):
            return await read_inspection(journal, row, iteration)

    inspection = anyio.run(read)
    if as_json:
        output.print_json(inspection.to_json())
    else:
        _print(inspection, full=full)


# --- for a person -----------------------------------------------------------------------------------------


def _print(inspection: Inspection, *, full: bool) -> None:
    from rich.console import Group
    from rich.table import Table

    screen = output.console()
    output.show(screen, _heading(inspection))
    two_columns = screen.is_terminal and screen.width >= WIDE
    record = list(_record_part(inspection, screen.width * 2 // 5 - 4 if two_columns else screen.width))
    view = list(_view_part(inspection.request, full=full))
    if two_columns:
        side_by_side = Table(box=None, expand=True, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        side_by_side.add_column(ratio=2)
        side_by_side.add_column(ratio=3)
        side_by_side.add_row(Group(*record), Group(*view))
        output.show(screen, side_by_side)
    else:
        output.show(screen, *record, "", *view)


def _heading(inspection: Inspection) -> RenderableType:
    from rich.text import Text

    called, replied = inspection.call.called, inspection.call.replied
    record = sum(entry.tokens for entry in inspection.entries)
    heading = Text()
    heading.append(f"{output.one_line(inspection.row.started.agent)} ", style="bold")
    heading.append(f"{output.one_line(called.run_id)}\n")
    heading.append(f"iteration {called.iteration} of {inspection.iterations}", style="bold")
    heading.append(f", {output.one_line(called.model)}, {output.timestamp(called.at)}\n")
    if replied is None:
        heading.append(f"no answer yet; about {output.tokens(called.prompt_estimate)} tokens were sent\n")
    elif replied.error is not None:
        heading.append(f"failed: {output.one_line(replied.error)}\n", style="red")
    else:
        usage = replied.usage
        cached = usage.cache_read_tokens
        heading.append(
            f"saw {output.tokens(usage.prompt_tokens)} tokens ({output.tokens(cached)} from the cache), "
            f"wrote {output.tokens(usage.output_tokens)}, {output.dollars(replied.cost)}, {replied.duration:.1f} s; "
            f"the record held about {output.tokens(record)}\n"
        )
    return heading


def _record_part(inspection: Inspection, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("THE RECORD, and how each entry was shown", style="bold")
    rows = [
        (
            str(entry.position),
            str(entry.iteration),
            Text(shown := inspection.plan.representation(entry), style=_COLOURS[shown]),
            output.tokens(entry.tokens),
            describe_entry(entry),
        )
        for entry in inspection.entries
    ]
    yield output.table(("#", "IT", "SHOWN", "TOKENS", "WHAT"), rows, width=width, right="#|IT|TOKENS")
    yield Text("")
    yield Text("DECISIONS so far" if inspection.decisions else "No decision has changed the view so far.", style="bold")
    for decision in inspection.decisions:
        yield Text(f"it {decision.iteration:<3} {decision.kind}: {output.one_line(decision.sentence)}")


def _view_part(request: Json, *, full: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("WHAT THE MODEL SAW", style="bold")
    tools = [tool.get("name", "?") for tool in request.get("tools", ())]
    yield Text(f"tools: {output.one_line(', '.join(tools)) or 'none'}", style="dim")
    for where, block in _blocks(request):
        label, text = describe_wire_block(block)
        marked = "  ⟵ cached up to here" if "cache_control" in block else ""
        yield Text(f"{where} {label}{marked}", style="magenta" if where == "system" else "cyan")
        yield Text(text if full else preview(text), overflow="fold")
    if not full:
        yield Text("--full shows every message whole, --json the whole request", style="dim")


def _blocks(request: Json) -> Iterator[tuple[str, dict[str, Any]]]:
    system = request.get("system", ())
    for block in [{"type": "text", "text": system}] if isinstance(system, str) else system:
        yield "system", block
    for message in request["messages"]:
        content = message["content"]
        for block in [{"type": "text", "text": content}] if isinstance(content, str) else content:
            yield message["role"], block
