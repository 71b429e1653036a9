"""Values that nobody can keep are refused by a typed error that names the field, wherever callers hand them in."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec
import pytest

import repertory as rp
from repertory.errors import ConfigurationError, RecordRefused, RepertoryError
from repertory.memory import ItemQuery
from repertory.testing import ScriptedModel


class Notes(msgspec.Struct):
    """A payload."""

    lines: list[Any] = []


def nested(levels: int) -> list[Any]:
    """A list in a list, so many times."""
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def endless() -> list[Any]:
    """A list that contains itself."""
    value: list[Any] = []
    value.append(value)
    return value


Call = Callable[[rp.Supervisor, "rp.Run[Any]", Any], Awaitable[object]]
AGENT = rp.Agent("clerk", payload=Notes)


@pytest.mark.parametrize("value", [nested(3_000), nested(100_000), endless()], ids=["deep", "deeper", "endless"])
@pytest.mark.parametrize(
    ("where", "hand_in"),
    [
        ("options", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", options={"a": value})),
        ("task", lambda supervisor, _, value: supervisor.spawn(AGENT, value)),
        ("run_id", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", run_id=value)),
        ("payload", lambda supervisor, _, value: supervisor.spawn(AGENT, "Go.", payload=value)),
        ("lines", lambda _, run, value: run.change_payload({"lines": value})),
        ("path", lambda _, run, value: run.change_payload(remove=[value])),
        ("message", lambda _, run, value: run.send(value)),
        ("content", lambda _, run, value: run.memory.store(value)),
        ("metadata", lambda _, run, value: run.memory.store("a", metadata={"a": value})),
        ("run_id", lambda supervisor, _, value: supervisor.clean(value)),
        ("content_id", lambda supervisor, run, value: supervisor.share_content(value, run.id)),
    ],
)
async def test_what_is_nested_too_deep_is_refused_by_name(where: str, hand_in: Call, value: Any) -> None:
    """Also where an error would have to show it; the run goes on."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(RepertoryError, match=where):
            await hand_in(supervisor, run, value)
        assert await run.wait_result() == "Done."


@pytest.mark.parametrize("wrong", [{"values": ["lines"]}, {"values": "lines"}, {"append": 5}, {"remove": "lines"}])
async def test_changes_of_a_payload_are_by_path(wrong: dict[str, Any]) -> None:
    """A list or a text in place of a mapping is named; a text is not taken for a list of its letters."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(ConfigurationError, match=f"change_payload: {next(iter(wrong))} must be"):
            await run.change_payload(**wrong)
        assert run.payload == Notes()


@pytest.mark.parametrize("wrong", [{"tags": "plan"}, {"tags": 5}, {"related_to": "item-1"}])
async def test_labels_of_an_item_are_lists(wrong: dict[str, Any]) -> None:
    """One text would be taken for its letters."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        run = await supervisor.spawn(AGENT, "Go.")
        with pytest.raises(ConfigurationError, match=f"{next(iter(wrong))} must be a list of texts"):
            await run.memory.store("a", **wrong)
        assert await run.memory.query(ItemQuery(limit=2**70)) == []


async def test_what_is_refused_as_too_deep_is_an_error_of_the_record() -> None:
    """One class, whoever finds it: the struct that holds it, or the journal that writes it."""
    async with rp.open_supervisor(model=ScriptedModel(["Done."])) as supervisor:
        with pytest.raises(RecordRefused, match=r"RunStarted\.options: a value that contains itself"):
            await supervisor.spawn(AGENT, "Go.", options={"a": endless()})
