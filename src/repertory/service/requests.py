"""The parts of requests to the service: bodies, headers, and the query for runs. They are checked when read."""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, TypeAlias, get_args

import msgspec

from repertory.llm.messages import Json
from repertory.record.records import RunState

MAX_TREES: Final = 1000
MAX_LISTED: Final = 500  # items or contents in one answer
MAX_WAIT: Final = 60  # seconds that one request may wait for a result
_BASE64: Final = "^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"
_INT64: Final = 10**18 - 1

STATES: Final = (*get_args(RunState), "interrupted")
UNFINISHED: Final = "queued,running,waiting,paused,interrupted"
"""The states of runs that have not ended, as a query names them."""
_STATES: Final = "|".join(STATES)

# Blank texts are not refused here but where they are used, with a specific message.
Words: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"\S"})]
RunId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]
Trees: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_TREES)]
Listed: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)]
Seconds: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT)]


# --- bodies -----------------------------------------------------------------------------------------------


class GivenText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """A text of a result."""

    text: str


class GivenMedia(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="media"):
    """An image or a document of a result, or one that is attached to a task or a message.

    Attributes:
        media_type: ``image/png``, ``image/jpeg``, ``image/gif``, ``image/webp`` or ``application/pdf``.
        data: The file's bytes, in base 64.
        title: The title of a document that the model is shown.
    """

    media_type: str
    data: Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": _BASE64})]
    title: str = ""


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs``.

    Attributes:
        agent: The agent's name, as ``GET /agents`` lists it.
        task: What to do; for an agent with a typed ``input`` its value as JSON text.
        attachments: Images and documents that are shown with the task.
        root: A folder inside the agent's own, which confines the run; null for the whole of it.
        payload: The first value of its payload; null for the defaults.
        run_id: The id of the new run; makes it safe to repeat the request.
        priority: The run's priority in the queue; null for the agent's own.
        client: The client that asks, for quotas.
    """

    agent: str
    task: Words
    attachments: tuple[GivenMedia, ...] = ()
    root: str | None = None
    payload: Any = None
    run_id: RunId | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    client: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,100}$")] = ""


class NewFork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/fork``.

    Attributes:
        iteration: The last iteration that both runs share, 0 for the task alone; null for the last complete one.
        text: A message for the new run; null for none.
        run_id: The id of the new run; makes it safe to repeat the request.
    """

    iteration: Count | None = None
    text: Words | None = None
    run_id: RunId | None = None


class NewRewind(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/rewind``; as for a fork."""

    iteration: Count
    text: Words | None = None
    run_id: RunId | None = None


class Redelivery(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /webhooks/redeliver``.

    Attributes:
        change: The number of the change, as ``GET /webhooks`` lists it.
        url: The webhook's address; null if there is only one webhook.
    """

    change: Count
    url: str | None = None


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/messages``.

    Attributes:
        text: The message.
        attachments: Images and documents that are shown with it.
        message_id: Makes it safe to repeat: messages with the same id are delivered once.
    """

    text: Words
    attachments: tuple[GivenMedia, ...] = ()
    message_id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,200}$")] | None = None


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/approve``; without ``arguments`` the call is made as it is."""

    arguments: Json | None = None
    by: str = ""


class Denial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/deny``."""

    reason: Words
    by: str = ""


class GivenResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/result``.

    Attributes:
        result: Text or JSON.
        content: Texts, images and documents, in order, instead of ``result``.
        is_error: Whether the call failed, and this is the reason.
    """

    result: Any = None
    content: Annotated[list[GivenText | GivenMedia], msgspec.Meta(min_length=1)] | None = None
    is_error: bool = False


# --- headers ----------------------------------------------------------------------------------------------


class StartHeaders(msgspec.Struct, frozen=True, rename={"idempotency_key": "Idempotency-Key"}):
    """The headers of ``POST /runs``: a key that makes it safe to repeat; see docs/service.md."""

    idempotency_key: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,200}$")] = ""


class EventHeaders(msgspec.Struct, frozen=True, rename={"last_event_id": "Last-Event-ID"}):
    """The headers of an event stream: the number of the last event that the client knows, as browsers send it."""

    last_event_id: Count = 0


# --- a query ----------------------------------------------------------------------------------------------


class RunsQuery(msgspec.Struct, frozen=True):
    """Which runs to list: at most ``limit`` trees, the newest; and whether with their figures.

    Attributes:
        unfinished: Whether to list older trees that have not ended, too, as many again at most; not beside ``state``,
            ``machine`` or the oldest.
        state: The state of the root; several states are separated by commas.
        agent: The name of the root's agent.
        client: The client that asked for it.
        part: A part of its id, or of that of a run below it.
        machine: The name of the machine that runs it.
        text: A text that its task contains.
        since: Started at this time or later, in seconds since 1970.
        until: Started before this time; 0 for no such limit.
        sort: Whether the newest trees are wanted, or the oldest.
        before: Started before this root; ``next`` of the previous page.
        after: Started after this root, the oldest of those.
    """

    limit: Trees = 100
    figures: Literal["yes", "no"] = "no"
    unfinished: Literal["yes", "no"] = "no"
    state: Annotated[str, msgspec.Meta(extra_json_schema={"pattern": rf"^(({_STATES})(,({_STATES}))*)?$"})] = ""
    agent: str = ""
    client: str = ""
    part: str = ""
    machine: str = ""
    text: str = ""
    since: Count = 0
    until: Count = 0
    sort: Literal["newest", "oldest"] = "newest"
    before: str = ""
    after: str = ""
