"""``repertory content`` and ``repertory payload``: what a run has stored whole, and the versions of its payload."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING

import msgspec
import typer
from rich.console import Console
from rich.text import Text

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import of_run, open_database
from repertory.cli.options import DATABASE, RUN, argument, option
from repertory.cli.output import one_line

if TYPE_CHECKING:
    from repertory.llm.messages import Json

content = typer.Typer(help="Show what runs have stored whole.")
payload = typer.Typer(help="Show the payload of a run, and how it came to be so.")


@content.command("ls")
@command
async def list_contents(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """List what a run and its sub-agents have stored.

    KEPT says where the whole is: in the content store, in the ledger (from which it is read), or gone.
    """
    from repertory.service.reports import read_contents

    async with of_run(open_database(db), run_id, db) as (source, found):
        contents = await read_contents(source.journal, found)

    def show(screen: Console) -> None:
        if not contents:
            output.say(f"run {found} has stored nothing; only results of more than 1,000 characters are stored")
            return
        columns = "CITATION=content_id RUN=run_id SOURCE FORMAT >CHARACTERS=length KEPT >AGE=at URL"
        own = partial(output.table, columns, contents, run_id=lambda each: each["run_id"].removeprefix(found) or "·")
        output.print_table(screen, own(source=lambda each: one_line(each["source"], 30)))
        held = [each["length"] for each in contents if each["kept"] == "store"]
        whole = f"the store holds {len(held)} of them, {sum(held):,} characters"
        output.show(screen, f"{output.count(len(contents), 'content')}; {whole}")

    return Answer({"database": source.database, "run_id": found, "contents": contents}, show)


@content.command("show")
@command
async def show_content(
    citation: str = argument("CITATION", "The citation, as content ls and ledger name it.", ...),
    *,
    db: str | None = DATABASE,
) -> Answer:
    """Show one stored content whole."""
    async with open_database(db) as source:
        found = await source.journal.read_content(citation)
    if found is None:
        raise output.NothingThere(
            f"there is no content {citation!r} in {source.database}; repertory content ls RUN lists those of a run"
        )
    if not found.body and found.length:
        raise output.NothingThere(
            f"content {citation!r} ({found.length:,} characters) was cleaned up and is gone; "
            f"repertory ledger {found.run_id} has what was shown of it"
        )
    return Answer({"database": source.database, **msgspec.to_builtins(found)}, lambda _: output.write(found.body))


@payload.command("show")
@command
async def show_payload(
    run_id: str | None = RUN,
    *,
    version: int | None = option("--version N", "As it was. Default: as it is.", min=1),
    db: str | None = DATABASE,
) -> Answer:
    """Show the payload of a run as JSON."""
    from repertory.service.reports import read_payload

    async with of_run(open_database(db), run_id, db) as (source, found):
        shown = await read_payload(source.journal, await source.journal.read_run(found), version)
    text = json.dumps(shown["payload"], indent=2, ensure_ascii=False)
    return Answer({"database": source.database, **shown}, lambda _: output.write(text))


@payload.command()
@command
async def history(run_id: str | None = RUN, *, db: str | None = DATABASE) -> Answer:
    """Show who changed what in a run's payload, version by version."""
    from repertory.service.reports import read_payload_history

    async with of_run(open_database(db), run_id, db) as (source, found):
        shown = await read_payload_history(source.journal, await source.journal.read_run(found))
    lines = [line for version in shown["versions"] for line in _lines(version)]
    return Answer({"database": source.database, **shown}, lambda screen: screen.print(*lines, sep="\n", soft_wrap=True))


def _lines(version: Json) -> Iterator[Text]:
    who = " ".join(one_line(version[name]) for name in ("author", "source") if version[name])
    yield Text.assemble((f"#{version['version']:<4}", "bold"), f"{output.timestamp(version['at'])}  {who}")
    for change in version["changes"]:
        yield Text(f"     {_words(change)}")
    for conflict in version["conflicts"]:
        first = f"version {conflict['version']} came first" if conflict["version"] else one_line(conflict["reason"])
        yield Text(f"     not applied, {first}: {_words(conflict)}", style="yellow")


def _words(change: Json) -> str:
    value = "" if change["op"] == "remove" else f" {json.dumps(change['value'], ensure_ascii=False)}"
    return one_line(f"{change['op']} {change['path']}{value}", 200)
