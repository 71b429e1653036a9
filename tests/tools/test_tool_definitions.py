"""What becomes a tool, what the model is told about it, and what is refused at once."""

from __future__ import annotations

import enum
import functools
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypedDict

import msgspec
import pytest

import repertory as rp
from patience import PATIENCE
from repertory._json_text import canonical_json
from repertory.errors import ConfigurationError
from repertory.llm.messages import text_of
from repertory.testing import ScriptedModel, call
from repertory.tools import Tool, ToolContext, call_tool, tool
from repertory.tools.docstrings import read_docstring
from repertory.tools.schema import foreign_definition


class Color(enum.Enum):
    """A colour."""

    RED = "red"
    BLUE = "blue"


class Point(msgspec.Struct):
    """Somewhere on the map."""

    x: int
    y: int = 0


@dataclass
class Route:
    """Some points."""

    stops: list[Point]


class Options(TypedDict):
    """What else."""

    fast: bool


@tool(effect="pure")
async def everything(
    name: str,
    count: int,
    ratio: float,
    sure: bool,
    maybe: str | None,
    unit: Literal["m", "km"],
    color: Color,
    tags: list[str],
    table: dict[str, int],
    point: Point,
    route: Route,
    options: Options,
    context: ToolContext,
    limit: Annotated[int, msgspec.Meta(ge=1, le=9, description="at most so many")] = 5,
    note: str | None = None,
    labels: list[str] = [],  # noqa: B006 - what is said of it, is what is tested
    start: Color = Color.RED,
) -> str:
    """Do everything.

    More about it.

    Args:
        name: Who, with a line that
            goes on.
        count (int): How many.
        limit: not this one: the annotation says it.
        context: Not for the model.

    Returns:
        Not for the model either.

    Note:
        Slow on Sundays.
    """
    return f"{name} {context.call_id} {limit} {start}"


GOLDEN: dict[str, Any] = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "description": "Who, with a line that goes on."},
        "count": {"type": "integer", "description": "How many."},
        "ratio": {"type": "number"},
        "sure": {"type": "boolean"},
        "maybe": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "unit": {"enum": ["km", "m"]},
        "color": {"$ref": "#/$defs/Color"},
        "tags": {"type": "array", "items": {"type": "string"}},
        "table": {"type": "object", "additionalProperties": {"type": "integer"}},
        "point": {"$ref": "#/$defs/Point"},
        "route": {"$ref": "#/$defs/Route"},
        "options": {"$ref": "#/$defs/Options"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 9, "description": "at most so many", "default": 5},
        "note": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "labels": {"type": "array", "items": {"type": "string"}, "default": []},
        "start": {"$ref": "#/$defs/Color", "default": "red"},
    },
    "required": [
        *("name", "count", "ratio", "sure", "maybe", "unit", "color", "tags"),
        *("table", "point", "route", "options"),
    ],
    "additionalProperties": False,
    "$defs": {
        "Color": {"description": "A colour.", "enum": ["blue", "red"]},
        "Point": {
            "description": "Somewhere on the map.",
            "type": "object",
            "properties": {"x": {"type": "integer"}, "y": {"type": "integer", "default": 0}},
            "required": ["x"],
        },
        "Route": {
            "description": "Some points.",
            "type": "object",
            "properties": {"stops": {"type": "array", "items": {"$ref": "#/$defs/Point"}}},
            "required": ["stops"],
        },
        "Options": {
            "description": "What else.",
            "type": "object",
            "properties": {"fast": {"type": "boolean"}},
            "required": ["fast"],
        },
    },
}


def test_the_schema_says_what_the_signature_says() -> None:
    """Every supported kind of annotation becomes the JSON schema that the model is given, the context left out."""
    assert everything.input_schema == GOLDEN
    assert list(everything.input_schema["properties"]) == list(GOLDEN["properties"])


def test_the_schema_is_the_same_bytes_every_time() -> None:
    """A schema is part of the cached prompt prefix, so making the tool again must not change it."""
    again = tool(everything.function, effect="pure")
    assert canonical_json(msgspec.to_builtins(again.schema)) == canonical_json(msgspec.to_builtins(everything.schema))


def test_the_description_keeps_what_concerns_the_model() -> None:
    """Arguments go to the schema and return values nowhere; the rest of the docstring stays."""
    assert everything.description == "Do everything.\n\nMore about it.\n\nNote:\n    Slow on Sundays."


def test_a_docstring_that_begins_with_its_arguments_is_read() -> None:
    """Dedenting takes such a section's indentation away; its entries are recognised all the same."""
    assert read_docstring("Args:\nagent: Who.\ntask: What to do,\nin full.") == (
        "",
        {"agent": "Who.", "task": "What to do, in full."},
    )


