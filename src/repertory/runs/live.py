"""``LiveRun``: what this process knows of a run while it works on it."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import islice
from typing import Any, Literal, Protocol, TypeAlias, TypeVar

import anyio
import anyio.lowlevel
import msgspec

from repertory._counting import counted
from repertory._error_texts import encode_error
from repertory._repeated_event import RepeatedEvent
from repertory.actors import ActorContext, ActorRef
from repertory.agents.agent import Agent
from repertory.context import EMPTY, Plan
from repertory.errors import JournalError, LimitExceeded, RepertoryError, RunElsewhere, RunError
from repertory.llm.model import Model
from repertory.memory import Memory
from repertory.memory.payload import PayloadState
from repertory.record import Ledger, RunStatistics
from repertory.record.memory_records import PayloadChanged
from repertory.record.records import Record, RunStarted, RunState, RunStateChanged
from repertory.record.waiting import Ticket
from repertory.runs.accounting import Spending, Tally
from repertory.runs.alerts import Watch
from repertory.runs.end import RunEnd
from repertory.runs.events import Alert, AnyEvent, StateChanged, to_record
from repertory.runs.fan_out import Head, Line, Place, worth_warming
from repertory.runs.inbox import Inbox, Said, said_records
from repertory.runs.listeners import Listeners
from repertory.runs.shared import Shared
from repertory.runs.streaming import Stream
from repertory.runs.telemetry import Trace
from repertory.runs.waiting_calls import WaitingCalls
from repertory.tools import Approvals, Tool
from repertory.tools.repeats import ToolCallCache

EventT = TypeVar("EventT", bound=AnyEvent)
DesiredState: TypeAlias = Literal["go", "pause", "stop", "close"]


class _EditsView(Protocol):
    """The edits of a run's view that its user may ask for; see ``Run.expand`` and ``Run.pin``."""

    async def expand(self, position: int, items: tuple[int, int] | None, reason: str) -> None: ...

    async def pin(self, position: int, *, on: bool) -> None: ...


