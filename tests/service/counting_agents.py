"""An agent whose effects are counted outside of the process, in the folder $SERVE_FOLDER."""

from __future__ import annotations

import os
from pathlib import Path

import repertory as rp
from repertory.llm.messages import Text, ToolResult
from repertory.llm.model import ModelRequest
from repertory.testing import FunctionModel, call

FOLDER = Path(os.environ["SERVE_FOLDER"])


def _count(file: str, line: str) -> None:
    with (FOLDER / file).open("a", encoding="utf-8") as counted:
        counted.write(f"{line}\n")


@rp.tool(effect="unsafe")
async def fire(context: rp.ToolContext) -> str:
    """Do what must not be done twice."""
    _count("fired", f"{context.run_id} {context.call_id}")
    return "fired"


@rp.tool(effect="idempotent", approval="always")
async def pay(context: rp.ToolContext) -> str:
    """Pay somebody; the other side knows its key."""
    _count("paid", f"{context.run_id} {context.idempotency_key}")
    return "paid"


async def _answer(request: ModelRequest) -> object:
    blocks = [block for message in request.messages for block in message.content]
    done = sum(isinstance(block, ToolResult) for block in blocks)
    if done < 3:
        return call(("fire", "pay", "fire")[done], call_id=f"c{done}")
    said = sum(isinstance(block, Text) and "Please hurry." in block.text for block in blocks)
    return f"hurried {said} times"


counter = rp.Agent("counter", tools=[fire, pay], model=FunctionModel(_answer), context=None)