def test_the_signature_is_short_enough_to_be_repeated_to_the_model() -> None:
    """Errors quote it, in the words of the schema."""
    assert everything.definition.signature == (
        "everything(name: string, count: integer, ratio: number, sure: boolean, maybe: string | null, "
        'unit: "km" | "m", color: "blue" | "red", tags: array of string, table: object, point: Point, '
        "route: Route, options: Options, limit: integer = 5, note: string | null (optional), "
        'labels: array of string = [], start: "blue" | "red" = "red")'
    )


def test_the_model_request_carries_name_description_and_schema() -> None:
    """``Tool.schema`` is what goes into a request."""
    assert (everything.schema.name, everything.schema.description) == ("everything", everything.description)
    assert everything.schema.input_schema is everything.input_schema


def test_a_tool_still_is_its_function() -> None:
    """Calling it calls the function as it is, so decorated functions stay usable."""

    @tool
    def double(number: int) -> int:
        """Double."""
        return number * 2

    assert double(21) == 42


def test_the_defaults_are_the_safe_ones() -> None:
    """Nothing is repeated, hangs for ever or floods the record unless the author says so."""

    @tool
    def act() -> None:
        """Act."""

    assert (act.effect, act.deadline, act.output_cap, act.repeatable) == ("unsafe", 120.0, 2_000_000, False)
    assert everything.repeatable
    assert not tool(everything.function, effect="pure", repeatable=False).repeatable


async def test_a_bound_method_is_a_tool() -> None:
    """State lives in the object; ``self`` is not an argument."""

    class Counter:
        def __init__(self) -> None:
            self.total = 0

        def add(self, amount: int) -> int:
            """Add to the total."""
            self.total += amount
            return self.total

    counter = Counter()
    add = tool(counter.add)
    assert (add.name, list(add.input_schema["properties"])) == ("add", ["amount"])
    assert (await call_tool(add, {"amount": 3})).content == "3"
    assert counter.total == 3


async def test_partials_and_callable_objects_are_tools_under_a_given_name() -> None:
    """What has no name of its own is given one."""

    def power(base: int, exponent: int) -> int:
        """Raise to a power."""
        return base**exponent

    class Echo:
        """Say it again."""

        async def __call__(self, text: str) -> str:
            return text

    square = tool(functools.partial(power, exponent=2), name="square", description="Square a number.")
    assert (await call_tool(square, {"base": 7})).content == "49"
    echo = tool(Echo(), name="echo")
    assert echo.description == "Say it again."
    assert (await call_tool(echo, {"text": "hi"})).content == "hi"


async def test_what_a_partial_has_set_is_not_for_the_model_to_change() -> None:
    """It has the name and the words of its function; an argument that is set is neither shown nor taken."""

    async def read(path: str, *, root: str = "/", context: ToolContext) -> str:
        """Read a file."""
        return f"{root}{path} {context.call_id}"

    confined = tool(functools.partial(read, root="/srv/"))
    assert (confined.name, confined.description) == ("read", "Read a file.")
    assert list(confined.input_schema["properties"]) == ["path"]
    given = await call_tool(confined, {"path": "a"}, context=ToolContext(call_id="c1"))
    assert given.content == "/srv/a c1"
    assert (await call_tool(confined, {"path": "a", "root": "/etc/"})).is_error


async def test_a_wrapper_around_an_async_function_is_awaited() -> None:
    """Plain or itself async, with the await forgotten: no coroutine leaks to the model, and the work is done."""

    async def inner(text: str) -> str:
        """Echo."""
        return text

    @functools.wraps(inner)
    def wrapper(text: str) -> Any:
        return inner(text)

    @functools.wraps(inner)
    async def forgetful(text: str) -> Any:
        return inner(text)

    for function in (wrapper, forgetful):
        assert (await call_tool(tool(function), {"text": "hi"})).content == "hi"


def test_annotations_may_name_what_is_local_to_the_decorator() -> None:
    """With postponed annotations the names are text; they are looked up where the tool is made."""

    class Local(msgspec.Struct):
        value: int

    @tool
    def take(item: Local) -> int:
        """Take."""
        return item.value

    assert take.input_schema["$defs"]["Local"]["properties"] == {"value": {"type": "integer"}}


def test_a_default_that_json_cannot_say_is_kept_by_the_function() -> None:
    """The argument is optional, and the schema keeps quiet about its default."""
    marker = object()

    def peek(key: str, fallback: Any = marker) -> str:
        """Peek."""
        return f"{key} {fallback is marker}"

    made = tool(peek)
    assert made.input_schema["properties"]["fallback"] == {}
    assert made.input_schema["required"] == ["key"]


class Window(msgspec.Struct):
    """What to look at."""

    last: float = float("inf")


