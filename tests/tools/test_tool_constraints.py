"""What ``Annotated`` says of a parameter holds, in whoever's words it is said; what cannot hold is refused at once."""

from __future__ import annotations

import dataclasses
import re
import sys
from typing import Annotated, Any, NamedTuple, NewType, Optional, TypedDict

import annotated_types
import msgspec
import pydantic
import pytest
from typing_extensions import Doc

from repertory.errors import ConfigurationError
from repertory.tools import Tool, call_tool, tool

Port = NewType("Port", Annotated[int, annotated_types.Gt(3)])  # type: ignore[valid-newtype]


def taking(kind: Any) -> Tool:
    """A tool with one parameter of a type."""

    def take(value: kind) -> str:
        """Take a value."""
        return repr(value)

    take.__annotations__["value"] = kind
    return tool(take, effect="pure")


async def takes(made: Tool, value: Any) -> bool:
    """Whether a tool takes a value; whatever it does not is the model's to repair."""
    output = await call_tool(made, {"value": value})
    if output.error is not None:
        assert output.error.cause == "arguments"
    return not output.is_error


@pytest.mark.parametrize(
    ("kind", "good", "bad"),
    [
        (Annotated[int, pydantic.Field(gt=3)], 4, 3),
        (Annotated[int, pydantic.Field(ge=3, lt=9, multiple_of=2)], 4, 5),
        (Annotated[int, annotated_types.Gt(3)], 4, 3),
        (Annotated[int, annotated_types.Interval(ge=1, le=4)], 4, 5),
        (Annotated[pydantic.PositiveInt, pydantic.Field(gt=3)], 4, 3),
        (Annotated[pydantic.PositiveInt, pydantic.Field(ge=4)], 4, 3),
        (Annotated[int, msgspec.Meta(gt=3), annotated_types.Le(9)], 9, 10),
        (Annotated[int, msgspec.Meta(ge=3), annotated_types.Gt(3)], 4, 3),
        (Annotated[str, annotated_types.Len(2, 3)], "ab", "a"),
        (Annotated[str, annotated_types.MaxLen(2)], "ab", "abc"),
        (Annotated[str, pydantic.Field(pattern="^a+$")], "aa", "ab"),
        (Annotated[str, pydantic.Field(pattern=re.compile("^a+$"))], "aa", "ab"),
        (Annotated[str, pydantic.StringConstraints(min_length=2)], "ab", "a"),
        (list[Annotated[int, annotated_types.Gt(3)]], [4], [4, 3]),
        (dict[str, list[Annotated[int, annotated_types.Gt(3)]]], {"a": [4]}, {"a": [3]}),
        (Optional[Annotated[int, pydantic.Field(gt=3)]], None, 3),  # noqa: UP045 - as older code spells it
        (Annotated[int, pydantic.Field(gt=3)] | None, 4, 3),
        (Annotated[int | None, pydantic.Field(gt=3)], None, 3),
        (tuple[Annotated[int, annotated_types.Gt(3)], ...], [4], [3]),
        (Annotated[list[Annotated[int, annotated_types.Gt(3)]], annotated_types.MinLen(1)], [4], []),
        (Port, 4, 3),
    ],
    ids=repr,
)
async def test_a_constraint_holds_in_whoevers_words(kind: Any, good: Any, bad: Any) -> None:
    """Of msgspec, annotated_types and pydantic, together too; inside lists and unions; the narrower one of two."""
    made = taking(kind)
    assert await takes(made, good)
    assert not await takes(made, bad)


@pytest.mark.parametrize(
    "kind",
    [
        Annotated[int, "How many."],
        Annotated[int, pydantic.Field(description="How many.")],
        Annotated[int, Doc("How many.")],
        Annotated[int, pydantic.Field(gt=3, description="How many.")],
        Annotated[int | None, pydantic.Field(description="How many.")],
        Annotated[int, msgspec.Meta(description="How many.")],
    ],
    ids=repr,
)
def test_words_about_a_parameter_reach_the_model(kind: Any) -> None:
    """A plain text, as some libraries have it, and the descriptions of others."""
    assert taking(kind).input_schema["properties"]["value"]["description"] == "How many."


def test_a_constraint_reaches_the_model() -> None:
    """As JSON schema, so that it is kept before it is broken."""
    kind = Annotated[int, pydantic.Field(gt=3, le=9)]
    described = taking(kind).input_schema["properties"]["value"]
    assert (described["exclusiveMinimum"], described["maximum"]) == (3, 9)


