"""``repertory inspect``: what the model saw at one iteration, beside the record it was made from."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from repertory.cli import output
from repertory.cli.databases import read_run
from repertory.cli.entries import describe_entry, describe_wire_block, preview
from repertory.cli.options import AsJson, Database, RunId

if TYPE_CHECKING:
    from rich.console import RenderableType

    from repertory.llm.messages import Json
    from repertory.record import Journal, RunRow

WIDE = 120  # columns from which the record and the view stand side by side
_COLOURS = {"shaped": "cyan", "stub": "yellow", "covered": "blue", "removed": "red", "expanded": "green"}
_OF_CALL = ("model", "iteration", "call", "at", "digest", "prompt_estimate")
_OF_ENTRY = ("position", "iteration", "kind", "role", "tool", "content_id", "tokens", "original_length")
_OF_DECISION = ("iteration", "kind", "reason", "sentence")
_OF_REPLY = ("usage", "cost", "duration", "stop_reason", "error")


def inspect(
    run_id: RunId = None,
    *,
    iteration: Annotated[
        int | None, typer.Option("--iteration", "-i", metavar="N", min=1, help="Which one. Default: the newest.")
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Show every message whole.")] = False,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show what the model saw at an iteration.

    Beside it stands the record: how each entry was shown, and the decisions that made it so.
    """

    async def read(path: Path, journal: Journal, row: RunRow) -> Json:
        return await read_inspection(journal, row, iteration)

    shown = read_run(run_id, db, read)
    if as_json:
        output.print_json(shown)
    else:
        _print(shown, full=full)


async def read_inspection(journal: Journal, row: RunRow, iteration: int | None) -> Json:
    """Read one iteration of a run back, with all that explains it: what ``inspect --json`` gives.

    Raises:
        NothingThere: The run made no such iteration.
    """
    import msgspec

    from repertory.context import decode_decision, replay, sent_body

    run_id = row.started.run_id
    calls = [call for call in await journal.read_model_calls(run_id) if call.called.purpose == "agent"]
    if not calls:
        raise output.NothingThere(
            f"run {run_id} has not called a model yet; repertory ledger {run_id} shows its record"
        )
    made = sorted({call.called.iteration for call in calls})
    wanted = made[-1] if iteration is None else iteration
    if wanted not in made:
        raise output.NothingThere(f"run {run_id} has no iteration {wanted}; it made {made[0]} to {made[-1]}")
    call = [call for call in calls if call.called.iteration == wanted][-1]
    bodies = [decision.body for decision in await journal.read_decisions(run_id) if decision.iteration <= wanted]
    plan = replay(bodies)
    entries = await journal.read_entries(run_id, stop=call.called.position)
    replied = call.replied
    return {
        "run_id": run_id,
        "agent": row.started.agent,
        **_fields(call.called, _OF_CALL),
        "iterations": made[-1],
        "record_tokens": sum(entry.tokens for entry in entries),
        "request": sent_body(await journal.read_request(run_id, call.called.call)),
        "record": [
            {**_fields(entry, _OF_ENTRY), "shown": plan.representation(entry), "what": describe_entry(entry)}
            for entry in entries
        ],
        "decisions": [
            {
                **_fields(decision, _OF_DECISION),
                "arithmetic": msgspec.to_builtins(decision.arithmetic),
                "edits": len(decision.edits),
            }
            for decision in map(decode_decision, bodies)
        ],
        **{name: msgspec.to_builtins(getattr(replied, name, None)) for name in _OF_REPLY},
        "prompt_tokens": None if replied is None else replied.usage.prompt_tokens,
    }


def _fields(of: object, names: tuple[str, ...]) -> Json:
    return {name: getattr(of, name) for name in names}


# --- for a person -----------------------------------------------------------------------------------------


def _print(shown: Json, *, full: bool) -> None:
    from rich.console import Group
    from rich.table import Table

    screen = output.console()
    output.show(screen, _heading(shown))
    two_columns = screen.is_terminal and screen.width >= WIDE
    record = list(_record_part(shown, screen.width * 2 // 5 - 4 if two_columns else screen.width))
    view = list(_view_part(shown["request"], full=full))
    if two_columns:
        side_by_side = Table(box=None, expand=True, pad_edge=False, padding=(0, 3, 0, 0), show_header=False)
        side_by_side.add_column(ratio=2)
        side_by_side.add_column(ratio=3)
        side_by_side.add_row(Group(*record), Group(*view))
        output.show(screen, side_by_side)
    else:
        output.show(screen, *record, "", *view)


def _heading(shown: Json) -> RenderableType:
    from rich.text import Text

    heading = Text.assemble(
        (output.one_line(shown["agent"]), "bold"),
        f" {output.one_line(shown['run_id'])}\n",
        (f"iteration {shown['iteration']} of {shown['iterations']}", "bold"),
        f", {output.one_line(shown['model'])}, {output.timestamp(shown['at'])}\n",
    )
    usage = shown["usage"]
    if usage is None:
        heading.append(f"no answer yet; about {output.tokens(shown['prompt_estimate'])} tokens were sent\n")
    elif shown["error"] is not None:
        heading.append(f"failed: {output.one_line(shown['error'])}\n", style="red")
    else:
        heading.append(
            f"saw {output.tokens(shown['prompt_tokens'])} tokens ({output.tokens(usage['cache_read_tokens'])} from the "
            f"cache), wrote {output.tokens(usage['output_tokens'])}, {output.dollars(shown['cost'])}, "
            f"{shown['duration']:.1f} s; the record held about {output.tokens(shown['record_tokens'])}\n"
        )
    return heading


def _record_part(shown: Json, width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("THE RECORD, and how each entry was shown", style="bold")
    rows = [
        (
            str(entry["position"]),
            str(entry["iteration"]),
            Text(entry["shown"], style=_COLOURS.get(entry["shown"], "")),
            output.tokens(entry["tokens"]),
            output.one_line(entry["what"]),
        )
        for entry in shown["record"]
    ]
    yield output.table(("#", "IT", "SHOWN", "TOKENS", "WHAT"), rows, width=width, right="#|IT|TOKENS")
    decided = "DECISIONS so far" if shown["decisions"] else "No decision has changed the view so far."
    yield Text(f"\n{decided}", style="bold")
    for decision in shown["decisions"]:
        yield Text(f"it {decision['iteration']:<3} {decision['kind']}: {output.one_line(decision['sentence'])}")


def _view_part(request: Json, *, full: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text("WHAT THE MODEL SAW", style="bold")
    tools = [tool.get("name", "?") for tool in request.get("tools", ())]
    yield Text(f"tools: {output.one_line(', '.join(tools)) or 'none'}", style="dim")
    for where, content in (
        ("system", request.get("system", ())),
        *((m["role"], m["content"]) for m in request["messages"]),
    ):
        blocks: list[dict[str, Any]] = [{"type": "text", "text": content}] if isinstance(content, str) else content
        for block in blocks:
            label, text = describe_wire_block(block)
            marked = "  ⟵ cached up to here" if "cache_control" in block else ""
            yield Text(f"{where} {label}{marked}", style="magenta" if where == "system" else "cyan")
            yield Text(text if full else preview(text), overflow="fold")
    if not full:
        yield Text("--full shows every message whole, --json the whole request", style="dim")