def test_a_default_that_json_has_no_number_for_is_kept_by_the_function() -> None:
    """Nor a text. Such a tool can be offered to a model, and so can one that takes a struct with such a default."""

    def look(most: float = float("inf"), name: str = "\ud800", window: Window | None = None) -> str:
        """Look."""
        return f"{most} {name!a} {window}"

    agent = rp.Agent("guard", tools=[look])
    model = ScriptedModel([call("look", window={}), lambda request: text_of(request.messages[-1].content)])
    assert rp.run_sync(agent, "Look out.", model=model) == r"inf '\ud800' Window(last=inf)"


@pytest.mark.parametrize("kind", [ToolContext | None, Annotated[ToolContext | None, "Injected."]], ids=repr)
async def test_a_context_may_be_optional_and_annotated_but_not_twice(kind: Any) -> None:
    """A function that may also be called without one declares it so; as a tool it is always given it."""

    def look(context: kind = None) -> str:  # type: ignore[valid-type]
        """Look."""
        return "nobody" if context is None else f"iteration {context.iteration}"

    assert tool(look)() == "nobody"
    assert (await call_tool(tool(look), {}, context=ToolContext(iteration=3))).text == "iteration 3"


def _bad(*parameters: str) -> Callable[..., Any]:
    """A function with such parameters."""
    names: dict[str, Any] = {"ToolContext": ToolContext, "Point": Point, "Route": Route, "Callable": Callable}
    exec(f"def broken({', '.join(parameters)}):\n    'Broken.'", names)
    function: Callable[..., Any] = names["broken"]
    return function


@pytest.mark.parametrize(
    ("parameters", "fact"),
    [
        (["amount"], "parameter 'amount' has no annotation"),
        (["self", "amount: int"], "make a tool of the bound method"),
        (["*parts: str"], "parameter 'parts' is variadic positional"),
        (["**more: str"], "parameter 'more' is variadic keyword"),
        (["key: str", "/"], "parameter 'key' is positional-only"),
        (["number: complex"], "parameter 'number' has a type that cannot be described as JSON"),
        (["call: Callable[[], int]"], "parameter 'call' has a type that cannot be described as JSON"),
        (["either: Point | Route"], "; tag its structs: class A(msgspec.Struct, tag=True)"),
        (["price: 'Decimal'"], "parameter 'price' has an annotation that cannot be resolved"),
        (["price: 'not python'"], "parameter 'price' has an annotation that cannot be resolved"),
        (["__secret: int"], "parameter '__secret' begins with two underscores"),
        (["größe: int"], "parameter 'größe': its name must have 1 to 64 of the characters"),
        ([f"{'a' * 65}: int"], "its name must have 1 to 64 of the characters"),
        (["one: ToolContext", "two: ToolContext"], "parameter 'two' is a second ToolContext, beside 'one'"),
    ],
)
def test_a_signature_that_no_model_could_call_is_refused(parameters: list[str], fact: str) -> None:
    """The error comes at decoration and names the tool and the parameter."""
    with pytest.raises(ConfigurationError) as caught:
        tool(_bad(*parameters))
    assert "tool 'broken'" in str(caught.value)
    assert fact in str(caught.value)


def _sketch() -> None:
    """Sketch."""


def _numbers() -> Any:
    """Numbers."""
    yield 1


async def _stream() -> Any:
    """Stream."""
    yield 1


def _silent() -> None:
    pass


class _Silent:
    def __call__(self) -> None:
        """Say nothing."""


