"""A lead and its two scouts are killed in the middle of their work; the next process resumes all three."""

import os
import signal
import subprocess
import sys

import repertory as rp
from repertory.llm import ModelRequest, ToolUse, text_of
from repertory.testing import FunctionModel, call


@rp.tool(effect="idempotent")
def measure(place: str) -> str:
    """Measure the depth. The first process does not survive it at the pier."""
    if place == "pier" and "first" in sys.argv:
        os.kill(os.getpid(), signal.SIGKILL)
    return f"{place}: {len(place)} metres"


def play(request: ModelRequest) -> str | ToolUse | list[ToolUse]:
    """Do what Claude would do: the lead sends two scouts, and each measures once."""
    last = text_of(request.messages[-1].content)
    if "metres" in last:
        return last
    places = ["bay", "pier"] if text_of(request.system) == "Lead." else []
    return [call("delegate", agent="scout", task=place) for place in places] or call("measure", place=last)


async def main() -> None:
    """Run the same code in both processes: by the run id, the second finds the run and continues it."""
    lead = rp.Agent("lead", instructions="Lead.", team=[rp.Agent("scout", instructions="Measure.", tools=[measure])])
    async with rp.open_supervisor("depths.db", model=FunctionModel(play)) as supervisor:
        run = await supervisor.spawn(lead, "How deep is the harbour?", run_id="harbour")
        print(await run.wait_result(), f"({len(await supervisor.runs())} runs)")


if __name__ == "__main__":
    if "first" not in sys.argv:
        print("ended with", subprocess.run([sys.executable, __file__, "first"], check=False).returncode)  # noqa: S603
    rp.run(main)
