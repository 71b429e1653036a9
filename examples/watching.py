"""Watch a run, pause it, and send it a message while it waits."""

import repertory as rp
from repertory.runs.events import ModelAnswered, StateChanged, ToolEnded
from repertory.testing import ScriptedModel, call


@rp.tool(effect="pure")
def measure(place: str) -> str:
    """Measure the temperature at a place."""
    return f"{place}: {len(place)}.0 degrees"


weather = rp.Agent("weather", instructions="Report temperatures.", tools=[measure])
ANSWER = "Harbour 7.0, hill 4.0 degrees."


async def main() -> None:
    """Print each event of interest."""
    model = ScriptedModel([call("measure", place="harbour"), call("measure", place="hill"), ANSWER])
    async with rp.open_supervisor(model=model) as supervisor:
        run = await supervisor.spawn(weather, "How warm is it at the harbour?")
        run.pause()  # takes effect at the next boundary: before a model call, never within one
        async for event in run.events():
            match event:
                case StateChanged(state="paused"):
                    print("paused")
                    await run.send("The hill as well, please.")  # durable now, read when the run continues
                    run.resume()
                case ModelAnswered(iteration=iteration, usage=usage, cost=cost):
                    print(f"iteration {iteration}: {usage.prompt_tokens} prompt tokens, ${cost:.6f}")
                case ToolEnded(tool=tool, status=status, characters=characters):
                    print(f"  {tool}: {status}, {characters} characters")
        print(f"{run.state}: {await run.wait_result()}")


if __name__ == "__main__":
    rp.run(main)
