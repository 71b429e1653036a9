"""An agent with one tool. It uses Claude if ``ANTHROPIC_API_KEY`` is set, and the offline model if not."""

import repertory as rp

MENU = """\
Monday: leek soup with bread, 4.20 euros
Tuesday: dal with rice, 4.80 euros
Wednesday: closed"""


@rp.tool(effect="pure")
def search_menu(query: str) -> str:
    """Search this week's menu for a word; one line a day."""
    lines = [line for line in MENU.splitlines() if query.lower() in line.lower()]
    return "\n".join(lines) or "nothing found"


clerk = rp.Agent("clerk", instructions="Answer questions about the canteen.", tools=[search_menu])


async def main() -> None:
    """Ask one question, and keep the journal in a file."""
    async with rp.open_supervisor("canteen.db") as supervisor:
        run = await supervisor.spawn(clerk, "What does the dal cost?")
        print(await run.wait_result())
        print(f"{run.statistics().iterations} model calls; look at them: repertory inspect --db canteen.db")


if __name__ == "__main__":
    rp.run(main)
