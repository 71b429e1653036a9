"""The runs that this process shares with others: which it takes up, which it lets go, and how those elsewhere end.

Only where several supervisors share a journal; see ``repertory.machines``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias

import anyio

from repertory.agents.agent import Agent
from repertory.agents.loading import definitions_of
from repertory.errors import JournalError, JournalUnreadable, PayloadInvalid, RepertoryError
from repertory.record.records import FINAL_STATES, Record, RunRow, RunStarted, RunState
from repertory.runs.events import RunClaimed, to_record
from repertory.runs.live import LiveRun, RunEnd
from repertory.runs.log import log
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.quotas import Quotas

if TYPE_CHECKING:
    from repertory.machines.machine import Machines
    from repertory.machines.ownership import Candidate, Claim, WaitingRun

KeepRoom: TypeAlias = Callable[[], AbstractContextManager[bool]]

_POLL: Final = 1.0
"""Seconds between two looks at the queue and at other machines; a notification that got lost costs as much."""
LEFT: Final = 20  # runs left to others; where there are more it is looked which of them still wait
_RENEWAL: Final = 4  # looks in the time of a short lease


class _Home(Protocol):
    """What claims need of the ``Runtime``."""

    async def take_up(
        self, row: RunRow, agent: Agent[Any], *, ended: Container[RunState], leads: Sequence[Agent[Any]] = ()
    ) -> LiveRun: ...

    async def take_up_claimed(self, row: RunRow, definitions: Sequence[Agent[Any]], *, context: Any) -> LiveRun: ...


class Claims:
    """Takes runs for this process from those that wait for any machine.

    A run whose agent cannot be found here, or is another than it was begun with, is left to others.

    Args:
        machines: This machine.
        runs: Those of this process.
        home: Where they go on.
        labels: What it offers; None to take up only what this process has queued itself.
        wake: Has the queue look who may begin.
    """

    def __init__(
        self, machines: Machines, runs: LiveRuns, home: _Home, *, labels: Sequence[str] | None, wake: Callable[[], None]
    ) -> None:
        self.machines = machines
        self._runs = runs
        self._home = home
        self._labels = labels
        self._wake = wake
        # By somebody in this process, and under way nowhere or elsewhere; each time anew where one came back between.
        self._held: dict[str, list[LiveRun]] = {}
        self._left: set[str] = set()  # to others: runs whose definition, by its digest, is not the one here
        # Definitions, by their digests, of runs that were in the queue when it was read last.
        self._agents: dict[tuple[str, str], Sequence[Agent[Any]]] = {}
        self._fences: dict[str, Claim] = {}
        self._adopting: set[str] = set()  # for which there is room already
        self._entering: set[str] | None = None  # those with a place in the queue that are not on record yet
        machines.on_queue = wake

    # --- how this machine came to a run -------------------------------------------------------------------

    async def claim(self, run_id: str) -> bool:
        """Take a run to go on with it; whether no other machine has it."""
        claim = await self.machines.claim_to_resume(run_id)
        if claim is None:
            # Its owner may have died since this machine looked last, or the queue here may have been faster.
            await self.machines.take_over()
            claim = await self.machines.claim_to_resume(run_id) or await self.machines.claim_of(run_id)
        if claim is not None:
            self._fences[run_id] = claim
        return claim is not None

    async def is_elsewhere(self, run_id: str) -> bool:
        """Whether another machine owns a run, so that nobody here may write to its record."""
        return await self.machines.owner_of(run_id) not in (None, "", self.machines.machine_id)

    async def give_back(self, row: RunRow) -> None:
        """Undo ``claim`` for a run that does not go on here after all."""
        if self._fences.pop(row.started.run_id, None) is None:
            return
        with anyio.CancelScope(shield=True):
            if row.state in FINAL_STATES:
                await self.machines.forget(row.started.run_id)
            else:
                await self.machines.let_go(row.started.run_id, "moved")

    def why_elsewhere(self, started: RunStarted) -> str:
        """Why a new run cannot begin on this machine; "" where it can."""
        if self.machines.draining:
            return "this machine drains, and takes no more runs"
        missing = sorted(set(started.labels) - set(self._labels or ()))
        return f"it waits for a machine with the labels {', '.join(missing)}" if missing else ""

    def record(self, live: LiveRun) -> list[Record]:
        """The record of whose a run is now, for the transaction in which it begins or goes on."""
        self._enter(live.run_id)
        claim = self._fences.pop(live.run_id, None)
        fence, why = (1, "started") if claim is None else (claim.fence, claim.why)
        event = live.event(RunClaimed, machine=self.machines.machine_id, name=self.machines.name, fence=fence, why=why)
        live.show(event)
        return [to_record(event)]

    # --- taking -------------------------------------------------------------------------------------------

    async def take_placed(self) -> bool:
        """Claim the first sub-agent's run that is to work here and take it up; whether to look again.

        Their leads have a place already, and could wait for ever for a second one; so none is counted.
        """
        from repertory.machines.ownership import Claim  # here, as nothing of it is needed with one process

        if self.machines.draining:
            return False
        # Without labels those of its own leads that may work anywhere now.
        leads = [live.run_id for live in self._runs.under_way()] if self._labels is None else None
        found = await self.machines.candidates(self._labels or (), without=self._left, placed=True, leads=leads)
        fitting = [each.run_id for each in found if await self._fits(each)]
        claim = await self.machines.claim(fitting) if fitting else None
        if isinstance(claim, Claim):
            await self.take_up(claim)
        return claim is not None

    async def take_next(
        self, without_agents: Collection[str], without_clients: Collection[str], quotas: Quotas, keep_room: KeepRoom
    ) -> bool:
        """Claim the first run that may begin here and take it up, if room can be kept; whether to look again."""
        from repertory.machines.ownership import Bound, Claim  # here, as nothing of it is needed with one process

        def bounds_of(agent: str, client: str) -> list[Bound]:
            names = {"agent": agent, "client": client}
            return [Bound(column, names[column], most) for column, most in quotas.runs_of(agent, client).items()]

        full = {"agent": set(without_agents), "client": set(without_clients)}
        while not self.machines.draining:
            found = await self.machines.candidates(
                self._labels or (),
                only=self._held if self._labels is None else None,
                without=self._left,
                without_agents=full["agent"],
                without_clients=full["client"],
            )
            there = {(each.run_id, each.agent_digest) for each in found}
            self._agents = {key: definitions for key, definitions in self._agents.items() if key in there}
            fitting = [each.run_id for each in found if await self._fits(each)]
            if not fitting:
                return bool(found)
            with keep_room() as has_room:
                claim = await self.machines.claim(fitting, bounds_of) if has_room else None
                if isinstance(claim, Claim):
                    await self.take_up(claim)
            if not isinstance(claim, Bound):
                return has_room
            full[claim.column].add(claim.name)
        return False

    # --- the queue of all machines ------------------------------------------------------------------------

    async def under_way(self) -> dict[tuple[str, str], int]:
        """How many runs of all machines are under way, by agent and client."""
        return await self.machines.under_way()

    async def keep_place(self, started: RunStarted, *, most: int) -> int | None:
        """Keep a place for a new run; else how many of its client's wait, which are as many as may."""
        names = {"agent": started.agent, "client": started.client}
        self._entering = set() if self._entering is None else self._entering
        self._entering.add(started.run_id)
        try:
            waiting = await self.machines.keep_place(started.run_id, **names, most=most)
        except BaseException:  # whether it is kept nobody knows, or it still will be
            self._enter(started.run_id)
            raise
        if waiting is not None:
            self._enter(started.run_id)
        return waiting

    async def give_place_back(self, started: RunStarted) -> None:
        """Undo ``keep_place``."""
        self._enter(started.run_id)
        await self.machines.give_place_back(started.run_id)

    def _enter(self, run_id: str) -> None:
        """Note that a run needs no place of its own any more: it is on its way to the record, or does not come."""
        if self._entering is not None:
            self._entering.discard(run_id)

    async def reasons(self) -> dict[str, str]:
        """Which machines those who wait for one wait for, by the ids of the runs."""
        return {run_id: _why(waiting) for run_id, waiting in (await self.machines.waiting()).items()}

    async def _fits(self, candidate: Candidate) -> bool:
        """Whether this process can go on with a run; else it is left alone from now on."""
        run_id = candidate.run_id
        key = run_id, candidate.agent_digest
        if key in self._agents:
            return True
        if run_id in self._held:
            self._agents[key] = [self._held[run_id][-1].agent]
            return True
        row = await self._runs.read_run(run_id)
        definitions = [] if row is None else _find_definitions(row.started, candidate.agent_digest)
        if not definitions:
            self._left.add(f"{run_id} {candidate.agent_digest}")
            log(logging.INFO, "run.left", run=run_id, agent=candidate.agent, ref=candidate.agent_ref)
            return False
        self._agents[key] = definitions
        return True

    async def take_up(self, claim: Claim, *, sure: bool = True) -> None:
        """Go on with a run that belongs to this machine now; ``sure`` says that nobody here can have let it go."""
        run_id = claim.run_id
        async with self._runs.alone_with(run_id):
            if not sure and claim not in await self.machines.mine():
                return  # it was being started or resumed here, and waits for any machine now
            row = await self._runs.read_run(run_id)
            definitions = self._agents.pop((run_id, claim.agent_digest), ())
            if self._runs.find(run_id) is not None:
                return
            if row is None or row.state in FINAL_STATES:
                await self.machines.forget(run_id)
                return
            held = self._held.get(run_id, [])
            try:
                definitions = definitions or _find_definitions(row.started, claim.agent_digest)
                if not definitions:
                    raise _Unknown(f"agent {row.started.agent} is not known here")
                self._fences[run_id] = claim
                self._adopting.add(run_id)
                await self._home.take_up_claimed(row, definitions, context=held[-1].context if held else None)
            except JournalError:
                raise
            except RepertoryError as error:
                log(logging.WARNING, "run.left", run=run_id, agent=row.started.agent, exc_info=error)
                self._fences.pop(run_id, None)
                self._left.add(f"{run_id} {claim.agent_digest}")
                await self.machines.let_go(run_id, "moved")
            finally:
                self._adopting.discard(run_id)

    def is_adopting(self, run_id: str) -> bool:
        """Whether a run was claimed from the queue, so that it begins here whatever else there is."""
        return run_id in self._adopting

    # --- holding and letting go ---------------------------------------------------------------------------

    def hold(self, live: LiveRun) -> None:
        """Follow a run that somebody here holds, wherever it goes on."""
        live.elsewhere = True
        live.tally.clock.run(on=False)
        self._enter(live.run_id)
        self._fences.pop(live.run_id, None)
        self._held.setdefault(live.run_id, []).append(live)
        self._wake()

    async def let_go(self, live: LiveRun) -> None:
        """Hand a run over whose loop has come to a boundary: others go on with it."""
        self.hold(live)
        await live.shared.journal.write(())
        await self.machines.let_go(live.run_id, "moved")

    def close(self) -> None:
        """Tell those who wait here that this process does not go on."""
        held, self._held = self._held, {}
        for live in chain.from_iterable(held.values()):
            live.set_ended()

    # --- all the time -------------------------------------------------------------------------------------

    async def serve(self, scope: anyio.CancelScope) -> None:
        """Look after the lease, the other machines, and runs that are elsewhere, until the scope is cancelled.

        Raises:
            LeaseLost: Another machine has taken this one over.
        """
        pause = min(_POLL, self.machines.lease.seconds / _RENEWAL)
        with scope:
            while True:
                self.machines.lease.check()
                try:
                    await self.machines.take_over()
                    await self._find_lost_claims()
                    await self._find_lost_places()
                    await self._forget_left()
                    await self._follow()
                except JournalError as error:
                    # The server is away; whoever writes hears of it, and the lease says what else there is to say.
                    self.machines.lease.check()
                    log(logging.WARNING, "machines.not.seen", exc_info=error)
                self._wake()
                await anyio.sleep(pause)

    async def _find_lost_claims(self) -> None:
        """Take up what was claimed where the answer to that was lost."""
        if not self.machines.draining:
            for claim in await self.machines.mine():
                if self._runs.find(claim.run_id) is None:
                    await self.take_up(claim, sure=False)

    async def _find_lost_places(self) -> None:
        """Give back what was kept in the queue for those who were cancelled meanwhile, or heard no answer."""
        if self._entering is not None:
            for run_id in await self.machines.places():
                if run_id not in self._entering:
                    await self.machines.give_place_back(run_id)

    async def _forget_left(self) -> None:
        """Let go of those that were left to others and wait no more, as each look at the queue names all of them."""
        if len(self._left) > LEFT:
            left = {each: each.split()[0] for each in self._left}
            standing = await self.machines.standing([*left.values()])
            self._left.difference_update(each for each, run_id in left.items() if not standing[run_id].waits)

    async def _follow(self) -> None:
        standing = await self.machines.standing([*self._held]) if self._held else {}
        for run_id in (run_id for run_id, stands in standing.items() if stands.ended):
            async with self._runs.alone_with(run_id):
                row = await self._runs.read_run(run_id)
                if row is not None and row.state in FINAL_STATES and self._runs.find(run_id) is None:
                    await self._show_ended(row)

    async def _show_ended(self, row: RunRow) -> None:
        """Let those who hold a run see how it ended, and its record as that is now."""
        run_id = row.started.run_id
        held = self._held[run_id][-1]
        if held.newest is held:  # else it came back and ended here
            try:
                await self._home.take_up(row, held.agent, ended=FINAL_STATES, leads=held.leads)
            except (PayloadInvalid, JournalUnreadable) as error:
                log(logging.ERROR, "run.unreadable", run=run_id, exc_info=error)
        for live in self._held.pop(run_id):
            live.end, live.state, live.ending = RunEnd(row.state, row.result, row.error), row.state, True
            live.set_ended()


def _why(waiting: WaitingRun) -> str:
    asked = f" with the labels {', '.join(waiting.labels)}" if waiting.labels else ""
    if waiting.portable:
        return f"it waits for a machine{asked} that has room and knows its agent"
    needs = "it has an agent or a context that only the process has which queued it"
    if waiting.home_there:
        return f"it waits for machine {waiting.home}{asked} alone, as {needs}"
    return f"no machine can begin it, as {needs}, and that has ended; resume it with these"


class _Unknown(RepertoryError):
    """An agent is not known here."""


def _find_definitions(started: RunStarted, agent_digest: str) -> list[Agent[Any]]:
    """The very definitions that a run goes on with, its own the last; none where it is not known here."""
    if not started.agent_ref or started.has_context:
        return []
    try:
        found = definitions_of(started)
    except RepertoryError:
        return []
    return found if found[-1].digest == agent_digest else []