@pytest.mark.parametrize(
    ("make", "fact"),
    [
        (lambda: tool(_sketch, name="has space"), "a tool's name must be 1 to 128 of .*, got 'has space'"),
        (lambda: tool(_sketch, name="x" * 129), "must be 1 to 128"),
        (lambda: tool(_sketch, name=""), "must be 1 to 128"),
        (lambda: tool(_sketch, name=5), "a tool's name must be 1 to 128 of .*, got 5"),  # type: ignore[call-overload]
        (lambda: tool(lambda: None), "must be 1 to 128 of .*, got '<lambda>'"),
        (lambda: tool(range(3).count), "no signature found|variadic|has no annotation|positional-only"),
        (lambda: tool(_Silent()), "has no name of its own"),
        (lambda: tool(_silent), "'_silent' has no docstring"),
        (lambda: tool(_numbers), "is a generator"),
        (lambda: tool(_stream), "is a generator"),
        (lambda: tool(3, name="three"), "which cannot be called"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, effect="safe"), "effect is 'safe'; expected 'pure' or 'idempotent'"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, deadline=0), "deadline must be a number above 0 or None, got 0"),
        (lambda: tool(_sketch, deadline=float("nan")), "deadline must be a number above 0 or None, got nan"),
        (lambda: tool(_sketch, deadline=float("inf")), "deadline must be a number above 0 or None, got inf"),
        (lambda: tool(_sketch, deadline="5"), "deadline must be a number above 0 or None, got '5'"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, output_cap=0), "output_cap must be a whole number of at least 1 or None, got 0"),
        (lambda: tool(_sketch, output_cap=1.5), "output_cap must be a whole number"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, description=5), "description must be a text, or None"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, repeatable="no"), "repeatable must be True, False or None"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, computes="no"), "computes must be True or False"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, policy="short"), r"policy must be a ResultPolicy\(…\), or None"),  # type: ignore[call-overload]
        (lambda: tool(_sketch, repeatable=True), "only a pure tool can be repeatable"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused(make: Callable[[], Tool], fact: str) -> None:
    """The error names the tool, the option and the value."""
    with pytest.raises(ConfigurationError, match=fact):
        make()


def test_a_docstring_that_python_left_out_is_not_called_missing() -> None:
    """Under -OO even the built-in tools have none, and the author who wrote one must learn where it went."""
    program = "from repertory import context_tools; context_tools()"
    done = subprocess.run([sys.executable, "-OO", "-c", program], capture_output=True, timeout=PATIENCE, check=False)
    assert b"has no docstring (python -OO and PYTHONOPTIMIZE=2 leave them out; use -O)" in done.stderr


def test_the_longest_legal_name_is_taken() -> None:
    """The bound is the API's: 128."""
    assert tool(_sketch, name="a-Z_9" + "x" * 123).name.endswith("x")


def test_a_schema_of_an_older_draft_is_taken_only_where_it_is_one_of_the_newest_too() -> None:
    """Claude's API asks for draft 2020-12, in which a list of schemas is ``prefixItems``."""
    pair = [{"type": "number"}, {"type": "number"}]
    foreign_definition("move", "", {"properties": {"to": {"type": "array", "prefixItems": pair}}})
    with pytest.raises(ConfigurationError, match="tool 'move' cannot be checked, as its schema is none"):
        foreign_definition("move", "", {"properties": {"to": {"type": "array", "items": pair}}})


ORDER = {
    "type": "object",
    "properties": {"filter[id]": {"type": "integer", "minimum": 1}, "mode": {"enum": ["fast", "slow"]}},
    "required": ["filter[id]"],
    "anyOf": [{"required": ["mode"]}, {"properties": {"filter[id]": {"maximum": 9}}}],
}


@tool(schema=ORDER, effect="pure")
async def find_orders(arguments: dict[str, Any], context: ToolContext) -> str:
    """Find orders."""
    return f"{context.call_id}: {arguments}"


@pytest.mark.parametrize(
    ("given", "status", "told"),
    [
        ({"filter_id_": 3}, "ok", "c: {'filter[id]': 3}"),
        ({"filter_id_": 12, "mode": "FAST"}, "ok", "c: {'filter[id]': 12, 'mode': 'fast'}"),
        (
            {"filter_id_": 0},
            "error",
            "invalid arguments: 0 is less than the minimum of 1 (at $['filter[id]']). Expected ",
        ),
        (
            {"filter_id_": 12},
            "error",
            "invalid arguments: 12 is greater than the maximum of 9 (at $['filter[id]'])",
        ),
        ({"mode": "fast"}, "error", "invalid arguments: 'filter[id]' is a required property"),
        ([], "error", "invalid arguments: expected an object. Expected find_orders(filter_id_: integer"),
    ],
)
async def test_a_function_may_take_its_arguments_as_one_by_the_schema_of_somebody_else(
    given: Any, status: str, told: str
) -> None:
    """What the Messages API would refuse is put in another way; the function gets the names of its schema."""
    output = await call_tool(find_orders, given, context=ToolContext(call_id="c"))
    assert (output.status, output.text[: len(told)]) == (status, told)
    assert find_orders.input_schema.keys() == {"type", "properties", "required"}
    assert find_orders.description.startswith("Find orders.\n\nThe arguments must also fit this JSON schema: ")


@pytest.mark.parametrize(
    ("schema", "function", "fact"),
    [
        ({}, lambda: None, "takes the arguments as one dict"),
        ({"type": "array"}, None, "schema must be that of an object, got type 'array'"),
        ({"properties": {"to": {"type": "wrong"}}}, None, "its schema is none: 'wrong' is not valid"),
        ("{}", None, "schema must be a JSON schema as a dict, or None, got '{}'"),
    ],
)
def test_a_schema_that_makes_no_sense_is_refused(schema: Any, function: Any, fact: str) -> None:
    """So is a function that takes something else."""

    def look(arguments: dict[str, Any]) -> None:
        """Look."""

    with pytest.raises(ConfigurationError, match=fact):
        tool(function or look, name="look", description="Look.", schema=schema)
