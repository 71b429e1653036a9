"""Agents from files: what a file says is what the agent is, and what it cannot be given is said, with its place."""

from __future__ import annotations

import contextlib
import random
import sys
import warnings
from pathlib import Path

import pytest

import repertory as rp
from repertory.agents.definitions import load_agents, load_definition
from repertory.errors import ConfigurationError, DefinitionError
from repertory.runs.models import newest_of
from repertory.testing import ScriptedModel, call


@rp.tool(effect="pure")
def search_menu(query: str) -> str:
    """Search the menu."""
    return query


@rp.tool(effect="pure")
def read_menu() -> str:
    """Read the menu."""
    return ""


TOOLS = [search_menu, read_menu]
REVIEWER = """\
---
name: code-reviewer
description: Use this agent when code was written.
tools: search_menu, read_menu
model: sonnet
maxTurns: 7
---

You review code.

Be kind.
"""


def write(folder: Path, **files: str) -> Path:
    """Write files by their names, ``__`` for a dot and ``___`` for a slash."""
    for name, text in files.items():
        path = folder / name.replace("___", "/").replace("__", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def minimal(name: str, more: str = "") -> str:
    """A file with what every file must have, and more fields."""
    return f"---\nname: {name}\ndescription: Does {name}.\n{more}---\nYou do {name}.\n"


def the_error(path: Path) -> DefinitionError:
    """What is wrong with a file."""
    with pytest.raises(DefinitionError) as caught:
        load_agents(path, tools=TOOLS)
    assert str(path) in str(caught.value)
    return caught.value


def test_a_path_that_no_file_can_have_names_none(tmp_path: Path) -> None:
    """A name that is too long, or a folder in it that is a file."""
    (tmp_path / "file").write_text("")
    for path in (tmp_path / ("a" * 300) / "clerk.md", tmp_path / "file" / "clerk.md"):
        with pytest.raises(ConfigurationError, match="there is no agent file"):
            load_agents(path)


def test_functions_are_tools_for_a_file_as_well(tmp_path: Path) -> None:
    """As they are for an agent in code; what is neither is refused."""

    def weigh(fruit: str) -> str:
        """Weigh a fruit."""
        return "heavy"

    write(tmp_path, weigher__md=minimal("weigher", "tools: [weigh]\n"))
    (agent,) = load_agents(tmp_path, tools=[weigh, *TOOLS])
    assert [tool.name for tool in agent.own_tools] == ["weigh"]
    with pytest.raises(ConfigurationError, match=r"tools\[0\] is 'weigh'; name a function or a Tool"):
        load_agents(tmp_path, tools=["weigh"])  # type: ignore[list-item]


# --- what a file says -------------------------------------------------------------------------------------


def test_a_claude_code_file_is_an_agent(tmp_path: Path) -> None:
    """Fields and body arrive where they belong; nothing is warned of."""
    write(tmp_path, reviewer__md=REVIEWER)
    (agent,) = load_agents(tmp_path / "reviewer.md", tools=TOOLS)
    assert (agent.name, agent.description) == ("code-reviewer", "Use this agent when code was written.")
    assert agent.instructions == "You review code.\n\nBe kind."
    assert [tool.name for tool in agent.tools] == ["search_menu", "read_menu"]
    assert (agent.model, agent.limits.iterations, agent.memory, agent.team) == ("sonnet", 7, "shared", ())


def test_toml_says_the_same_and_more(tmp_path: Path) -> None:
    """The same fields, the text as instructions, and tables for limits and options."""
    text = """\
name = "cook"
description = "Cooks."
instructions = "You cook."
tools = ["search_menu"]
model = "claude-haiku-5-5"
memory = "snapshot"
max_tokens = 1000

[limits]
iterations = 5
cost = 0.5

[options]
temperature = 0.2
"""
    (agent,) = load_agents(write(tmp_path, cook__toml=text), tools=TOOLS)
    assert (agent.instructions, agent.model, agent.memory, agent.max_tokens) == (
        "You cook.",
        "claude-haiku-5-5",
        "snapshot",
        1000,
    )
    assert (agent.limits.iterations, agent.limits.cost, agent.options) == (5, 0.5, {"temperature": 0.2})


@pytest.mark.parametrize(
    ("more", "names"),
    [
        ("", ["search_menu", "read_menu"]),
        ("tools:\n", []),
        ("tools: []\n", []),
        ("tools: [read_menu]\n", ["read_menu"]),
        ("tools:\n  - read_menu\n  - search_menu\n", ["read_menu", "search_menu"]),
        ("disallowedTools: read_menu\n", ["search_menu"]),
        ("disallowedTools: Write, Bash(rm *)\n", ["search_menu", "read_menu"]),
    ],
)
def test_tools_are_those_that_the_file_names(more: str, names: list[str], tmp_path: Path) -> None:
    """A list in any form; without one, all there are; less those that are denied, whoever else may have them."""
    (agent,) = load_agents(write(tmp_path, a__md=minimal("a", more)), tools=TOOLS)
    assert [tool.name for tool in agent.tools] == names


def test_the_names_of_claude_codes_reading_tools_are_understood(tmp_path: Path) -> None:
    """A file that was written for it runs over the file tools that come along."""
    write(tmp_path, a__md=minimal("a", "tools: Read, Grep, Glob\n"))
    agent = rp.load_agent(str(tmp_path / "a.md"), root=tmp_path)
    assert [tool.name for tool in agent.tools] == ["view_file", "search_files", "list_files"]


def test_memory_as_files_is_for_who_names_it(tmp_path: Path) -> None:
    """Without a list an agent gets one view of memory, not two."""
    write(tmp_path, a__md=minimal("a"), b__md=minimal("b", "tools: memory\n"))
    assert "memory" not in [tool.name for tool in load_definition(str(tmp_path / "a.md")).tools]
    assert [tool.name for tool in load_definition(str(tmp_path / "b.md")).tools] == ["memory"]


# --- what people write ------------------------------------------------------------------------------------


def test_words_stay_words(tmp_path: Path) -> None:
    """YAML would make a truth of ``on`` and a number of ``007``."""
    text = "---\nname: on\ndescription: 007\n---\nx"
    (agent,) = load_agents(write(tmp_path, a__md=text))
    assert (agent.name, agent.description) == ("on", "007")


@pytest.mark.parametrize(
    ("description", "read"),
    [
        ("Use when: asked. Examples: <example>", "Use when: asked. Examples: <example>"),
        ("*always* use", "*always* use"),
        ("@team `x`", "@team `x`"),
        ("{a} b", "{a} b"),
        ("- one", "- one"),
        ("Use it: first\n  line two: b", "Use it: first line two: b"),
    ],
)
def test_what_is_no_yaml_is_read_line_by_line(description: str, read: str, tmp_path: Path) -> None:
    """Such files are common; dropping their fields would drop their limits too. It warns."""
    write(tmp_path, a__md=f"---\nname: a\ndescription: {description}\ntools: [read_menu]\n---\nx")
    with pytest.warns(UserWarning, match="is no YAML in line 3"):
        (agent,) = load_agents(tmp_path, tools=TOOLS)
    assert agent.description == read
    assert [tool.name for tool in agent.tools] == ["read_menu"]


def test_a_text_that_a_comment_cuts_is_warned_of(tmp_path: Path) -> None:
    """To YAML a comment, to its author a number."""
    write(tmp_path, a__md="---\nname: a\ndescription: Fixes issue #12.\n---\nx")
    with pytest.warns(UserWarning, match=r"'description' \(line 3\): what follows # is a comment"):
        assert load_agents(tmp_path)[0].description == "Fixes issue"


def test_fields_that_do_nothing_are_warned_of_with_their_lines(tmp_path: Path) -> None:
    """One warning a file: those that only Claude Code has, and those that nobody knows."""
    write(tmp_path, a__md=minimal("a", "color: red\npermissionMode: plan\ntolos: x\nmemory: project\n"))
    with pytest.warns(UserWarning, match="effect") as caught:
        load_agents(tmp_path, tools=TOOLS)
    assert [str(warning.message).removeprefix(f"{tmp_path / 'a.md'}: ") for warning in caught] == [
        "'color' (line 4) has no effect here; 'permissionMode' (line 5) has no effect here; "
        "'tolos' (line 6) is not known",
        "'memory': 'project' is a folder of Claude Code's and has no effect here",
    ]


# --- what is wrong ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("more", "line", "field", "words"),
    [
        ("tools: WebSearch\n", 4, "tools", "nobody defines 'WebSearch'; there are read_menu, search_menu"),
        ("tools: Grep\n", 4, "tools", "'Grep', which means 'search_files' and needs a folder to read, such as a root;"),
        ("color: x\ntools: serch_menu\n", 5, "tools", "nobody defines 'serch_menu'; did you mean 'search_menu'?"),
        ("tools: search_menu(soup *)\n", 4, "tools", "rules in parentheses are not known"),
        ("tools: [read_menu, search_menu(a, b)]\n", 4, "tools", "'search_menu(a, b)': rules in parentheses"),
        ("disallowedTools: search_menu(x)\n", 4, "disallowedTools", "rules in parentheses"),
        ("tools:\n  a: b\n", 4, "tools", "expected names with commas between them, or a list of names"),
        ("maxTurns: many\n", 4, "maxTurns", "Expected `int`"),
        ("maxTurns: 0\n", 4, "maxTurns", "limits.iterations must be a whole number of at least 1"),
        ("limits: {xyz: 3}\n", 4, "limits", "'xyz' is no limit; there are"),
        ("limits: 3\n", 4, "limits", "expected a table of iterations"),
        ("max_tokens: x\n", 4, "max_tokens", "Expected `int`"),
        ("options: {a: b}\n", 4, "options", "can be said in TOML only"),
        ("memory: mine\n", 4, "memory", "expected shared, shared-read-only, "),
        ("skills: cooking\n", 4, "skills", "there is no skill 'cooking'; there are none"),
        ("team: cook\n", 4, "team", "there is no agent 'cook' in this folder"),
        ("name: b\n", 4, "name", "is there twice, first in line 2"),
        ("model: [a]\n", 4, "model", "expected text"),
    ],
)
@pytest.mark.filterwarnings("ignore:.*'color'")
def test_a_wrong_field_is_named_with_its_place(more: str, line: int, field: str, words: str, tmp_path: Path) -> None:
    """File, line and field; and what there is instead."""
    error = the_error(write(tmp_path, a__md=minimal("a", more)) / "a.md")
    assert (error.line, error.field, Path(error.path).name) == (line, field, "a.md")
    assert f"a.md, line {line}: {field}: " in str(error)
    assert words in str(error)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Just text.", "has no front matter"),
        ("---\nname: a\n", "has no closing ---"),
        ("---\nname: a\n---\n", "description: is missing"),
        ("---\nname: no name\ndescription: x\n---\n", "agent name must be a letter"),
        ("---\n- a\n---\n", "holds no fields"),
        ("---\n---\n", "description: is missing"),
    ],
)
def test_a_file_that_defines_no_agent_is_refused(text: str, words: str, tmp_path: Path) -> None:
    """Where it was asked for by its own name."""
    assert words in str(the_error(write(tmp_path, a__md=text) / "a.md"))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name = ", "is not TOML"),
        ('name = "a"\ndescription = "b"\n\ntools = ["x"]', "a.toml, line 4: tools: nobody defines 'x'"),
        (
            'name = "a"\ndescription = "b"\n[limits]\nturns = 3',
            "a.toml, line 3: limits: 'turns' is no limit; did you mean 'runs'?",
        ),
        ('name = 3\ndescription = "b"', "a.toml, line 1: name: expected text, got 3"),
        ("a = " + "[" * 5_000, "nested deeper than 8"),
        ("a." * 100_000 + "a = 1", "more than 32,000 characters besides its texts"),
        ("x = {" + "a." * 10_000 + "a = 1}", "nested deeper than 8"),
        ('name = "a"\ndescription = "b"\ntools = "' + "," * 200_000 + 'x"', "nobody defines 'x'"),
        ('name = "a"\ndescription = "b"\ntools = "' + "x," * 1_000 + '"', "at most 200 are read"),
    ],
)
def test_wrong_toml_is_refused_with_its_place(text: str, words: str, tmp_path: Path) -> None:
    """The same errors as of Markdown."""
    assert words in str(the_error(write(tmp_path, a__toml=text) / "a.toml"))


