"""What a request to the service may say: its body, its query, its headers. Checked as it is read, and documented."""

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

_STATES: Final = "|".join((*get_args(RunState), "interrupted"))

# What says nothing is refused where it is used, in the words of whoever refuses it.
Words: TypeAlias = Annotated[str, msgspec.Meta(extra_json_schema={"pattern": r"\S"})]
RunId: TypeAlias = Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$")]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=_INT64)]


# --- bodies -----------------------------------------------------------------------------------------------


class NewRun(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs``.

    Attributes:
        agent: Its name, as ``GET /agents`` lists it.
        task: What to do; for an agent with a typed ``input`` the JSON text of one.
        root: The folder that the research team may read, in the one of the service.
        payload: The first value of its payload; null for the defaults.
        run_id: The id that the run is to have; makes it safe to repeat the request.
        priority: How urgent it is where runs wait; null for what the agent has.
        client: Who asks, for quotas.
    """

    agent: str
    task: Words
    root: str | None = None
    payload: Any = None
    run_id: RunId | None = None
    priority: Annotated[int, msgspec.Meta(ge=-100, le=100)] | None = None
    client: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{0,100}$")] = ""


class NewFork(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/fork``.

    Attributes:
        iteration: The last iteration that is the same, 0 for the task alone; null for the last that is whole.
        text: What to say to the new run; null for nothing.
        run_id: The id that it is to have; makes it safe to repeat the request.
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
        url: The webhook; null where there is only one.
    """

    change: Count
    url: str | None = None


class NewMessage(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/messages``.

    Attributes:
        text: What to say.
        message_id: Makes it safe to repeat: what was said under the same id is heard once.
    """

    text: Words
    message_id: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,200}$")] | None = None


class Approval(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/approve``; without ``arguments`` the call is made as it is."""

    arguments: Json | None = None
    by: str = ""


class Denial(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/deny``."""

    reason: Words
    by: str = ""


class GivenText(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="text"):
    """Words of a result."""

    text: str


class GivenMedia(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type", tag="media"):
    """An image or a document of a result.

    Attributes:
        media_type: ``image/png``, ``image/jpeg``, ``image/gif``, ``image/webp`` or ``application/pdf``.
        data: What the file holds, in base 64.
        title: What the model is told a document is called.
    """

    media_type: str
    data: Annotated[bytes, msgspec.Meta(extra_json_schema={"pattern": _BASE64})]
    title: str = ""


class GivenResult(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of ``POST /runs/{id}/calls/{call_id}/result``.

    Attributes:
        result: Text or JSON.
        content: Texts, images and documents instead, in order.
        is_error: Whether the call failed, and this says why.
    """

    result: Any = None
    content: Annotated[list[GivenText | GivenMedia], msgspec.Meta(min_length=1)] | None = None
    is_error: bool = False


# --- headers ----------------------------------------------------------------------------------------------


class StartHeaders(msgspec.Struct, frozen=True, rename={"idempotency_key": "Idempotency-Key"}):
    """Of ``POST /runs``: a key that makes it safe to repeat; see docs/service.md."""

    idempotency_key: Annotated[str, msgspec.Meta(pattern=r"^[!-~]{1,200}$")] = ""


class EventHeaders(msgspec.Struct, frozen=True, rename={"last_event_id": "Last-Event-ID"}):
    """Of an event stream: the number of the last event that the client knows, as browsers send it."""

    last_event_id: Count = 0


# --- queries ----------------------------------------------------------------------------------------------


class RunsQuery(msgspec.Struct, frozen=True):
    """Which runs to list: of so many trees, the newest; and whether with their figures.

    Attributes:
        state: Of the root; several with commas between them.
        agent: The name of the root's agent.
        client: Who asked for it.
        machine: The name of the machine that runs it.
        text: What its task has somewhere.
        since: Started then or later, in seconds since 1970.
        until: Started before that; 0 for no such bound.
        sort: Whether the newest trees are wanted, or the oldest.
        before: Started before this root; ``next`` of the page before.
        after: Started after this root, the oldest of those.
    """

    limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_TREES)] = 100
    figures: Literal["yes", "no"] = "no"
    state: Annotated[str, msgspec.Meta(pattern=rf"^(({_STATES})(,({_STATES}))*)?$")] = ""
    agent: str = ""
    client: str = ""
    machine: str = ""
    text: str = ""
    since: Count = 0
    until: Count = 0
    sort: Literal["newest", "oldest"] = "newest"
    before: str = ""
    after: str = ""


class OverviewQuery(msgspec.Struct, frozen=True):
    """Of so many trees, the newest; and what was spent since so many seconds since 1970, 0 for last midnight here."""

    limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_TREES)] = 200
    since: Count = 0


class StatsQuery(msgspec.Struct, frozen=True):
    """Of which run, "" for the newest; with ``tree=1`` those below it are added."""

    run: str = ""
    tree: Annotated[int, msgspec.Meta(ge=0, le=1)] = 0


class InspectQuery(msgspec.Struct, frozen=True):
    """Of the ``newest`` calls: which iteration's; 0 for the newest. It says nothing where a call is named."""

    iteration: Count = 0


class RecordQuery(msgspec.Struct, frozen=True):
    """So many entries from a position on."""

    start: Count = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 100


class ResultQuery(msgspec.Struct, frozen=True):
    """How many seconds to wait for the result of a run that has not ended."""

    wait: Annotated[int, msgspec.Meta(ge=0, le=MAX_WAIT)] = 0


class EventsQuery(msgspec.Struct, frozen=True):
    """Events after which number; and whether to follow, or to answer with a page of those that there are.

    Attributes:
        before: Of such a page: the last events before this number, instead of the first ones; 0 for those.
    """

    after: Count = 0
    before: Count = 0
    follow: Literal["yes", "no"] = "yes"


class AttemptsQuery(msgspec.Struct, frozen=True):
    """Attempts before which number, 0 for the newest; and how many."""

    before: Count = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 100


class WindowQuery(msgspec.Struct, frozen=True):
    """Which part of a list is asked for."""

    skip: Count = 0
    limit: Annotated[int, msgspec.Meta(ge=0, le=MAX_LISTED)] = 50


class MemoryQuery(WindowQuery, frozen=True):
    """Words that must all be in what is found; without them, the newest items."""

    text: str = ""


class ItemQuery(msgspec.Struct, frozen=True):
    """Which item. Its id is no part of the path: it may look like one that leads elsewhere."""

    id: Annotated[str, msgspec.Meta(min_length=1)]


class VersionQuery(msgspec.Struct, frozen=True):
    """Which version of a payload; 0 for the newest."""

    version: Count = 0


class PageQuery(msgspec.Struct, frozen=True):
    """Which page of a content, from 1."""

    page: Count = 1
