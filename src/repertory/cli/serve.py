"""``repertory serve``: the long-lived process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from repertory.cli.options import Backend, Loop, OwnDatabase, SummaryModel


def serve(
    *,
    db: OwnDatabase = None,
    socket: Annotated[
        Path | None,
        typer.Option("--socket", metavar="PATH", help="The unix socket. Default: ctl.sock in the runtime folder."),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", metavar="N", min=0, max=65535, help="A port of 127.0.0.1 instead; 0 for any."),
    ] = None,
    agent: Annotated[
        list[str] | None,
        typer.Option("--agent", metavar="MODULE:NAME", help="An agent that runs can be started with. May be repeated."),
    ] = None,
    root: Annotated[
        Path | None, typer.Option("--root", metavar="DIR", help="Offer the research team, for this folder.")
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", metavar="NAME", help="The model of agents that name none.")
    ] = None,
    summary_model: SummaryModel = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on with what an earlier process left unfinished.")
    ] = False,
    redact: Annotated[
        list[str] | None,
        typer.Option(
            "--redact", metavar="NAME", help="An environment variable whose value is never recorded. May be repeated."
        ),
    ] = None,
    backend: Loop = Backend.trio,
) -> None:
    """Keep a supervisor running that can be asked over HTTP, with a page to watch it.

    SIGTERM and Ctrl-C bring the runs to their next boundary, from where they can be resumed; a second one kills.
    """
    from repertory.agents import run
    from repertory.cli.databases import runs_database
    from repertory.cli.output import say
    from repertory.cli.running import summaries_by
    from repertory.service import Options, run_service

    async def main() -> None:
        async with summaries_by(summary_model) as summaries:
            options = Options(
                database=runs_database(db),
                socket=socket,
                port=port,
                agents=agent or (),
                root=root,
                resume=resume,
                model=model,
                summaries=summaries,
                redact=redact or (),
            )
            await run_service(options, report=say)

    run(main, backend=backend.value)