BOMB = "\n".join(["a0: &a0 [x, x, x, x]"] + [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 12)])


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        (BOMB, "are refused"),
        ("x: !!python/object/apply:os.system [id]", "are refused"),
        ("x: " + "[" * 20_000, "nested deeper than 8"),
        ("x: " + "{a: " * 5_000, "nested deeper than 8"),
        ("\n".join(f"{'  ' * i}a:" for i in range(20)), "nested deeper than 8"),
        ("x: " + "y" * 40_000, "more than 32,000 characters"),
    ],
    ids=["anchors", "tags", "deep lists", "deep mappings", "deep blocks", "long"],
)
def test_hostile_front_matter_is_refused(fields: str, words: str, tmp_path: Path) -> None:
    """Before a reader unfolds it or runs what it names."""
    assert words in str(the_error(write(tmp_path, a__md=f"---\n{fields}\n---\n") / "a.md"))


def test_random_front_matter_gives_an_agent_or_a_definition_error(tmp_path: Path) -> None:
    """Whatever is in a file, nothing else comes out of reading it."""
    pieces = [
        "name",
        ":",
        " ",
        "\n",
        "a",
        "- ",
        "[",
        "]",
        "{",
        "}",
        "#",
        "'",
        '"',
        "|",
        "tools",
        "&x",
        "*x",
        "\t",
        "é",
        "---",
    ]
    chosen = random.Random(7)
    path = tmp_path / "a.md"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(400):
            middle = "".join(chosen.choices(pieces, k=chosen.randrange(20)))
            path.write_text(f"---\nname: a\n{middle}\ndescription: b\n---\nx")
            with contextlib.suppress(DefinitionError):
                load_agents(path)


