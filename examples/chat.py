"""A chat: a run that gets further questions, streams its answers, and continues in the next process."""

import repertory as rp
from repertory.runs.streaming import TextStreamed
from repertory.testing import ScriptedModel, call


@rp.tool(effect="pure")
def tides(town: str) -> str:
    """When the tide turns in a town."""
    return {"Lagos": "at 06:12", "Oslo": "at 09:40"}.get(town, "nobody knows")


lagos, oslo = call("tides", town="Lagos"), call("tides", town="Oslo")
clerk = rp.Agent("clerk", tools=[tides], model=ScriptedModel([lagos, "At 06:12.", oslo, "At 09:40.", "Lagos."]))


async def main() -> None:
    """Ask, ask again and print the stream, close everything, and ask once more."""
    async with rp.open_supervisor("talk.db") as supervisor:
        run = await supervisor.spawn(clerk, "When does the tide turn in Lagos?", run_id="tides")
        print(await run.wait_result())
        await run.send("And in Oslo?")
        print([piece.text async for piece in run.stream(from_start=True) if isinstance(piece, TextStreamed)])
    async with rp.open_supervisor("talk.db") as supervisor:
        run = await supervisor.resume("tides", agent=clerk)
        print(await run.ask("Which of the two is first?", message_id="q3"))


if __name__ == "__main__":
    rp.run(main)
