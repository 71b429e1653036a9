"""What a model sends is checked, put right where it is plain what was meant, and refused with a way to repair it."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from repertory.errors import ToolRetry
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
