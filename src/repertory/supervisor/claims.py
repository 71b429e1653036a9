"""Runs in a shared journal: which of them this process claims, which it lets go, and how those elsewhere end.

Used only if several supervisors share a journal; see ``repertory.machines``.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Container, Sequence
from contextlib import AbstractContextManager
from itertools import chain
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, TypeAlias

import anyio

from repertory.agents.agent import Agent
from repertory.agents.loading import definitions_of
from repertory.errors import (
    ConfigurationError,
    JournalError,
    JournalUnreadable,
    PayloadInvalid,
    RecordRefused,
    RepertoryError,
    RunElsewhere,
)
from repertory.record.journal import Journal
from repertory.record.records import FINAL_STATES, Record, RunRow, RunStarted, RunState
from repertory.runs.end import RunEnd
from repertory.runs.events import RunClaimed, to_record
from repertory.runs.live import LiveRun
from repertory.runs.log import log
from repertory.shortening import ResultPolicy
from repertory.supervisor.live_runs import LiveRuns
from repertory.supervisor.quotas import Quotas
from repertory.views.policies import results_of

if TYPE_CHECKING:
    from repertory.machines.machine import Machines
    from repertory.machines.ownership import Candidate, Claim, WaitingRun

KeepRoom: TypeAlias = Callable[[], AbstractContextManager[bool]]

_POLL: Final = 1.0
"""Seconds between two checks of the queue and of other machines; a lost notification costs as much."""
LEFT: Final = 20  # runs left to others; if there are more, those that no longer wait are forgotten
_RENEWAL: Final = 4  # checks within the time of a short lease


class _Home(Protocol):
    """The part of ``Runtime`` that claims use."""

    def check(self, agent: Agent[Any], results: ResultPolicy | None) -> None: ...

    async def continue_run(
        self,
        row: RunRow,
        agent: Agent[Any],
        *,
        ended: Container[RunState],
        context: Any = None,
        claimed: bool = False,
        leads: Sequence[Agent[Any]] = (),
    ) -> LiveRun: ...


class Claims:
    """Claims runs for this process from those that wait for any machine.

    A run is left to others if its agent cannot be found here, or differs from the one that it began with.

    Args:
        home: The runtime that continues runs.
        labels: What this machine offers; None to claim only what this process has queued itself.
        wake: Makes the queue check which runs may begin.
    """

    def __init__(
        self,
        machines: Machines,
        journal: Journal,
        runs: LiveRuns,
        home: _Home,
        *,
        labels: Sequence[str] | None,
        wake: Callable[[], None],
    ) -> None:
        self.machines = machines
        self._journal = journal
        self._runs = runs
        self._home = home
        self._labels = labels
        self._wake = wake
        # Runs that somebody in this process holds, but that are not under way here; several objects of a run if it came
        # back in between.
        self._held: dict[str, list[LiveRun]] = {}
        self._left: set[str] = set()  # runs left to others, as the definition here has another digest
        # Definitions, by run and digest, of runs that were in the queue when it was last read.
        self._agents: dict[tuple[str, str], Sequence[Agent[Any]]] = {}
        self._fences: dict[str, Claim] = {}
        self._adopting: set[str] = set()  # runs for which there is room already
        self._entering: set[str] | None = None  # runs with a place in the queue that are not on record yet
        machines.on_queue = wake

    # --- how this machine gets a run ----------------------------------------------------------------------

    async def claim(self, run_id: str) -> bool:
        """Claim a run to continue it; returns False if another machine has it."""
        claim = await self.machines.claim_to_resume(run_id)
        if claim is None:
            # Its owner may have died since the last check, or the queue here may have claimed it first.
            await self.machines.take_over()
            claim = await self.machines.claim_to_resume(run_id) or await self.machines.claim_of(run_id)
        if claim is not None:
            self._fences[run_id] = claim
        return claim is not None

    async def is_elsewhere(self, run_id: str) -> bool:
        """Whether another machine owns a run, so that nobody here may write to its record."""
        return await self.machines.owner_of(run_id) not in (None, "", self.machines.machine_id)

    async def explain_refused(self, run_id: str, error: RecordRefused) -> None:
        """Raise ``RunElsewhere`` if the journal refused the beginning of a new run because it has begun elsewhere."""
        there = await self._journal.run_or_none(run_id) is not None
        if not there:  # the other machine may only have reserved a place in the queue for it yet
            stands = await self.machines.standing([run_id])
            there = not stands[run_id].ended and run_id not in await self.machines.places()
        if there:
            raise RunElsewhere(f"run {run_id} was begun on another machine at the same moment; call again") from error

    async def give_back(self, row: RunRow) -> None:
        """Undo ``claim`` for a run that does not continue here after all."""
        if self._fences.pop(row.started.run_id, None) is None:
            return
        with anyio.CancelScope(shield=True):
            if row.state in FINAL_STATES:
                await self.machines.forget(row.started.run_id)
            else:
                await self.machines.let_go(row.started.run_id, "moved")

    def why_elsewhere(self, started: RunStarted) -> str:
        """Why a new run cannot begin on this machine; "" if it can."""
        if self.machines.draining:
            return "this machine drains, and takes no more runs"
        missing = sorted(set(started.labels) - set(self._labels or ()))
        return f"it waits for a machine with the labels {', '.join(missing)}" if missing else ""

    def record(self, live: LiveRun) -> list[Record]:
        """The record of a run's new owner, for the transaction in which the run begins or continues."""
        self._enter(live.run_id)
        claim = self._fences.pop(live.run_id, None)
        fence, why = (1, "started") if claim is None else (claim.fence, claim.why)
        event = live.event(RunClaimed, machine=self.machines.machine_id, name=self.machines.name, fence=fence, why=why)
        live.show(event)
        return [to_record(event)]

    # --- taking -------------------------------------------------------------------------------------------

    async def take_placed(self) -> bool:
        """Claim and continue the first placed run that may work here; returns whether to check again.

        Placed runs take no place: their leads already have one, and could wait for ever for a second.
        """
        if self.machines.draining:
            return False
        # A machine without labels takes only those of its own leads that may now work anywhere.
        leads = [live.run_id for live in self._runs.under_way()] if self._labels is None else None
        found = await self.machines.candidates(self._labels or (), without=self._left, placed=True, leads=leads)
        fitting = [each.run_id for each in found if await self._fits(each)]
        claim, _ = await self.machines.claim(fitting) if fitting else (None, None)
        if claim is not None:
            await self.continue_run(claim)
        return claim is not None

    async def take_next(
        self, without_agents: Collection[str], without_clients: Collection[str], quotas: Quotas, keep_room: KeepRoom
    ) -> bool:
        """Claim and begin the first run that may begin here, if there is room; returns whether to check again."""
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
                claim, reached = await self.machines.claim(fitting, quotas.runs_of) if has_room else (None, None)
                if claim is not None:
                    await self.continue_run(claim)
            if reached is None:
                return has_room
            column, name = reached
            full[column].add(name)
        return False

    # --- the queue of all machines ------------------------------------------------------------------------

    async def keep_place(self, started: RunStarted, *, most: int) -> int | None:
        """Reserve a place for a new run; returns None, or how many of its client's runs wait if that is the most."""
        names = {"agent": started.agent, "client": started.client}
        self._entering = set() if self._entering is None else self._entering
        self._entering.add(started.run_id)
        try:
            waiting = await self.machines.keep_place(started.run_id, **names, most=most)
        except BaseException:  # it is unknown whether the place is, or will be, reserved
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
        """Note that a run no longer needs a reserved place: it is being recorded, or will not begin."""
        if self._entering is not None:
            self._entering.discard(run_id)

    async def reasons(self) -> dict[str, tuple[Literal["machine", "resume"], str]]:
        """What runs wait for that no machine has taken, and why in words, by the ids of the runs."""
        return {run_id: _why(waiting) for run_id, waiting in (await self.machines.waiting()).items()}

    async def _fits(self, candidate: Candidate) -> bool:
        """Whether this process can continue a run; if not, the run is ignored from now on."""
        run_id = candidate.run_id
        key = run_id, candidate.agent_digest
        if key in self._agents:
            return True
        if run_id in self._held:
            self._agents[key] = [self._held[run_id][-1].agent]
            return True
        row = await self._journal.run_or_none(run_id)
        definitions = [] if row is None else _find_definitions(row.started, candidate.agent_digest)
        if not definitions:
            self._left.add(f"{run_id} {candidate.agent_digest}")
            log(logging.INFO, "run.left", run=run_id, agent=candidate.agent, ref=candidate.agent_ref)
            return False
        self._agents[key] = definitions
        return True

    async def continue_run(self, claim: Claim) -> None:
        """Continue a run that this machine has claimed."""
        run_id = claim.run_id
        async with self._runs.lock(run_id):
            held = self._held.get(run_id, [])
            if held:
                await self._journal.write(())
            if claim not in await self.machines.mine():
                return  # it was being started or resumed here, and now waits for any machine, or is another's
            row = await self._journal.run_or_none(run_id)
            definitions = self._agents.pop((run_id, claim.agent_digest), ())
            if self._runs.find(run_id) is not None:
                return
            if row is None or row.state in FINAL_STATES:
                await self.machines.forget(run_id)
                return
            try:
                definitions = definitions or _find_definitions(row.started, claim.agent_digest)
                if not definitions:
                    raise ConfigurationError(f"agent {row.started.agent} is not known here")
                self._fences[run_id] = claim
                self._adopting.add(run_id)
                *above, agent = definitions  # those of its leads from the top down, if it was placed
                self._home.check(agent, results_of(row.started))
                context = held[-1].context if held else None
                await self._home.continue_run(
                    row, agent, ended=FINAL_STATES, context=context, claimed=True, leads=above[::-1]
                )
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
        """Whether a run was claimed from the queue, so that it begins here in any case."""
        return run_id in self._adopting

    # --- holding and letting go ---------------------------------------------------------------------------

    def hold(self, live: LiveRun) -> None:
        """Follow a run that somebody here holds, wherever it continues."""
        live.elsewhere = True
        live.tally.clock.run(on=False)
        self._enter(live.run_id)
        self._fences.pop(live.run_id, None)
        self._held.setdefault(live.run_id, []).append(live)
        self._wake()

    def drop(self, live: LiveRun) -> None:
        """Hold a run no longer whose beginning was refused: it is another machine's."""
        held = self._held.get(live.run_id, [])
        if live in held:
            held.remove(live)
            if not held:
                del self._held[live.run_id]
        self._agents = {key: each for key, each in self._agents.items() if key[0] != live.run_id}
        live.set_ended()

    async def let_go(self, live: LiveRun) -> None:
        """Hand over a run whose loop has reached a boundary, for other machines to continue."""
        self.hold(live)
        await self._journal.write(())
        await self.machines.let_go(live.run_id, "moved")

    def close(self) -> None:
        """End the wait for runs that are held here, as this process closes."""
        held, self._held = self._held, {}
        for live in chain.from_iterable(held.values()):
            live.set_ended()

    # --- in the background --------------------------------------------------------------------------------

    async def serve(self, scope: anyio.CancelScope) -> None:
        """Watch the lease, the other machines, and runs that are elsewhere, until the scope is cancelled.

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
                    # The server cannot be reached; whoever writes gets the error, and the lease is checked here.
                    self.machines.lease.check()
                    log(logging.WARNING, "machines.not.seen", exc_info=error)
                self._wake()
                await anyio.sleep(pause)

    async def _find_lost_claims(self) -> None:
        """Continue runs that were claimed although the answer to the claim was lost."""
        if not self.machines.draining:
            for claim in await self.machines.mine():
                if self._runs.find(claim.run_id) is None:
                    await self.continue_run(claim)

    async def _find_lost_places(self) -> None:
        """Give back reserved places of callers that were cancelled or got no answer."""
        if self._entering is not None:
            for run_id in await self.machines.places():
                if run_id not in self._entering:
                    await self.machines.give_place_back(run_id)

    async def _forget_left(self) -> None:
        """Forget runs left to others that no longer wait, as each check of the queue must name all of them."""
        if len(self._left) > LEFT:
            left = {each: each.split()[0] for each in self._left}
            standing = await self.machines.standing([*left.values()])
            self._left.difference_update(each for each, run_id in left.items() if not standing[run_id].waits)

    async def _follow(self) -> None:
        standing = await self.machines.standing([*self._held]) if self._held else {}
        for run_id in (run_id for run_id, stands in standing.items() if stands.ended):
            async with self._runs.lock(run_id):
                row = await self._journal.run_or_none(run_id)
                if row is not None and row.state in FINAL_STATES and self._runs.find(run_id) is None:
                    await self._show_ended(row)

    async def _show_ended(self, row: RunRow) -> None:
        """Show those who hold a run how it ended, and its current record."""
        run_id = row.started.run_id
        held = self._held[run_id][-1] if run_id in self._held else None  # None once this process closes
        if held is not None and held.newest is held:  # otherwise it came back and ended here
            try:
                await self._home.continue_run(row, held.agent, ended=FINAL_STATES, leads=held.leads)
            except (PayloadInvalid, JournalUnreadable) as error:
                log(logging.ERROR, "run.unreadable", run=run_id, exc_info=error)
        for live in self._held.pop(run_id, ()):
            live.ended_elsewhere(RunEnd.recorded(row))


def _why(waiting: WaitingRun) -> tuple[Literal["machine", "resume"], str]:
    asked = f" with the labels {', '.join(waiting.labels)}" if waiting.labels else ""
    if waiting.portable:
        return "machine", f"it waits for a machine{asked} that has room and knows its agent"
    needs = "it has an agent or a context that only the process has which queued it"
    if waiting.home_there:
        return "machine", f"it waits for machine {waiting.home}{asked} alone, as {needs}"
    return "resume", f"no machine can begin it, as {needs}, and that has ended; resume it with these"


def _find_definitions(started: RunStarted, agent_digest: str) -> list[Agent[Any]]:
    """The definitions to continue a run with, its own the last; empty if they are not known here."""
    if not started.agent_ref or started.has_context:
        return []
    try:
        found = definitions_of(started)
    except RepertoryError:
        return []
    return found if found[-1].digest == agent_digest else []
