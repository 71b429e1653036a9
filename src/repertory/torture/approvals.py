"""Calls that wait for a person or for their result, in processes that are killed; and what must be true of them.

The decisions change with every process, and each return of ``approve``, ``deny``, ``give_result`` and ``send`` is
written down outside of the process. So decisions that are forgotten or asked for twice, calls made without one, and
messages that are lost or read twice are found.
"""

from __future__ import annotations

import json
import os
import random
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import anyio

from repertory.agents import Agent, Limits
from repertory.errors import RunError
from repertory.llm.messages import Text, ToolResult
from repertory.llm.model import ModelRequest
from repertory.runs.waiting_calls import WaitingCall
from repertory.supervisor import Run
from repertory.testing import FunctionModel, call
from repertory.testing.models import Answer
from repertory.tools import ResultLater, Tool, ToolContext, tool
from repertory.torture.judging import query, read_results, read_transcripts

Lie = Literal["", "unasked", "early"]
"""What a control does wrong: a tool needs no approval; or a decision is written down before it is durable."""

TOOLS: Final = ("pay", "book", "order")
EDITED: Final = 1000  # added to an amount when an approval changes it
_WORD: Final = "word-"  # how each message begins
_TALKS: Final = 0.3  # share of decisions before which somebody says something


def asking_agent(tell: Callable[[str], None], *, steps: int, pause: float, lie: Lie = "") -> Agent:
    """An agent that calls at each step an unsafe and an idempotent tool with approval, and one with a later result.

    Args:
        tell: Called with a line when an effect takes place.
        steps: Turns in which it calls tools.
        pause: Seconds that a tool takes before and after its effect.
    """

    async def work(what: str) -> None:
        await anyio.sleep(pause)
        tell(what)
        await anyio.sleep(pause)

    @tool(approval="never" if lie == "unasked" else "always")
    async def pay(amount: int, context: ToolContext) -> str:
        """Do what must not be done twice."""
        await work(f"pay {context.call_id} {amount} {context.idempotency_key}")
        return f"paid {amount}"

    @tool(approval="always", effect="idempotent")
    async def book(amount: int, context: ToolContext) -> str:
        """Do what may be done twice under one key."""
        await work(f"book {context.call_id} {amount} {context.idempotency_key}")
        return f"booked {amount}"

    @tool
    async def order(amount: int, context: ToolContext) -> ResultLater:
        """Ask for what comes later."""
        await work(f"order {context.call_id} {amount} {context.idempotency_key}")
        return ResultLater("an order")

    tools: list[Tool] = [pay, book, order]

    def answer(request: ModelRequest) -> Answer:
        results = sum(isinstance(block, ToolResult) for each in request.messages for block in each.content)
        step = results // len(tools)
        if step >= steps:
            return f"{results} calls"
        return [call(each.name, call_id=f"{each.name}{step}", amount=step) for each in tools]

    limits = Limits(iterations=10 * steps)
    return Agent("clerk", tools=tools, model=FunctionModel(answer), context=None, limits=limits)


async def decide_for_ever(run: Run[Any], tell: Callable[[str], None], pause: float, lie: Lie) -> None:
    """Decide waiting calls at random, say something before some, and write down what was accepted, until cancelled."""
    chance = random.Random(os.urandom(8))

    async def act(what: str, do: Callable[[], Any]) -> None:
        if lie == "early":
            tell(what)
            await anyio.sleep(4 * pause)
        await do()
        if lie != "early":
            tell(what)

    while True:
        for each in run.waiting():
            await anyio.sleep(chance.random() * pause)
            what, decide = _mind(run, each, chance)
            word = f"{_WORD}{os.urandom(8).hex()}"
            try:
                if chance.random() < _TALKS:  # now, as the run does not end before the call is decided
                    await act(f"said {word}", partial(run.send, word))
                await act(f"told {each.call_id} {what}", decide)
            except RunError:
                continue  # the run is about to be resumed, or there is an earlier result
        await anyio.sleep(pause / 4)


