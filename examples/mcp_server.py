"""Offers a tool and an agent to MCP clients, such as an editor; ``mcp_client.py`` is a client that starts this.

It needs ``pip install "repertory[mcp]"``."""

import repertory as rp
from repertory.mcp.server import serve_over_stdio

MENU = ["Monday: leek soup, 4.20 euros", "Tuesday: dal with rice, 4.80 euros"]


@rp.tool(effect="pure")
def search_menu(query: str) -> str:
    """Search this week's menu for a word; one dish a line."""
    return "\n".join(dish for dish in MENU if query.lower() in dish.lower())


clerk = rp.Agent("clerk", instructions="Answer questions about the canteen.", tools=[search_menu])


@rp.tool(deadline=None)
async def ask_clerk(question: str) -> str:
    """Ask somebody who knows the canteen."""
    async with rp.open_supervisor() as supervisor:
        return await (await supervisor.spawn(clerk, question)).wait_result()


if __name__ == "__main__":
    rp.run(serve_over_stdio, [search_menu, ask_clerk])
