"""The JSON answers of the service. Fields are added, but never removed or changed."""

from __future__ import annotations

from typing import Final, Literal

import msgspec

from repertory.llm.messages import Json
from repertory.record.journal import Durability
from repertory.record.memory_records import ScopeMode
from repertory.record.records import FINAL_STATES, EventLogged, RunRow, WebhookTried
from repertory.record.statistics import RunStatistics
from repertory.runs.events import AnyEvent, from_record
from repertory.runs.waiting_calls import WaitingCall
from repertory.service.health import Check
from repertory.supervisor.queue import QueuedRun


class AgentView(msgspec.Struct, frozen=True, kw_only=True):
    """An agent that a run can be started with.

    Attributes:
        root: The folder that it may read; None for agents that need none.
    """

    name: str
    description: str
    root: str | None = None


class RunFigures(msgspec.Struct, frozen=True, kw_only=True):
    """What a run itself has done and cost, in all processes.

    Attributes:
        iterations: The iterations that got an answer.
        tokens_seen: The tokens of all its prompts together.
        cost: US dollars.
    """

    iterations: int = 0
    tool_calls: int = 0
    tokens_seen: int = 0
    output_tokens: int = 0
    cost: float = 0.0


class RunView(msgspec.Struct, frozen=True, kw_only=True):
    """A run in a list.

    Attributes:
        state: The state in the journal; ``interrupted`` if it is under way there but no process runs it.
        live: Whether a process runs it: this one, or another machine.
        resumable: Whether a POST to its ``resume`` continues it.
        origin: The run that it was forked from, or that it replaced.
        figures: None in a list that was requested without figures.
        client: The client that asked for it; "" for none.
        reason: What it waited for when it was ``queued``.
        machine: The name of the machine that runs it; "" if none does, or only one process uses the journal.
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
        memory: The mode of its memory scope; None if it has none.
    """

    run: RunView
    statistics: RunStatistics
    memory: ScopeMode | None
    children: list[RunNode]


class RunDetail(msgspec.Struct, frozen=True, kw_only=True):
    """One run.

    Attributes:
        statistics: Its own figures.
        tree_statistics: The figures of the run and all runs below it.
        tree: The run and all runs below it.
        payload_version: How many versions its payload had; 0 if it has none.
        agent_ref: Where its agent is defined, as ``module:name`` or a file; "" if the journal does not say.
        options: The options that its agent was loaded with, including ``limits``.
        queue: Its place in the queue and what it waits for; null if it is not ``queued``.
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
        seq: The number of the newest event when the list was made: ``/events?after=seq`` continues from here.
        more: How many matching trees are left out: older ones, or newer ones if the oldest were requested.
        next: The value of ``before``, or ``after``, that requests those; None if there are none.
    """

    runs: list[RunView]
    seq: int
    more: int
    next: str | None = None


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """The data with which the web page starts.

    Attributes:
        seq: The number of the newest event when it was made: ``/events?after=seq`` continues from here.
        at: When that was, in seconds since 1970.
        read_only: Whether the service refuses requests that change something.
        today: What happened since ``since``: ``since``, ``done`` (the trees that were done), and the ``calls`` of
            models that were answered, with their ``tokens`` (prompts and answers, as billed) and ``cost`` in dollars.
        runs: The newest trees of runs and older ones that have not ended or that failed within a day, oldest first,
            each run with the fields of ``RunView``, its ``result``, and fields of ``RunStatistics``, the same as
            ``repertory stats`` gives: ``figures`` (its own) and ``tree`` (with those below it).
        more: How many older trees are left out.
        machines: The supervisors that share the journal, as ``repertory machines --json`` lists them; [] if only one
            process uses it.
    """

    seq: int
    at: float
    read_only: bool
    today: Json
    runs: list[Json]
    more: int
    machines: list[Json] = msgspec.field(default_factory=list[Json])


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """A run has begun, or had already begun if the request was repeated."""

    id: str


class Accepted(msgspec.Struct, frozen=True, kw_only=True):
    """The request is durable, or takes effect at the run's next boundary."""


class Reloaded(msgspec.Struct, frozen=True, kw_only=True):
    """The company file was read again.

    Attributes:
        notes: Changes that need a restart.
    """

    notes: list[str]


class RunEnded(msgspec.Struct, frozen=True, kw_only=True):
    """How a run ended, or its present state.

    Attributes:
        state: The state, as in ``RunView``.
        result: Its answer, once it is ``done``.
        error: Why it ``failed``.
        updated_at: When it entered this state, in seconds since 1970.
    """

    id: str
    state: str
    result: str | None
    error: str | None
    updated_at: float


class WebhookAttempt(WebhookTried, frozen=True, kw_only=True):
    """An attempt to tell a webhook of a change of state.

    Attributes:
        seq: The number of the attempt.
        change: The number of the change.
        outcome: ``delivered``; ``failed``: it is tried again; ``disabled``: nothing more is sent until the service
            restarts; ``begun``: no attempt, but the webhook was new, and is told of the changes after this one.
        status: The status of the answer; 0 for none.
        next_at: When it is tried again, in seconds since 1970; 0 if it arrived.
    """

    seq: int


class WebhookList(msgspec.Struct, frozen=True, kw_only=True):
    """The newest attempts, the newest first."""

    attempts: list[WebhookAttempt]


def attempt_view(seq: int, tried: WebhookTried) -> WebhookAttempt:
    """An attempt as the service shows it."""
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
    """The disk space of the database.

    Attributes:
        size: Bytes of its file.
        free: Bytes of it that are unused.
    """

    size: int
    free: int


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of the service.

    Attributes:
        status: ``ok``, or ``fail`` if it cannot do its work.
        checks: The results of the checks.
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
        type: The name of its class in ``repertory.runs.events``; ``UserSaid`` for a message.
    """

    seq: int
    run_id: str
    type: str
    iteration: int
    at: float
    body: Json


class ServiceView(msgspec.Struct, frozen=True, kw_only=True):
    """A description of the service.

    Attributes:
        database: The absolute path of the journal's file; "" if it is not a file.
        pid: The process id.
        started_at: Seconds since 1970.
        seq: The number of the newest event.
        resuming: Whether it may still resume by itself runs that another process left unfinished.
        going: How many trees of runs are under way in the process.
    """

    version: str
    database: str
    pid: int
    started_at: float
    seq: int
    resuming: bool
    going: int


def run_view(row: RunRow, *, live: bool, machine: str) -> RunView:
    """A run's view in lists; ``live`` is whether its tree is being run, and ``machine`` by which machine."""
    started, live = row.started, live and row.state not in FINAL_STATES
    state = row.state if live or row.state not in ("running", "waiting") else "interrupted"
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
    """One event as the service shows it."""
    return EventView(
        seq=seq, run_id=event.run_id, type=event.type, iteration=event.iteration, at=event.at, body=event.body
    )


REMOVED: Final = "RunRemoved"
"""The type of the notice in streams that a tree was removed. It is not an event in the journal."""


def event_of(view: EventView, *, agent: str) -> AnyEvent | None:
    """The event that a view shows; None for a message, and for types that a later version may add."""
    fields = {name: getattr(view, name) for name in ("run_id", "type", "body", "at", "iteration")}
    return from_record(EventLogged(**fields), agent=agent)
