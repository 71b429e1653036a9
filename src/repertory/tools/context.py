"""What a running tool may know and use: one explicit object, filled by the code that runs the tool."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, Generic, Protocol, cast, runtime_checkable

import msgspec

from repertory._choices import check_type, check_types
from repertory._frozen import freeze_fields
from repertory.errors import ConfigurationError
from repertory.llm.messages import Json
from repertory.memory.handle import Memory
from repertory.memory.payload import Payload
from repertory.record.entries import Entry
from repertory.record.records import ContentStored, Record
from repertory.record.search import SearchHit
from repertory.tools.threads import current_time

__all__ = ["GivenAnswer"]

if TYPE_CHECKING:
    from typing_extensions import TypeVar

    ContextT = TypeVar("ContextT", default=Any)
else:
    from typing import TypeVar

    ContextT = TypeVar("ContextT")  # in Python 3.11 and 3.12 it has no default, which only type checkers need

T = TypeVar("T")


@runtime_checkable
class RunRecord(Protocol):
    """Read access to the record of the run that calls the tool."""

    def snapshot(self) -> Sequence[Entry]:
        """The ledger as it is now. Later appends do not show in it."""
        ...

    async def search(self, query: str, *, limit: int = 20) -> Sequence[SearchHit]:
        """Full-text search over the ledger, best first; the query is plain words."""
        ...

    async def of_run(self, run_id: str) -> RunRecord | None:
        """The record of a run below this one, or of a run that was shared with it; None for any other run."""
        ...

    def others(self) -> Sequence[str]:
        """The ids of those runs, as far as this process knows them."""
        ...


@runtime_checkable
class ContentReader(Protocol):
    """Read access to the content store."""

    async def read_content(self, content_id: str) -> ContentStored | None:
        """The stored content with this id, or None if there is none. Its body is "" if it has been cleaned up."""
        ...


def _say_nothing(text: str) -> None:
    """Nobody listens to progress."""


class GivenAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """An answer from outside, with which a tool call continues; see ``ResultLater.state``.

    Attributes:
        value: The answer, as JSON; if ``is_error`` is set, the reason why there is none.
        state: The ``ResultLater.state`` that the tool returned.
        is_error: Whether there is no answer.
        expired: Whether no answer came in time. ``is_error`` is then set too.
    """

    value: Any
    state: Json
    is_error: bool = False
    expired: bool = False

    def __post_init__(self) -> None:
        freeze_fields(self, "state")


# The fields that a tool or its caller sets. A value of a wrong type would crash the tool, or code that it calls.
_FIELDS: Final[tuple[tuple[str, Any, str], ...]] = (
    *((name, str, "a text") for name in ("run_id", "agent", "call_id", "idempotency_key", "arguments_digest")),
    ("iteration", int, "a whole number"),
    ("expires_at", int | float | None, "a number, or None"),
    ("answer", GivenAnswer | None, "a GivenAnswer, or None"),
    ("progress", Callable, "a function of one text"),
    ("record", RunRecord | None, "the record of a run, or None"),
    ("contents", ContentReader | None, "a content store to read, or None"),
    ("memory", Memory | None, "a Memory, such as run.memory, or None"),
    ("payload", Payload, "a Payload(…)"),
    ("staged", list, "a list of records"),
)


class ToolContext(msgspec.Struct, Generic[ContextT], frozen=True, kw_only=True, eq=False):
    """What a tool receives in a parameter annotated ``ToolContext``. The model never sees it.

    ``ToolContext[AppContext]`` tells a type checker the type of ``context``; it makes no difference at run time.
    Every field has a default, so a test writes ``ToolContext()`` or sets only what its tool uses.

    Attributes:
        run_id: The run's id.
        agent: The name of its agent.
        iteration: The iteration in which the model asked for this call; 0 outside a run.
        call_id: The id of this call.
        idempotency_key: The same for every attempt at this call, also after a restart. Pass it to services that
            accept one.
        arguments_digest: Hash of the tool's name and arguments; ``execute`` fills it in if it is "".
        expires_at: When the tool's deadline is, on the event loop's clock; None for no deadline.
        answer: The answer that the tool waited for with ``ResultLater.state``; None in the first call.
        progress: Reports the tool's progress to whoever watches the run. Callable from any thread; never raises.
        record: The run's record; None outside a run.
        contents: The content store; None if there is none.
        memory: The memory scope that the run reads and writes; None if there is none.
        payload: The run's payload, to read and to change. Changes are kept only if the call succeeds.
        context: The object that the application passed to ``spawn`` or ``resume``; None if it passed none.
        staged: Records passed to ``commit``; ``execute`` takes them from here.

    Raises:
        ConfigurationError: A value is of another type; the message names it.
    """

    run_id: str = ""
    agent: str = ""
    iteration: int = 0
    call_id: str = ""
    idempotency_key: str = ""
    arguments_digest: str = ""
    expires_at: float | None = None
    answer: GivenAnswer | None = None
    progress: Callable[[str], None] = _say_nothing
    record: RunRecord | None = None
    contents: ContentReader | None = None
    memory: Memory | None = None
    payload: Payload = msgspec.field(default_factory=Payload)
    context: ContextT = msgspec.field(default=cast(Any, None))
    staged: list[Record] = msgspec.field(default_factory=list[Record])

    def __post_init__(self) -> None:
        check_types("ToolContext.", self, _FIELDS)

    def __repr__(self) -> str:
        # Leaves out the fields: the application's context must not get into a message or a log by accident.
        return f"<ToolContext of call {self.call_id!r} in run {self.run_id!r}>"

    def remaining(self) -> float | None:
        """Seconds until the tool is cancelled; None if it has no deadline."""
        if self.expires_at is None:
            return None
        return max(0.0, self.expires_at - current_time())

    def commit(self, records: Iterable[Record]) -> None:
        """Stage records to be written in the same transaction as this call's outcome.

        They are dropped if the call ends in an error.

        Raises:
            ConfigurationError: A value is not a record.
        """
        check_type("ToolContext.commit: records", records, Iterable, "some records")
        given = list(records)
        for record in given:
            check_type("ToolContext.commit: each", record, Record, "a record, as in repertory.record.records")
        self.staged.extend(given)

    def need_record(self) -> RunRecord:
        """The run's record. Raises ``ConfigurationError`` if the tool was called outside a run."""
        return _needed(self.record, "reads the run's record", "record")

    def need_contents(self) -> ContentReader:
        """The content store. Raises ``ConfigurationError`` if there is none."""
        return _needed(self.contents, "reads the content store", "contents")

    def need_memory(self) -> Memory:
        """The memory of the run. Raises ``ConfigurationError`` if there is none."""
        return _needed(self.memory, "uses memory", "memory")


def _needed(value: T | None, does: str, field: str) -> T:
    if value is None:
        raise ConfigurationError(f"this tool {does}, and was called without one: set ToolContext.{field}")
    return value