@dataclass(eq=False, kw_only=True)
class LiveRun:
    """What this process knows of one run. It outlives restarts of the run's actor; the journal outlives it.

    Attributes:
        parent: The run that delegated to it; None for a root, and for a placed run even if its lead is here.
        leads: For a placed run, the definitions of the agents above it, the nearest first.
        promised: How many further runs the placed runs of its tree may start, by their ids.
        payload: Its payload; None if it has none.
        context: The application's object for its tools; it is neither recorded nor shown.
        resumed: Whether its record was read back, from an earlier process or from earlier in this one.
        actor: The context of its latest incarnation, below which the actors of its sub-agents are started.
        begun: The write that begins the run, when its actor starts; the loop waits for it.
        waiting: How many delegations have not reported yet.
        place: Its place among the sub-agents of the run above it; None for a root, and for a run that had ended before.
        in_line: Whether it waits for its turn among them.
        agent_changed: Whether it continues with another definition than it began with.
        pause_asked: Whether the last that was said of the two was to pause, not to go on; ending it takes nothing back.
        stop_asked: Whether somebody has asked to stop this very run, rather than one above it.
        ending: Whether it takes no more messages.
        asked: The iteration after which the user last sent a message; 0 for the task.
        successor: The object of the same run after it continued in this process.
        overdue: The time limit for which it was killed; None for none.
        end: How it ended, once that is being written to the disk.
        lost: The journal's failure, because of which its end was not recorded.
        opened_tools: The tools that its agent's tool sets opened.
        result_summaries: A model's summaries of single results, by position.
        last_event: The number of the event after its last one; None while it is under way.
        elsewhere: Whether it waits for any machine or is under way on another one, while somebody here holds it.
    """

    shared: Shared
    started: RunStarted
    agent: Agent[Any]
    ledger: Ledger
    memory: Memory
    tally: Tally
    parent: LiveRun | None = None
    leads: Sequence[Agent[Any]] = ()
    promised: dict[str, int] = field(default_factory=dict[str, int])
    payload: PayloadState | None = None
    context: Any = field(default=None, repr=False)
    children: list[LiveRun] = field(default_factory=list["LiveRun"])
    ref: ActorRef[Any] | None = None
    actor: ActorContext | None = None
    resumed: bool = False
    begun: Ticket | None = None
    state: RunState = "running"
    iteration: int = 0
    waiting: int = 0
    place: Place | None = None
    in_line: bool = False
    agent_changed: bool = False
    desired_state: DesiredState = "go"
    pause_asked: bool = False
    stop_asked: bool = False
    killed: bool = False
    ending: bool = False
    asked: int = 0
    successor: LiveRun | None = None
    overdue: LimitExceeded | None = None
    end: RunEnd | None = None
    lost: JournalError | None = None
    plan: Plan = EMPTY
    result_summaries: dict[int, str] = field(default_factory=dict[int, str])
    opened_tools: tuple[Tool, ...] = ()
    trace: Trace = field(default_factory=Trace)
    last_event: int | None = None
    elsewhere: bool = False

    def __post_init__(self) -> None:
        """Make the derived attributes.

        ``members`` are, for a root, the ids of all runs of its tree, including those about to begin; ``line`` are its
        sub-agents that have not ended; ``repeats`` are the tool calls that need not be made again; ``first_event`` is
        the number of its first event in this process; and ``show`` publishes an event to all readers.
        """
        if self.shared.plain_loops:
            self.agent = msgspec.structs.replace(self.agent, context=None)
        agent, shared, policy = self.agent, self.shared, self.agent.context
        self.run_id = self.started.run_id
        self.members = {self.run_id}
        self.first_event = shared.hub.count
        above = None if self.parent is None else self.parent.spending
        self.spending: Spending = Spending(self.run_id, agent, self.tally, above=above)
        self.line = Line(agent.delegation.parallel, shared.clock)
        self.watch = Watch(shared.alerts) if shared.alerts is not None else None
        self.repeats = ToolCallCache(max_calls=policy.known_calls if policy is not None and policy.deduplicate else 0)
        self.show = shared.hub.publish
        self.listeners = Listeners(self.run_id, self.ledger, agent.on_lifecycle)
        self.ended = anyio.Event()
        self.stream = Stream(shared.journal.redact, shared.journal.redaction_reach)
        self._payload_lock = anyio.Lock(fast_acquire=True)
        lead = next((above.name for above in islice(self.definitions(), 1, None)), "the lead")
        self.inbox = Inbox(self.run_id, lead=lead)
        self.waits = WaitingCalls()
        self._view: _EditsView | None = None
        self._end_event: AnyEvent | None = None  # as it is on record
        self._recorded: RunState = "running"  # the last on record, or which its beginning stands for
        self._changed = RepeatedEvent()  # set when its desired state, its view or its state changes

    @property
    def newest(self) -> LiveRun:
        """The newest object of the same run: this one, or the one with which it continued after its end."""
        live = self
        while live.successor is not None:
            live = live.successor
        return live

    def succeed(self, earlier: LiveRun) -> None:
        """Become the newest object of the run, and take over what no record has: listeners, and who ended below it."""
        earlier.successor = self
        self.listeners.take_over(earlier.listeners)
        # One that was stopped together with it may continue with it.
        self.children = [each for each in earlier.children if each.state in ("done", "failed") or each.stop_asked]
        for child in self.children:
            child.parent = self

    @property
    def end_of_events(self) -> int | None:
        """The number of the event after its last one, even if it went elsewhere and came back; None while under way."""
        live = self
        while live.last_event is None and live.successor is not None:
            live = live.successor
        return live.last_event

    # --- its place in the tree ---

    @property
    def root(self) -> LiveRun:
        """The run at the top of the tree."""
        return self if self.parent is None else self.parent.root

    def lineage(self) -> Iterator[LiveRun]:
        """This run and those above it."""
        run: LiveRun | None = self
        while run is not None:
            yield run
            run = run.parent

    def tree(self) -> Iterator[LiveRun]:
        """This run and all below it."""
        yield self
        for child in self.children:
            yield from child.tree()

    def definitions(self) -> Iterator[Agent[Any]]:
        """Its agent and the agents above it, wherever their runs are."""
        yield from (run.agent for run in self.lineage())
        yield from self.root.leads

    @property
    def model(self) -> Model:
        """The model that it calls: its agent's, otherwise its parent's, otherwise the supervisor's."""
        return self.shared.models.of(self.definitions())

    @cached_property
    def approvals(self) -> Sequence[tuple[str, Approvals]]:
        """The approval rules for its tool calls, with whose they are: the supervisor's first, its own agent's last."""
        above = [(f"agent {agent.name}", agent.approvals) for agent in self.definitions()]
        rules = [("the supervisor", self.shared.approvals), *reversed(above)]
        return [(who, layer) for who, layer in rules if layer is not None]

    # --- events and figures ---

    @property
    def statistics(self) -> RunStatistics:
        """The durable figures of this run."""
        return self.tally.of(self.run_id)

    def event(self, kind: type[EventT], /, **fields: Any) -> EventT:
        """Make an event of this run, redacted. The caller publishes and records it."""
        fields = self.shared.journal.redact(fields)
        now, elapsed = self.shared.clock(), self.tally.clock.elapsed
        return kind(
            run_id=self.run_id, agent=self.agent.name, iteration=self.iteration, at=now, elapsed=elapsed, **fields
        )

    def publish(self, kind: type[AnyEvent], /, **fields: Any) -> None:
        """Make an event, publish it and record it in the journal."""
        event = self.event(kind, **fields)
        self.show(event)
        self.shared.journal.submit([to_record(event)], after=self.begun)

    def check_alerts(self) -> None:
        """Publish alerts for figures that crossed a threshold, in this run and those above; see ``AlertThresholds``."""
        for run in self.lineage():
            for crossing in run.watch.check(run.statistics, run.spending.used()) if run.watch is not None else ():
                run.publish(Alert, **msgspec.structs.asdict(crossing))

    # --- its payload ---

    @asynccontextmanager
    async def changing_payload(self) -> AsyncGenerator[None]:
        """Lock the payload against other changes.

        Waiting for the lock cannot be cancelled, so that what a tool has done is always recorded. Nobody holds the lock
        for longer than it takes to submit records.
        """
        with anyio.CancelScope(shield=True):
            await self._payload_lock.acquire()
        try:
            yield
        finally:
            self._payload_lock.release()

    def adopt_payload(self, records: Iterable[PayloadChanged]) -> None:
        """Apply recorded changes to the payload."""
        for record in records:
            assert self.payload is not None  # otherwise there are no records
            self.payload.adopt(record)

    # --- its state ---

    def state_record(self, state: RunState, **fields: Any) -> RunStateChanged:
        """The record of a change of state. A run that is asked to pause is paused there at once, held or not."""
        self._recorded = "paused" if self.pause_asked and state in ("running", "waiting") else state
        return RunStateChanged(
            run_id=self.run_id, state=self._recorded, at=self.shared.clock(), iteration=self.iteration, **fields
        )

    def _change_to(self, state: RunState) -> list[Record]:
        before, record = self._recorded, self.state_record(state)
        return [record] if record.state != before else []

    def enter(self, state: RunState, *, also: Sequence[Record] = ()) -> Ticket:
        """Enter a state that is not final; the change, and further records with it, is being written to the disk."""
        changed = self.event(StateChanged, state=state)
        records = [*also, *self._change_to(state), to_record(changed)]
        ticket = self.shared.journal.submit(records, after=self.begun)
        self.state = state
        self.show(changed)
        return ticket

    def check_limits(self) -> None:
        """Raise ``LimitExceeded`` if it may not begin another iteration."""
        if self.spending.since is None:
            self.spending.since = self.tally.clock.elapsed
            self.wake()
        self.spending.check_time()
        self.spending.check()
        most = self.agent.limits.iterations
        if self.iteration - self.asked >= most:
            raise LimitExceeded(
                f"no answer after {counted(most, 'iteration')}, the limit of agent {self.agent.name} "
                "(limits.iterations)"
            )

    async def kill_when_overdue(self) -> None:
        """Wait until its time is over or it has ended, and then kill it."""
        while self.end is None and not self.ended.is_set():
            try:
                self.spending.check_time()
            except LimitExceeded as error:
                self.overdue = error
                self.kill()
                return
            with anyio.move_on_after(self.spending.seconds_left):
                await self._changed.wait()

    @property
    def waits_for_tree(self) -> bool:
        """Whether its whole tree was stopped, so that open calls stay open until the tree is resumed."""
        root = self.root  # a placed run is a root here, and may have been stopped by its lead from elsewhere
        return root.stop_asked or (root.started.placed is not None and root.desired_state == "stop")

    @property
    def is_ending(self) -> bool:
        """Whether no further message to it will be read before it has ended."""
        return self.ending or self.ended.is_set() or self.desired_state == "stop"

    @property
    def how_ended(self) -> str:
        """For messages: its final state; ``interrupted`` if it can be resumed, ``ending`` while it is not known."""
        if self.end is not None:
            return self.end.state
        return "interrupted" if self.ended.is_set() else "ending"

    def settles_tree(self, end: RunEnd) -> bool:
        """Whether, if it ends so, nobody continues the runs below it: it has its answer, or its lead has its failure.

        Otherwise they continue with it when it is resumed.
        """
        return end.state == "done" or (end.state == "failed" and self.started.parent_id is not None)

    def try_to_end(self) -> bool:
        """Take no more messages, unless there is one that the loop has not read; returns whether it may end."""
        self.ending = not self.inbox.has_unread
        return self.ending

    def end_records(self, end: RunEnd) -> list[Record]:
        """Fix how it ends; returns the records of that, for one transaction, so that nobody waits for a lost event."""
        self.ending, self.end = True, end
        event = self._end_event = self.event(StateChanged, **end.told)
        cancelled = end.state == "stopped" and self.stop_asked
        cause = encode_error(end.cause) if isinstance(end.cause, RepertoryError) else {}
        return [self.state_record(**end.told, cause=cause, cancelled=cancelled), to_record(event)]

    def close(self) -> None:
        """Tell readers and waiters that it has ended; its end is on record."""
        assert self.end is not None
        self.listeners.tell_added()
        self.state = self.end.state
        self.show(self._end_event or self.event(StateChanged, **self.end.told))
        self.last_event = self.shared.hub.count
        self.set_ended()

    def ended_elsewhere(self, end: RunEnd) -> None:
        """Tell waiters how it ended in another process, or that nobody here can read how."""
        self.end, self.state, self.ending = end, end.state, True
        self.set_ended()

    def set_ended(self) -> None:
        """Leave its place to others, and wake everybody who waits for its end."""
        if self.parent is None:
            self.tally.clock.run(on=False)
        if self.place is not None:
            self.place.line.leave(self.place)
        self.stream.close()
        self.ended.set()
        self.wake()

    def wake(self) -> None:
        """Wake its loop to check what is asked of it and whether it is its turn."""
        self._changed.set()

    # --- what is asked of it ---

    def set_desired_state(self, desired: DesiredState) -> None:
        """Ask its loop, and those below it, to continue, pause, stop, or close with the supervisor.

        The loops obey at their next boundary. Stop and close cannot be taken back; one that closes can still be
        stopped, as it would continue elsewhere otherwise.
        """
        if self.parent is None and self.ref is not None and not self.ended.is_set():
            self.tally.clock.run(on=desired != "pause")
        for run in self.tree():
            if run.desired_state not in ("stop", "close") or desired == "stop":
                run.desired_state = desired
            if desired in ("go", "pause") and not run.is_ending:
                run.pause_asked = desired == "pause"
                state: RunState = "running" if run.state == "paused" else run.state
                if run.ref is not None and (changed := run._change_to(state)):
                    run.shared.journal.submit(changed, after=run.begun)
            run.wake()
        self.tally.settled.set()  # for those in ``Spending.wait_for_room``

    async def wait_for_change(self) -> None:
        """Wait until there may be a new desired state or message, or news of a sub-agent."""
        await self._changed.wait()

    async def wait_for_turn(self, head: Head) -> None:
        """Wait until it may work beside its lead's other sub-agents, or must stop; its first request has ``head``."""
        place, above = self.place, self.parent
        if place is None or above is None:
            return
        profile = self.model.profile
        if self.iteration == 0 and worth_warming(head, profile, above.agent.delegation.warm_cache):
            place.head = head
        while not (place.line.has_turn(place) or self.desired_state in ("stop", "close")):
            self.in_line = True
            await self._changed.wait()
        self.in_line = False

    def answered(self, *, refused: bool = False) -> None:
        """Note that a model call is being answered, or that the server did not accept it (``refused``)."""
        if self.place is not None:
            self.place.line.answered(self.place, None if refused else self.model.profile.cache.ttl)

    def check_here(self) -> None:
        """Raise ``RunElsewhere`` if the run waits for a machine or is under way on another; see ``check_loop``."""
        self.check_loop()
        if self.elsewhere and not self.ended.is_set():
            raise RunElsewhere(
                f"run {self.run_id} waits for a machine, or is under way on another one; "
                "await supervisor.remote(run_id) gives it"
            )

    def check_loop(self) -> None:
        """Raise ``RunError`` in another event loop than the run's own, unless it has ended."""
        if not self.ended.is_set():
            self.shared.home.check()

    async def wait_ended(self) -> None:
        """Wait until it has ended; for callers, as ``check_loop``."""
        self.check_loop()
        await (anyio.lowlevel.checkpoint() if self.ended.is_set() else self.ended.wait())  # a set one is of any loop

    def kill(self, *, alone: bool = True) -> None:
        """End the run and those below it now, and cancel what is under way. What is in the record stays.

        Args:
            alone: Whether it ends by itself, rather than with the run above it; then it does not continue with that
                run.
        """
        self.stop_asked = self.stop_asked or alone
        for run in self.tree():
            run.killed = run.ending = True
        if self.ref is not None:
            self.ref.kill()

    def deliver(self, message_id: str, said: Said) -> None:
        """Write a message and give it to the loop; a message with a known id is not given again.

        Raises:
            RunError: Another message has this id.
        """
        if not self.inbox.is_new(message_id, said):
            return
        # Submitting it and giving it to the loop are one step, so a cancelled caller has done both or neither. Whatever
        # the loop does with it is submitted later, and so becomes durable later.
        records = said_records(self.run_id, message_id, said, at=self.shared.clock(), iteration=self.iteration)
        self.shared.journal.submit(records, after=self.begun)
        self.inbox.put(message_id, said)
        self.wake()

    def opened(self, view: _EditsView | None) -> None:
        """Set the view of its loop, which may be edited from now on; None until a new loop has opened its view."""
        self._view = view
        self.wake()

    async def view(self) -> _EditsView:
        """Its view, once it is open.

        Raises:
            RunError: The run has ended.
        """
        while not (self.ending or self.ended.is_set()):
            if self._view is not None:
                return self._view
            await self._changed.wait()
        raise RunError(f"run {self.run_id} has ended ({self.how_ended}); nothing more is shown to its model")
