"""What the service answers, as JSON. Fields are only ever added."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Final, Literal, TypeAlias

import msgspec

from repertory._ids import root_of
from repertory.llm.messages import Json
from repertory.record.journal import Durability, Journal
from repertory.record.records import FINAL_STATES, EventLogged, RunRow, RunState, ScopeMode, WebhookTried
from repertory.record.run_lists import InState, RootFilter
from repertory.record.statistics import RunStatistics
from repertory.runs.events import AnyEvent, from_record
from repertory.runs.waiting_calls import WaitingCall
from repertory.service.health import Check
from repertory.supervisor.queue import QueuedRun


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a run can be started with.

    Attributes:
        root: The folder it may read; None for agents that need none.
    """

    name: str
    description: str
    root: str | None = None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run itself has done and cost, in all processes.

    Attributes:
        iterations: Those that had an answer.
        tokens_seen: Those of all its prompts together.
        cost: In US dollars.
    """

    iterations: int = 0
    tool_calls: int = 0
    tokens_seen: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list.

    Attributes:
        state: As in the record; ``interrupted`` where the record says that it goes on, but not in this process.
        live: Whether this process runs it.
        resumable: Whether a POST to its ``resume`` makes it go on.
        origin: The run that it was forked from, or took the place of.
        figures: None in a list that was not asked for them.
        client: Who asked for it; "" for nobody in particular.
        reason: What it waited for when it was ``queued``.
        machine: The name of the machine that runs it; "" where none does, or the journal is one process's alone.
    """

    id: str
    parent_id: str | None
    depth: int
    agent: str
    model: str
    task: str
    state: str
    live: bool
    resumable: bool
    iteration: int
    started_at: float
    updated_at: float
    error: str | None = None
    origin: str | None = None
    figures: RunFigures | None = None
    priority: int = 0
    client: str = ""
    reason: str = ""
    machine: str = ""


class RunNode(msgspec.Struct, frozen=True, kw_only=True):
    """A run with those below it.

    Attributes:
        memory: The mode of its memory scope; None where it has none.
    """

    run: RunView
    statistics: RunStatistics
    memory: ScopeMode | None
    children: list[RunNode]


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        statistics: Its own figures.
        tree_statistics: Its own and those of all below it.
        tree: It and all below it.
        payload_version: How many versions its payload had; 0 where it has none.
        agent_ref: Where its agent is defined, as ``module:name`` or a file; "" where the record does not say.
        options: What its agent was loaded with, its ``limits`` among them.
        queue: Its place in the queue and what it waits for; null where it is not ``queued``.
    """

    run: RunView
    result: str | None
    statistics: RunStatistics
    tree_statistics: RunStatistics
    tree: RunNode
    payload_version: int
    agent_ref: str = ""
    options: Json = msgspec.field(default_factory=Json)
    queue: QueuedRun | None = None


class RunList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest trees of runs.

    Attributes:
        runs: Oldest first, each after its parent.
        seq: The number of the newest event when the list was made: ``/events?after=seq`` goes on from here.
        more: How many that fit are left out: older trees, or newer ones where the first were asked for.
        next: What to ask for as ``before``, or ``after``, to have those; None where there are none.
    """

    runs: list[RunView]
    seq: int
    more: int
    next: str | None = None


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run has begun, or had already, where the request was repeated."""

    id: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """What was asked for is durable, or takes effect at the run's next boundary."""


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The company file was read again.

    Attributes:
        notes: What only a restart can change.
    """

    notes: list[str]


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or how it stands.

    Attributes:
        state: As in ``RunView``.
        result: Its answer, once it is ``done``.
        error: Why it ``failed``.
        updated_at: When it came into this state, in seconds since 1970.
    """

    id: str
    state: str
    result: str | None
    error: str | None
    updated_at: float


