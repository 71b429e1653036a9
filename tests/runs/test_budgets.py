"""A tree of fifty agents under adversarial timing, cut off twice: it never begins more runs than it may, and takes at
most its bound of money and tokens and one call, by the books of the provider."""

from __future__ import annotations

import random
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
import trio
from msgspec import structs

import repertory as rp
from repertory.errors import LimitExceeded, RunFailed
from repertory.llm import with_prices
from repertory.llm.messages import Text, ToolResult
from repertory.llm.model import BrokenOff, ModelRequest, ModelResponse, Reservation, Usage
from repertory.llm.profiles import OFFLINE, Amount
from repertory.runs import live
from repertory.runs.accounting import Spending, Tally
from repertory.supervisor import runtime
from repertory.testing import FunctionModel, call

RUNS, LONGEST = 50, 1_000  # tokens of an answer; each thousand costs a dollar
PROFILE = with_prices(structs.replace(OFFLINE, name="dollars"), input=0.0, output=1_000.0)
ONE_CALL = Amount(1.0, LONGEST + 10)
POLICY = rp.ContextPolicy(rhythm="strict", window=1, summarize_every=2, deduplicate=False)


@rp.tool(effect="pure")
async def read(page: int) -> str:
    """Read a page."""
    return "\n".join(f"page {page}, line {line}: a ship called at berth {line % 7}" for line in range(60))


class Provider(FunctionModel):
    """A model that takes its time, breaks off now and then, and keeps the books: what was begun is billed."""

    def __init__(self, chance: random.Random) -> None:
        super().__init__(self._answer, profile=PROFILE)
        self.chance = chance
        self.billed = Amount()
        self.calls = self.broken_off = self.cut_off = self.summaries = 0
        self.again = self.most_again = 0  # calls that are made once more at once

    async def complete(self, request: ModelRequest, *, on_event: Any = None) -> ModelResponse:
        """Answer, perhaps at the second attempt."""
        again = self.chance.random() < 0.05
        if again:
            self.broken_off += 1
            self._bill(request.max_tokens)
            on_event(BrokenOff())
        self.again += again
        self.most_again = max(self.most_again, self.again)
        try:
            return await super().complete(request, on_event=on_event)
        finally:
            self.again -= again

    def _bill(self, written: int) -> Usage:
        self.billed += Amount(written / 1_000, written + 10)
        return Usage(input_tokens=10, output_tokens=written)

    async def _answer(self, request: ModelRequest) -> ModelResponse:
        self.calls += 1
        self.summaries += not request.tools
        usage = self._bill(request.max_tokens)  # all that was reserved, so that nothing hides what was not
        try:
            await trio.sleep(self.chance.choice([0.0, 0.0, 0.001, 1.0, 1.0, 7.0, 30.0]))
        except trio.Cancelled:
            self.cut_off += 1
            raise
        return ModelResponse(content=self._says(request), usage=usage)

    def _says(self, request: ModelRequest) -> tuple[Any, ...]:
        members = [
            tool.input_schema["properties"]["agent"]["enum"] for tool in request.tools if tool.name == "delegate"
        ]
        seen = sum(isinstance(block, ToolResult) for message in request.messages for block in message.content)
        if members and not seen:
            return tuple(call("delegate", agent=members[0][0], task=f"part {n}") for n in range(9))
        if self.chance.random() < 0.02:
            return (Text("Done."),)
        return (call("read", page=self.chance.randrange(1_000)),)


def team(limits: rp.Limits) -> rp.Agent:
    """A lead, nine branches, and nine leaves below each: more than may begin, and none comes to an end by itself."""
    many: dict[str, Any] = {"tools": [read], "context": POLICY, "max_tokens": LONGEST}
    wide = rp.Delegation(parallel=9)
    leaf = rp.Agent("leaf", limits=rp.Limits(iterations=1_000), **many)
    branch = rp.Agent("branch", team=[leaf], delegation=wide, limits=rp.Limits(iterations=1_000, runs=99), **many)
    return rp.Agent("lead", team=[branch], delegation=wide, limits=limits, **many)


async def overspent(seed: int) -> tuple[list[str], Provider]:
    """Grow a tree, cut it off twice, let it end, and say in which way it went beyond its limits."""
    chance = random.Random(seed)
    provider = Provider(chance)
    limits = rp.Limits(
        iterations=1_000, runs=RUNS, cost=float(chance.randint(150, 250)), tokens=chance.randint(150, 250) * 1_000
    )
    agent = team(limits)
    async with rp.open_journal() as journal:
        for stage in range(3):
            async with rp.open_supervisor(
                journal=journal, model=provider, summaries=provider, clock=trio.current_time, drain_timeout=0
            ) as supervisor:
                run = await supervisor.spawn(agent, "Grow.", run_id="run-1")
                if stage < 2:
                    await trio.sleep(chance.uniform(1.0, 15.0))
                else:
                    with suppress(RunFailed):
                        await run.wait_result()
                    error = (await journal.read_run("run-1")).error or "none"
        runs = len(await journal.read_runs())
    beyond = 1 + provider.most_again
    found = [] if error.startswith("LimitExceeded") else [f"it ended with {error}"]
    if runs > RUNS:
        found.append(f"{runs} runs began")
    if limits.cost is not None and provider.billed.cost > limits.cost + beyond * ONE_CALL.cost:
        found.append(f"${provider.billed.cost:.2f} were billed, and it may spend ${limits.cost:.2f}")
    if limits.tokens is not None and provider.billed.tokens > limits.tokens + beyond * ONE_CALL.tokens:
        found.append(f"{provider.billed.tokens} tokens were billed, and it may use {limits.tokens}")
    return found, provider


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.nightly) for seed in range(1, 20))])
async def test_fifty_agents_take_at_most_their_bound_and_one_call(seed: int, autojump_clock: Any) -> None:
    """Summaries and calls that a restart cut off included; and what broke off under way, once more."""
    found, provider = await overspent(seed)
    assert found == []
    assert provider.calls > RUNS
    assert provider.cut_off
    assert provider.broken_off
    assert provider.summaries


async def is_found(kind: str) -> bool:
    """Whether one of a few trees goes beyond its limits in this way: a single one may just not have the luck."""
    for seed in range(8):
        found, _ = await overspent(seed)
        if any(kind in words for words in found):
            return True
    return False


class Unreserved(Spending):
    """Looks whether something is left of what was billed, and reserves nothing."""

    @contextmanager
    def reserved(self, call: int, at_most: Amount, *, must_fit: bool = False) -> Generator[Reservation]:
        """Make a call where something is left."""
        self.check()
        yield Reservation(at_most)


async def test_without_reservations_they_take_more(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: who only looks at what was spent begins side by side what none could begin alone."""

    def billed(tally: Tally, run_id: str) -> Amount:
        figures = tally.tree(run_id)
        return Amount(figures.cost_seen, figures.tokens_billed)

    monkeypatch.setattr(live, "Spending", Unreserved)
    monkeypatch.setattr(Tally, "taken", billed)
    assert await is_found("were billed")


async def test_without_room_kept_for_them_more_runs_begin(autojump_clock: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control: who only counts the runs on record lets those side by side all begin."""

    def look(parent: Any, run_id: str) -> bool:
        if run_id not in parent.tally.by_run and len(parent.tally.by_run) >= RUNS:
            raise LimitExceeded("as many are on record as may be")
        return False

    monkeypatch.setattr(runtime, "reserve_room", look)
    assert await is_found("runs began")
