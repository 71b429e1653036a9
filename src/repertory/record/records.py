"""The records that can be written to the journal, a closed set of types, and the rows that are read from them.

Every durable fact of repertory is one of these. A batch of records is one transaction: all of it is on disk or
none of it is. Records are append-only: a run's state is that of its last ``RunStateChanged``, and a call has one record
for its beginning and one for its end. New fields get defaults and types never change, so that old files stay readable.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from repertory._frozen import EMPTY_DICT, Frozen
from repertory.llm.messages import Block, Json
from repertory.llm.model import Usage
from repertory.record.entries import Entry
from repertory.record.memory_records import ItemWritten, PayloadChanged, ScopeMerged, ScopeOpened

RunState: TypeAlias = Literal["queued", "running", "waiting", "paused", "done", "failed", "stopped"]
Effect: TypeAlias = Literal["pure", "idempotent", "transactional", "unsafe"]
OutcomeStatus: TypeAlias = Literal["ok", "error", "interrupted"]
Outcome: TypeAlias = Literal["began", "started", "skipped", "ended"]
WebhookOutcome: TypeAlias = Literal["begun", "delivered", "failed", "disabled"]

FINAL_STATES: frozenset[RunState] = frozenset({"done", "failed", "stopped"})


class Placed(Frozen, frozen=True, kw_only=True):
    """How another machine than its lead's finds a sub-agent's definition and limits.

    Attributes:
        path: The agent names that lead to it from the agent of ``agent_ref``: its leads below that agent, then its own.
        options: The options of the root run at the top of that path.
        limits: The most that it may take of the limits above it; this share is reserved for it until it ends.
    """

    path: tuple[str, ...]
    options: Json = EMPTY_DICT
    limits: Json = EMPTY_DICT


class RunStarted(Frozen, frozen=True, kw_only=True):
    """A run exists.

    Attributes:
        agent: The name of its agent.
        task: What it was asked to do.
        agent_digest: Hash of the agent's definition, by which a resume notices a changed definition.
        agent_ref: ``module:name`` by which a new process finds the agent again; "" if it cannot.
        parent_id: The run that delegated to it; None for a root.
        parent_call_id: The parent's tool call that it answers.
        depth: Its depth in the tree; 0 for a root.
        options: The options that the caller set for this run.
        results: The caller's overrides of how tool results are treated, as ``repertory.context`` writes them.
        has_context: Whether an application context was passed; the context itself is never recorded.
        request: Digest of a client's whole request for this id, to tell a repeated request from another one; "" if
            there is none.
        priority: Its priority in the queue; a higher one begins first.
        client: The client that asked for it, for quotas; "" if there is none.
        labels: The labels that a supervisor must offer to run it, if several share a journal.
        placed: Set for a sub-agent that runs wherever its ``labels`` are offered; None for one that runs beside its
            lead, and for a root.
        origin: The run that it was forked from; "" if it is not a fork.
        origin_iteration: The last iteration that it has in common with that run.
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
    options: Json = EMPTY_DICT
    results: Json = EMPTY_DICT
    has_context: bool = False
    request: str = ""
    priority: int = 0
    client: str = ""
    labels: tuple[str, ...] = ()
    placed: Placed | None = None
    origin: str = ""
    origin_iteration: int = 0


class RunStateChanged(Frozen, frozen=True, kw_only=True):
    """The state of a run changed.

    Attributes:
        state: The new one; ``paused`` as soon as that is asked, although the run is held only at its next boundary.
        iteration: The number of iterations until then.
        result: The answer, if ``done``.
        error: Why it failed, if ``failed``.
        cause: The same as JSON, to raise it again; {} if it is no error of ``repertory.errors``.
        cancelled: If ``stopped``, whether this run itself was ended, rather than together with the run above it. If
            so, it is not resumed together with that run.
        reason: What it waits for, if ``queued``.
    """

    run_id: str
    state: RunState
    at: float
    iteration: int = 0
    result: str | None = None
    error: str | None = None
    cancelled: bool = False
    reason: str = ""
    cause: Json = EMPTY_DICT


