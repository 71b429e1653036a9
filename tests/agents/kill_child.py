"""A process that works on one run, and goes on with it when it is started again. Made to be killed.

Usage: ``python kill_child.py research|effects DATABASE FOLDER``. Prints ``DONE`` and the answer as JSON.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import repertory as rp
from repertory.errors import RunNotFound
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUN_ID = "run-kill"
QUESTION = "How does the pantry keep count of its jars, who refills it, and what happens when a jar breaks?"
STEPS = 12


def effects_agent(folder: Path) -> rp.Agent:
    """An agent whose tools leave one line in a file outside the journal each time that they run."""
    ledger = folder / "effects.txt"

    def leave(kind: str, key: str) -> str:
        with ledger.open("a", encoding="utf-8") as file:
            file.write(f"{kind} {key}\n")
        time.sleep(0.002)  # leaves room for a kill between effect and outcome
        return f"{kind} done"

    @rp.tool(effect="unsafe")
    def fire(number: int, context: rp.ToolContext) -> str:
        """Do what must not be done twice."""
        return leave("unsafe", context.call_id)

    @rp.tool(effect="idempotent")
    def put(number: int, context: rp.ToolContext) -> str:
        """Do what may be done twice under one key."""
        return leave("idempotent", context.idempotency_key)

    @rp.tool(effect="pure", repeatable=False)
    def look(number: int, context: rp.ToolContext) -> str:
        """Only look."""
        return leave("pure", context.call_id)

    def answer(request: ModelRequest) -> object:
        results = [block for m in request.messages for block in m.content if isinstance(block, ToolResult)]
        step = len(results) // 3
        if step < STEPS:
            return [call(name, call_id=f"{name}{step}", number=step) for name in ("fire", "put", "look")]
        interrupted = [text_of(result) for result in results if "effect unknown" in text_of(result)]
        return f"{len(results)} results, {len(interrupted)} interrupted"

    return rp.Agent("effects", tools=[fire, put, look], model=FunctionModel(answer), context=None)


async def main(kind: str, database: str, folder: Path) -> None:
    """Begin the run, or go on with it, to its end."""
    agent = effects_agent(folder) if kind == "effects" else rp.research_team(folder, model="offline")
    async with rp.open_supervisor(database, durability="process") as supervisor:
        print("OPEN", flush=True)
        try:
            run = await supervisor.resume(RUN_ID, agent=agent)
        except RunNotFound:
            run = await supervisor.spawn(agent, QUESTION, run_id=RUN_ID)
        print("DONE", json.dumps(await run.wait_result()), flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1], sys.argv[2], Path(sys.argv[3]))
