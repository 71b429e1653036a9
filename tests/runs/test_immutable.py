"""What is recorded never changes, whoever holds a piece of it and however it was handed in."""

from __future__ import annotations

import ast
import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

import repertory as rp
from context_scenes import STRICT, log_of
from repertory._frozen import freeze, thaw
from repertory._json_text import canonical_json
from repertory.llm.messages import Text, ToolResult, ToolUse
from repertory.llm.model import ModelRequest, ModelResponse, encode_request
from repertory.record import Draft, Ledger, MemoryJournal
from repertory.record.records import RunStarted
from repertory.testing import FunctionModel

PACKAGE = Path(rp.__file__).parent


# --- trying to change everything that can be reached ---------------------------------------------------------


def changes(value: Any, path: str = "it", seen: set[int] | None = None) -> Iterator[str]:
    """Try to change a value and all that can be reached from it; yields how it was changed."""
    seen = set() if seen is None else seen
    if id(value) in seen or isinstance(value, str | int | float | bytes | type | None):
        return
    seen.add(id(value))
    inside = list(parts(value))
    for what, attempt in attempts(value):
        try:
            attempt()
        except (TypeError, AttributeError, LookupError):
            continue
        yield f"{path}: {what}"
    for name, inner in inside:
        yield from changes(inner, f"{path}{name}", seen)


def attempts(value: Any) -> Iterator[tuple[str, Callable[[], object]]]:
    """All ways to change a value itself; those of structs and their kind, of dicts, of lists and of sets."""
    names = getattr(value, "__struct_fields__", ()) or [n for n in ("run_id", "position") if hasattr(value, n)]
    for name in names:
        yield f"set {name}", lambda name=name: setattr(value, name, None)  # type: ignore[misc]
    if isinstance(value, dict):
        yield "set a key", lambda: value.__setitem__("new", 1)
        yield "delete a key", lambda: value.__delitem__(next(iter(value), None))
        yield "clear", value.clear
        yield "pop", lambda: value.pop("new", None)
        yield "popitem", value.popitem
        yield "setdefault", lambda: value.setdefault("newer", 1)
        yield "update", lambda: value.update({"newest": 1})
        yield "|=", lambda: value.__ior__({"or": 1})
    if isinstance(value, list):
        yield "append", lambda: value.append("new")
        yield "extend", lambda: value.extend(["new"])
        yield "insert", lambda: value.insert(0, "new")
        yield "set an item", lambda: value.__setitem__(slice(0, 0), ["new"])
        yield "delete an item", lambda: value.__delitem__(slice(0, 1))
        yield "remove", lambda: value.remove(value[0] if value else "")
        yield "sort", lambda: value.sort(key=str)
        yield "reverse", value.reverse
        yield "+=", lambda: value.__iadd__(["new"])
        yield "*=", lambda: value.__imul__(2)
        yield "pop", value.pop
        yield "clear", value.clear
    if isinstance(value, set):
        yield "add", lambda: value.add("new")


def parts(value: Any) -> Iterator[tuple[str, Any]]:
    """What a value is made of."""
    for name in getattr(value, "__struct_fields__", ()):
        yield f".{name}", getattr(value, name)
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", inner) for key, inner in value.items())
    elif isinstance(value, Sequence) and not isinstance(value, str):
        yield from ((f"[{index}]", inner) for index, inner in enumerate(value))


class _Leaky(msgspec.Struct, frozen=True):
    name: str
    inside: dict[str, Any]


def test_the_walker_finds_what_can_be_changed() -> None:
    """Negative control: a frozen struct with a dict in it, which holds a list with a set in it."""
    value = (_Leaky("x", {"a": [{1}]}),)
    found = set(changes(value))
    assert {"it[0].inside: set a key", "it[0].inside['a']: append", "it[0].inside['a'][0]: add"} <= found
    assert "it[0]: set inside" not in found


# --- a run among vandals -------------------------------------------------------------------------------------

ARGUMENTS: dict[str, Any] = {"day": 1, "how": {"order": ["by hour", {"then": "by ship"}]}}
EXTRA = {"citations": [{"source": "log", "at": [1, 2]}]}


