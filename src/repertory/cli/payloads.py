"""``repertory payload show`` and ``repertory payload history``: the payload of a run and its versions."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import typer
from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import open_run
from repertory.cli.options import DATABASE, RUN, option
from repertory.cli.output import one_line

if TYPE_CHECKING:
    from repertory.llm.messages import Json

payload = typer.Typer(help="Show the payload of a run, and how it came to be so.")


@payload.command()
@command
async def show(
    run_id: str | None = RUN,
    *,
    version: int | None = option("--version N", "As it was. Default: as it is.", min=1),
    db: str | None = DATABASE,
) -> Answer:
    """Show the payload of a run as JSON."""
    from repertory.service.reports import read_payload

    async with open_run(run_id, db) as (source, row):
        shown = await read_payload(source.journal, row, version)
    text = json.dumps(shown["payload"], indent=2, ensure_ascii=False)
    return Answer({"database": source.database, **shown}, lambda _: output.write(text))


@payload.command()
@command
async def history(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """Show who changed what in a run's payload, version by version."""
    from repertory.service.reports import read_payload_history

    async with open_run(run_id, db) as (source, row):
        shown = await read_payload_history(source.journal, row)
    return Answer({"database": source.database, **shown}, lambda screen: _print_history(screen, shown["versions"]))


def _print_history(screen: Console, versions: list[Any]) -> None:
    for version in versions:
        who = " ".join(one_line(version[name]) for name in ("author", "source") if version[name])
        line = Text.assemble((f"#{version['version']:<4}", "bold"), f"{output.timestamp(version['at'])}  {who}")
        screen.print(line, soft_wrap=True)
        for change in version["changes"]:
            screen.print(Text(f"     {_words(change)}"), soft_wrap=True)
        for conflict in version["conflicts"]:
            first = f"version {conflict['version']} came first" if conflict["version"] else one_line(conflict["reason"])
            screen.print(Text(f"     not applied, {first}: {_words(conflict)}", style="yellow"), soft_wrap=True)


def _words(change: Json) -> str:
    value = "" if change["op"] == "remove" else f" {json.dumps(change['value'], ensure_ascii=False)}"
    return one_line(f"{change['op']} {change['path']}{value}", 200)
