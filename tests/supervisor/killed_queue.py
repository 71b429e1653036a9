"""A process that asks for more runs than may be under way at once. Made to be killed; goes on when it is started again.

Usage: ``python killed_queue.py DATABASE``. Prints ``OPEN`` once it begins, the id of each run that was acknowledged,
and ``END`` at its end.
"""

from __future__ import annotations

import sys

import anyio

import repertory as rp
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUNS = 18
MAX_RUNS = 3
_under_way: list[object] = []


@rp.tool(effect="idempotent")
async def work() -> str:
    """Work."""
    _under_way.append(None)
    assert len(_under_way) <= MAX_RUNS, "more runs are under way than may be"
    await anyio.sleep(0.005)  # most kills shall fall into a call
    _under_way.pop()
    return "worked"


def _answer(request: ModelRequest) -> object:
    return "Done." if isinstance(request.messages[-1].content[-1], ToolResult) else call("work")


async def main(database: str) -> None:
    """Take up what was left, and ask for the others."""
    clerk = rp.Agent("clerk", tools=[work], model=FunctionModel(_answer))
    async with rp.open_supervisor(database, durability="process", max_runs=MAX_RUNS) as supervisor:
        print("OPEN", flush=True)

        async def ask(number: int) -> None:
            run = await supervisor.spawn(clerk, f"{number}", run_id=f"run-{number}", priority=number % 3)
            print(run.id, flush=True)
            assert await run.wait_result() == "Done."

        async with anyio.create_task_group() as tasks:
            for number in range(RUNS):
                tasks.start_soon(ask, number)
        print("END", flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1])
