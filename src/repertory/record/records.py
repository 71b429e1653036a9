"""What can be written to the journal, one closed family of records, and what is read of them.

Every durable fact of repertory is one of these. A batch of records is one transaction: all of it is on disk or
none of it is. Records are append-only: how a run stands is what the last record of its state says, and a call has one
record for its beginning and one for its end. New fields get defaults and types never change, so that old files stay
readable.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Any, Literal, TypeAlias

import msgspec

from repertory._frozen import freeze_fields
from repertory.llm.messages import Block, Json
from repertory.llm.model import Usage
from repertory.record.entries import Entry

RunState: TypeAlias = Literal["queued", "running", "waiting", "paused", "done", "failed", "stopped"]
Effect: TypeAlias = Literal["pure", "idempotent", "transactional", "unsafe"]
OutcomeStatus: TypeAlias = Literal["ok", "error", "interrupted"]
ScopeMode: TypeAlias = Literal["root", "shared", "shared-read-only", "snapshot", "snapshot-read-only", "isolated"]
ItemFormat: TypeAlias = Literal["text", "json", "bytes"]
PayloadAuthor: TypeAlias = Literal["spawn", "caller", "tool", "sub-agent", "cleaning"]
Outcome: TypeAlias = Literal["began", "started", "skipped", "ended"]
WebhookOutcome: TypeAlias = Literal["begun", "delivered", "failed", "disabled"]
PathParts: TypeAlias = tuple[str | int, ...]

FINAL_STATES: frozenset[RunState] = frozenset({"done", "failed", "stopped"})


class Placed(msgspec.Struct, frozen=True, kw_only=True):
    """How a sub-agent that may run on another machine than its lead is found and bound there.

    Attributes:
        path: The names that lead to it from the agent that ``agent_ref`` names: its leads' below that one, and its own.
        options: What the agent at the top of that path was made with.
        limits: Of the limits above it, what it may take at most; kept from others there until it ends.
    """

    path: tuple[str, ...]
    options: Json = msgspec.field(default_factory=dict)
    limits: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "options", "limits", sequences=("path",))


class RunStarted(msgspec.Struct, frozen=True, kw_only=True):
    """A run exists.

    Attributes:
        run_id: Its id.
        agent: The name of its agent.
        task: What it was asked to do.
        model: The model's name.
        agent_digest: Hash of the agent's definition, so that a changed definition is noticed at resume.
        agent_ref: ``module:name`` under which a new process finds the agent again; "" where it cannot.
        parent_id: The run that delegated to it; None for a root.
        parent_call_id: The parent's tool call that it answers.
        depth: 0 for a root.
        scope_id: Its memory scope.
        options: What the caller set for this run.
        results: The caller's overrides of how tool results are treated, as ``repertory.context`` writes them.
        has_context: Whether an application context was handed in, which is never recorded.
        request: Digest of all that a client asked for under this id, so that another request is told from a repeated
            one; "" where nobody gave it.
        priority: How urgent it is in the queue: higher begins first.
        client: Who asked for it, for quotas; "" for nobody in particular.
        labels: What a supervisor must offer to run it, where several share a journal.
        placed: For a sub-agent that runs wherever its ``labels`` are offered; None for one beside its lead, and a root.
        origin: The run that it was forked from; "" for none.
        origin_iteration: Up to which iteration the two are the same.
        at: Seconds since 1970.
    """

    run_id: str
    agent: str
    task: str
    at: float
    model: str = ""
    agent_digest: str = ""
    agent_ref: str = ""
    parent_id: str | None = None
    parent_call_id: str | None = None
    depth: int = 0
    scope_id: str = ""
    options: Json = msgspec.field(default_factory=dict)
    results: Json = msgspec.field(default_factory=dict)
    has_context: bool = False
    request: str = ""
    priority: int = 0
    client: str = ""
    labels: tuple[str, ...] = ()
    placed: Placed | None = None
    origin: str = ""
    origin_iteration: int = 0

    def __post_init__(self) -> None:
        freeze_fields(self, "options", "results", sequences=("labels",))


class RunStateChanged(msgspec.Struct, frozen=True, kw_only=True):
    """A run went into another state.

    Attributes:
        iteration: How many iterations it had made.
        result: The answer, once ``done``.
        error: Why it failed, once ``failed``.
        cancelled: Whether this very run was ended, once ``stopped``, rather than together with the run above it. Then
            it does not go on with that one.
        reason: What it waited for when it was ``queued``.
    """

    run_id: str
    state: RunState
    at: float
    iteration: int = 0
    result: str | None = None
    error: str | None = None
    cancelled: bool = False
    reason: str = ""


class EntryAppended(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a run grew by one entry."""

    run_id: str
    entry: Entry


