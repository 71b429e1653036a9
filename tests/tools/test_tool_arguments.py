"""What a model sends is checked, put right where it is plain what was meant, and refused with a way to repair it."""

from __future__ import annotations

import datetime
import enum
import re
import sys
from decimal import Decimal
from pathlib import Path, PurePosixPath
from typing import Annotated, Any
from uuid import UUID

import msgspec
import pydantic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import ConfigurationError, ToolRetry
from repertory.tools import call_tool, tool
from repertory.tools.arguments import read_arguments


class Place(msgspec.Struct):
    """Where."""

    city: str
    zip: int = 0


@tool(effect="pure")
async def look(
    path: str,
    limit: Annotated[int, msgspec.Meta(ge=1)] = 10,
    tags: list[str] | None = None,
    place: Place | None = None,
    anything: Any = None,
) -> str:
    """Look."""
    return repr((path, limit, tags, place, anything))


class Odd(msgspec.Struct):
    """A type that says what is wrong by an error of its own."""

    value: int

    def __post_init__(self) -> None:
        if self.value > 10:
            raise LookupError(f"no such value: {self.value}")
        if self.value < 0:
            sys.exit(f"usage: {self.value}")


async def test_whatever_error_a_type_raises_is_told_to_the_model() -> None:
    """It is its arguments that are wrong; neither the run nor the machine is to end over them."""

    @tool(effect="unsafe")
    def pay(amount: Odd) -> str:
        """Pay."""
        return f"paid {amount.value}"

    assert (await call_tool(pay, {"amount": {"value": 5}})).text == "paid 5"
    for value, told in ((20, "LookupError: no such value: 20"), (-1, "SystemExit: usage: -1")):
        refused = await call_tool(pay, {"amount": {"value": value}})
        assert refused.is_error
        assert refused.text.startswith(f"invalid arguments: {told}")


@pytest.mark.parametrize(
    ("sent", "read"),
    [
        ({"path": "a"}, {"path": "a"}),
        ({"path": "7"}, {"path": "7"}),  # a text that looks like a number stays a text
        ({"path": "null"}, {"path": "null"}),
        ({"path": "[1]"}, {"path": "[1]"}),
        ({"path": "a", "anything": "[1]"}, {"path": "a", "anything": "[1]"}),
        ({"path": "a", "limit": "7"}, {"path": "a", "limit": 7}),
        ({"path": "a", "limit": None}, {"path": "a"}),
        ({"path": "a", "tags": None}, {"path": "a", "tags": None}),
        ({"path": "a", "tags": '["x", "y"]'}, {"path": "a", "tags": ["x", "y"]}),
        ({"path": "a", "place": ' {"city": "Ulm", "zip": "89073"}'}, {"path": "a", "place": Place("Ulm", 89073)}),
    ],
)
def test_what_was_meant_is_taken(sent: dict[str, Any], read: dict[str, Any]) -> None:
    """Exact values stay as they are; numbers in quotes, lists in quotes and needless nulls are put right."""
    assert read_arguments(look, sent) == read


@pytest.mark.parametrize(
    ("sent", "fact"),
    [
        ({}, "missing required field `path`"),
        ({"path": 3}, "Expected `str`, got `int` - at `$.path`"),
        ({"path": None}, "Expected `str`, got `null` - at `$.path`"),
        ({"path": "a", "limit": 0}, "Expected `int` >= 1 - at `$.limit`"),
        ({"path": "a", "limit": "many"}, "Expected `int`, got `str` - at `$.limit`"),
        ({"path": "a", "tags": ["x", 1]}, "Expected `str`, got `int` - at `$.tags[1]`"),
        ({"path": "a", "tags": "[x"}, "Expected `array | null`, got `str` - at `$.tags`"),
        ({"path": "a", "tags": "[" * 99_999}, "Expected `array | null`, got `str` - at `$.tags`"),
        ({"path": "a", "place": {"zip": 1}}, "missing required field `city` - at `$.place`"),
        ({"path": "a", "pfad": 1}, "unknown field `pfad`"),
        ("path", "Expected `object`, got `str`"),
        (None, "Expected `object`, got `null`"),
    ],
)
async def test_what_does_not_fit_is_refused_with_place_and_signature(sent: Any, fact: str) -> None:
    """The model learns where it went wrong, what was expected, what came, and the whole signature."""
    with pytest.raises(ToolRetry) as caught:
        read_arguments(look, sent)
    assert fact in str(caught.value)
    assert look.definition.signature in str(caught.value)
    output = await call_tool(look, {} if sent is None else sent)
    assert output.is_error
    assert output.error is not None
    assert output.error.cause == "arguments"


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["path", "limit", "tags", "place", "anything", "x"]), _json))
def test_any_json_is_either_read_or_refused(sent: dict[str, Any]) -> None:
    """No JSON object makes the check itself fail, and what is read has the declared types."""
    try:
        read = read_arguments(look, sent)
    except ToolRetry:
        return
    assert isinstance(read["path"], str)
    assert isinstance(read.get("limit", 1), int)
    assert isinstance(read.get("tags"), list | None)
    assert isinstance(read.get("place"), Place | None)