def _mind(run: Run[Any], waiting: WaitingCall, chance: random.Random) -> tuple[str, Callable[[], Any]]:
    call_id = waiting.call_id
    if waiting.kind == "result":
        result = chance.randrange(10**6)
        return f"result {result}", lambda: run.give_result(call_id, result)
    amount = int(waiting.arguments["amount"])
    choice = chance.choice(("allow", "edit", "deny"))
    if choice == "deny":
        return "denied 0", lambda: run.deny(call_id, "not today")
    if choice == "edit":
        return f"allowed {amount + EDITED}", lambda: run.approve(call_id, arguments={"amount": amount + EDITED})
    return f"allowed {amount}", lambda: run.approve(call_id)


def approval_problems(database: Path, account: Sequence[str]) -> list[str]:
    """Compare decisions and effects with the record of a run that has ended.

    The account is kept outside of the process: a line for each effect, accepted decision and message.
    """
    words = [line.split(" ") for line in account]
    effects: dict[str, list[tuple[int, str]]] = {}
    for line in words:
        if line[0] in TOOLS:
            effects.setdefault(line[1], []).append((int(line[2]), line[3]))
    told = [(line[1], " ".join(line[2:])) for line in words if line[0] == "told"]
    events = query(database, "SELECT seq, type, body FROM events ORDER BY seq")
    intents = dict(query(database, "SELECT call_id, min(seq) FROM tool_intents GROUP BY call_id"))
    statuses = dict(query(database, "SELECT call_id, status FROM tool_outcomes"))
    kept: dict[tuple[str, str], list[tuple[int, Any]]] = {}
    for seq, kind, text in events:
        body = json.loads(text)
        if "call_id" in body:
            kept.setdefault((kind, body["call_id"]), []).append((seq, body))
    results = {call_id: text for (_, call_id), text in read_results(database).items()}
    found = [f"effect of {call_id}, which has no result" for call_id in effects.keys() - results.keys()]
    decided: dict[str, str] = {}
    for call_id, result in results.items():
        done, step = effects.get(call_id, []), int(call_id.lstrip("abcdefghijklmnopqrstuvwxyz"))
        interrupted = "effect unknown" in result
        if len({key for _, key in done}) > 1 or (len(done) > 1 and not call_id.startswith("book")):
            found.append(f"{call_id} was done {len(done)} times")
        if call_id.startswith("order"):
            given = kept.get(("ResultGiven", call_id), [])
            decided[call_id] = f"result {given[0][1]['result']}" if given else ""
            if len(given) > 1 or (given and result != str(given[0][1]["result"])) or bool(given) == interrupted:
                found.append(f"{call_id} was given {len(given)} results, and has {result!r}")
            if not interrupted and len(done) != 1:
                found.append(f"{call_id} has a result, and was done {len(done)} times")
            continue
        asked, said = kept.get(("ApprovalRequested", call_id), []), kept.get(("ApprovalDecided", call_id), [])
        if len(asked) != 1 or len(said) != 1:
            found.append(f"{call_id} was asked {len(asked)} times and decided {len(said)} times")
            continue
        ((at, decision),) = said
        amount = step if decision["arguments"] is None else int(decision["arguments"]["amount"])
        decided[call_id] = f"allowed {amount}" if decision["allowed"] else "denied 0"
        if not decision["allowed"]:
            if done or call_id in intents:
                found.append(f"{call_id} was denied, and was done {len(done)} times")
            continue
        if any(each != amount for each, _ in done):
            found.append(f"{call_id} was allowed with {amount}, and was done with {done}")
        if intents.get(call_id, 0) < at:
            found.append(f"{call_id} was begun before it was allowed")
        if statuses[call_id] == "ok" and not done:
            found.append(f"{call_id} was allowed, and never done")
        if interrupted and not call_id.startswith("pay"):
            found.append(f"{call_id} was left undone")
    heard = {line[1] for line in words if line[0] == "said"}
    read = Counter(
        block.text
        for turns in read_transcripts(database).values()
        for _, content in turns
        for block in content
        if isinstance(block, Text) and block.text.startswith(_WORD)
    )
    found += [f"{word} was said and is read {read[word]} times" for word in heard | set(read) if read[word] != 1]
    for call_id, times in Counter(call_id for call_id, _ in told).items():
        if times > 1:
            found.append(f"{call_id} was decided {times} times")
    found += [
        f"of {call_id} it was said {what!r}, and kept {decided.get(call_id)!r}"
        for call_id, what in told
        if decided.get(call_id) != what
    ]
    return found
