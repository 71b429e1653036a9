"""A process whose tools and sub-agents change one payload. Made to be killed; goes on when it is started again.

Usage: ``python killed_payloads.py DATABASE BACKEND STEPS``. Prints ``OPEN`` once the work begins, ``STEP`` for each
call, ``DONE`` at its end. Calls beyond so many steps stand still, so that no kill comes too late.
"""

from __future__ import annotations

import itertools
import os
import sys
import threading
import time
from typing import Any

import msgspec

import repertory as rp
from repertory.errors import RunNotFound
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUN_ID = "run-killed"
STEPS = 4
WORKERS = 3
_steps = itertools.count(1)


class Tally(msgspec.Struct):
    """Who did what."""

    total: int = 0
    by_worker: dict[str, int] = msgspec.field(default_factory=dict[str, int])
    steps: list[str] = msgspec.field(default_factory=list[str])
    sources: list[rp.SourceRecord] = msgspec.field(default_factory=list[rp.SourceRecord])


@rp.tool(effect="transactional")
def count(who: str, number: int, context: rp.ToolContext) -> rp.ToolOutput:
    """Count a step."""
    os.write(1, b"STEP\n")  # in one piece, from whichever thread
    if next(_steps) > int(sys.argv[3]):
        threading.Event().wait()
    time.sleep(0.02)  # most kills shall fall into a call
    context.payload.set(("by_worker", who), number + 1)
    context.payload.append("steps", f"{who}/{number}")
    page = f"https://shelf/{number}"
    return rp.ToolOutput("a jar\n" * 400, source_type="web", url=page)


def results(request: ModelRequest) -> int:
    """How many calls have results."""
    return sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)


def answer(request: ModelRequest) -> Any:
    """Count four times, or have three workers do it."""
    done, task = results(request), text_of(request.messages[0].content).split("\n", 1)[0]
    if text_of(request.system) == "You work.":
        return call("count", who=task, number=done) if done < STEPS else "counted"
    return [call("delegate", agent="worker", task=f"w{number}") for number in range(WORKERS)] if not done else "done"


def team() -> rp.Agent:
    """A lead whose workers write three places of its payload."""
    scope = rp.PayloadScope(write=("by_worker", "steps", "sources"))
    worker = rp.Agent(
        "worker",
        instructions="You work.",
        tools=[count],
        model=FunctionModel(answer),
        payload=Tally,
        payload_scope=scope,
    )
    return rp.Agent("lead", team=[worker], model=FunctionModel(answer), payload=Tally)


async def main(database: str) -> None:
    """Begin the run, or go on with it, to its end."""
    async with rp.open_supervisor(database, durability="process") as supervisor:
        print("OPEN", flush=True)
        try:
            run = await supervisor.resume(RUN_ID, agent=team(), context="the application's")
        except RunNotFound:
            run = await supervisor.spawn(team(), "Count the jars.", run_id=RUN_ID, context="the application's")
        await run.wait_result()
        print("DONE", flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1], backend=sys.argv[2])  # type: ignore[arg-type]
