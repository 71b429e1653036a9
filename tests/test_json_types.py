"""A type of the application's as JSON: what it is described as, what fits it, and how its values are written."""

from __future__ import annotations

import datetime
from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pydantic
import pytest
from annotated_types import Gt
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from repertory._json_types import JsonType, inlined, json_type
from repertory.errors import ConfigurationError


class Place(msgspec.Struct):
    """Where."""

    path: str
    line: int = 1


class Node(msgspec.Struct):
    """What holds more of itself."""

    name: str
    below: list[Node] = []


@dataclass
class Claim:
    """What somebody says."""

    text: str
    places: list[Place]
    weight: Literal["low", "high"] = "low"


class Topic(TypedDict, total=False):
    """What it is about."""

    title: str
    when: datetime.date


class Part(pydantic.BaseModel):
    """A part, checked by pydantic."""

    number: int = pydantic.Field(gt=1)


class Note(msgspec.Struct):
    """Has a field with one choice."""

    kind: Literal["note"]


class Paper(msgspec.Struct, tag=True):
    """Told from ``Film`` by its tag."""

    kind: Literal["essay", "letter"]


class Film(msgspec.Struct, tag=True):
    """Told from ``Paper`` by its tag."""

    kind: Literal["feature", "short"]


class Dog(pydantic.BaseModel):
    """Told from ``Cat`` by a field with one choice."""

    kind: Literal["dog"]
    mood: Literal["calm", "cross"]


class Cat(pydantic.BaseModel):
    """Told from ``Dog`` by a field with one choice."""

    kind: Literal["cat"]
    mood: Literal["calm", "cross"]


class Whole(pydantic.BaseModel):
    """A model with another one in it."""

    parts: list[Part]


def _local() -> type:
    """A type whose names only a function knows."""

    class Inner(msgspec.Struct):
        """Named below."""

    class Outer(msgspec.Struct):
        """Names it."""

        inner: Inner

    return Outer


VALUES: list[tuple[Any, Any, Any]] = [
    (Place, {"path": "a"}, Place("a")),
    (Claim, {"text": "x", "places": [{"path": "a", "line": 2}]}, Claim("x", [Place("a", 2)])),
    (Topic, {"title": "t", "when": "2026-01-02"}, {"title": "t", "when": datetime.date(2026, 1, 2)}),
    (Whole, {"parts": [{"number": 2}]}, Whole(parts=[Part(number=2)])),
    (list[Whole], [{"parts": []}], [Whole(parts=[])]),
    (dict[str, Part], {"a": {"number": 3}}, {"a": Part(number=3)}),
    (Place | None, None, None),
    (int | str, "a", "a"),
    (Literal["yes", "no"], "no", "no"),
    (Place | Claim, {"text": "x", "places": []}, Claim("x", [])),
    (Place | Claim, {"path": "a"}, Place("a")),
    (Part | Whole, {"parts": []}, Whole(parts=[])),
    (Node, {"name": "a", "below": [{"name": "b"}]}, Node("a", [Node("b")])),
    (float, 3, 3.0),
    (list[str], ["\ud800"], ["\ud800"]),
]


@pytest.mark.parametrize(("kind", "given_", "value"), VALUES)
def test_a_value_is_read_and_written_and_read_again(kind: Any, given_: Any, value: Any) -> None:
    """What is written of a value is the value again."""
    ready = JsonType(kind, "it")
    assert ready.read(given_) == value
    assert ready.read_text(ready.write(value)) == value
    assert ready.write(ready.read_text(ready.write(value))) == ready.write(value)


def test_what_json_has_no_number_for_is_null_in_any_company() -> None:
    """Also beside half a character, which is written in another way."""
    assert JsonType(list[Any], "it").write([float("nan"), "a"]) == '[null,"a"]'
    assert JsonType(list[Any], "it").write([float("nan"), "\ud800"]) == '[null,"\\ud800"]'


@pytest.mark.parametrize(
    ("kind", "given_", "value"),
    [
        (Place, {"path": "a", "line": "7"}, Place("a", 7)),
        (Place, {"path": "a", "line": None}, Place("a")),
        (Claim, {"text": "x", "places": '[{"path": "a", "line": "2"}]'}, Claim("x", [Place("a", 2)])),
        (Claim, {"text": "x", "places": [], "weight": "HIGH"}, Claim("x", [], "high")),
        (list[Place], '[{"path": "a"}]', [Place("a")]),
        (list[Paper | Film], [{"type": "Film", "kind": "FEATURE"}], [Film("feature")]),
        (Dog | Cat, {"kind": "cat", "mood": "Cross"}, Cat(kind="cat", mood="cross")),
        (Note, {"kind": "NOTE"}, Note("note")),
    ],
)
def test_what_was_meant_is_taken(kind: Any, given_: Any, value: Any) -> None:
    """Numbers and lists in quotes, needless nulls and capitals are put right, however deep they stand."""
    assert JsonType(kind, "it").read(given_) == value


@pytest.mark.parametrize(
    ("kind", "given_", "words"),
    [
        (Place, {"path": "a", "line": "x"}, "Expected `int`, got `str` - at `$.line`"),
        (list[Claim], [{"text": "x", "places": [{}]}], "missing required field `path` - at `$[0].places[0]`"),
        (Whole, {"parts": [{"number": 1}]}, "Input should be greater than 1 in field parts.0.number"),
        (list[Whole], [{}], "Field required in field parts - at `$[0]`"),
        (Place | Claim, {"path": 1}, "Expected `str`, got `int` - at `$.path`; or"),
        (Annotated[int, Gt(3)], 2, "Expected `int` >= 4"),
        (Claim, "x", "Expected `object`, got `str`"),
    ],
)
def test_what_does_not_fit_is_told_with_its_place(kind: Any, given_: Any, words: str) -> None:
    """The error says what was expected, what came, and where."""
    with pytest.raises(ValueError, match=r".") as caught:
        JsonType(kind, "it").read(given_)
    assert words in str(caught.value)