class Vandal:
    """Changes, or not, everything that it gets hold of, and remembers what it could change."""

    def __init__(self, *, on: bool) -> None:
        self.on = on
        self.found: list[str] = []

    def __call__(self, value: Any, what: str) -> None:
        """Try it."""
        if self.on:
            self.found.extend(changes(value, what))


async def run_among(vandal: Vandal) -> list[bytes]:
    """The requests of a run whose tool, model, listener, readers and caller all try to change what they are given."""

    @rp.tool(effect="pure")
    def read_log(day: int, how: dict[str, Any], context: rp.ToolContext) -> rp.ToolOutput:
        """Read the log of a day."""
        facts, metadata = {"status": [200]}, {"by": {"name": "me"}}
        if vandal.on:
            how["order"].append("and more")  # its own to change
            how.clear()
        vandal(context.need_record().snapshot(), "context.record")
        output = rp.ToolOutput((Text(log_of(day, 90), {"seen": [day]}),), facts=facts, metadata=metadata)
        kept.append((facts, metadata))
        return output

    kept: list[tuple[Any, ...]] = []
    given: list[dict[str, Any]] = []
    requests: list[bytes] = []
    listener = lambda event: vandal(event, "on_lifecycle")  # noqa: E731

    def answer(request: ModelRequest) -> ModelResponse:
        requests.append(canonical_json(encode_request(request)))
        vandal(request, "request")
        for one in (facts for pair in kept for facts in pair):  # what was handed in before
            one.clear() if vandal.on else None
        for one in given:
            one.clear() if vandal.on else None
        number = len(requests)
        if number > 8:
            return ModelResponse(content=(Text("Done."),))
        arguments = copy.deepcopy(ARGUMENTS) | {"day": number}
        extra = copy.deepcopy(EXTRA)
        given.extend((arguments, extra))
        content = [Text(f"Day {number}.", extra), ToolUse(f"c{number}", "read_log", arguments)]
        return ModelResponse(content=content)  # type: ignore[arg-type]  # a list, as a careless model gives it

    options = {"metadata": {"user_id": "u"}}
    tools = [read_log]
    agent = rp.Agent("clerk", tools=tools, context=STRICT, on_lifecycle=listener, options=options)
    async with rp.open_supervisor(model=FunctionModel(answer)) as supervisor:
        run = await supervisor.spawn(agent, "Read.", run_id="run")
        if vandal.on:
            options.clear()
            tools.clear()
        async for event in run.events():
            vandal(event, type(event).__name__)
            for seen in (run.statistics(), tuple(run.view()), agent.options, read_log.schema):
                vandal(seen, "run")
        journal = supervisor.journal
        for read in (journal.read_entries, journal.read_decisions, journal.read_tool_calls, journal.read_events):
            vandal(tuple(await read(run.id)), read.__name__)
        for call in await journal.read_model_calls(run.id):
            vandal((call.replied, msgspec.structs.replace(call.called, body=None)), "model call")  # type: ignore[arg-type]
        vandal(await journal.read_run(run.id), "run")
    return requests


async def test_nobody_can_change_what_a_run_has_recorded() -> None:
    """Tool, model, listener, reader of events and caller try it on all they can reach, at every step."""
    left_alone = await run_among(Vandal(on=False))
    vandal = Vandal(on=True)
    assert await run_among(vandal) == left_alone
    assert vandal.found == []
    assert len(left_alone) == 9


async def test_what_is_handed_in_may_be_changed_afterwards() -> None:
    """The dict of a draft, of a block, of a record is the caller's; what was made of it is the ledger's."""
    metadata, facts, arguments = {"a": {"b": [1]}}, {"n": [1]}, {"q": ["x", {"y": 1}]}
    parts: list[Any] = [Text("t")]
    draft = Draft(
        role="assistant",
        kind="assistant",
        content=[ToolUse("c", "t", arguments), ToolResult("c", parts)],  # type: ignore[arg-type]
        metadata=metadata,
        facts=facts,
    )
    journal = MemoryJournal()
    await journal.write([RunStarted(run_id="r", agent="a", task="t", at=0.0, options=metadata)])
    (entry,) = await Ledger(journal, "r").append(draft)
    before = copy.deepcopy(entry)
    for one in (metadata["a"]["b"], metadata, facts, arguments["q"], arguments, parts):
        one.clear()  # type: ignore[attr-defined]
    assert entry == before == (await journal.read_entries("r"))[0]
    assert list(changes(entry)) == []
    await journal.aclose()