class EntryAppended(msgspec.Struct, frozen=True, kw_only=True):
    """The ledger of a run grew by one entry."""

    run_id: str
    entry: Entry


class DecisionMade(Frozen, frozen=True, kw_only=True):
    """The plan of a run changed.

    Attributes:
        iteration: The first iteration whose request shows the change.
        kind: The kind of edit, as ``repertory.context`` names it.
        covers: How many summaries it swaps in.
        body: The edits with their reasons and figures; written and read by ``repertory.context``.
    """

    run_id: str
    iteration: int
    kind: str
    body: Json
    at: float
    covers: int = 0


class ToolIntended(Frozen, frozen=True, kw_only=True):
    """A tool is about to run. This is durable before its function starts.

    Attributes:
        arguments_digest: Hash of the tool's name and its arguments; the order of keys does not matter.
        idempotency_key: The same for every attempt, also after a restart; passed to the tool.
        answers: How many answers from outside the call has had so far; 0 when it begins. See ``ResultLater.state``.
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


class ToolFinished(msgspec.Struct, frozen=True, kw_only=True):
    """A tool has run, or is known never to finish.

    Attributes:
        status: ``interrupted`` if it is unknown what the tool did.
        duration: Seconds that the function took; 0.0 if unknown.
        deduplicated_from: The call whose result was used instead of running the tool again.
        retrieval: Whether it brought back something that was no longer in view.
        covered: Whether part of that was covered by a trail or a summary.
        characters: Characters of the whole result.
        shown: Characters of the result that the model is first shown.
        error: The traceback of the tool's error, only the end of a long one; "" if it raised nothing, or only an error
            that is a message to the model.
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
    """A request to the model is about to be sent.

    The whole request can be restored, but is not written whole each time. It begins with the first ``shared_messages``
    messages of call ``base_call`` of the same run and the first ``shared_blocks`` blocks of that call's next message;
    ``body`` holds the rest.

    Attributes:
        call: Number of the model call within the run, from 1.
        server: The address of the model's server; "" if there is none, or it is unknown.
        purpose: ``agent`` for the loop's own calls, ``summary`` for the summarizer's.
        position: The length of the ledger from which the request was made.
        digest: BLAKE2b-128 of the request's canonical JSON.
        base_call: The earlier call of this run that it builds on; None if ``body`` is the whole request.
        shared_messages: How many leading messages are the same as in ``base_call``.
        shared_blocks: How many leading blocks of the next message are the same; ``body`` begins with the rest of it.
        body: The request as JSON, without the shared part. It is not frozen: it is written at once and kept by nobody,
            and freezing it took longer than all other records of an iteration together.
        prompt_estimate: Estimated tokens of the prompt, by its characters.
        expected_tokens: This estimate, corrected by what earlier prompts were billed for.
        cost_at_most: The most US dollars that the call can cost; a limit on money counts them if no reply came.
        tokens_at_most: The most tokens that it can take, for a limit on tokens.
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


class ModelReplied(Frozen, frozen=True, kw_only=True):
    """A model call ended.

    Attributes:
        content: The answer. In the file it is () if an entry of the run holds it; ``Journal.read_model_calls`` then
            reads it from that entry.
        position: The position of that entry; None if there is none.
        raw: The model's own answer if ``content`` differs from it, as JSON that may be cut short; "" if it is the same.
        cost: US dollars by the profile's prices; 0.0 if they are unknown.
        cost_lost: The most, in US dollars, that attempts of the call can have cost which broke off before their answer
            was complete. Such attempts are usually billed, but the amount is not reported. A limit on money counts it.
        tokens_lost: The most tokens that those attempts can have taken, for a limit on tokens.
        error: Why there is no answer; None if there is one.
        prompt_limit: Tokens that a prompt of this run may have, learnt from the server's refusal; 0 if it refused none.
        prompt_counted: Tokens of the refused prompt by the server's count; 0 if it did not say.
        answer_limit: Tokens that an answer of this run may have, learnt from the same; 0 if it asked for no more.
        duration: Seconds that the call took.
        purpose: As in its ``ModelCalled``.
        plain_tokens: Prompt tokens that a plain loop would have sent instead; 0 for other purposes than ``agent``.
        plain_cost: US dollars that those would have cost.
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
    answer_limit: int = 0


