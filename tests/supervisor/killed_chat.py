"""A process that asks a run one question after the other. Made to be killed; goes on when it is started again.

Usage: ``python killed_chat.py DATABASE``. Prints what ``killing`` reads.
"""

from __future__ import annotations

import sys
import time

import repertory as rp
from killing import asked
from repertory.llm.messages import ToolResult, text_of
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

RUN_ID = "talk"
QUESTIONS = [f"How many jars are on shelf {number}?" for number in range(6)]


@rp.tool(effect="idempotent")
def count(shelf: str) -> str:
    """Count the jars of a shelf."""
    time.sleep(0.01)  # most kills shall fall into a call
    return f"{shelf} has some jars"


def _answer(request: ModelRequest) -> object:
    asked()
    last = request.messages[-1].content[-1]
    if isinstance(last, ToolResult):
        return f"I counted: {text_of(last)}"
    return call("count", shelf=text_of(last).split()[-1])


async def main(database: str) -> None:
    """Ask what has no answer yet, and what has one as well: each question has an id of its own."""
    clerk = rp.Agent("clerk", tools=[count], model=FunctionModel(_answer))
    async with rp.open_supervisor(database, durability="process") as supervisor:
        print("OPEN", flush=True)
        run = await supervisor.spawn(clerk, QUESTIONS[0], run_id=RUN_ID)
        await run.wait_result()
        answers = [await run.ask(question, message_id=f"q{number}") for number, question in enumerate(QUESTIONS)]
        print("\n".join(answers), flush=True)


if __name__ == "__main__":
    rp.run(main, sys.argv[1])
