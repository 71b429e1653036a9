"""The events of runs: what can be observed while a run is under way, and how the journal records it."""

from __future__ import annotations

from typing import Any, Final, TypeAlias, get_args

import msgspec

from repertory._frozen import Frozen
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
        elapsed: Seconds that the run's tree has worked, in all processes, not counting pauses of its root.
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
    """A run continues from its record: after a crash, in a new process, or after it was stopped.

    Attributes:
        entries: How many entries its record has.
        interrupted_calls: How many tool calls were interrupted, so that their effect is unknown.
        agent_changed: Whether the agent's definition differs from the one that the run began with.
    """

    entries: int
    interrupted_calls: int = 0
    agent_changed: bool = False


class RunForked(Event, frozen=True, kw_only=True):
    """Another run was started as a copy of this one up to ``iteration``.

    Attributes:
        fork: The id of the new run.
        rewound: Whether the new run replaces this one, which was ended for it.
    """

    fork: str
    rewound: bool = False


class RunClaimed(Event, frozen=True, kw_only=True):
    """In a shared journal, a machine now owns the run: only this machine writes its record.

    Attributes:
        machine: The machine's id, while ``name`` is for people.
        fence: The number of this owner; it grows by one with every change of owner.
        why: How the machine got the run: ``started``, ``queued``, ``resumed``, ``moved`` or ``taken over``.
    """

    machine: str
    name: str
    fence: int
    why: str


class IterationStarted(Event, frozen=True, kw_only=True):
    """A model call is about to be made.

    Attributes:
        view_tokens: Estimated tokens of the prompt that the model sees.
        record_tokens: Estimated tokens of the prompt that a plain loop would send: the whole record, unshortened.
        build_seconds: The time it took to plan the view and to build and check the request, without a model call.
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
    """A model call failed in a way that may be temporary; it is retried after ``delay`` seconds."""

    attempt: int
    delay: float
    reason: str


class ToolStarted(Event, Frozen, frozen=True, kw_only=True):
    """A tool call began."""

    call_id: str
    tool: str
    arguments: dict[str, Any]


class ToolProgress(Event, frozen=True, kw_only=True):
    """A tool reports progress. This event is only shown to readers, not recorded."""

    call_id: str
    tool: str
    text: str


class ToolEnded(Event, frozen=True, kw_only=True):
    """A tool call ended.

    Attributes:
        status: ``ok``, ``error`` or ``interrupted``.
        characters: Length of the whole result.
        shown: Length of the part that the model is shown.
        deduplicated: Whether the call was answered from an earlier call's result instead of running the tool.
    """

    call_id: str
    tool: str
    status: str
    characters: int
    shown: int
    duration: float
    deduplicated: bool = False
    retrieval: bool = False


class ApprovalRequested(Event, Frozen, frozen=True, kw_only=True):
    """A tool call waits until somebody allows or denies it; see ``Run.approve`` and ``Run.deny``.

    Attributes:
        digest: Hash of the tool's name and the arguments.
        reason: Who requires the approval.
        expires_at: When the call is denied if nobody has decided, in seconds since 1970; None for never.
    """

    call_id: str
    tool: str
    arguments: dict[str, Any]
    digest: str
    reason: str = ""
    expires_at: float | None = None


class ApprovalDecided(Event, Frozen, frozen=True, kw_only=True):
    """A tool call was allowed or denied.

    Attributes:
        allowed: Whether it was allowed.
        by: Who decided, as given by the caller; "" if they gave no name, or if nobody decided in time.
        reason: Why it was denied.
        digest: Hash of the tool's name and the arguments that were decided on.
        arguments: The arguments that replace those of the call; None if they are the same.
    """

    call_id: str
    tool: str
    allowed: bool
    digest: str
    by: str = ""
    reason: str = ""
    arguments: dict[str, Any] | None = None


class ResultAwaited(Event, Frozen, frozen=True, kw_only=True):
    """A tool has returned without a result, which will come from outside; see ``Run.give_result``.

    Attributes:
        note: What the call waits for, in the tool's words.
        expires_at: When the model is told that no result came, in seconds since 1970; None for never.
        round: How many times the call has waited, including this one.
        schema: JSON schema of the expected value; None for any value.
        state: The state with which the tool continues; None if the value is the result. See ``ResultLater``.
    """

    call_id: str
    tool: str
    note: str = ""
    expires_at: float | None = None
    round: int = 1
    schema: dict[str, Any] | None = None
    state: dict[str, Any] | None = None


class ResultGiven(Event, Frozen, frozen=True, kw_only=True):
    """The result of a tool call was given from outside.

    Attributes:
        result: Text or JSON; None if the result is stored content.
        is_error: Whether the result says that the call failed.
        content_id: The id of stored images and documents, as blocks of the Messages API; "" for none.
        round: Which of the call's waits it ends, from 1.
        expired: Whether nobody gave a result in time.
    """

    call_id: str
    tool: str
    result: Any
    is_error: bool = False
    content_id: str = ""
    round: int = 1
    expired: bool = False


class ContextEdited(Event, frozen=True, kw_only=True):
    """The plan changed: the model now sees the past differently.

    Attributes:
        reason: Why the edit was made, with its arithmetic, as a sentence.
        tokens_saved: By how many tokens each later prompt is smaller.
        cost: One-time cost of the edit in US dollars, for rewriting the prompt cache after it.
        saves_per_call: US dollars that each later call saves.
        tokens_before: Estimated tokens of the prompt without the edit; 0 if not estimated.
        tokens_after: Estimated tokens of the prompt with the edit; 0 if not estimated.
        summaries: How many summaries the edit swaps in.
        entries: Positions of the single entries that the edit changes.
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
    """The summarizer finished a summary of entries ``first`` to ``last``; the planner decides when to use it.

    A summary of a single result has ``strategy="result"`` and is used when the result is compacted.

    Attributes:
        failure: Why the requested strategy failed, so that the extractive one wrote the summary; "" if it did not fail.
    """

    first: int
    last: int
    strategy: str
    tokens: int
    replaced_tokens: int
    failure: str = ""