class ContentStored(Frozen, frozen=True, kw_only=True):
    """A whole result was put into the content store.

    Attributes:
        content_id: The citation id.
        source_type: ``web``, ``database``, ``file``, ``search``, ``tool``, …
        source: The tool or other origin.
        url: Where it came from; "" if it has no address.
        format: ``text``, ``markdown``, ``json``, ``code``, …
        body: The whole, unchanged. It is "" in listings, after it was cleaned up, and if an entry of the run holds the
            whole under this id; ``Journal.read_content`` then reads it from that entry.
        length: Characters of the whole; computed from ``body`` if that is not "".
        expires_at: Seconds since 1970 after which it may be cleaned up; None for no such time.
        retention: Seconds that it is kept after the end of its run's tree. If neither of the two is given, it is kept
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
    metadata: Json = EMPTY_DICT

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.body:
            msgspec.structs.force_setattr(self, "length", len(self.body))


class SummaryStored(Frozen, frozen=True, kw_only=True):
    """A summary of a run's entries ``first`` to ``last``, both included.

    Attributes:
        strategy: How it was written: ``extractive``, ``model``, ``provider``.
        content: What replaces the entries: text, or the provider's signed block.
        tokens: Its estimated tokens in a prompt.
        replaced_tokens: The estimated tokens of the entries that it covers.
        key: Digest of the text, prompt and model that it was made from; "" if it must not be reused.
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


class EventLogged(Frozen, frozen=True, kw_only=True):
    """Something that a person watching the run would want to know.

    Attributes:
        type: The event's type, as ``repertory.agents`` names it.
        elapsed: Seconds that the run's tree had been active by then, in all processes; 0.0 if it was not noted.
    """

    run_id: str
    type: str
    body: Json
    at: float
    iteration: int = 0
    elapsed: float = 0.0


class ScheduleSettled(msgspec.Struct, frozen=True, kw_only=True):
    """A due time of a schedule was settled.

    Attributes:
        due: The due time, in seconds since 1970. All due times up to it are settled.
        outcome: ``started`` (a run was started), ``skipped``, or the schedule ``began`` or ``ended`` at this time.
        run_id: The run that was started, or otherwise the last one started before; "" if there is none.
        rule: The rule for the due times: cron's five fields and the timezone.
        reason: Why it was skipped, or why the schedule began anew.
        count: How many due times, up to this one, the record settles.
        company: The name of the company whose schedule it is; "" if there is none.
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
    """An attempt to report a change of state to a webhook, or the beginning of a webhook.

    Attributes:
        run_id: The run; "" for ``begun``.
        change: The number of the record that is reported; for ``begun``, of the last record that is not reported.
        outcome: ``delivered``, ``failed`` (it will be tried again), ``disabled`` (nothing more is tried) or ``begun``
            (the webhook is new).
        attempt: The number of the attempt, from 1; 0 for ``begun``.
        status: The HTTP status of the answer; 0 if there was none.
        error: Why there was no answer; "" if there was one.
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


# --- rows that are read from them -------------------------------------------------------------------------


class RunRow(Frozen, frozen=True, kw_only=True):
    """The current state of a run.

    Attributes:
        iteration: The iteration that it is in, or in which it ended or was killed; 0 before its first model call.
        cancelled: Whether this run itself was ended, rather than together with the run above it.
        reason: What it waits for, if ``queued``; "" in other states.
        cause: As in ``RunStateChanged``.
    """

    started: RunStarted
    state: RunState
    updated_at: float
    iteration: int = 0
    result: str | None = None
    error: str | None = None
    cancelled: bool = False
    reason: str = ""
    cause: Json = EMPTY_DICT


class ToolCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A tool call: its intent, and its outcome if it has one."""

    intended: ToolIntended
    finished: ToolFinished | None = None


class ModelCallRow(msgspec.Struct, frozen=True, kw_only=True):
    """A model call: the request, and the reply if there is one."""

    called: ModelCalled
    replied: ModelReplied | None = None