class WebhookAttempt(msgspec.Struct, frozen=True, kw_only=True):
    """An attempt to tell a webhook of a change of state.

    Attributes:
        seq: The number of the attempt.
        change: That of the change.
        outcome: ``delivered``; ``failed``: it is tried again; ``disabled``: nothing more is, until the service starts
            again.
        status: Of the answer; 0 for none.
        next_at: When it is tried again, in seconds since 1970; 0 where it arrived.
    """

    seq: int
    url: str
    run_id: str
    change: int
    outcome: str
    attempt: int
    at: float
    status: int
    error: str
    next_at: float


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempts, the newest first."""

    attempts: list[WebhookAttempt]


def attempt_view(seq: int, tried: WebhookTried) -> WebhookAttempt:
    """An attempt as it is shown outside."""
    return WebhookAttempt(seq=seq, **msgspec.structs.asdict(tried))


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """The tool calls that wait, oldest first."""

    waiting: list[WaitingCall]


class ContentList(msgspec.Struct, frozen=True, kw_only=True):
    """What a run and those below it have stored, oldest first.

    Attributes:
        more: Whether there are more than were asked for.
    """

    run_id: str
    contents: list[Json]
    more: bool


class Space(msgspec.Struct, frozen=True, kw_only=True):
    """What the database takes.

    Attributes:
        size: Bytes of its file.
        free: Bytes of it that hold nothing any more.
    """

    size: int
    free: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """How the service is.

    Attributes:
        status: ``ok``, or ``fail`` where it cannot do its work.
        checks: What was looked at.
        durability: What an acknowledged write survives.
        seq: The number of the newest event.
    """

    status: Literal["ok", "fail"]
    durability: Durability
    seq: int
    checks: list[Check]


class EventView(msgspec.Struct, frozen=True, kw_only=True):
    """An event of a run.

    Attributes:
        seq: Its number in the journal.
        type: As ``repertory.runs.events`` names it; ``UserSaid`` for a message.
    """

    seq: int
    run_id: str
    type: str
    iteration: int
    at: float
    body: Json


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """Who serves.

    Attributes:
        database: The whole path of the journal's file; "" where it is none.
        pid: The process.
        started_at: Seconds since 1970.
        seq: The number of the newest event.
        resuming: Whether it may still take up by itself what another process left unfinished.
        going: How many trees of runs are under way in the process.
    """

    version: str
    database: str
    pid: int
    started_at: float
    seq: int
    resuming: bool
    going: int


def run_view(row: RunRow, *, live: bool, machine: str = "") -> RunView:
    """What a list says about a run; ``live`` is whether somebody runs its tree, and ``machine`` which one does."""
    started, live = row.started, live and row.state not in FINAL_STATES
    state = row.state if live or row.state in (*FINAL_STATES, "queued") else "interrupted"
    return RunView(
        id=started.run_id,
        parent_id=started.parent_id,
        depth=started.depth,
        agent=started.agent,
        model=started.model,
        task=started.task,
        state=state,
        live=live,
        resumable=started.parent_id is None
        and (state in ("interrupted", "failed", "stopped", "paused") or (state == "queued" and not live)),
        iteration=row.iteration,
        started_at=started.at,
        updated_at=row.updated_at,
        error=row.error,
        priority=started.priority,
        client=started.client,
        reason=row.reason,
        machine=machine if live else "",
        origin=started.origin or None,
    )


def event_view(seq: int, event: EventLogged) -> EventView:
    """One event as it is shown outside."""
    return EventView(
        seq=seq, run_id=event.run_id, type=event.type, iteration=event.iteration, at=event.at, body=event.body
    )


REMOVED: Final = "RunRemoved"
"""The type of what streams say of a tree that was removed: nothing of it is on record any more, this neither."""


def removed_view(root: str, *, seq: int) -> EventView:
    """That a tree was removed, told behind the event with a number."""
    return EventView(seq=seq, run_id=root, type=REMOVED, iteration=0, at=time.time(), body={})


def event_of(view: EventView, *, agent: str) -> AnyEvent | None:
    """The event that a view shows; None for a message, and for what a later version may show."""
    fields = {name: getattr(view, name) for name in ("run_id", "type", "body", "at", "iteration")}
    return from_record(EventLogged(**fields), agent=agent)


IsLive: TypeAlias = Callable[[str], bool]
"""Whether somebody runs the tree of a root, by the root's id."""
MachineOf: TypeAlias = Callable[[str], str]
"""The name of the machine that runs a run, by its id; "" where there is none."""


def no_machine(_run_id: str) -> str:
    """Of a journal that is one process's alone."""
    return ""


