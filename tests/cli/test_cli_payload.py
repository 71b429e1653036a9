"""``repertory payload``, and the application's context on the command line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import anyio
import msgspec
import pytest
from cli_support import Result, in_a_process, invoke

import repertory as rp
from repertory.cli.output import NOT_FOUND, USAGE
from repertory.testing import FunctionModel, ScriptedModel, call

DOCS = Path(__file__).parents[2] / "docs" / "cli.md"


class Notes(msgspec.Struct):
    """A payload."""

    topic: str = "tides"
    notes: list[str] = msgspec.field(default_factory=list[str])


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A database with a run whose two tools changed the same place, and one without a payload."""
    path = tmp_path_factory.mktemp("payload") / "p.db"

    async def main() -> None:
        begun: list[str] = []
        all_begun = anyio.Event()

        @rp.tool(effect="transactional")
        async def rename(topic: str, context: rp.ToolContext) -> str:
            """Rename the topic, after everybody has begun."""
            context.payload.set("topic", topic)
            begun.append(topic)
            if len(begun) == 2:
                all_begun.set()
            await all_begun.wait()
            return "renamed"

        both = [call("rename", topic="moons\x1b[2J"), call("rename", topic="stars")]
        agent = rp.Agent("a", tools=[rename], model=ScriptedModel([both, "done"]), payload=Notes)
        async with rp.open_supervisor(path) as supervisor:
            run = await supervisor.spawn(agent, "Rename.", run_id="run-with")
            await run.change_payload(append={"notes": "one"})
            await run.wait_result()
            bare = rp.Agent("b", model=ScriptedModel(["done"]))
            await (await supervisor.spawn(bare, "Nothing.", run_id="run-bare")).wait_result()

    anyio.run(main, backend="trio")
    return path


def documented(command: str) -> set[str]:
    """The fields that the page names for a command."""
    (passage,) = re.findall(rf"^`{command}`\n: ((?:.|\n)+?)\n\n", DOCS.read_text(encoding="utf-8"), re.MULTILINE)
    return set(re.findall(r"`(\w+)`", passage))


def look(kept: Path, *words: str, home: Path) -> Result:
    """Run a command on the database."""
    return invoke("payload", *words, "--db", kept, home=home)


def test_a_payload_is_shown_as_it_is_and_as_it_was(kept: Path, tmp_path: Path) -> None:
    """For people as JSON without control characters, for programs with its version."""
    shown = look(kept, "show", "run-with", "--json", home=tmp_path).json
    assert shown["payload"]["notes"] == ["one"]
    assert set(shown) == documented("payload show")
    first = look(kept, "show", "run-with", "--version", "1", "--json", home=tmp_path).json
    assert (first["version"], first["payload"]) == (1, {"topic": "tides", "notes": []})
    for_people = look(kept, "show", "run-with", home=tmp_path).out
    assert '"notes": [' in for_people
    assert "\x1b" not in for_people


def test_its_history_says_who_changed_what_and_what_came_second(kept: Path, tmp_path: Path) -> None:
    """Every version in order, the value that lost among them."""
    shown = look(kept, "history", "run-with", "--json", home=tmp_path).json
    versions = shown["versions"]
    assert [version["version"] for version in versions] == [1, 2, 3, 4]
    assert sorted(version["author"] for version in versions) == ["caller", "spawn", "tool", "tool"]
    (conflict,) = [conflict for version in versions for conflict in version["conflicts"]]
    assert conflict["path"] == "$.topic"
    fields: set[str] = set(shown) | set(versions[0]) | set(versions[0]["changes"][0]) | set(conflict)
    assert documented("payload history") - {"spawn", "caller", "tool", "cleaning", "set", "append", "remove"} == fields
    for_people = look(kept, "history", "run-with", home=tmp_path).out
    assert "not applied, version" in for_people
    assert "tool rename" in for_people
    assert 'append $.notes ["one"]' in for_people


@pytest.mark.parametrize(
    "words", [("show", "run-bare"), ("history", "run-bare"), ("show", "run-with", "--version", "9")]
)
def test_what_is_not_there_is_said_in_one_line(words: tuple[str, ...], kept: Path, tmp_path: Path) -> None:
    """With the exit code for it."""
    done = look(kept, *words, home=tmp_path)
    assert done.code == NOT_FOUND
    assert re.search(r"has no (payload|version 9; it has 1 to 4)", done.err)


AGENTS = '''
import repertory as rp
from repertory.testing import ScriptedModel, call

@rp.tool(effect="pure")
async def who(context: rp.ToolContext) -> str:
    """Say for whom this is."""
    return f"for {context.context['tenant']}"

def answers(request):
    return request.messages[-1].content[-1].content

def agent():
    return rp.Agent("a", tools=[who], model=ScriptedModel([call("who"), answers]))

def app():
    return {"tenant": "ann"}

nothing = None
'''


def test_a_context_is_named_on_the_command_line_and_again_at_resume(tmp_path: Path) -> None:
    """Without it a run that had one is not resumed, and the message says which option to give."""
    (tmp_path / "mine.py").write_text(AGENTS, encoding="utf-8")
    db = tmp_path / "r.db"
    words = ("--agent", "mine:agent", "--db", str(db))
    done = in_a_process("run", "Who?", *words, "--context", "mine:app", "--json", home=tmp_path)
    assert done.json["answer"] == "for ann"

    async def stopped() -> None:
        def idle(_: Any) -> str:
            run.stop()
            return ""

        async with rp.open_supervisor(db) as supervisor:
            agent = rp.Agent("a", model=FunctionModel(idle))
            run = await supervisor.spawn(agent, "Who?", run_id="run-left", agent_ref="mine:agent", context=object())
            with pytest.raises(rp.RepertoryError):
                await run.wait_result()

    anyio.run(stopped, backend="trio")
    refused = in_a_process("resume", "run-left", "--db", str(db), home=tmp_path)
    assert refused.code != 0
    assert "run run-left was given an application context" in refused.err
    assert "--context module:name" in refused.err
    resumed = in_a_process("resume", "run-left", "--db", str(db), "--context", "mine:app", "--json", home=tmp_path)
    assert resumed.json["answer"] == "for ann"


@pytest.mark.parametrize(
    ("reference", "words"),
    [("mine", "as module:name"), ("mine:other", "has no 'other'"), ("mine:nothing", "is None"), ("none:x", "'none'")],
)
def test_a_context_that_is_not_there_is_wrong_usage(reference: str, words: str, tmp_path: Path) -> None:
    """It is said before the run begins."""
    (tmp_path / "mine.py").write_text(AGENTS, encoding="utf-8")
    done = in_a_process("run", "Who?", "--agent", "mine:agent", "--context", reference, home=tmp_path)
    assert done.code == USAGE
    assert words in done.err
