"""What can be seen of a run while it goes on: the events, and what the journal keeps of them."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

import msgspec

from repertory._frozen import freeze_fields
from repertory.errors import JournalUnreadable
from repertory.llm.model import Usage
from repertory.record.records import EventLogged, RunState

__all__ = [
    "Alert",
    "AnyEvent",
    "ApprovalDecided",
    "ApprovalRequested",
    "ContextEdited",
    "Event",
    "EventsMissed",
    "IterationStarted",
    "ModelAnswered",
    "ModelRetrying",
    "PayloadConflicted",
    "ResultAwaited",
    "ResultGiven",
    "RunClaimed",
    "RunForked",
    "RunResumed",
    "RunSpawned",
    "StateChanged",
    "SummaryRefused",
    "SummaryTaken",
    "ToolEnded",
    "ToolProgress",
    "ToolStarted",
    "from_record",
]


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """Something happened in a run.

    Attributes:
        run_id: The run.
        agent: The name of its agent.
        iteration: The iteration it happened in; 0 before the first.
        at: Seconds since 1970.
        elapsed: Seconds that the run's tree has been going, in all processes: not while its root was paused.
    """

    run_id: str
    agent: str
    iteration: int
    at: float
    elapsed: float = 0.0


class RunSpawned(Event, frozen=True, kw_only=True):
    """A run began. ``parent_id`` is None for a root."""

    task: str
    model: str
    parent_id: str | None = None
    depth: int = 0


class RunResumed(Event, frozen=True, kw_only=True):
    """A run goes on from its record: after a crash, in a new process, or after it was stopped.

    Attributes:
        entries: How many entries its record has.
        interrupted_calls: Tool calls of which nobody knows what they did.
        agent_changed: The agent's definition is another than the one that the run was begun with.
    """

    entries: int
    interrupted_calls: int = 0
    agent_changed: bool = False


class RunForked(Event, frozen=True, kw_only=True):
    """Another run was begun that is the same up to ``iteration``.

    Attributes:
        fork: Its id.
        rewound: Whether it takes the place of this one, which was ended for it.
    """

    fork: str
    rewound: bool = False


class RunClaimed(Event, frozen=True, kw_only=True):
    """A machine owns the run from now on, where several share a journal: it alone writes its record.

    Attributes:
        machine: Its id.
        name: Its name.
        fence: Counts the owners of the run.
        why: How it came there: ``started``, ``queued``, ``resumed``, ``moved`` or ``taken over``.
    """

    machine: str
    name: str
    fence: int
    why: str


class IterationStarted(Event, frozen=True, kw_only=True):
    """A model call is about to be made.

    Attributes:
        view_tokens: Estimate of the prompt that the model sees.
        record_tokens: Estimate of the prompt that a plain loop would send: the whole record, nothing shortened.
        build_seconds: What it took to plan the view, make the request and check it; no model is asked for that.
    """

    view_tokens: int
    record_tokens: int
    build_seconds: float = 0.0


class ModelAnswered(Event, frozen=True, kw_only=True):
    """A model call ended; ``cost`` is in US dollars and ``duration`` in seconds."""

    usage: Usage
    cost: float
    stop_reason: str
    text: str
    tool_calls: int
    duration: float


class ModelRetrying(Event, frozen=True, kw_only=True):
    """A model call failed in a way that may pass; it is made again after ``delay`` seconds."""

    attempt: int
    delay: float
    reason: str


class ToolStarted(Event, frozen=True, kw_only=True):
    """A tool call began."""

    call_id: str
    tool: str
    arguments: dict[str, Any]

    def __post_init__(self) -> None:
        freeze_fields(self, "arguments")


class ToolProgress(Event, frozen=True, kw_only=True):
    """A tool says how far it is; only for those who watch, it is not kept."""

    call_id: str
    tool: str
    text: str


class ToolEnded(Event, frozen=True, kw_only=True):
    """A tool call ended.

    Attributes:
        status: ``ok``, ``error`` or ``interrupted``.
        characters: Length of the whole result.
        shown: Length of what the model is shown of it.
        deduplicated: An earlier call's result was given instead of running the tool again.
    """

    call_id: str
    tool: str
    status: str
    characters: int
    shown: int
    duration: float
    deduplicated: bool = False
    retrieval: bool = False


class ApprovalRequested(Event, frozen=True, kw_only=True):
    """A tool call waits until somebody allows or denies it; see ``Run.approve`` and ``Run.deny``.

    Attributes:
        arguments: What the tool is to be called with.
        digest: Hash of the tool's name and these arguments.
        reason: Who wants it to be asked.
        expires_at: Seconds since 1970, after which it is denied; None for no such time.
    """

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    reason: str = ""
    expires_at: float | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "arguments")


class ApprovalDecided(Event, frozen=True, kw_only=True):
    """A tool call was allowed or denied.

    Attributes:
        allowed: Which of the two.
        by: Who decided, as they say; "" where nobody did before its time was over, or nobody said so.
        reason: Why it is denied.
        digest: Hash of the tool's name and the arguments that it is about.
        arguments: What the tool is called with instead of what was asked for; None where it is the same.
    """

    call_id: str
    tool: str
    allowed: bool
    digest: str
    by: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        if self.arguments is not None:
            freeze_fields(self, "arguments")


class ResultAwaited(Event, frozen=True, kw_only=True):
    """A tool has sent its request out, and its result is to come from elsewhere; see ``Run.give_result``.

    Attributes:
        note: What is waited for, as the tool says.
        expires_at: Seconds since 1970, after which the model is told that none came; None for no such time.
        round: How often the call has waited with this, from 1.
        schema: JSON schema of what is to come; None for anything.
        state: What the tool goes on with; None where what comes is the result. See ``ResultLater``.
    """

    call_id: str
    tool: str
    note: str = ""
    expires_at: float | None = None
    round: int = 1
    schema: dict[str, Any] | None = None
    state: dict[str, Any] | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "schema", "state")


class ResultGiven(Event, frozen=True, kw_only=True):
    """The result of a tool call came from elsewhere.

    Attributes:
        result: Text or JSON; None where it is content that is stored.
        is_error: Whether the call failed by it.
        content_id: Under which images and documents are stored, as blocks of the Messages API; "" for none.
        round: Which time of the call's waiting it ends, from 1.
        expired: Whether nobody gave one in time.
    """

    call_id: str
    tool: str
    result: Any
    is_error: bool = False
    content_id: str = ""
    round: int = 1
    expired: bool = False

    def __post_init__(self) -> None:
        freeze_fields(self, "result")


class ContextEdited(Event, frozen=True, kw_only=True):
    """The plan changed: what the model sees of the past is another than before.

    Attributes:
        kind: Which kind of edit.
        reason: Why, with its arithmetic, as a sentence.
        tokens_saved: How much smaller each later prompt is.
        cost: US dollars that the edit costs once, for rewriting the cache behind it.
        saves_per_call: US dollars that each later call saves.
        tokens_before: Estimate of the prompt without the edit; 0 where it was not worked out.
        tokens_after: The same with it.
        summaries: How many summaries are swapped in with it.
        entries: Positions of the single entries that it touches.
    """

    kind: str
    reason: str
    tokens_saved: int
    cost: float = 0.0
    saves_per_call: float = 0.0
    summaries: int = 0
    entries: tuple[int, ...] = ()
    tokens_before: int = 0
    tokens_after: int = 0


class SummaryTaken(Event, frozen=True, kw_only=True):
    """The summarizer finished a summary of entries ``first`` to ``last``; the planner will say when to use it.

    That of a single result has ``strategy="result"``, and waits until the result is compacted.

    Attributes:
        failure: Why the strategy that was asked could not write it, so that the extractive one did; "" if it could.
    """

    first: int
    last: int
    strategy: str
    tokens: int
    replaced_tokens: int
    failure: str = ""


class SummaryRefused(Event, frozen=True, kw_only=True):
    """There is no summary of a stretch or of a single result: it failed or was refused; the run goes on without it.

    A request that a newer one replaced before it was begun is not refused, and has no event.
    """

    reason: str


class Alert(Event, frozen=True, kw_only=True):
    """A figure of the run went beyond its threshold; see ``AlertThresholds``.

    Attributes:
        metric: Which threshold: ``tokens``, ``retrieval_share``, …; or the limit that is near, as ``limits.cost``.
        value: The figure.
        threshold: What it should not exceed.
        reason: Both, as a sentence.
    """

    metric: str
    value: float
    threshold: float
    reason: str


class PayloadConflicted(Event, frozen=True, kw_only=True):
    """Changes of the payload were not made, as others had changed the same places first; the record has them.

    Attributes:
        call_id: The tool call that they came with; "" for none.
        source: The tool, or the sub-agent's run, that wanted them.
        version: The version of the payload whose record has them.
        paths: The places.
    """

    call_id: str
    source: str
    version: int
    paths: tuple[str, ...]


class StateChanged(Event, frozen=True, kw_only=True):
    """The run went into another state."""

    state: RunState
    result: str | None = None
    error: str | None = None


class EventsMissed(Event, frozen=True, kw_only=True):
    """The reader was too slow: ``count`` events are no longer in memory. The journal has them all."""

    count: int


AnyEvent: TypeAlias = (
    RunSpawned
    | RunResumed
    | RunForked
    | RunClaimed
    | IterationStarted
    | ModelAnswered
    | ModelRetrying
    | ToolStarted
    | ToolProgress
    | ToolEnded
    | ApprovalRequested
    | ApprovalDecided
    | ResultAwaited
    | ResultGiven
    | ContextEdited
    | SummaryTaken
    | SummaryRefused
    | Alert
    | PayloadConflicted
    | StateChanged
    | EventsMissed
)
"""Any of the events, so that a type checker knows when a ``match`` has seen them all."""

_KINDS: Final[dict[str, type[AnyEvent]]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
_OF_EVERY_EVENT: Final = ("event", *Event.__struct_fields__)  # the record has columns for them, or its run has


def to_record(event: AnyEvent) -> EventLogged:
    """What the journal keeps of an event: each of its own fields, whether or not it was given."""
    body = msgspec.to_builtins(event)
    for name in _OF_EVERY_EVENT:
        del body[name]
    return EventLogged(
        run_id=event.run_id,
        type=type(event).__name__,
        body=body,
        at=event.at,
        iteration=event.iteration,
        elapsed=event.elapsed,
    )


def from_record(record: EventLogged, *, agent: str = "") -> AnyEvent | None:
    """The event that a record keeps; None where the record is of no type that is listed here.

    Args:
        record: As the journal gives it.
        agent: The name of the run's agent, which is not in the record.

    Raises:
        JournalUnreadable: A field is missing or of another type.
    """
    kind = _KINDS.get(record.type)
    if kind is None:
        return None
    common = {name: getattr(record, name) for name in ("run_id", "iteration", "at", "elapsed")} | {"agent": agent}
    try:
        return msgspec.convert({**record.body, **common, "event": record.type}, type=kind)
    except msgspec.ValidationError as error:
        raise JournalUnreadable(f"an event {record.type} of run {record.run_id} cannot be read: {error}") from error
