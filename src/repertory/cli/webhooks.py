"""``repertory webhooks``: lists deliveries, and repeats one."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import typer
from rich.console import Console

from repertory.cli import output
from repertory.cli.commands import Answer, command
from repertory.cli.databases import ask_service, open_database
from repertory.cli.options import DATABASE, At, argument, option

if TYPE_CHECKING:
    from repertory.service.views import WebhookAttempt

webhooks = typer.Typer(help="Look at deliveries to webhooks, and repeat them.")


@webhooks.command("ls")
@command
async def list_attempts(
    *, limit: int = option("--limit N", "How many at most.", 50, min=1, max=100_000), db: str | None = DATABASE
) -> Answer:
    """List the newest deliveries of changes of state to webhooks."""
    from repertory.service.views import attempt_view

    async with open_database(db) as source:
        attempts = [attempt_view(*found) for found in await source.journal.read_webhooks(limit=limit)]
    return Answer({"database": source.database, "attempts": attempts}, partial(_print, attempts=attempts))


def _print(screen: Console, attempts: list[WebhookAttempt]) -> None:
    rows = [
        (
            str(tried.change),
            tried.run_id,
            tried.outcome,
            str(tried.attempt),
            str(tried.status or ""),
            output.duration(time.time() - tried.at),
            output.one_line(f"{tried.error} {tried.url}", 300),
        )
        for tried in attempts
    ]
    headers = ("CHANGE", "RUN", "OUTCOME", "ATTEMPT", "STATUS", ">AGE", "WEBHOOK")
    output.print_table(screen, headers, rows, gap=False)
    if not attempts:
        output.write("No deliveries to webhooks yet.")


@webhooks.command()
@command
async def redeliver(
    change: int = argument("CHANGE", "The number of a change of state, as webhooks ls shows it.", ...),
    *,
    url: str | None = option("--url URL", "The webhook. May be left out if there is only one."),
    at: At,
) -> Answer:
    """Deliver a change to a webhook again, now. Fails if the webhook does not take it."""
    async with ask_service(at) as client:
        tried = await client.redeliver(change, url)

    def show(_screen: Console) -> None:
        output.say(f"{tried.outcome}: {tried.url} answered {tried.status or tried.error}")

    return Answer(tried, show, None if tried.outcome == "delivered" else typer.Exit(output.FAILED))
