"""What a tree of runs has spent, and whether another model call may begin: reserved before it, settled after it."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import anyio

from repertory.errors import ConfigurationError, LimitExceeded
from repertory.record.journal import ModelCallRow

if TYPE_CHECKING:
    from repertory.agents.agent import Agent
    from repertory.agents.live import LiveRun
    from repertory.agents.models import OpenModels
    from repertory.llm.model import Model
    from repertory.llm.profiles import ModelProfile


def cut_off(calls: list[ModelCallRow]) -> float:
    """US dollars that the calls of a run may have cost of which no end is on record: a crash cut them off."""
    return sum(row.called.cost_at_most for row in calls if row.replied is None)


class Spending:
    """The money of one tree of runs, kept at its root.

    What was billed is in the tally, by the journal's records. Beside it stand the calls under way, each at the most
    that it can cost, and those that were cut off: they are billed as a rule, and nobody says how much.
    """

    def __init__(self) -> None:
        self._cut_off: dict[str, float] = {}
        self._under_way: dict[str, float] = {}
        self._changed = anyio.Event()

    def count_cut_off(self, by_run: Mapping[str, float]) -> None:
        """Count calls that earlier processes did not see the end of; US dollars by run."""
        self._cut_off.update(by_run)

    @asynccontextmanager
    async def call(self, live: LiveRun) -> AsyncGenerator[None]:
        """Make one model call of a run, once there is money for it.

        As long as something is left, one call may begin whatever it costs. Another one beside it waits where both
        together could cost more than is left, so that a tree spends at most its bound and one call.

        Raises:
            LimitExceeded: What may be spent has been spent.
        """
        while self._has_to_wait(live):
            await self._changed.wait()
        self._under_way[live.run_id] = math.inf  # until the request is made, which says how much it can cost
        try:
            yield
        except BaseException as error:
            cost = self._under_way[live.run_id]
            if cost != math.inf and not isinstance(error, Exception):  # else it has ended, and the record says how
                self._cut_off[live.run_id] = self._cut_off.get(live.run_id, 0.0) + cost
            raise
        finally:
            del self._under_way[live.run_id]
            self._wake()

    def is_bounded(self, live: LiveRun) -> bool:
        """Whether a run, or one above it, may spend only so much."""
        return any(run.agent.limits.cost is not None for run in live.lineage())

    def expect(self, live: LiveRun, cost: float) -> None:
        """Say what the call of a run under way can cost at most, in US dollars."""
        if live.run_id in self._under_way:
            self._under_way[live.run_id] = cost
            self._wake()

    def _wake(self) -> None:
        changed, self._changed = self._changed, anyio.Event()
        changed.set()

    def _has_to_wait(self, live: LiveRun) -> bool:
        wait = False
        for run in live.lineage():
            bound = run.agent.limits.cost
            if bound is None:
                continue
            spent = run.tally.tree(run.run_id).cost_seen + _below(self._cut_off, run.run_id)
            if spent >= bound:
                raise LimitExceeded(
                    f"run {run.run_id} and those below it have spent ${spent:.4f}; the limit of agent "
                    f"{run.agent.name} is ${bound:.4f} (limits.cost)"
                )
            beside = _below(self._under_way, run.run_id)
            wait = wait or (beside > 0 and spent + beside >= bound)
        return wait


def _below(amounts: Mapping[str, float], run_id: str) -> float:
    return sum(amount for name, amount in amounts.items() if name == run_id or name.startswith(f"{run_id}."))


def check_prices(
    agent: Agent,
    models: OpenModels,
    summaries: ModelProfile | None,
    *,
    inherited: Model | None = None,
    bounded: str = "",
) -> None:
    """See that a limit on money can be kept: by an agent, its team, and whoever writes their summaries.

    Args:
        agent: What is to run.
        models: The supervisor's.
        summaries: The model that writes summaries; None where none does.
        inherited: The model of the agent above it; None for a root, which has the supervisor's.
        bounded: The agent above it that has such a limit; "" for none.

    Raises:
        ConfigurationError: Nobody knows what one of the models costs.
    """
    model = models.get(agent.model) if agent.model is not None or inherited is None else inherited
    bounded = bounded or (agent.name if agent.limits.cost is not None else "")
    if bounded:
        _check_price(model.profile, f"the model of {agent.name}", bounded)
        if summaries is not None:
            _check_price(summaries, "the model that writes summaries", bounded)
    for member in agent.team:
        check_prices(member, models, summaries, inherited=model, bounded=bounded)


def _check_price(profile: ModelProfile, whose: str, bounded: str) -> None:
    if not profile.known:
        raise ConfigurationError(
            f"limits.cost of agent {bounded} cannot be kept: nobody knows what {profile.name!r} costs, {whose}. Give "
            "it a profile with prices, as with_prices(profile_for(name), input=0.0, output=0.0) for one that is "
            "free, or leave limits.cost out"
        )
