"""Events in the journal: what is kept of each, and that it is read back as it was."""

from __future__ import annotations

from typing import Any, get_args

import msgspec
import pytest

from repertory.errors import JournalUnreadable
from repertory.llm.model import Usage
from repertory.record import open_journal
from repertory.record.records import EventLogged, RunState
from repertory.runs.events import AnyEvent, Event, ToolEnded, from_record, to_record

KINDS: tuple[type[AnyEvent], ...] = get_args(AnyEvent)
OF_A_TYPE: dict[Any, Any] = {
    str: "done",
    bool: True,
    Any: ["text", {"deep": None}],
    int: 7,
    float: 0.5,
    dict[str, Any]: {"deep": [1, {"er": None}]},
    Usage: Usage(3, 4),
    RunState: "done",
    tuple[str, ...]: ("$.topic",),
}


def make(kind: type[AnyEvent]) -> AnyEvent:
    """An event with nothing but what it cannot do without."""
    needed = {field.name: OF_A_TYPE[field.type] for field in msgspec.structs.fields(kind) if field.required}
    return kind(**needed)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_an_event_is_kept_with_all_its_fields_and_read_back_as_itself(kind: type[AnyEvent]) -> None:
    """Also those that nobody gave, so that a reader never has to guess; through the journal's own rows."""
    event = make(kind)
    async with open_journal(None) as journal:
        await journal.write([to_record(event)])
        ((_, kept),) = await journal.read_events(event.run_id)
    assert set(kept.body) == set(kind.__struct_fields__) - set(Event.__struct_fields__)
    assert from_record(kept, agent=event.agent) == event


def test_what_an_older_file_lacks_has_its_default_and_what_is_broken_is_said() -> None:
    """A missing field with a default is no error, one of another type is; a type of the application's is no event."""
    body = to_record(make(ToolEnded)).body
    short = {name: value for name, value in body.items() if name not in ("retrieval", "deduplicated")}
    read = from_record(EventLogged(run_id="r", type="ToolEnded", body=short, at=1.0))
    assert isinstance(read, ToolEnded)
    assert (read.retrieval, read.deduplicated) == (False, False)
    with pytest.raises(JournalUnreadable, match=r"ToolEnded of run r cannot be read"):
        from_record(EventLogged(run_id="r", type="ToolEnded", body={**body, "shown": "seven"}, at=1.0))
    assert from_record(EventLogged(run_id="r", type="UserSaid", body={}, at=1.0)) is None