_SETTLED: Final[tuple[RunState, ...]] = (*FINAL_STATES, "queued")
"""Those that are shown as they are on record, whether somebody runs the tree or not."""
_GOING: Final[tuple[RunState, ...]] = ("running", "waiting", "paused")
_INTERRUPTED: Final = "interrupted"


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """Which trees a list is to have, by their roots.

    Attributes:
        states: As in ``RunView``; () for all.
        agent: The name of the root's agent; "" for all.
        client: Who asked for it; "" for all.
        machine: The name of the machine that runs it; "" for all.
        text: What its task has somewhere, whatever the case; "" for all.
        since: Started then or later, in seconds since 1970.
        until: Started before that.
        oldest: Have the first that fit, and not the last.
        before: Started before this run; "" for no such bound.
        after: Started after this run; then the first that fit are wanted.
    """

    states: tuple[str, ...] = ()
    agent: str = ""
    client: str = ""
    machine: str = ""
    text: str = ""
    since: float = 0.0
    until: float = math.inf
    oldest: bool = False
    before: str = ""
    after: str = ""

    async def on_record(self, journal: Journal, is_live: IsLive, machine_of: MachineOf) -> RootFilter:
        """The same as the record has it, which does not say who runs what."""
        states = [*_SETTLED, *_GOING, _INTERRUPTED] if self.machine and not self.states else self.states
        settled: list[RunState] = [state for state in _SETTLED if state in states]
        going: list[RunState] = [state for state in _GOING if state in states]
        in_state = [InState(states=settled)] if settled else []
        if going or _INTERRUPTED in states or (self.machine and "queued" in settled):
            there, _ = await journal.read_roots(RootFilter(in_state=[InState(states=(*_GOING, "queued"))]), sys.maxsize)
            live = [run_id for run_id in there if is_live(run_id) and self.machine in ("", machine_of(run_id))]
            if self.machine:
                in_state = []
                if "queued" in settled:
                    going.append("queued")
            if going:
                in_state.append(InState(states=going, among=live))
            if _INTERRUPTED in states and not self.machine:
                in_state.append(InState(states=_GOING, without=live))
        elif self.machine:  # what has ended is on none
            in_state = [InState(states=())]
        return RootFilter(
            in_state=in_state or ([InState(states=())] if states else ()),
            agent=self.agent,
            client=self.client,
            text=self.text,
            since=self.since,
            until=self.until,
            before=self.before,
            after=self.after,
            oldest=self.oldest or bool(self.after),
        )


async def list_runs(
    journal: Journal,
    is_live: IsLive,
    limit: int,
    *,
    machine_of: MachineOf = no_machine,
    figures: bool = False,
    wanted: Wanted | None = None,
) -> RunList:
    """The newest trees of runs, oldest first; with figures that is one question more, however many runs there are."""
    seq = await journal.last_event()  # before the list, so that nothing falls in between
    which = await (wanted or Wanted()).on_record(journal, is_live, machine_of)
    shown, count = await journal.read_roots(which, limit)
    rows = await journal.read_trees(shown)
    ids = ((row, row.started.run_id) for row in rows)
    views = [run_view(row, live=is_live(root_of(run_id)), machine=machine_of(run_id)) for row, run_id in ids]
    if figures:
        of = await read_figures(journal, rows)
        views = [_with_figures(view, of.get(view.id, RunStatistics())) for view in views]
    more = count - len(shown)
    edge = (shown[-1] if which.oldest else shown[0]) if shown and more else None
    return RunList(runs=views, seq=seq, more=more, next=edge)


async def read_figures(journal: Journal, rows: Sequence[RunRow]) -> dict[str, RunStatistics]:
    """The figures of some runs, by id."""
    return await journal.read_statistics(of=[row.started.run_id for row in rows])


def _with_figures(view: RunView, figures: RunStatistics) -> RunView:
    own = RunFigures(
        iterations=figures.iterations,
        tool_calls=figures.tool_calls,
        tokens_seen=figures.tokens_seen,
        output_tokens=figures.output_tokens,
        cost=figures.cost_seen,
    )
    return msgspec.structs.replace(view, figures=own, updated_at=max(view.updated_at, figures.replied_at))


async def read_detail(
    journal: Journal, is_live: IsLive, run_id: str, *, machine_of: MachineOf = no_machine
) -> RunDetail:
    """One run, by its id or an unambiguous beginning of it. Raises ``RunNotFound``."""
    run_id = (await journal.read_run(run_id)).started.run_id
    tree = await journal.read_runs(below=run_id)  # one reading for all of it, so that state and result agree
    node = await read_node(journal, tree, run_id, live=is_live(root_of(run_id)), machine_of=machine_of)
    return RunDetail(
        run=node.run,
        result=tree[0].result,
        statistics=node.statistics,
        tree_statistics=sum_of(node),
        tree=node,
        payload_version=await journal.payload_version(run_id),
        agent_ref=tree[0].started.agent_ref,
        options=dict(tree[0].started.options),
    )


async def read_node(
    journal: Journal, rows: Sequence[RunRow], run_id: str, *, live: bool, machine_of: MachineOf = no_machine
) -> RunNode:
    """Read a run and all below it. ``rows`` are theirs, parents first."""
    figures = await journal.read_statistics(run_id)
    modes: dict[str, ScopeMode] = {scope.scope_id: scope.mode for scope in await journal.read_scopes(run_id)}
    nodes: dict[str, RunNode] = {}
    for row in rows:
        view = run_view(row, live=live, machine=machine_of(row.started.run_id))
        memory = modes.get(row.started.scope_id)
        node = RunNode(run=view, statistics=figures.get(view.id, RunStatistics()), memory=memory, children=[])
        if row.started.parent_id in nodes:
            nodes[row.started.parent_id].children.append(node)
        nodes[row.started.run_id] = node
    return nodes[run_id]


def sum_of(node: RunNode) -> RunStatistics:
    """The figures of a tree."""
    return sum((sum_of(child) for child in node.children), start=node.statistics)
