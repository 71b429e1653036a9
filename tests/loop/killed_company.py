"""A process whose lead has its sub-agents work in the background. Made to be killed; goes on when it is started again.

Usage: ``python killed_company.py DATABASE``. Prints what ``killing`` reads.
"""

from __future__ import annotations

import sys
import time

import repertory as rp
from killing import asked
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUN_ID = "run-killed"
PARTS = [f"shelf {number}" for number in range(5)]
STEPS = 4


@rp.tool(effect="idempotent")
def count(step: int) -> str:
    """Count some jars."""
    time.sleep(0.01)  # most kills shall fall into a call
    return f"{step} jars"


def _results(request: ModelRequest) -> list[str]:
    return [text_of(b) for message in request.messages for b in message.content if isinstance(b, ToolResult)]


def _work(request: ModelRequest) -> object:
    asked()
    steps = len(_results(request))
    return f"counted {text_of(request.messages[0].content)}" if steps == STEPS else call("count", step=steps)


def _lead(request: ModelRequest) -> object:
    asked()
    results = _results(request)
    if not results:
        return [call("delegate_start", agent="worker", task=part) for part in PARTS]
    if "you have every report" in results[-1]:
        return "\n".join(line.strip() for result in results for line in result.splitlines() if "counted" in line)
    return call("delegate_collect", wait="any")


def company() -> rp.Agent:
    """A lead that starts five workers, of which two work at once, and collects what has ended."""
    worker = rp.Agent("worker", tools=[count], model=FunctionModel(_work), context=None)
    policy = rp.Delegation(background=True, parallel=2)
    return rp.Agent("lead", team=[worker], model=FunctionModel(_lead), context=None, delegation=policy)


async def main(database: str) -> None:
    """Begin the run, or go on with it, to its end."""
    async with rp.open_supervisor(database, durability="process") as supervisor:
        known = await supervisor.runs()
        print("OPEN", flush=True)
        if known:
            run = await supervisor.resume(RUN_ID, agent=company())
        else:
            run = await supervisor.spawn(company(), "Count all jars.", run_id=RUN_ID)
        print(await run.wait_result(), flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1])
