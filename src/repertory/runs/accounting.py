"""Accounting: what runs have cost, what a plain loop would have cost, and what runs may still spend."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeAlias
from weakref import WeakValueDictionary

from repertory._ids import is_below, is_in_tree, root_of, unit_of
from repertory._repeated_event import RepeatedEvent
from repertory.actors.scheduler import current_scheduler
from repertory.agents.agent import Agent
from repertory.errors import LimitExceeded
from repertory.llm.model import Reservation, Usage
from repertory.llm.profiles import Amount, ModelProfile, cost_of
from repertory.record import Journal, Record, RunStatistics
from repertory.record.records import EventLogged, ModelCalled, ModelReplied
from repertory.record.statistics import COUNTED, count_in

Call: TypeAlias = tuple[str, int]
"""A model call: its run's id and its number."""

_NOTHING: Final = Amount()
_ELSEWHERE: Final = 0  # instead of a call's number (from 1): stands for all calls of a run on another machine


def plain_usage(profile: ModelProfile, *, prompt: int, previous_prompt: int, output: int) -> Usage:
    """What a plain loop's call would have been billed, in tokens; ``previous_prompt`` is 0 for the first call.

    A plain loop appends and never edits, so its whole previous prompt is read from the cache and the rest is written.
    """
    if profile.cache.breakpoints == 0 or prompt < profile.cache.minimum_tokens:
        return Usage(input_tokens=prompt, output_tokens=output)
    read = min(previous_prompt, prompt) if previous_prompt >= profile.cache.minimum_tokens else 0
    return Usage(cache_read_tokens=read, cache_write_tokens=prompt - read, output_tokens=output)


def plain_call(
    usage: Usage, profile: ModelProfile, *, view_estimate: int, record_estimate: int, previous: int
) -> tuple[int, float]:
    """The tokens of the prompt that a plain loop would have sent instead of this call, and what it would have cost.

    Args:
        view_estimate: Estimated tokens of the prompt.
        record_estimate: Estimated tokens of a plain loop's prompt, by the same estimator; corrected by the error of
            ``view_estimate``.
        previous: Tokens of the plain loop's previous prompt; 0 for the first call.
    """
    prompt = usage.prompt_tokens
    plain = round(record_estimate * prompt / view_estimate) if view_estimate else prompt
    unedited = plain_usage(profile, prompt=plain, previous_prompt=previous, output=usage.output_tokens)
    return plain, cost_of(profile, unedited)


class TreeClock:
    """How long a tree of runs has worked, in all processes; it stops while the root is paused or nobody runs it."""

    def __init__(self, elapsed: float) -> None:
        self._elapsed = elapsed
        self._since: float | None = None
        self._now = current_scheduler().now  # anyio's does not work in a callback of asyncio, such as a signal's

    @property
    def going(self) -> bool:
        """Whether the clock is running."""
        return self._since is not None

    @property
    def elapsed(self) -> float:
        """Seconds."""
        return self._elapsed + (self._now() - self._since if self._since is not None else 0.0)

    def run(self, *, on: bool) -> None:
        """Start or stop the clock."""
        self._elapsed, self._since = self.elapsed, self._now() if on else None


