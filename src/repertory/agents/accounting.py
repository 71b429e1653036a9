"""What runs have cost: their figures, what a plain loop would have cost, and what they may still spend."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import anyio
import msgspec

from repertory.agents.agent import Agent
from repertory.errors import LimitExceeded
from repertory.llm.model import Usage
from repertory.llm.profiles import ModelProfile, cost_of
from repertory.record import Journal, Record, RunStatistics
from repertory.record.records import ModelReplied
from repertory.record.statistics import count_in

T = TypeVar("T")


def plain_usage(profile: ModelProfile, *, prompt: int, previous_prompt: int, output: int) -> Usage:
    """What a plain loop's call would have been billed; all are tokens, ``previous_prompt`` is 0 for the first call.

    It appends and never edits, so all of its previous prompt is read from the cache and the rest is written.
    """
    if profile.cache.breakpoints == 0 or prompt < profile.cache.minimum_tokens:
        return Usage(input_tokens=prompt, output_tokens=output)
    read = min(previous_prompt, prompt) if previous_prompt >= profile.cache.minimum_tokens else 0
    return Usage(cache_read_tokens=read, cache_write_tokens=prompt - read, output_tokens=output)


def with_plain(
    replied: ModelReplied, profile: ModelProfile, *, view_estimate: int, record_estimate: int, previous: int
) -> ModelReplied:
    """Write into the record of an answered call what a plain loop's call in its place would have been.

    Args:
        replied: The record.
        profile: Of the model that was called.
        view_estimate: Tokens that the prompt was estimated to have.
        record_estimate: Tokens that a plain loop's prompt is estimated to have, by the same estimator; it is corrected
            by how far off the first estimate was.
        previous: Tokens of the plain loop's prompt before; 0 for the first call.
    """
    prompt = replied.usage.prompt_tokens
    plain = round(record_estimate * prompt / view_estimate) if view_estimate else prompt
    usage = plain_usage(profile, prompt=plain, previous_prompt=previous, output=replied.usage.output_tokens)
    return msgspec.structs.replace(replied, plain_tokens=plain, plain_cost=cost_of(profile, usage))


class Tally:
    """The figures of every run of one tree. Whoever holds it sees them grow with what becomes durable.

    Attributes:
        by_run: What is on record.
        under_way: The most, in US dollars, that each run's call under way can cost.
        cut_off: The same of the calls that nobody saw the end of: they are billed as a rule, and nobody says how much.
        changed: Set when a call under way has ended or says what it can cost.
    """

    def __init__(self, by_run: dict[str, RunStatistics] | None = None) -> None:
        self.by_run = dict(by_run or {})
        self.under_way: dict[str, float] = {}
        self.cut_off: dict[str, float] = {}
        self.changed = anyio.Event()

    def of(self, run_id: str) -> RunStatistics:
        """The figures of one run."""
        return self.by_run.get(run_id, RunStatistics())

    def tree(self, run_id: str) -> RunStatistics:
        """The sum over a run and all runs below it."""
        return sum(_below(self.by_run, run_id), start=self.of(run_id))


class Tallies:
    """Keeps the tallies of a journal's trees up with its commits, for as long as somebody holds them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._of_root: WeakValueDictionary[str, Tally] = WeakValueDictionary()
        self.close = journal.observe(self._committed)

    def begin(self, root_id: str) -> Tally:
        """A tally for a tree that has no record yet."""
        return self._of_root.setdefault(root_id, Tally())

    async def open(self, root_id: str) -> Tally:
        """The tally of a tree that has a record."""
        tally = self._of_root.get(root_id)
        if tally is None:
            tally = self._of_root[root_id] = Tally(await self._journal.read_statistics(root_id))
        return tally

    def _committed(self, records: Sequence[Record]) -> None:
        for record in records:
            # The id of a run below another begins with the other's and a dot.
            tally = self._of_root.get(getattr(record, "run_id", "").partition(".")[0])
            if tally is not None:
                count_in(tally.by_run, record)


class Spending:
    """What a run may spend by its own limit and by those of the runs above it: reserved before a call, settled after.

    Attributes:
        bounded: Whether there is such a limit.
    """

    def __init__(self, run_id: str, agent: Agent[Any], tally: Tally, *, above: Spending | None = None) -> None:
        self._run_id = run_id
        self._tally = tally
        self._bounds: tuple[tuple[str, Agent, float], ...] = above._bounds if above is not None else ()
        if agent.limits.cost is not None:
            self._bounds = ((run_id, agent, agent.limits.cost), *self._bounds)
        self.bounded = bool(self._bounds)

    async def count_cut_off(self, journal: Journal) -> None:
        """Count the calls of the tree that earlier processes did not see the end of, at the most that they can cost."""
        for run_id in {self._run_id, *self._tally.by_run}:
            calls = await journal.read_model_calls(run_id)
            self._tally.cut_off[run_id] = sum(row.called.cost_at_most for row in calls if row.replied is None)

    def call(self) -> AbstractAsyncContextManager[None]:
        """Make one model call, once there is money for it.

        As long as something is left, one call may begin whatever it costs. Another one beside it waits where both
        together could cost more than is left, so that a tree spends at most its bound and one call.

        Raises:
            LimitExceeded: What may be spent has been spent.
        """
        return self._reserved() if self._bounds else nullcontext()

    @asynccontextmanager
    async def _reserved(self) -> AsyncGenerator[None]:
        tally, run_id = self._tally, self._run_id
        while self._has_to_wait():
            await tally.changed.wait()
        tally.under_way[run_id] = math.inf  # until the request is made, which says how much it can cost
        try:
            yield
        except BaseException as error:
            cost = tally.under_way[run_id]
            if cost != math.inf and not isinstance(error, Exception):  # else it has ended, and the record says how
                tally.cut_off[run_id] = tally.cut_off.get(run_id, 0.0) + cost
            raise
        finally:
            del tally.under_way[run_id]
            self._wake()

    def expect(self, cost: float) -> None:
        """Say what the call under way can cost at most, in US dollars."""
        if self._run_id in self._tally.under_way:
            self._tally.under_way[self._run_id] = cost
            self._wake()

    def _wake(self) -> None:
        changed, self._tally.changed = self._tally.changed, anyio.Event()
        changed.set()

    def _has_to_wait(self) -> bool:
        wait = False
        for run_id, agent, bound in self._bounds:
            spent = self._tally.tree(run_id).cost_seen + _tree_sum(self._tally.cut_off, run_id)
            if spent >= bound:
                raise LimitExceeded(
                    f"run {run_id} and those below it have spent ${spent:.4f}; the limit of agent {agent.name} is "
                    f"${bound:.4f} (limits.cost)"
                )
            beside = _tree_sum(self._tally.under_way, run_id)
            wait = wait or (beside > 0 and spent + beside >= bound)
        return wait


def _below(figures: Mapping[str, T], run_id: str) -> list[T]:
    """What there is for the runs below one, by their ids."""
    return [figure for name, figure in list(figures.items()) if name.startswith(f"{run_id}.")]


def _tree_sum(amounts: Mapping[str, float], run_id: str) -> float:
    return amounts.get(run_id, 0.0) + sum(_below(amounts, run_id))
