"""``repertory mcp``: agents as a server of the Model Context Protocol, over the standard streams."""

from __future__ import annotations

from repertory.cli.commands import command
from repertory.cli.databases import runs_database
from repertory.cli.options import CONTEXT, OWN_DATABASE, HowServed, Offered
from repertory.cli.running import find_object
from repertory.errors import ConfigurationError


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
    from repertory.service.offers import Offers
    from repertory.service.run_tools import ABOUT, run_tools
    from repertory.supervisor import open_supervisor

    if not offered.agent and offered.root is None:
        raise ConfigurationError(
            "nothing to serve: name an agent with --agent module:name, or a folder with --root DIR"
        )
    # Before the database is opened: a mistake in these leaves none behind.
    handed, offers = find_object(context, "context"), Offers(offered.agent, root=offered.root, limits=how.limits)
    async with open_supervisor(
        runs_database(db), model=how.model, summaries=how.summaries, redact=offered.redact
    ) as supervisor:
        await serve_over_stdio(run_tools(Control(supervisor, offers, context=handed)), instructions=ABOUT)
