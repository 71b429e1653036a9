"""What can be seen of a run while it goes on: the events, what the journal keeps of them, and where they pass by."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Container
from typing import Any, Final, Self, TypeAlias, get_args
from weakref import WeakSet

import anyio
import msgspec

from repertory._frozen import freeze_fields
from repertory.errors import JournalUnreadable
from repertory.llm.model import Usage
from repertory.record.records import EventLogged, RunState


class Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=True):
    """Something happened in a run.

    Attributes:
        run_id: The run.
        agent: The name of its agent.
        iteration: The iteration it happened in; 0 before the first.
        at: Seconds since 1970.
    """

    run_id: str
    agent: str
    iteration: int
    at: float


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
        metric: Which threshold: ``tokens``, ``retrieval_share`` or ``summary_failures``.
        value: The figure.
        threshold: What it should not exceed.
        reason: Both, as a sentence.
    """

    metric: str
    value: float
    threshold: float
    reason: str


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
    | IterationStarted
    | ModelAnswered
    | ModelRetrying
    | ToolStarted
    | ToolProgress
    | ToolEnded
    | ContextEdited
    | SummaryTaken
    | SummaryRefused
    | Alert
    | StateChanged
    | EventsMissed
)
"""Any of the events, so that a type checker knows when a ``match`` has seen them all."""

_KINDS: Final[dict[str, type[AnyEvent]]] = {kind.__name__: kind for kind in get_args(AnyEvent)}
_OF_EVERY_EVENT: Final = frozenset(Event.__struct_fields__)  # the record has columns for them, or its run has


def to_record(event: AnyEvent) -> EventLogged:
    """What the journal keeps of an event: each of its own fields, whether or not it was given."""
    own = [name for name in event.__struct_fields__ if name not in _OF_EVERY_EVENT]
    body = {name: msgspec.to_builtins(getattr(event, name)) for name in own}
    return EventLogged(
        run_id=event.run_id, type=type(event).__name__, body=body, at=event.at, iteration=event.iteration
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
    common = {"run_id": record.run_id, "agent": agent, "iteration": record.iteration, "at": record.at}
    try:
        return msgspec.convert({**record.body, **common, "event": record.type}, type=kind)
    except msgspec.ValidationError as error:
        raise JournalUnreadable(f"an event {record.type} of run {record.run_id} cannot be read: {error}") from error


class EventHub:
    """The newest events of a supervisor, readable from the beginning by any number of readers.

    Readers hold a place in the log, not a buffer of their own, so a slow one costs nothing and blocks nobody:
    it is told how many events it missed. The attributes are for readers.

    Attributes:
        events: The newest events.
        count: How many there have been.
        closed: Whether nothing will come any more.
    """

    def __init__(self, *, keep: int = 20_000, keep_ended: int = 500) -> None:
        self._keep_ended = keep_ended
        self.events: deque[AnyEvent] = deque(maxlen=keep)
        self.count = 0
        self._news: anyio.Event | None = None  # made by the first reader who waits
        self.closed = False
        self._readers: WeakSet[EventReader] = WeakSet()

    @property
    def oldest(self) -> int:
        """The number of the oldest event in memory."""
        return self.count - len(self.events)

    def publish(self, event: AnyEvent) -> None:
        """Add an event and wake the readers. Never blocks."""
        if len(self.events) == self.events.maxlen:
            for reader in self._readers:
                reader.lose(self.oldest, self.events[0])
        self.events.append(event)
        self.count += 1
        self._wake()

    def forget_ended(self, going: Container[str]) -> None:
        """Let go of the oldest events, up to the first of a run that goes on or that a reader has still to read.

        A few stay, for readers that come late.

        Args:
            going: The ids of the runs that go on.
        """
        wanted = (reader.next_number for reader in self._readers if not reader.is_over(reader.next_number))
        read = min(wanted, default=self.count)
        while len(self.events) > self._keep_ended and self.oldest < read and self.events[0].run_id not in going:
            self.events.popleft()

    def close(self) -> None:
        """End every reader once it has read what there is."""
        self.closed = True
        self._wake()

    def _wake(self) -> None:
        if self._news is not None:
            self._news.set()
            self._news = None

    async def wait_news(self) -> None:
        """Wait until something happens."""
        if self._news is None:
            self._news = anyio.Event()
        await self._news.wait()

    def reader(
        self,
        wanted: Callable[[Event], bool] | None = None,
        *,
        since: int = 0,
        until: Callable[[], int | None] | None = None,
    ) -> EventReader:
        """Read events, from the oldest one in memory on.

        Args:
            wanted: Which events; None means all.
            since: The number of the first event to read; what is no longer in memory is passed over.
            until: Gives the number of the event before which the reader ends, or None as long as nobody knows;
                without it the reader ends when the supervisor closes.
        """
        reader = EventReader(self, wanted, max(since, self.oldest), until)
        self._readers.add(reader)
        return reader


class EventReader:
    """An asynchronous iterator over events. Any number of tasks may each have their own.

    Attributes:
        next_number: The number of the event that it reads next.
    """

    def __init__(
        self,
        hub: EventHub,
        wanted: Callable[[Event], bool] | None,
        since: int,
        until: Callable[[], int | None] | None,
    ) -> None:
        self._hub = hub
        self._wanted = wanted
        self.next_number = since
        self._until = until
        self._lost: Event | None = None  # the last one
        self._lost_count = 0

    def lose(self, number: int, event: Event) -> None:
        """An event leaves the memory: count it if it is one that this reader had still to read."""
        if self.next_number > number:
            return
        self.next_number = number + 1
        if not self.is_over(number) and (self._wanted is None or self._wanted(event)):
            self._lost = event
            self._lost_count += 1

    def is_over(self, number: int) -> bool:
        """Whether it reads no event from this one on."""
        end = None if self._until is None else self._until()
        return end is not None and number >= end

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> AnyEvent:
        hub = self._hub
        while True:
            if self._lost is not None:
                lost, count = self._lost, self._lost_count
                self._lost, self._lost_count = None, 0
                return EventsMissed(
                    run_id=lost.run_id, agent=lost.agent, iteration=lost.iteration, at=lost.at, count=count
                )
            if self.is_over(self.next_number):
                break
            if self.next_number < hub.count:
                event = hub.events[self.next_number - hub.oldest]
                self.next_number += 1
                if self._wanted is None or self._wanted(event):
                    return event
                continue
            if hub.closed:
                break
            await hub.wait_news()
        raise StopAsyncIteration
