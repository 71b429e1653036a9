"""A small team whose tools have effects of all four classes, and an account of them outside the process."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

from repertory.agents import Agent, Limits
from repertory.llm.messages import ToolResult
from repertory.llm.model import ModelRequest
from repertory.record.records import Effect, EventLogged
from repertory.testing import FunctionModel, call
from repertory.testing.models import Answer
from repertory.tools import ToolContext, tool

RUN_ID: Final = "run-torture"
TASK: Final = "Do every piece of work once, and say how many pieces there were."
COMMITTED: Final = "torture-effect"  # the type of event that a transactional call commits

Tell: TypeAlias = Callable[[str, str], None]  # (effect class, the call's permanent name): one effect took place

EFFECTS: Final[dict[str, Effect]] = {"fire": "unsafe", "put": "idempotent", "look": "pure", "note": "transactional"}
"""The tools, with their declared effects."""


def effects_team(
    tell: Tell,
    *,
    steps: int,
    pause: float,
    reuse: bool = True,
    unsafe: Effect = "unsafe",
    levels: Literal[2, 3] = 2,
    placement: Sequence[str] = (),
) -> Agent:
    """Make a lead and a helper that call a tool of every effect class at each step.

    Args:
        tell: Called by a tool when its effect takes place; a transactional tool commits an event instead.
        steps: Turns of the lead. In its second turn it delegates to the helper, who makes half as many.
        pause: About how many seconds a tool takes, before and after its effect, so that a kill meets it at work.
        reuse: Whether the model repeats the same call ids in every turn, as local servers do: the engine must tell
            the calls apart.
        levels: With 3 the lead delegates to a deputy, who works like the lead, and has the helper.
        placement: Labels of the machines where the deputy may run; () to run it with the lead.
        unsafe: The declared effect of the tool that must not run twice; another one is false, for controls.

    The answer depends only on ``steps``, however often the process dies.
    """

    def work(effect: str, context: ToolContext) -> str:
        wait = random.Random(f"{context.run_id} {context.call_id}").random() * pause
        time.sleep(wait)
        name = context.idempotency_key if effect == "idempotent" else context.call_id
        if effect == "transactional":
            body = {"call": f"{context.run_id} {context.call_id}"}
            context.commit([EventLogged(run_id=context.run_id, type=COMMITTED, body=body, at=time.time())])
        else:
            tell(effect, f"{context.run_id} {context.call_id} {name}")
        time.sleep(pause - wait)
        return f"{effect} work is done"

    @tool(effect=unsafe)
    def fire(number: int, context: ToolContext) -> str:
        """Do what must not be done twice."""
        return work("unsafe", context)

    @tool(effect="idempotent")
    def put(number: int, context: ToolContext) -> str:
        """Do what may be done twice under one key."""
        return work("idempotent", context)

    @tool(effect="pure", repeatable=False)
    def look(number: int, context: ToolContext) -> str:
        """Only look."""
        return work("pure", context)

    @tool(effect="transactional")
    def note(number: int, context: ToolContext) -> str:
        """Write into the journal itself."""
        return work("transactional", context)

    tools = [fire, put, look, note]

    def play(turns: int, member: str) -> Callable[[ModelRequest], Answer]:
        def answer(request: ModelRequest) -> Answer:
            results = sum(isinstance(block, ToolResult) for m in request.messages for block in m.content)
            step = (results - bool(member and results > 2 * len(EFFECTS))) // len(EFFECTS)
            if step >= turns:
                return f"{results} pieces of work"
            asked: list[tuple[str, dict[str, object]]] = [(each.name, {"number": step}) for each in tools]
            if member and step == 1:
                asked.append(("delegate", {"agent": member, "task": TASK}))
            return [
                call(name, call_id=f"call_{index}" if reuse else "", **arguments)
                for index, (name, arguments) in enumerate(asked)
            ]

        return answer

    limits = Limits(iterations=10 * steps)
    agent = Agent("helper", tools=tools, model=FunctionModel(play(max(1, steps // 2), "")), context=None, limits=limits)
    for name in ("deputy", "lead")[3 - levels :]:
        model, where = FunctionModel(play(steps, agent.name)), placement if name == "deputy" else ()
        agent = Agent(name, tools=tools, team=[agent], model=model, context=None, limits=limits, placement=where)
    return agent


def expected_answer(steps: int) -> str:
    """Compute the team's answer."""
    return f"{steps * len(EFFECTS) + (steps > 1)} pieces of work"
