"""JSON outputs of the Messages API: what is asked for is what the strict server takes, and what it would not is not."""

from __future__ import annotations

import datetime
from dataclasses import dataclass, field
from decimal import Decimal
from enum import Enum
from typing import Annotated, Any, Literal

import msgspec
import pydantic
import pytest

from repertory._json_types import JsonType
from repertory.llm import profile_for
from repertory.llm.json_outputs import output_format
from repertory.testing.refusal import Refusal
from repertory.testing.rules import check_body

SONNET = profile_for("claude-sonnet-5-5")


class Level(Enum):
    """How much."""

    LOW = "low"
    HIGH = "high"


class Leaf(pydantic.BaseModel):
    """A model of pydantic's."""

    score: float = pydantic.Field(ge=0, le=1, description="how sure")
    tags: list[str] = pydantic.Field(default_factory=list, min_length=2)


@dataclass
class Branch:
    """A dataclass."""

    leaves: list[Leaf]
    level: Level = Level.LOW
    note: str | None = None


class Tree(msgspec.Struct):
    """A struct with one of everything that a format can hold."""

    name: Annotated[str, msgspec.Meta(min_length=1, pattern="^[a-z]+$")]
    price: Decimal
    day: datetime.date
    kind: Literal["oak", "elm"]
    age: Annotated[int, msgspec.Meta(ge=0)] = 0
    branches: list[Branch] = []
    data: bytes = b""


class Cat(msgspec.Struct, tag=True):
    """One of two."""

    name: str


class Dog(msgspec.Struct, tag=True):
    """The other."""

    loud: bool


class Zoo(msgspec.Struct):
    """A union that is told apart by a tag."""

    animals: list[Cat | Dog]


class Loop(msgspec.Struct):
    """What contains itself."""

    inner: list[Loop]


@dataclass
class Wide:
    """More fields that may be left out than a format may have."""

    fields: dict[str, Any] = field(default_factory=dict[str, Any])


def body(wanted: Any) -> dict[str, Any]:
    """A request with an output format."""
    return {
        "model": "m",
        "max_tokens": 1,
        "messages": [{"role": "user", "content": "hi"}],
        "output_config": {"effort": "low", "format": wanted},
    }


@pytest.mark.parametrize("kind", [Tree, Branch, Leaf, Zoo, Cat])
def test_a_type_is_asked_for_as_the_server_takes_it(kind: Any) -> None:
    """Whatever the provider cannot be told stands in words beside."""
    check_body(body(output_format(JsonType(kind, "it").schema)), profile=SONNET, betas=frozenset())


def test_bounds_stand_in_words() -> None:
    """The model still reads what the provider does not enforce."""
    wanted = output_format(JsonType(Leaf, "it").schema)
    assert wanted is not None
    fields = wanted["schema"]["properties"]
    assert fields["score"] == {"type": "number", "description": "how sure (maximum: 1, minimum: 0)"}
    assert "minItems: 2" in fields["tags"]["description"]


@pytest.mark.parametrize("kind", [Loop, Wide, dict[str, int], list[int], int, Any, tuple[int, str]])
def test_what_the_server_would_refuse_is_not_asked_for(kind: Any) -> None:
    """None leaves it to a final call."""
    assert output_format(JsonType(kind, "it").schema) is None


def test_a_schema_that_is_too_large_is_not_asked_for() -> None:
    """There are bounds on fields that may be left out, and on unions."""
    loose = msgspec.defstruct("Loose", [(f"f{n}", int, 0) for n in range(25)])
    many = msgspec.defstruct("Many", [(f"f{n}", int | None) for n in range(17)])
    assert output_format(JsonType(loose, "it").schema) is None
    assert output_format(JsonType(many, "it").schema) is None


OBJECT: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        ({"type": "text"}, "Input should be 'json_schema'"),
        ({"type": "json_schema"}, "Field required"),
        ({"type": "object"}, "must be explicitly set to false"),
        ({"type": "object", "additionalProperties": True}, "'additionalProperties: true' is not supported"),
        ({"type": "object", "additionalProperties": {"type": "integer"}}, "'additionalProperties: object'"),
        ({"type": "integer", "minimum": 1}, "For 'integer' type, property 'minimum' is not supported"),
        ({"type": "number", "minimum": 1, "maximum": 2}, "properties maximum, minimum are not supported"),
        ({"type": "string", "format": "decimal"}, "format 'decimal' is not supported"),
        ({"type": "array", "items": {"type": "null"}, "minItems": 2}, "values other than 0 or 1"),
        ({"type": ["string", "text"]}, "is not supported"),
        ({}, "Schema must have a 'type'"),
        ({**OBJECT, "properties": {"a": {"$ref": "#/$defs/A"}}, "$defs": {"A": {"$ref": "#/$defs/A"}}}, "Recursive"),
        ({**OBJECT, "properties": {f"f{n}": {"type": "null"} for n in range(25)}}, "too complex"),
    ],
)
def test_the_server_refuses_a_schema_that_it_cannot_keep(wanted: dict[str, Any], words: str) -> None:
    """In the words that people quote."""
    if wanted.get("type") not in ("text", "json_schema"):
        wanted = {"type": "json_schema", "schema": wanted}
    with pytest.raises(Refusal) as refused:
        check_body(body(wanted), profile=SONNET, betas=frozenset())
    assert words in refused.value.message


def test_the_server_refuses_a_format_where_it_has_none() -> None:
    """A model without JSON outputs, and an answer that is begun already."""
    wanted = {"type": "json_schema", "schema": OBJECT}
    check_body(body(wanted), profile=SONNET, betas=frozenset())
    without = msgspec.structs.replace(SONNET, json_outputs=False)
    with pytest.raises(Refusal, match="does not support output format"):
        check_body(body(wanted), profile=without, betas=frozenset())
    begun = body(wanted)
    begun["messages"].append({"role": "assistant", "content": "{"})
    with pytest.raises(Refusal):
        check_body(begun, profile=profile_for("claude-haiku-4-5"), betas=frozenset())