class Tally:
    """The figures of every run of one tree. They grow as records become durable.

    Attributes:
        by_run: The figures on record.
        open_calls: The most that each model call without a reply can have used, by run and number. Such a call is under
            way or was cut off; one that was cut off is usually billed, but nobody says how much.
        under_way: The reservations of the calls that this process is making, including those not yet on record.
        tools_run: How many tool calls each run has begun.
    """

    def __init__(
        self,
        by_run: Mapping[str, RunStatistics] | None = None,
        open_calls: Mapping[Call, Amount] | None = None,
        tools_run: Mapping[str, int] | None = None,
        elapsed: float = 0.0,
    ) -> None:
        self.by_run = dict(by_run or {})
        self.open_calls = dict(open_calls or {})
        self.under_way: dict[Call, Reservation] = {}
        self.tools_run = Counter(tools_run or {})
        self.clock = TreeClock(elapsed)
        self.settled = RepeatedEvent()

    def count(self, record: Record) -> None:
        """Count a record that has become durable."""
        count_in(self.by_run, record)
        if isinstance(record, ModelCalled):
            self.open_calls[record.run_id, record.call] = Amount(record.cost_at_most, record.tokens_at_most)
        elif isinstance(record, ModelReplied):
            self.open_calls.pop((record.run_id, record.call), None)

    def of(self, run_id: str) -> RunStatistics:
        """The figures of one run."""
        return self.by_run.get(run_id, RunStatistics())

    def tree(self, run_id: str) -> RunStatistics:
        """The sum over a run and all runs below it."""
        below = (figures for name, figures in list(self.by_run.items()) if is_below(name, run_id))
        return sum(below, start=self.of(run_id))

    def taken(self, run_id: str) -> Amount:
        """What a run and those below it have used; a call that was cut off counts as the most it can have used."""
        # The writer's thread adds to both while they are read here.
        figures = [one for name, one in list(self.by_run.items()) if is_in_tree(name, run_id)]
        cut_off = [
            most
            for call, most in list(self.open_calls.items())
            if call not in self.under_way and is_in_tree(call[0], run_id)
        ]
        billed = (Amount(one.cost_seen + one.cost_lost, one.tokens_billed + one.tokens_lost) for one in figures)
        return sum(billed, start=sum(cut_off, start=_NOTHING))

    def tools(self, run_id: str) -> int:
        """How many tool calls a run and those below it have begun."""
        return sum(count for name, count in self.tools_run.items() if is_in_tree(name, run_id))

    def reserved(self, run_id: str) -> Amount:
        """The most that the calls under way, of a run and of those below it, can use."""
        rooms = (room for call, room in self.under_way.items() if is_in_tree(call[0], run_id))
        return sum((room.at_most + room.lost for room in rooms), start=_NOTHING)

    def promise(self, run_id: str, limits: Mapping[str, Any]) -> None:
        """Reserve what a run on another machine may use, less what it has used already."""
        taken = self.taken(run_id)
        cost, tokens = limits.get("cost", taken.cost), limits.get("tokens", taken.tokens)
        left = Amount(max(cost - taken.cost, 0.0), max(tokens - taken.tokens, 0))
        self.under_way[run_id, _ELSEWHERE] = Reservation(left)
        self.tools_run[run_id] += max(limits.get("tool_calls", 0) - self.tools(run_id), 0)

    async def settle_promise(self, run_id: str, journal: Journal) -> None:
        """Replace the reservation of such a run by what it and those below it have used."""
        figures, open_calls = await journal.read_statistics(run_id), await journal.read_open_calls(run_id)
        tools_run = await journal.count_tools_run(run_id)
        self.by_run.update(figures)
        self.open_calls.update(open_calls)
        self.break_promise(run_id)
        self.tools_run |= Counter(tools_run)  # counts of runs below it may be known already

    def break_promise(self, run_id: str) -> None:
        """Release the reservation of such a run."""
        self.tools_run.pop(run_id, None)
        if (run_id, _ELSEWHERE) in self.under_way:
            self.settle((run_id, _ELSEWHERE))

    def settle(self, call: Call) -> None:
        """Release the reservation of a call: its record says what it used."""
        del self.under_way[call]
        self.settled.set()