class DecisionMade(msgspec.Struct, frozen=True, kw_only=True):
    """The plan of a run changed.

    Attributes:
        iteration: The iteration whose request shows it first.
        kind: Which kind of edit, as ``repertory.context`` names it.
        covers: How many summaries it swaps in.
        body: The edits with their reason and arithmetic; written and read by ``repertory.context``.
    """

    run_id: str
    iteration: int
    kind: str
    body: Json
    at: float
    covers: int = 0

    def __post_init__(self) -> None:
        freeze_fields(self, "body")


class ToolIntended(msgspec.Struct, frozen=True, kw_only=True):
    """A tool is about to run. Durable before its body starts.

    Attributes:
        arguments_digest: Hash of the tool's name and its arguments, whatever the order of their keys.
        idempotency_key: Stable over restarts; handed to the tool.
        answers: How many answers from elsewhere it goes on with; 0 where it begins. See ``ResultLater.state``.
    """

    run_id: str
    call_id: str
    tool: str
    effect: Effect
    arguments: Json
    arguments_digest: str
    idempotency_key: str
    iteration: int
    at: float
    answers: int = 0

    def __post_init__(self) -> None:
        freeze_fields(self, "arguments")


class ToolFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A tool has run, or is known never to finish.

    Attributes:
        tool: The tool's name.
        status: ``interrupted`` where nobody knows what it did.
        duration: Seconds that the body took; 0.0 where unknown.
        deduplicated_from: The call whose result was given instead of running the tool again.
        retrieval: Whether it brought back something that was no longer in view.
        covered: Whether a summary stood for something of that.
        characters: Length of the whole result.
        shown: Length of what the model is first shown of it.
        error: The traceback of what the tool raised, its end where it is long; "" where it raised nothing, or only
            what a tool raises to say something to the model.
    """

    run_id: str
    call_id: str
    status: OutcomeStatus
    at: float
    tool: str = ""
    duration: float = 0.0
    deduplicated_from: str | None = None
    retrieval: bool = False
    covered: bool = False
    characters: int = 0
    shown: int = 0
    error: str = ""


class ModelCalled(msgspec.Struct, frozen=True, kw_only=True):
    """A request is about to be sent.

    The request is kept whole without writing it whole each time: it repeats the first ``shared_messages`` messages of
    call ``base_call`` of the same run, and of the next one the first ``shared_blocks`` blocks; ``body`` holds the rest.

    Attributes:
        call: Number of the model call within the run, from 1.
        server: The address of the model's server; "" where it has none, or does not say.
        purpose: ``agent`` for the loop's own calls, ``summary`` for the summarizer's, ``compact`` for one
            message's.
        position: The length of the ledger that the request was projected from.
        digest: BLAKE2b-128 of the request's canonical JSON.
        base_call: An earlier call of this run; None where ``body`` is the whole request.
        shared_messages: How many leading messages are the same as in ``base_call``.
        shared_blocks: How many leading blocks of the message after them are; ``body`` begins with the rest of it.
        body: The request as JSON, without what is shared. Written at once and held by nobody, so it is not frozen:
            that took longer than all other records of an iteration together.
        prompt_estimate: Tokens that the prompt was estimated to have, by its characters.
        expected_tokens: The same, corrected by what earlier prompts were billed for.
        cost_at_most: US dollars that the call can cost; a limit on money counts it where the reply never came.
        tokens_at_most: Tokens that it can take, for a limit on tokens.
    """

    run_id: str
    call: int
    iteration: int
    model: str
    position: int
    digest: str
    body: Json
    at: float
    base_call: int | None = None
    shared_messages: int = 0
    shared_blocks: int = 0
    prompt_estimate: int = 0
    expected_tokens: int = 0
    cost_at_most: float = 0.0
    tokens_at_most: int = 0
    purpose: str = "agent"
    server: str = ""


class ModelReplied(msgspec.Struct, frozen=True, kw_only=True):
    """A model call ended.

    Attributes:
        content: The answer; in the file () where an entry of the run holds it, from which
            ``Journal.read_model_calls`` reads it.
        position: Of that entry; None where there is none.
        raw: What the model answered where ``content`` says something else, as JSON that may be cut short; "" where it
            is the same.
        cost: US dollars by the profile's prices; 0.0 where they are unknown.
        cost_lost: US dollars that attempts of the call can have cost which broke off before their answer was whole:
            they are billed as a rule, and nobody says how much. A limit on money counts the most that they can cost.
        tokens_lost: Tokens that they can have taken, for a limit on tokens.
        error: Why there is no answer; None where there is one.
        prompt_limit: Tokens that a prompt of this run may have, by what the server refused; 0 where it refused nothing.
        prompt_counted: Tokens of the refused prompt by the server's count; 0 where it did not say.
        duration: Seconds.
        purpose: As in its ``ModelCalled``.
        plain_tokens: Prompt tokens that a plain loop would have sent in its place; 0 for other purposes than ``agent``.
        plain_cost: US dollars that this would have cost.
    """

    run_id: str
    call: int
    at: float
    purpose: str = "agent"
    plain_tokens: int = 0
    plain_cost: float = 0.0
    content: tuple[Block, ...] = ()
    usage: Usage = Usage()
    cost: float = 0.0
    cost_lost: float = 0.0
    tokens_lost: int = 0
    stop_reason: str = ""
    error: str | None = None
    duration: float = 0.0
    raw: str = ""
    prompt_limit: int = 0
    prompt_counted: int = 0
    position: int | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, sequences=("content",))


class ContentStored(msgspec.Struct, frozen=True, kw_only=True):
    """The content store took in one whole result.

    Attributes:
        content_id: The citation id.
        source_type: ``web``, ``database``, ``file``, ``search``, ``tool``, …
        source: The tool or other origin.
        url: Where it came from; "" where it has no address.
        format: ``text``, ``markdown``, ``json``, ``code``, …
        body: The whole, untouched; "" in listings, once it was cleaned up, and where an entry of the run holds the
            whole under this id, from which ``Journal.read_content`` reads it.
        length: Characters of the whole; follows from ``body`` where that is there.
        expires_at: Seconds since 1970 after which it may be cleaned up; None for no such date.
        retention: Seconds that it is kept after the end of its run's tree. Where neither of the two is given, it stays
            for as long as nothing else holds it.
    """

    content_id: str
    run_id: str
    source_type: str
    source: str
    body: str
    at: float
    url: str = ""
    format: str = "text"
    length: int = 0
    expires_at: float | None = None
    retention: float | None = None
    metadata: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "metadata")
        if self.body:
            msgspec.structs.force_setattr(self, "length", len(self.body))


class SummaryStored(msgspec.Struct, frozen=True, kw_only=True):
    """A summary of a run's entries ``first`` to ``last``, both included.

    Attributes:
        strategy: Who wrote it: ``extractive``, ``model``, ``provider``.
        content: What stands for the entries: text, or the provider's signed block.
        tokens: Estimate of its cost in a prompt.
        replaced_tokens: Estimate of what the covered entries cost.
        key: What it was made from, as a digest of text, prompt and model; "" where it is not to be used again.
    """

    run_id: str
    summary_id: str
    first: int
    last: int
    strategy: str
    content: tuple[Block, ...]
    tokens: int
    at: float
    replaced_tokens: int = 0
    model: str = ""
    key: str = ""

    def __post_init__(self) -> None:
        freeze_fields(self, sequences=("content",))


class ScopeOpened(msgspec.Struct, frozen=True, kw_only=True):
    """A memory scope exists.

    Attributes:
        owner: The run it was opened for.
        mode: Whose items it sees, and whether it may write: see ``repertory.memory``.
        parent_id: The scope it sees (``snapshot``) or is (``shared``); None for a root or isolated scope.
        position: For ``snapshot``: how much of the item log it sees of its parent.
    """

    scope_id: str
    owner: str
    mode: ScopeMode
    at: float
    parent_id: str | None = None
    position: int = 0


class ScopeMerged(msgspec.Struct, frozen=True, kw_only=True):
    """What a snapshot scope had changed was brought into its parent.

    Attributes:
        position: Of the item log behind it: what the scope had changed up to there is settled, but for ``open``.
        open: Conflicts that were left open, by item id: the position at which both sides still said the same.
    """

    scope_id: str
    at: float
    position: int
    open: Json = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        freeze_fields(self, "open")


class ItemWritten(msgspec.Struct, frozen=True, kw_only=True):
    """One version of a memory item; ``deleted`` ends it.

    Attributes:
        position: The version's place in the log of all items of the journal, from 1. A snapshot of memory is
            such a position.
        content: Text; a value as JSON text; or bytes in base 64, as ``format`` says. "" in listings.
        media_type: What bytes are, such as ``image/png``.
        size: Bytes of the content: of bytes themselves, else of the text as UTF-8. Follows from it.
        digest: BLAKE2b-128 of the content, so that versions are compared without it. Follows from it.
    """

    scope_id: str
    item_id: str
    position: int
    type: str
    content: str
    at: float
    format: ItemFormat = "text"
    media_type: str = ""
    size: int = 0
    digest: str = ""
    source: str = ""
    tags: tuple[str, ...] = ()
    related_to: tuple[str, ...] = ()
    metadata: Json = msgspec.field(default_factory=dict)
    deleted: bool = False

    def __post_init__(self) -> None:
        freeze_fields(self, "metadata", sequences=("tags", "related_to"))
        if self.content and not self.digest:
            data = self.content.encode("utf-8", "surrogatepass")
            size = len(data) // 4 * 3 - self.content[-2:].count("=") if self.format == "bytes" else len(data)
            msgspec.structs.force_setattr(self, "size", size)
            msgspec.structs.force_setattr(self, "digest", blake2b(data, digest_size=16).hexdigest())


class PayloadChange(msgspec.Struct, frozen=True, kw_only=True):
    """One change of a payload.

    Attributes:
        path: Where: names of fields and numbers of list items, from 0; () for the whole.
        op: ``set`` puts the value there, ``append`` adds its items to the list there, ``remove`` takes a name away.
        value: JSON; None for ``remove``.
    """

    path: PathParts
    op: Literal["set", "append", "remove"] = "set"
    value: Any = None

    def __post_init__(self) -> None:
        freeze_fields(self, "value", sequences=("path",))


class PayloadConflict(msgspec.Struct, frozen=True, kw_only=True):
    """A change that was not made, as somebody else had changed the same place first.

    Attributes:
        change: What was wanted; its value stands here alone.
        version: The version that changed the place; 0 where the change itself does not fit the payload any more.
        reason: Why, where no version says it.
    """

    change: PayloadChange
    version: int = 0
    reason: str = ""


class PayloadChanged(msgspec.Struct, frozen=True, kw_only=True):
    """The payload of a run went to its next version; the first one is there from the run's beginning.

    Attributes:
        version: From 1, without gaps.
        author: Whose doing it was.
        base: The version that the changes were made of; for ``spawn`` that of the parent's payload, 0 for a root.
        changes: What became part of the payload, in order.
        conflicts: What did not.
        call_id: The tool call with whose outcome it was committed; "" for others.
        source: The name of the tool, or the id of the sub-agent's run.
    """

    run_id: str
    version: int
    author: PayloadAuthor
    at: float
    base: int = 0
    changes: tuple[PayloadChange, ...] = ()
    conflicts: tuple[PayloadConflict, ...] = ()
    call_id: str = ""
    source: str = ""

    def __post_init__(self) -> None:
        freeze_fields(self, sequences=("changes", "conflicts"))


class EventLogged(msgspec.Struct, frozen=True, kw_only=True):
    """Something that a person watching the run would want to know.

    Attributes:
        type: The event's type, as ``repertory.agents`` names it.
        elapsed: Seconds that the run's tree had been going by then, in all processes; 0.0 where nobody noted it.
    """

    run_id: str
    type: str
    body: Json
    at: float
    iteration: int = 0
    elapsed: float = 0.0

    def __post_init__(self) -> None:
        freeze_fields(self, "body")


class ScheduleSettled(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a due time of a schedule.

    Attributes:
        schedule: Its name.
        due: The time, in seconds since 1970: everything up to it is settled.
        outcome: A run was ``started``, or it was ``skipped``; the schedule ``began`` or ``ended`` at this time.
        run_id: The run that was started; else the one that was started last, "" where there is none.
        rule: What the due times follow from: cron's five fields and the timezone.
        reason: Why it was skipped, or began anew.
        count: How many due times, up to this one.
        company: The name of the company whose schedule it is; "" where nobody said.
    """

    schedule: str
    due: float
    outcome: Outcome
    at: float
    run_id: str = ""
    rule: str = ""
    reason: str = ""
    count: int = 1
    company: str = ""


