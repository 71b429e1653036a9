"""``repertory serve`` and ``repertory mcp``: offer agents to others, from this process."""

from __future__ import annotations

from pathlib import Path

from repertory.cli.commands import command
from repertory.cli.databases import runs_database
from repertory.cli.options import CONTEXT, OWN_DATABASE, HowServed, Offered, option
from repertory.cli.output import say
from repertory.cli.running import find_object
from repertory.errors import ConfigurationError


@command
async def serve(
    *,
    db: str | None = OWN_DATABASE,
    socket: Path | None = option("--socket PATH", "The unix socket. Default: ctl.sock in the runtime folder."),
    port: int | None = option("--port N", "A port of 127.0.0.1 instead; 0 for any.", min=0, max=65535),
    offered: Offered,
    context: str | None = CONTEXT,
    how: HowServed,
    resume: bool = option("--resume", "Continue what an earlier process left unfinished.", False),
    read_only: bool = option("--read-only", "Refuse everything that changes something.", False),
    keep_finished: float | None = option(
        "--keep-finished DAYS", "Remove runs for good once they ended so many days ago. Default: keep all.", min=0
    ),
    label: list[str] = option(
        "--label LABEL", "On PostgreSQL: what this machine offers to runs that ask for it. May be repeated.", ()
    ),
    name: str | None = option("--name NAME", "On PostgreSQL: what this machine is called. Default: host and pid."),
    lease: float | None = option(
        "--lease SECONDS",
        "On PostgreSQL: if it is silent for so long, others take over its runs. Default: 30.",
        min=0.5,
    ),
    telemetry: str | None = option(
        "--telemetry MODULE:NAME", "What makes traces and metrics: a Telemetry, or a function that makes one."
    ),
    log: Path | None = option("--log FILE", "Write the log to this file instead of standard error."),
) -> None:
    """Keep a supervisor running, with an HTTP interface and a page.

    On SIGTERM or Ctrl-C the runs stop at their next boundary and can be resumed; a second one kills them. SIGHUP
    reopens the log file. Sockets that systemd passes replace --socket and --port.
    """
    from repertory.service import Options, run_service
    from repertory.service.logfile import with_times

    options = Options(
        database=runs_database(db),
        socket=socket,
        port=port,
        agents=offered.agent,
        context=find_object(context, "context"),
        root=offered.root,
        read_only=read_only,
        resume=resume,
        model=how.model,
        limits=how.limits,
        summaries=how.summaries,
        redact=offered.redact,
        keep_finished=keep_finished,
        telemetry=find_object(telemetry, "telemetry"),
        log=log,
        name=name,
        labels=label,
        lease=lease,
    )
    await run_service(options, report=with_times(say))


@command
async def mcp(
    *,
    db: str | None = OWN_DATABASE,
    offered: Offered,
    context: str | None = CONTEXT,
    how: HowServed,
) -> None:
    """Serve agents and their runs over MCP, to a client such as an editor.

    The client starts this command and talks to it over standard input and output. Each agent is a tool that takes a
    task and gives the answer; other tools start, follow and steer runs. When the client leaves, its runs stop at their
    next boundary and can be resumed.
    """
    from repertory.mcp.server import serve_over_stdio
    from repertory.service.control import Control
    from repertory.service.logfile import showing_warnings
    from repertory.service.offers import Offers
    from repertory.service.run_tools import ABOUT, run_tools
    from repertory.supervisor import open_supervisor

    if not offered.agent and offered.root is None:
        raise ConfigurationError(
            "nothing to serve: name an agent with --agent module:name, or a folder with --root DIR"
        )
    # Before the database is opened: a mistake in these leaves none behind.
    handed, offers = find_object(context, "context"), Offers(offered.agent, root=offered.root, limits=how.limits)
    opened = open_supervisor(runs_database(db), model=how.model, summaries=how.summaries, redact=offered.redact)
    with showing_warnings():
        async with opened as supervisor:
            await serve_over_stdio(run_tools(Control(supervisor, offers, context=handed)), instructions=ABOUT)