class Tallies:
    """Updates the tallies of a journal's trees with each commit, for as long as somebody holds them."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._of_root: WeakValueDictionary[str, Tally] = WeakValueDictionary()
        self.close = journal.observe(self._committed)

    def begin(self, root_id: str) -> Tally:
        """A tally for a tree that has no record yet."""
        return self._of_root.setdefault(root_id, Tally())

    async def open(self, root_id: str) -> Tally:
        """The tally of a tree that has a record."""
        journal = self._journal
        # In a shared journal, other machines may have continued the tree since.
        tally = None if journal.is_shared else self._of_root.get(root_id)
        if tally is None:
            tally = self._of_root[root_id] = Tally(
                await journal.read_statistics(root_id),
                await journal.read_open_calls(root_id),
                await journal.count_tools_run(root_id),
                await journal.read_elapsed(root_id),
            )
        return tally

    def _committed(self, records: Sequence[Record]) -> None:
        for record in records:
            kind = record.type if isinstance(record, EventLogged) else type(record)
            if kind in COUNTED:
                run_id = getattr(record, "run_id", "")
                # A placed run has a tally of its own; in one process the tree's counts everything.
                tally = self._of_root.get(unit_of(run_id)) or self._of_root.get(root_of(run_id))
                if tally is not None:
                    tally.count(record)


class Spending:
    """What a run may use under its own limits and those of the runs above it: reserved before a call, settled after.

    The record of a call is its reservation, and the record of its reply settles it, so a restart forgets nothing. A
    call without a reply counts as the most that it can have used, as does an attempt that broke off and was retried.

    Attributes:
        bounded: Whether there is a limit on money or tokens.
        since: The time of the tree's clock when the run's first iteration began; None before.
    """

    def __init__(self, run_id: str, agent: Agent[Any], tally: Tally, *, above: Spending | None = None) -> None:
        self._run_id = run_id
        self._tally = tally
        self._bounds: tuple[tuple[str, Agent[Any]], ...] = (
            (run_id, agent),
            *(above._bounds if above is not None else ()),
        )
        self.bounded = any(getattr(agent.limits, name) is not None for _, agent in self._bounds for name in _AMOUNTS)
        self.since: float | None = None

    def check(self) -> None:
        """Raise ``LimitExceeded`` if a limit is used up, before anything begins."""
        self.is_full()

    @contextmanager
    def reserved(self, call: int, at_most: Amount, *, must_fit: bool = False) -> Generator[Reservation]:
        """Reserve what a model call can use. In the block, the call is recorded before it is sent, and then its reply.

        As long as something is left, one call may begin, however much it uses; for a further one see
        ``wait_for_room``. So a tree exceeds its bound by at most one call, and by what calls under way use
        again because an attempt broke off.

        Args:
            call: The call's number within the run.
            at_most: The most that it can use.
            must_fit: For a call that is merely useful: all of ``at_most`` must fit beside the calls under way.

        Raises:
            LimitExceeded: It must fit, and does not.
        """
        if must_fit and self.is_full(at_most):
            raise LimitExceeded("what is left under the limits does not suffice for it beside the calls under way")
        room = self._tally.under_way[self._run_id, call] = Reservation(at_most)
        try:
            yield room
        finally:
            self._tally.settle((self._run_id, call))

    def used(self) -> dict[str, tuple[float, float]]:
        """How much of each of the run's own limits on its tree is used, and the limit."""
        (run_id, agent), used = self._bounds[0], dict[str, tuple[float, float]]()
        for name in (*_AMOUNTS, "tool_calls"):
            bound = getattr(agent.limits, name)
            if bound is not None:
                used[name] = self._used(run_id, name), bound
        if agent.limits.seconds is not None and self.since is not None:
            used["seconds"] = self._tally.clock.elapsed - self.since, agent.limits.seconds
        return used

    @property
    def seconds_left(self) -> float:
        """Seconds until the run's own time limit; infinite if it has none, and while the tree's clock stands still."""
        (_, agent), clock = self._bounds[0], self._tally.clock
        if agent.limits.seconds is None or self.since is None or not clock.going:
            return math.inf
        # To the microsecond: less than that, such as an error of rounding, could not be waited for.
        return round(self.since + agent.limits.seconds - clock.elapsed, 6)

    def check_time(self) -> None:
        """Raise ``LimitExceeded`` if the run's own time is over."""
        if self.seconds_left <= 0:
            run_id, agent = self._bounds[0]
            raise LimitExceeded(
                f"run {run_id} has been going for {agent.limits.seconds:g} s, the limit of agent {agent.name} "
                "(limits.seconds)"
            )

    def begin_tool(self) -> None:
        """Count a tool call before it begins, or raise ``LimitExceeded`` if there may be no further one."""
        for run_id, agent in self._bounds:
            most = agent.limits.tool_calls
            if most is not None and self._tally.tools(run_id) >= most:
                raise LimitExceeded(
                    f"run {run_id} and those below it have made {most} tool calls, the limit of agent {agent.name} "
                    "(limits.tool_calls)"
                )
        self._tally.tools_run[self._run_id] += 1

    def promise(self, run_id: str, agent: Agent[Any]) -> dict[str, float]:
        """Reserve a part of what is left for a run on another machine; the part becomes that run's limits.

        It is as much as the run's own agent may use or, if that has no such limit, half of what is left.

        Raises:
            LimitExceeded: Nothing is left beside the calls under way.
        """
        limits = dict[str, float]()
        for name in (*_AMOUNTS, "tool_calls"):
            least: float | None = None
            for above, lead in self._bounds:
                bound = getattr(lead.limits, name)
                if bound is None:
                    continue
                under_way = getattr(self._tally.reserved(above), name, 0)
                left = bound - (self._used(above, name) + under_way)
                if left <= 0:
                    raise LimitExceeded(
                        f"what is left under the limit of agent {lead.name} is kept for others (limits.{name})"
                    )
                least = left if least is None else min(least, left)
            if least is not None:
                half, own = least / 2 if name == "cost" else (least + 1) // 2, getattr(agent.limits, name)
                limits[name] = half if own is None else min(least, own)
        self._tally.promise(run_id, limits)
        return limits

    def _used(self, run_id: str, name: str) -> float:
        """How much of a limit is used by a run and those below it."""
        if name == "tool_calls":
            return self._tally.tools(run_id)
        amount: float = getattr(self._tally.taken(run_id), name)
        return amount

    async def wait_for_room(self, goes_on: Callable[[], bool]) -> bool:
        """Wait while the calls under way could use all that is left under the limits, as long as the run goes on.

        Returns:
            Whether there is room for a call; False if the run does not go on.

        Raises:
            LimitExceeded: A limit is used up.
        """
        while self.is_full():
            if not goes_on():
                return False
            await self._tally.settled.wait()
        return True

    def is_full(self, more: Amount = _NOTHING) -> bool:
        """Whether the calls under way and ``more`` can use all that is left of any one limit.

        Raises:
            LimitExceeded: A limit is used up.
        """
        full = False
        for run_id, agent in self._bounds if self.bounded else ():
            taken, reserved = self._tally.taken(run_id), self._tally.reserved(run_id) + more
            for name, (verb, words) in _AMOUNTS.items():
                bound, now = getattr(agent.limits, name), getattr(taken, name)
                if bound is not None and now >= bound:
                    figures = self._tally.tree(run_id)
                    lost = round(now - (figures.cost_seen if name == "cost" else figures.tokens_billed), 4)
                    at_most = f", {words.format(lost)} of it at most, for calls that broke off" if lost > 0 else ""
                    raise LimitExceeded(
                        f"run {run_id} and those below it have {verb} {words.format(now)}{at_most}; the limit of "
                        f"agent {agent.name} is {words.format(bound)} (limits.{name})"
                    )
                beside = getattr(reserved, name)
                full = full or (bound is not None and beside > 0 and now + beside >= bound)
        return full


_AMOUNTS: Final = {"cost": ("spent", "${:.4f}"), "tokens": ("used", "{:,} tokens")}