class WebhookTried(msgspec.Struct, frozen=True, kw_only=True):
    """A webhook was told of a change of state, or was to be told.

    Attributes:
        url: The webhook.
        run_id: The run; "" where the webhook began.
        change: The number of the record that is told of; where it began, of the last that is not.
        outcome: ``delivered``, ``failed``: it is tried again, ``disabled``: nothing more is tried, or ``begun``.
        attempt: Which, from 1; 0 where the webhook began.
        status: Of the answer; 0 for none.
        error: Why there was none.
        next_at: When to try again, in seconds since 1970.
    """

    url: str
    run_id: str
    change: int
    outcome: WebhookOutcome
    at: float
    attempt: int = 0
    status: int = 0
    error: str = ""
    next_at: float = 0.0


Record: TypeAlias = (
    RunStarted
    | RunStateChanged
    | EntryAppended
    | DecisionMade
    | ToolIntended
    | ToolFinished
    | ModelCalled
    | ModelReplied
    | ContentStored
    | SummaryStored
    | ScopeOpened
    | ScopeMerged
    | ItemWritten
    | PayloadChanged
    | EventLogged
    | ScheduleSettled
    | WebhookTried
)


# --- what is made of them to be read ----------------------------------------------------------------------


class RunRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run as it stands now.

    Attributes:
        iteration: The one that it is in, or ended in; 0 before its first model call. A run that was killed is in
            the iteration that it was killed in.
        cancelled: Whether this very run was ended, rather than together with the run above it.
        reason: What it waited for when it was ``queued``; "" in other states.
    """

    started: RunStarted
    state: RunState
    updated_at: float
    iteration: int = 0
    result: str | None = None
    error: str | None = None
    cancelled: bool = False
    reason: str = ""


class QueuedRow(msgspec.Struct, frozen=True, kw_only=True):
    """A run that waits in the queue.

    Attributes:
        at: When it was queued, in seconds since 1970.
    """

    run_id: str
    agent: str
    client: str
    priority: int
    at: float


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: its intent, and its outcome if it has one."""

    intended: ToolIntended
    finished: ToolFinished | None = None


class ModelCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model call: what was sent, and what came back if anything did."""

    called: ModelCalled
    replied: ModelReplied | None = None


class SearchHit(msgspec.Struct, frozen=True, kw_only=True):
    """One entry that a full-text search found.

    Attributes:
        score: Higher is better; comparable only within one answer.
        excerpt: The words around the best match.
    """

    run_id: str
    position: int
    score: float
    excerpt: str
