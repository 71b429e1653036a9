"""``repertory webhooks``: what they were told of, and telling them again."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from repertory.cli import output
from repertory.cli.databases import At, databases_to_read, open_to_read
from repertory.cli.options import AS_JSON, DATABASE, PORT, SOCKET, argument, option
from repertory.cli.output import one_line
from repertory.cli.steering import with_service

if TYPE_CHECKING:
    from repertory.record.records import WebhookTried
    from repertory.service.client import ServiceClient

webhooks = typer.Typer(help="Look at what webhooks were told of, and tell them again.")


@webhooks.command("ls")
def list_attempts(
    *,
    limit: int = option("--limit N", "How many at most.", 50, min=1),
    db: str | None = DATABASE,
    as_json: bool = AS_JSON,
) -> None:
    """List the newest attempts to tell webhooks of changes of state."""
    import anyio
    import msgspec

    path = databases_to_read(db)[0]

    async def read() -> list[tuple[int, WebhookTried]]:
        async with open_to_read(path) as journal:
            return await journal.read_webhooks(limit=limit)

    found = anyio.run(read)
    if as_json:
        attempts = [{"seq": seq, **msgspec.structs.asdict(tried)} for seq, tried in found]
        output.print_json({"database": str(path), "attempts": attempts})
        return
    if not found:
        sys.stdout.write("No webhook was told of anything yet.\n")
        return
    rows = [
        (
            str(tried.change),
            one_line(tried.run_id),
            tried.outcome,
            str(tried.attempt),
            str(tried.status or ""),
            output.timestamp(tried.at),
            one_line(f"{tried.url} {tried.error}", 300),
        )
        for _, tried in found
    ]
    screen = output.console()
    headers = ("CHANGE", "RUN", "OUTCOME", "ATTEMPT", "STATUS", "AT", "WEBHOOK")
    output.show(screen, output.table(headers, rows, width=screen.width))


@webhooks.command("redeliver")
def redeliver(
    change: int = argument("CHANGE", "The number of a change of state, as webhooks ls has it.", ...),
    *,
    url: str | None = option("--url URL", "The webhook. May be left out where there is only one."),
    db: str | None = DATABASE,
    socket: Path | None = SOCKET,
    port: int | None = PORT,
    as_json: bool = AS_JSON,
) -> None:
    """Have the service tell a webhook of a change again, now. Fails where the webhook does not take it."""
    import msgspec

    async def again(client: ServiceClient) -> dict[str, object]:
        return msgspec.structs.asdict(await client.redeliver(change, url))

    tried = with_service(At(db, socket, port), again)
    if as_json:
        output.print_json(tried)
    else:
        output.say(f"{tried['outcome']}: {tried['url']} answered {tried['status'] or tried['error']}")
    if tried["outcome"] != "delivered":
        raise typer.Exit(output.FAILED)