def test_a_file_is_small_regular_and_no_link(tmp_path: Path) -> None:
    """A link could lead anywhere, and a device never ends."""
    write(tmp_path, real__md=minimal("a"))
    (tmp_path / "link.md").symlink_to(tmp_path / "real.md")
    assert "links are not followed" in str(the_error(tmp_path / "link.md"))
    write(tmp_path, large__md=minimal("a") + "x" * 256_000)
    assert "more than 256,000 bytes" in str(the_error(tmp_path / "large.md"))
    (tmp_path / "latin.md").write_bytes(b"---\nname: \xff\n---\n")
    assert "is no text in UTF-8" in str(the_error(tmp_path / "latin.md"))


def test_markdown_without_its_reader_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PyYAML is an extra, as TOML needs nothing."""
    write(tmp_path, a__md=minimal("a"), b__toml='name = "b"\ndescription = "x"')
    monkeypatch.setitem(sys.modules, "yaml", None)  # as it is where it is not installed
    with pytest.raises(ConfigurationError, match=r"pip install 'repertory\[definitions\]'"):
        load_agents(tmp_path / "a.md")
    assert load_agents(tmp_path / "b.toml")[0].name == "b"


@pytest.mark.parametrize("reference", ["nothing.md", "./nothing", "/nothing/at/all.toml", "shop/agents.py:clerk"])
def test_a_path_with_nothing_there_is_refused(reference: str) -> None:
    """As a path, not as a module; how its name ends is said where that is what is wrong."""
    hint = "" if reference.endswith((".md", ".toml")) else "; its name ends in .md or .toml"
    hint += ", and an agent in Python is module:name" if ".py" in reference else ""
    with pytest.raises(ConfigurationError, match=rf"there is no agent file '.*'{hint}$"):
        rp.load_agent(reference)


# --- teams ------------------------------------------------------------------------------------------------


def test_a_folder_is_a_team(tmp_path: Path) -> None:
    """By file name; what defines no agent is left out with a warning, and folders below it without one."""
    write(
        tmp_path, b__md=minimal("bee"), a__toml='name = "ant"\ndescription = "x"', README__md="# Team", x___c__md="no"
    )
    with pytest.warns(UserWarning, match=r"README.md: has no front matter, and is left out"):
        team = load_agents(tmp_path)
    assert [agent.name for agent in team] == ["ant", "bee"]
    assert [member.name for member in rp.Agent("lead", team=team).team] == ["ant", "bee"]


def test_two_agents_of_one_name_are_refused(tmp_path: Path) -> None:
    """A lead could not tell them apart."""
    write(tmp_path, a__md=minimal("ant"), b__md=minimal("ant"))
    with pytest.raises(DefinitionError, match=r"b.md, line 2: name: 'ant' is the name in .*a.md already"):
        load_agents(tmp_path)


def test_a_folder_is_led_by_its_lead(tmp_path: Path) -> None:
    """All others are its team, unless it names some; a folder with several files and no lead says what it has."""
    write(tmp_path, lead__md=minimal("boss"), a__md=minimal("ant"), b__md=minimal("bee"))
    assert [member.name for member in rp.load_agent(str(tmp_path)).team] == ["ant", "bee"]
    write(tmp_path, lead__md=minimal("boss", "tools: Agent(bee)\n"))
    lead = rp.load_agent(str(tmp_path))
    assert ([member.name for member in lead.team], lead.tools) == (["bee"], ())
    write(tmp_path, lead__md=minimal("boss", "team: [ant]\n"))
    assert [member.name for member in rp.load_agent(str(tmp_path / "lead.md")).team] == ["ant"]
    (tmp_path / "lead.md").unlink()
    with pytest.raises(ConfigurationError, match=r"has no lead: call one file lead.md or lead.toml; it has a.md, b.md"):
        rp.load_agent(str(tmp_path))
    (tmp_path / "b.md").unlink()
    assert rp.load_agent(str(tmp_path)).name == "ant"


def test_teams_of_teams_end(tmp_path: Path) -> None:
    """Members have teams of their own; nobody is below itself; a tree that doubles at each level is refused."""
    write(tmp_path, a__md=minimal("a", "team: b\n"), b__md=minimal("b", "team: c\n"), c__md=minimal("c"))
    assert load_agents(tmp_path / "a.md")[0].team[0].team[0].name == "c"
    write(tmp_path, c__md=minimal("c", "team: a\n"))
    with pytest.raises(DefinitionError, match=r"an agent cannot be below itself: a.md -> b.md -> c.md -> a.md"):
        load_agents(tmp_path / "a.md")
    for level in range(12):
        for side in "xy":
            team = f"team: x{level + 1}, y{level + 1}\n" if level < 11 else ""
            (tmp_path / f"{side}{level}.md").write_text(minimal(f"{side}{level}", team))
    with pytest.raises(DefinitionError, match="agents below it; at most 1,000 are made"):
        load_agents(tmp_path / "x0.md")


async def test_a_team_of_files_works(tmp_path: Path) -> None:
    """From folder to answer: the lead delegates, the member uses its tool; a restart finds the agents again."""
    write(tmp_path, lead__md=minimal("boss"), a__md=minimal("ant", "tools: memory\n"))
    model = ScriptedModel(
        [
            call("delegate", agent="ant", task="Write down that it is green."),
            call("memory", command="create", path="/memories/plan.md", file_text="green"),
            "Done.",
            call("memory_query", text="green"),
            "The plan is green.",
        ]
    )
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        run = await supervisor.spawn(rp.load_agent(str(tmp_path)), "What is the plan?", agent_ref=str(tmp_path))
        assert await run.wait_result() == "The plan is green."
    async with rp.open_supervisor(tmp_path / "runs.db", model=model) as supervisor:
        again = await supervisor.resume(run.id)
        assert (again.agent.name, await again.wait_result()) == ("boss", "The plan is green.")


# --- models -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "family", "newest"),
    [
        ("claude-opus-5-5", "haiku", "claude-haiku-5-5"),
        ("claude-sonnet-4-5-20250929", "opus", "claude-opus-5-5"),
        ("claude-haiku-4-5", "sonnet", "claude-sonnet-5-5"),
        ("claude-haiku-4-5", "fable", "claude-fable-5-2"),
        ("us.anthropic.claude-opus-4-6-v1:0", "haiku", ""),
        ("anthropic/claude-opus-4.6", "haiku", ""),
        ("offline", "haiku", ""),
        ("qwen3", "opus", ""),
    ],
)
def test_a_family_stands_for_its_newest_model(name: str, family: str, newest: str) -> None:
    """At the provider itself; elsewhere nobody knows what the others are called, or whether there are any."""
    assert newest_of(family, rp.profile_for(name)) == newest


async def test_a_family_is_the_supervisors_model_where_that_is_no_claude(tmp_path: Path) -> None:
    """So an agent file runs offline unchanged; ``inherit``, nothing and no model say the same."""
    for model in ("sonnet", "inherit", ""):
        agent = load_agents(write(tmp_path, a__md=minimal("a", f"model: {model}\n")))[0]
        script = ScriptedModel(["Yes."])
        async with rp.open_supervisor(model=script) as supervisor:
            assert await (await supervisor.spawn(agent, "Well?")).wait_result() == "Yes."
        assert script.requests[0].model == "scripted"


async def test_a_family_is_its_newest_model_at_the_provider(tmp_path: Path) -> None:
    """The run says which."""
    (agent,) = load_agents(write(tmp_path, a__md=minimal("a", "model: haiku\n")))
    claude = rp.AnthropicModel("claude-opus-5-5", api_key="x" * 20, base_url="http://127.0.0.1:9")
    async with rp.open_supervisor(model=claude) as supervisor:
        run = await supervisor.spawn(agent, "Well?")
        assert (await supervisor.journal.read_run(run.id)).started.model == "claude-haiku-5-5"
        run.kill()
    await claude.aclose()
