"""A process with a team whose tools have every kind of effect. Made to be killed; goes on when it is started again.

Usage: ``python killed_team.py DATABASE FIRES``. Prints ``OPEN`` once the work begins, ``FIRE`` whenever it fires, and
``DONE`` at its end. From as many fires on none comes to its end.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from typing import Any

import repertory as rp
from repertory.errors import RunNotFound
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUN_ID = "run-killed"
STEPS = 6
_fires = itertools.count(1)


@rp.tool(effect="unsafe")
def fire(number: int) -> str:
    """Do what must not be done twice."""
    os.write(1, b"FIRE\n")  # at once: print() writes the end of a line by itself, after that of another thread
    if next(_fires) >= int(sys.argv[2]):
        threading.Event().wait()  # so that the kill falls into a call
    time.sleep(0.01)
    return f"fired {number}"


@rp.tool(effect="idempotent")
def put(number: int) -> str:
    """Do what may be done twice under one key."""
    time.sleep(0.005)
    return f"put {number} " + "jar " * 400


@rp.tool(effect="pure")
def look(number: int) -> str:
    """Only look; every other call is a repetition."""
    return f"{number} on the shelf " + "jar " * 400


def _steps(request: ModelRequest) -> int:
    return sum(isinstance(block, ToolResult) for message in request.messages for block in message.content) // 3


def _worker(request: ModelRequest) -> Any:
    step = _steps(request)
    if step == STEPS:
        return "All jars are counted."
    return [call("fire", number=step), call("put", number=step), call("look", number=step // 2)]


def _lead(request: ModelRequest) -> Any:
    if _steps(request):
        return "The team is done."
    return [call("delegate", agent="worker", task=f"Count shelf {number}.") for number in range(3)]


def team() -> rp.Agent:
    """A lead with workers, whose record is summarised and whose old results are taken back."""
    policy = rp.ContextPolicy(rhythm="strict", window=2, strict_chars=0, summarize_every=3)
    worker = rp.Agent(
        "worker", tools=[fire, put, look, *rp.context_tools()], model=FunctionModel(_worker), context=policy
    )
    return rp.Agent("lead", team=[worker], model=FunctionModel(_lead))


async def main(database: str) -> None:
    """Begin the run, or go on with it, to its end."""
    async with rp.open_supervisor(database, durability="process") as supervisor:
        print("OPEN", flush=True)
        try:
            run = await supervisor.resume(RUN_ID, agent=team())
        except RunNotFound:
            run = await supervisor.spawn(team(), "Count the jars.", run_id=RUN_ID)
        await run.wait_result()
        print("DONE", flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1])