@pytest.mark.parametrize("text", ["", "{", "words", '{"path": ', "[" * 10_000])
def test_what_is_no_json_is_a_value_error(text: str) -> None:
    """However broken a text is, it is told like any other misfit."""
    with pytest.raises(ValueError, match=r"JSON|deep"):
        JsonType(Place, "it").read_text(text)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (complex, "cannot be described as JSON"),
        (list[Place | Claim], "tag its structs"),
        (list[Whole | Topic], "a field of a pydantic model"),
        ([Place, Claim], r"a choice of types is written A \| B"),
        (_local(), "top level of a module"),
        ("Place", "cannot be described as JSON"),
        (Annotated[int, object()], "cannot be honoured"),
    ],
)
def test_a_type_that_json_has_not_is_refused_where_it_is_given(kind: Any, words: str) -> None:
    """The error says where, and what to do where there is something."""
    with pytest.raises(ConfigurationError, match="agent a: output.*" + words):
        JsonType(kind, "agent a: output")


def test_text_needs_no_type() -> None:
    """None and ``str`` both mean plain text."""
    assert json_type(None, "it") is json_type(str, "it") is None


def test_a_schema_holds_no_titles_and_only_what_it_refers_to() -> None:
    """What a model reads is short; a field that is called title stays."""
    schema = JsonType(list[Whole], "it").schema
    assert '"title"' not in msgspec.json.encode(schema).decode()
    assert list(schema["$defs"]) == ["Whole_Part"]
    assert "title" in JsonType(Topic, "it").schema["properties"]


def test_a_schema_can_stand_within_another() -> None:
    """Without references, and what contains itself ends."""
    assert "$ref" not in msgspec.json.encode(inlined(JsonType(list[Claim], "it").schema)).decode()
    assert inlined(JsonType(Node, "it").schema)["properties"]["below"]["items"]["properties"]["below"]["items"] == {
        "type": "object"
    }


@given(
    st.recursive(
        st.none() | st.integers() | st.text() | st.floats(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
    )
)
def test_whatever_comes_is_taken_or_told(value: Any) -> None:
    """Nothing but a value or a ``ValueError``, whatever a model sends."""
    for kind in (Place, list[Claim], Whole, Place | Claim, Node):
        with suppress(ValueError):
            JsonType(kind, "it").read(value)


def test_what_is_nested_too_deep_is_told_like_any_misfit() -> None:
    """Readers and writers of JSON take a frame of Python's for each level: 3.11 has a thousand, 3.13 ten thousand."""
    kind = JsonType(Node, "it")
    deep: Any = {"name": "a"}
    for _ in range(100_000):
        deep = {"name": "a", "below": [deep]}
    for read in (kind.read, kind.read_exactly):
        with pytest.raises(ValueError, match="nested less deep"):
            read(deep)
    with pytest.raises(TypeError, match="nested too deep"):
        kind.write(deep)


@pytest.mark.parametrize("kind", [int, list[int], Literal["a", "b"], datetime.datetime, Place])
@pytest.mark.parametrize(
    "value", ["\ud800", "[\ud800]", ' {"a": "\udfff"', ["\ud800"], {"path": "a", "line": "\ud800"}]
)
def test_half_of_a_character_is_no_number_list_or_choice(kind: Any, value: Any) -> None:
    """A model may send one; it is told like anything else that does not fit, or taken where text is wanted."""
    with pytest.raises(ValueError, match=r"Expected|Invalid"):
        JsonType(kind, "here").read(value)
    assert JsonType(Place, "here").read({"path": "\ud800"}) == Place("\ud800")


def test_a_value_is_no_type() -> None:
    """Also one that cannot be hashed."""
    with pytest.raises(ConfigurationError, match="here is Place"):
        JsonType(Place("a"), "here")


@dataclass
class Login:
    """A dataclass in a model."""

    user: str
    password: pydantic.SecretStr


class WithSecret(pydantic.BaseModel):
    """A secret."""

    key: pydantic.SecretStr = pydantic.SecretStr("hunter2")


class WithSecrets(pydantic.BaseModel):
    """A secret that the schema does not show, in a list."""

    keys: dict[str, list[pydantic.Secret[int]]] = {}


class WithLogin(pydantic.BaseModel):
    """A secret further down."""

    again: WithLogin | None = None
    login: Login | None = None


class Holds(msgspec.Struct):
    """A struct with a model."""

    model: WithSecret | None = None


@pytest.mark.parametrize(
    ("kind", "field"),
    [
        (WithSecret, "key"),
        (WithSecrets, "keys"),
        (WithLogin, "login.password"),
        (Holds, "key"),
        (list[WithSecret], "key"),
    ],
)
def test_what_is_secret_is_refused_as_it_would_be_lost_or_recorded(kind: Any, field: str) -> None:
    """pydantic writes stars for it, which would be read back; and all that a model says is on record."""
    for make in (
        lambda: JsonType(kind, "the result"),
        lambda: rp.Agent("a", payload=kind),
        lambda: rp.Agent("a", output=kind),
    ):
        with pytest.raises(ConfigurationError, match=f"field {field} is a secret.*context="):
            make()
