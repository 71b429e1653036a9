"""``repertory payload show`` and ``repertory payload history``: the payload of a run, and how it came to be so."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer

from repertory.cli import output
from repertory.cli.databases import (
    Database,
    read_run,
)
from repertory.cli.options import AS_JSON, DATABASE, RUN, option
from repertory.cli.output import clean, one_line

if TYPE_CHECKING:
    from repertory.llm.messages import Json
    from repertory.record import Journal, RunRow

payload = typer.Typer(help="Show the payload of a run, and how it came to be so.")


@payload.command()
def show(
    run_id: str | None = RUN,
    *,
    version: int | None = option("--version N", "As it was. Default: as it is.", min=1),
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """Show the payload of a run as JSON."""
    from repertory.service.reports import read_payload

    async def read(path: Database, journal: Journal, row: RunRow) -> Json:
        return {"database": str(path), **await read_payload(journal, row, version)}

    shown = read_run(run_id, db, read)
    if as_json:
        output.print_json(shown)
    else:
        print(clean(json.dumps(shown["payload"], indent=2, ensure_ascii=False)))  # noqa: T201 - a command's own answer


@payload.command()
def history(run_id: str | None = RUN, *, db: str | None = DATABASE, as_json: bool = AS_JSON) -> None:
    """Show who changed what in a run's payload, version by version."""
    from repertory.service.reports import read_payload_history

    async def read(path: Database, journal: Journal, row: RunRow) -> Json:
        return {"database": str(path), **await read_payload_history(journal, row)}

    shown = read_run(run_id, db, read)
    if as_json:
        output.print_json(shown)
    else:
        _print_history(shown["versions"])


def _print_history(versions: list[Any]) -> None:
    from rich.text import Text

    screen = output.console()
    for version in versions:
        who = " ".join(one_line(version[name]) for name in ("author", "source") if version[name])
        line = Text.assemble((f"#{version['version']:<4}", "bold"), f"{output.timestamp(version['at'])}  {who}")
        screen.print(line, soft_wrap=True)
        for change in version["changes"]:
            screen.print(Text(f"     {_words(change)}"), soft_wrap=True)
        for conflict in version["conflicts"]:
            first = f"version {conflict['version']} came first" if conflict["version"] else one_line(conflict["reason"])
            screen.print(Text(f"     not made, {first}: {_words(conflict)}", style="yellow"), soft_wrap=True)


def _words(change: Json) -> str:
    value = "" if change["op"] == "remove" else f" {json.dumps(change['value'], ensure_ascii=False)}"
    return one_line(f"{change['op']} {change['path']}{value}", 200)