class _Struct(msgspec.Struct):
    n: Annotated[int, annotated_types.Gt(3)]


@dataclasses.dataclass
class _Inner:
    n: list[Annotated[int, pydantic.Field(gt=3)]]


@dataclasses.dataclass
class _Outer:
    inner: _Inner | None


class _Dict(TypedDict):
    n: Annotated[int, annotated_types.Gt(3)]


class _Tuple(NamedTuple):
    n: Annotated[int, annotated_types.Gt(3)]


@pydantic.dataclasses.dataclass
class _Pydantic:
    n: int


class _Model(pydantic.BaseModel):
    n: int


class _Marker:
    pass


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (Annotated[int, annotated_types.Predicate(bool)], r"Predicate.*cannot be honoured: func; use msgspec\.Meta"),
        (Annotated[int, pydantic.AfterValidator(abs)], "cannot be honoured: func"),
        (Annotated[int, pydantic.Field(strict=True)], "cannot be honoured: strict"),
        (Annotated[int, pydantic.Field(alias="n")], "cannot be honoured: .*alias"),
        (Annotated[str, pydantic.StringConstraints(strip_whitespace=True)], "cannot be honoured: strip_whitespace"),
        (Annotated[int, pydantic.Field(default=3)], "cannot be honoured: default"),
        (Annotated[int, _Marker()], "_Marker object.*cannot be honoured; use"),
        (Annotated[int, _Marker], "_Marker.*cannot be honoured; use"),
        (Annotated[int, 5], "annotated with 5, which cannot be honoured"),
        (Annotated[int, annotated_types.MultipleOf(2), annotated_types.MultipleOf(3)], "two values of multiple_of"),
        (Annotated[str, annotated_types.Gt("a")], "cannot be bound by {'gt': 'a'}"),
        (list[Annotated[int, _Marker()]], "cannot be honoured"),
        (_Struct, "field 'n' of _Struct is annotated with Gt"),
        (_Outer, "field 'n' of _Inner is annotated with FieldInfo"),
        (_Dict, "field 'n' of _Dict"),
        (list[_Tuple], "field 'n' of _Tuple"),
        (_Pydantic, "_Pydantic, a pydantic dataclass; make a BaseModel of it"),
    ],
    ids=lambda value: repr(value)[:60],
)
def test_what_cannot_be_honoured_is_refused_where_the_tool_is_made(kind: Any, words: str) -> None:
    """By name, with the parameter, and with what to write instead."""
    with pytest.raises(ConfigurationError, match=f"tool 'take': parameter 'value'.*{words}"):
        taking(kind)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="only the statement `type` makes an alias of itself")
def test_an_alias_that_is_made_of_itself_is_refused_where_the_tool_is_made() -> None:
    """It ended in a RecursionError, though every type checker takes it."""
    names: dict[str, Any] = {}
    exec("type Json = dict[str, Json] | list[Json] | str\ntype Words = list[str]", names)
    assert taking(names["Words"] | None).definition.signature == "take(value: array of string | null)"
    with pytest.raises(ConfigurationError, match="parameter 'value' is made of Json, which is made of itself; use Any"):
        taking(names["Json"] | None)


def test_a_field_as_a_default_is_refused() -> None:
    """The function itself would be given it in the place of a number."""
    with pytest.raises(ConfigurationError, match=r"'value' has pydantic's Field as its default; write Annotated\["):

        @tool
        def take(value: int = pydantic.Field(gt=3)) -> str:
            """Take a value."""
            return repr(value)


async def test_a_model_of_pydantics_is_a_parameter_like_any_other() -> None:
    """The model is told its fields, the function gets a value of it, and what does not fit is told with the field."""

    @tool(effect="pure")
    async def take(value: _Model, more: list[_Model] | None = None) -> str:
        """Take."""
        return repr((value, more))

    assert take.input_schema["properties"]["value"]["properties"]["n"]["type"] == "integer"
    output = await call_tool(take, {"value": {"n": "4"}, "more": [{"n": 5}]})
    assert output.text == "(_Model(n=4), [_Model(n=5)])"
    refused = await call_tool(take, {"value": {"n": 4}, "more": [{"n": "x"}]})
    assert "in field n - at `$.more[0]`" in refused.text