class Word(str):
    """A text of a subclass, as libraries return them."""


# --- the mechanism -------------------------------------------------------------------------------------------

values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(values)
def test_a_frozen_value_is_the_same_json_and_its_copies_are_plain(value: Any) -> None:
    """Equal, written alike by both writers of JSON, and changeable again once copied or pickled."""
    frozen = freeze(value)
    assert frozen == value
    assert freeze(frozen) is frozen
    assert msgspec.json.encode(frozen) == msgspec.json.encode(value)
    assert json.dumps(frozen) == json.dumps(value)
    assert not list(changes((frozen,)))
    for plain in (copy.deepcopy(frozen), pickle.loads(pickle.dumps(frozen)), thaw(frozen)):
        assert plain == value
        assert "Frozen" not in str(list(map(type, _inside(plain))))


def _inside(value: Any) -> Iterator[Any]:
    yield value
    for _, inner in parts(value):
        yield from _inside(inner)


def test_what_a_set_holds_stays_hashable() -> None:
    """A set of tuples, or of texts of a subclass, is frozen as it is, and such texts elsewhere become plain ones."""
    frozen = freeze({"pairs": {(1, 2)}, "words": {Word("a")}, "list": [Word("a")]})
    assert frozen == {"pairs": {(1, 2)}, "words": {"a"}, "list": ["a"]}
    assert type(frozen["list"][0]) is str
    assert type(freeze(Word("a"))) is str


def test_the_error_says_what_to_do() -> None:
    """Whoever changes a record by mistake learns how to get a copy."""
    with pytest.raises(TypeError, match=r"what is recorded never changes.*copy\.deepcopy"):
        Draft(role="user", kind="task", content=(), metadata={"a": 1}).metadata["a"] = 2


def test_a_value_that_contains_itself_is_refused() -> None:
    """At once, also where it contains itself many times over; what is only deep is kept."""
    round_about: dict[str, Any] = {}
    round_about.update(a=round_about, b=[round_about, round_about])
    with pytest.raises(RecursionError, match="contains itself"):
        freeze(round_about)
    deep: Any = "end"
    for _ in range(499):
        deep = {"in": deep}
    assert freeze(deep) is not deep


def leaks(source: str) -> set[str]:
    """The fields of structs that hold something changeable and are not frozen when the struct is made."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.ClassDef) or "msgspec.Struct" not in map(ast.unparse, node.bases):
            continue
        frozen = " ".join(re.findall(r"freeze_fields\([^)]*\)", ast.unparse(node)))
        for field in node.body:
            if isinstance(field, ast.AnnAssign) and re.search(
                r"\b(Json|dict|list|set)\b", ast.unparse(field.annotation)
            ):
                name = ast.unparse(field.target)
                found |= {f"{node.name}.{name}"} if f"'{name}'" not in frozen else set()
    return found


# A tool's own until it is kept; what a run hands to its tools to be filled; thrown away once it is shown, or written.
ITS_OWN = {"ToolOutput.facts", "ToolOutput.metadata", "ToolContext.staged", "_Hit.lines", "ModelCalled.body"}


@pytest.mark.parametrize(
    "room",
    ["llm", "record", "memory", "context", "summarizer", "tools", "agents", "runs", "views", "loop", "supervisor"],
)
def test_no_struct_holds_a_dict_or_a_list_that_can_be_changed(room: str) -> None:
    """The next field of this kind, too, is frozen where its struct is made."""
    found = {leak for path in (PACKAGE / room).rglob("*.py") for leak in leaks(path.read_text(encoding="utf-8"))}
    assert found - ITS_OWN == set()


def test_the_search_for_such_fields_finds_one() -> None:
    """Negative control."""
    assert leaks("class A(msgspec.Struct):\n    b: Json\n    c: dict[str, int]\n    d: int\n") == {"A.b", "A.c"}
