"""Definitions of agents, and how they are found by name."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any, get_type_hints

import pytest

import repertory as rp
from repertory.errors import ConfigurationError
from repertory.testing import ScriptedModel


@rp.tool(effect="pure")
def look() -> str:
    """Look."""
    return ""


class Shelf:
    """A tool set."""

    name = "shelf"
    lifetime = "run"

    def open(self) -> nullcontext[list[rp.Tool]]:
        """Open it."""
        return nullcontext([look])


@pytest.mark.parametrize(
    ("definition", "words"),
    [
        ({"name": ""}, "agent name must be a letter"),
        ({"name": "two words"}, "got 'two words'"),
        (
            {"name": "a", "memory": "borrowed"},
            "memory is 'borrowed'; expected 'shared' or 'shared-read-only' or 'snapshot' or ",
        ),
        ({"name": "a", "max_tokens": 0}, "max_tokens must be a whole number of at least 1, got 0"),
        (
            {"name": "a", "tools": [look, print]},
            r"tool 'print': parameter 'args' is variadic positional",
        ),
        ({"name": "a", "tools": [str]}, r"tools\[0\] is <class 'str'>; name a function or a Tool"),
        (
            {"name": "a", "tools": [look, lambda: None]},
            "a tool's name must be 1 to 128 .*, got '<lambda>'",
        ),
        ({"name": "a", "tools": [rp.context_tools()]}, r"tools\[0\] is \[<Tool .*; unpack it with \*"),
        ({"name": "a", "tools": [rp.memory_tools]}, r"tools\[0\] is <function memory_tools .*; call it, and list"),
        ({"name": "a", "tools": [look, rp.Agent("b")]}, r"tools\[1\] is Agent\(name='b'\); list agents in team"),
        ({"name": "a", "tools": [Shelf]}, r"tools\[0\] is <class '.*Shelf'>; make one of it, Shelf\(…\)"),
        ({"name": "a", "tools": look}, r"tools must be a list, got <Tool look>"),
        ({"name": "a", "tools": "look"}, "tools must be a list, got 'look'"),
        ({"name": "a", "team": ["b"]}, r"agent a: team\[0\] is 'b'; name an Agent"),
        ({"name": "a", "tools": [look, look]}, "tools must have different names, got look more than once"),
        ({"name": "a", "team": [rp.Agent("b"), rp.Agent("b")]}, "team must have different names, got b"),
        ({"name": "a", "delegation": {"parallel": 2}}, r"delegation must be Delegation\(…\), which has background, "),
    ],
)
def test_a_definition_that_makes_no_sense_is_refused(definition: dict[str, object], words: str) -> None:
    """The error names the field, what was expected and what came."""
    with pytest.raises(ConfigurationError, match=words):
        rp.Agent(**definition)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("policy", "words"),
    [
        ({"background": 1}, "delegation.background must be True or False, got 1"),
        ({"parallel": 0}, "delegation.parallel must be a whole number of at least 1, got 0"),
        ({"on_failure": "panic"}, "delegation.on_failure is 'panic'; expected 'collect' or 'fail_fast' or 'retry'"),
        ({"retries": -1}, "delegation.retries must be a whole number of at least 0, got -1"),
        ({"warm_cache": "yes"}, "delegation.warm_cache must be True, False or None, got 'yes'"),
        ({"memory": "shared"}, "delegation.memory must be a list with some of 'shared', 'shared-read-only', 'snap"),
        ({"share": ["all"]}, "delegation.share is 'all'; expected 'summary' or 'trail'"),
    ],
)
def test_a_way_to_delegate_that_makes_no_sense_is_refused(policy: dict[str, object], words: str) -> None:
    """The error names the field, what was expected and what came."""
    with pytest.raises(ConfigurationError, match=words):
        rp.Delegation(**policy)  # type: ignore[arg-type]


def test_the_digest_follows_everything_that_shapes_what_an_agent_does() -> None:
    """It is the same for equal definitions, and another one for any change, also below."""
    plain = rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b")])
    changed = [
        rp.Agent("a", instructions="Do!", tools=[look], team=[rp.Agent("b")]),
        rp.Agent("a", instructions="Do.", team=[rp.Agent("b")]),
        rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b", instructions="x")]),
        rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b")], context=None),
        rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b")], model="offline"),
        rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b")], model=ScriptedModel([])),
    ]
    assert plain.digest == rp.Agent("a", instructions="Do.", tools=[look], team=[rp.Agent("b")]).digest
    assert len({plain.digest, *(agent.digest for agent in changed)}) == len(changed) + 1


def test_a_team_can_be_walked_and_searched() -> None:
    """Every agent of a tree is reached once, and a member is found by its name."""
    leaf = rp.Agent("leaf", description="At the end.")
    tree = rp.Agent("root", team=[rp.Agent("branch", instructions="First line.\nSecond.", team=[leaf])])
    assert [agent.name for agent in tree.walk()] == ["root", "branch", "leaf"]
    assert tree.member("branch") is tree.team[0]
    assert tree.member("leaf") is None
    assert [agent.summary for agent in tree.walk()] == ["root", "First line.", "At the end."]


@pytest.fixture
def module() -> ModuleType:
    """A module with an agent, functions that make one, and something else."""
    made = ModuleType("made_for_a_test")
    made.clerk = rp.Agent("clerk")  # type: ignore[attr-defined]
    made.make = lambda root: rp.Agent("made", instructions=str(root))  # type: ignore[attr-defined]
    made.take_all = lambda **options: rp.Agent("all", instructions=",".join(options))  # type: ignore[attr-defined]
    made.number = 3  # type: ignore[attr-defined]
    sys.modules["made_for_a_test"] = made
    yield made  # type: ignore[misc]
    del sys.modules["made_for_a_test"]


@pytest.mark.usefixtures("module")
def test_an_agent_is_loaded_by_module_and_name() -> None:
    """A function gets the options that it takes."""
    assert rp.load_agent("made_for_a_test:clerk").name == "clerk"
    assert rp.load_agent("made_for_a_test:make", root=Path("/srv"), other=1).instructions == "/srv"
    assert rp.load_agent("made_for_a_test:take_all", root=1, other=2).instructions == "root,other"


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("reference", "words"),
    [
        ("clerk", "expected an agent as module:name, or the path of its .md or .toml file, got 'clerk'"),
        ("no_such_module:clerk", "no module named 'no_such_module'.*PYTHONPATH"),
        ("made_for_a_test:boss", "has no 'boss'; it has the agents clerk"),
        ("made_for_a_test:number", "is of the type int, not an Agent"),
        (rp.Agent("clerk"), "reference must be module:name, or the path of an agent file or of a folder, got Agent"),
    ],
)
def test_a_reference_that_leads_nowhere_says_what_is_wrong(reference: Any, words: str) -> None:
    """The message says what to do about it."""
    with pytest.raises(ConfigurationError, match=words):
        rp.load_agent(reference)


def test_a_module_that_lacks_a_library_is_told_apart_from_a_missing_module(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise one would look for the wrong thing."""
    (tmp_path / "needs_a_library.py").write_text("import a_library_nobody_has\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ConfigurationError, match="needs 'a_library_nobody_has', which is not installed"):
        rp.load_agent("needs_a_library:agent")


class Desk:
    """Somewhere to look things up."""

    def find(self, word: str) -> str:
        """Find a word."""
        return word


async def add(one: int, other: int) -> int:
    """Add two numbers."""
    return one + other


def test_functions_are_taken_as_they_are() -> None:
    """A function, a method and a partial become tools, as by ``tool`` without options; tools stay what they are."""
    agent = rp.Agent("a", tools=[look, add, Desk().find])
    assert [tool.name for tool in agent.own_tools] == ["look", "add", "find"]
    assert agent.own_tools[0] is look
    assert {tool.effect for tool in agent.own_tools[1:]} == {"unsafe"}
    (fixed,) = rp.Agent("a", tools=[partial(add, other=1)]).own_tools
    assert (fixed.name, fixed.definition.signature) == ("add", "add(one: integer)")


def test_a_function_without_words_is_refused() -> None:
    """The model must be told what it is for."""

    def silent(word: str) -> str:
        return word

    with pytest.raises(ConfigurationError, match="tool 'silent' has no docstring; the model must be told"):
        rp.Agent("a", tools=[silent])


def test_a_tool_named_like_those_of_its_team_is_refused() -> None:
    """A lead's own ``delegate`` would never be offered; without a team, or in the background, the name is free."""
    for name, background, refused in (
        ("delegate", False, True),
        ("delegate_start", True, True),
        ("delegate_start", False, False),
    ):
        own, delegation = rp.tool(add, name=name, description="Add."), rp.Delegation(background=background)
        assert rp.Agent("a", tools=[own], delegation=delegation).own_tools == (own,)
        with pytest.raises(ConfigurationError, match=f"agent a: a tool is named {name}") if refused else nullcontext():
            rp.Agent("a", tools=[own], team=[rp.Agent("b")], delegation=delegation)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"model": "claude-fable-5"}, r"cannot have 'model': say Agent\(model=…\)"),
        ({"messages": []}, "cannot have 'messages'"),
        ({"stream": False}, "cannot have 'stream'"),
        ({"temperature": float("nan")}, r"\['temperature'\] cannot be sent as JSON: nan"),
        ({"metadata": {"user": object()}}, r"\['metadata'\] cannot be sent as JSON"),
        ({"thinking": "adaptive"}, r"options\['thinking'\] must be a dict, got 'adaptive'"),
        ({"output_config": ["high"]}, r"options\['output_config'\] must be a dict"),
        ({1: 2}, "name of an option must be a text, got 1"),
    ],
)
def test_an_option_that_is_no_option_is_refused(options: Any, words: str) -> None:
    """Another model there would be paid for and not be counted; what is no JSON would end the run at its first call."""
    with pytest.raises(ConfigurationError, match=f"agent a: .*{words}"):
        rp.Agent("a", options=options)


def test_the_types_of_its_fields_can_be_read() -> None:
    """Tools that read annotations, such as msgspec for a struct that holds an agent, find every name in them."""
    assert {"name", "output", "input"} <= set(get_type_hints(rp.Agent))


def test_an_agent_is_shown_by_what_was_said_of_it() -> None:
    """Defaults and the insides of tools do not stand in the way, so that one can be printed."""
    agent = rp.Agent("clerk", instructions="Look.", tools=[look, *rp.context_tools()], limits=rp.Limits(cost=2))
    shown = repr(agent)
    assert "name='clerk', instructions='Look.', tools=(<Tool look>, <Tool context_retrieve>," in shown
    assert "limits=Limits(cost=2)" in shown
    assert "delegation" not in shown
    assert repr(rp.Agent("clerk")) == "Agent(name='clerk')"