class SummaryRefused(Event, frozen=True, kw_only=True):
    """A summary of a stretch or of a single result failed or was refused; the run continues without it.

    A request that a newer one replaced before it was begun does not count as refused, and has no event.
    """

    reason: str


class Alert(Event, frozen=True, kw_only=True):
    """A figure of the run went beyond its threshold; see ``AlertThresholds``.

    Attributes:
        metric: The threshold's name: ``tokens``, ``retrieval_share``, …; or the limit that is near, as ``limits.cost``.
        reason: The value and the threshold, as a sentence.
    """

    metric: str
    value: float
    threshold: float
    reason: str


class PayloadConflicted(Event, frozen=True, kw_only=True):
    """Payload changes were not made because the same places had been changed first; the record keeps these changes.

    Attributes:
        call_id: The tool call that the changes came from; "" for none.
        source: The tool, or the sub-agent's run, that requested the changes.
        version: The payload version whose record keeps the changes.
        paths: The places that they would have changed.
    """

    call_id: str
    source: str
    version: int
    paths: tuple[str, ...]


class StateChanged(Event, frozen=True, kw_only=True):
    """The run's state changed."""

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
"""Any of the events; with this union a type checker knows whether a ``match`` is exhaustive."""

_KINDS: Final[dict[str, type[AnyEvent]]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
_OF_EVERY_EVENT: Final = ("event", *Event.__struct_fields__)  # stored in columns of the record or of its run


def to_record(event: AnyEvent) -> EventLogged:
    """The journal's record of an event: all fields of its own type, including defaults."""
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
    """The event of a record; None if the record's type is not one of ``AnyEvent``.

    Args:
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