class Size(enum.Enum):
    """How large."""

    SMALL = "small"
    LARGE = "large"


class Level(enum.IntEnum):
    """How high."""

    LOW = 1


class Visit(pydantic.BaseModel):
    """A model of pydantic's, which a tool may take and give back."""

    day: datetime.date
    where: Path


@pytest.mark.parametrize(
    ("kind", "good", "read", "bad", "told"),
    [
        (Path, "/a/b", Path("/a/b"), 3, "Expected a path, got 3 - at `$.value`"),
        (Path, "a b", Path("a b"), "a\0b", r"Expected a path, got 'a\x00b' - at `$.value`"),
        (PurePosixPath, "/a", PurePosixPath("/a"), None, "Expected a path, got None"),
        (list[Path], ["a"], [Path("a")], ["a", 3], "Expected a path, got 3 - at `$.value[1]`"),
        (Path | None, None, None, 3, "(value: string (path) | null)"),
        (datetime.date, "2026-01-02", datetime.date(2026, 1, 2), "soon", "encoded date - at `$.value`"),
        (datetime.datetime, "2026-01-02T03:04:05", datetime.datetime(2026, 1, 2, 3, 4, 5), "now", "(date-time)"),
        (datetime.time, "03:04:00", datetime.time(3, 4), "noon", "(value: string (time))"),
        (datetime.timedelta, "PT3S", datetime.timedelta(seconds=3), "long", "Invalid ISO8601 duration"),
        (Decimal, "1.50", Decimal("1.50"), "much", "Invalid decimal string"),
        (Decimal, 1.5, Decimal("1.5"), [], "Expected `decimal`, got `array`"),
        (UUID, "12345678123456781234567812345678", UUID(int=0x12345678123456781234567812345678), "x", "Invalid UUID"),
        (Size, "LARGE", Size.LARGE, "huge", "Invalid enum value 'huge' - at `$.value`. Expected take(value: \"large\""),
        (Level, "1", Level.LOW, 2, "Expected take(value: 1)"),
        (
            Visit,
            {"day": "2026-01-02", "where": "/a"},
            Visit(day=datetime.date(2026, 1, 2), where=Path("/a")),
            {},
            "day",
        ),
        (dict[Size, int], {"small": 1}, {Size.SMALL: 1}, {"huge": 1}, "Invalid enum value 'huge'"),
    ],
)
async def test_types_that_json_spells_as_text_are_read_and_written(
    kind: Any, good: Any, read: Any, bad: Any, told: str
) -> None:
    """What comes is a value of the type, what is given back is text again, and an error says where and what else."""
    taken: list[Any] = []

    def take(value: kind) -> Any:
        """Take a value, and give it back."""
        taken.append(value)
        return {"given": value}

    take.__annotations__["value"] = kind
    made = tool(take, effect="pure")
    output = await call_tool(made, {"value": good})
    assert not output.is_error
    assert taken == [read]
    assert type(taken[0]) is type(read)
    again = await call_tool(made, {"value": msgspec.json.decode(output.text)["given"]})
    assert again.text == output.text
    refused = await call_tool(made, {"value": bad})
    assert refused.error is not None
    assert refused.error.cause == "arguments"
    assert told in refused.text


@pytest.mark.parametrize("kind", [complex, re.Pattern, range, object, Path | int, pydantic.FilePath])
def test_a_type_that_json_cannot_spell_is_refused_where_the_tool_is_made(kind: Any) -> None:
    """The error names the tool and the parameter."""

    def take(value: kind) -> None:
        """Take a value."""

    take.__annotations__["value"] = kind
    with pytest.raises(ConfigurationError, match=r"tool 'take': parameter 'value' (has a type|is annotated with)"):
        tool(take)


def test_a_default_is_shown_as_json_spells_it() -> None:
    """The function keeps its own."""

    def find(root: Path = Path("here"), since: datetime.date = datetime.date(2026, 1, 2)) -> None:
        """Find."""

    signature = tool(find).definition.signature
    assert signature == 'find(root: string (path) = "here", since: string (date) = "2026-01-02")'


async def test_arguments_that_are_nested_too_deep_are_the_models_to_repair() -> None:
    """They fit a parameter that takes anything, and nothing can write them."""

    @tool
    def keep(value: Any) -> None:
        """Keep anything."""

    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    output = await call_tool(keep, {"value": deep})
    assert output.error is not None
    assert (output.error.cause, output.text) == ("arguments", "invalid arguments: they are nested too deep")
