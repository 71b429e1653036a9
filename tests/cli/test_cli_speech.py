"""What a model says while it says it, as ``repertory run`` shows it: on a terminal, and in lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import at_a_terminal, in_a_process

from terminal import Terminal

AGENT = '''\
import anyio
import repertory as rp
from repertory.llm import ModelResponse, Text
from repertory.llm.messages import ToolUse
from repertory.llm.model import Retrying, TextDelta, ThinkingDelta, ToolUseStarted
from repertory.llm.profiles import OFFLINE


@rp.tool(effect="pure")
def look() -> str:
    """Look."""
    return "a gate"


class Speaker:
    """Says something, then waits for somebody to open the next gate."""

    name, profile, asked, opened = "speaker", OFFLINE, 0, 0

    async def gate(self):
        self.opened += 1
        while not await anyio.Path(f"gate{self.opened}").exists():
            await anyio.sleep(0.02)

    async def complete(self, request, *, on_event=None):
        self.asked += 1
        if self.asked == 1:
            on_event(ThinkingDelta("Where may the gate be?"))
            await self.gate()
            on_event(TextDelta("I look for it."))
            await self.gate()
            on_event(ToolUseStarted("c1", "look"))
            return ModelResponse(content=(Text("I look for it."), ToolUse("c1", "look", {})), stop_reason="tool_use")
        on_event(TextDelta("It is lost"))
        await self.gate()
        on_event(Retrying(attempt=1, delay=0.0, reason="the line broke"))
        on_event(TextDelta("It is in\\nthe north."))
        await self.gate()
        return ModelResponse(content=(Text("It is in\\nthe north."),), stop_reason="end_turn")

    async def aclose(self):
        pass


clerk = rp.Agent("clerk", tools=[look], model=Speaker())
lead = rp.Agent("lead", team=[clerk])
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with an agent whose model takes its time."""
    (tmp_path / "ag.py").write_text(AGENT)
    return tmp_path


def open_gates(home: Path) -> None:
    """Let the model speak on without a stop."""
    for number in range(1, 5):
        (home / f"gate{number}").touch()


@pytest.fixture
def terminal(home: Path) -> Iterator[Terminal]:
    """``repertory run`` of the slow agent at a terminal."""
    words = ("run", "Where is the gate?", "--agent", "ag:clerk", "--db", "a.db")
    with at_a_terminal(*words, home=home, columns=90) as terminal:
        yield terminal


def test_a_terminal_shows_what_the_model_says_while_it_says_it(home: Path, terminal: Terminal) -> None:
    """In its row: its thinking, then its text; after a retry only what is valid now."""
    terminal.see(lambda seen: "Where may the gate be?" in seen)
    (home / "gate1").touch()
    terminal.see(lambda seen: "I look for it." in seen)
    (home / "gate2").touch()
    terminal.see(lambda seen: "It is lost" in seen)
    (home / "gate3").touch()
    seen = terminal.see(lambda seen: "It is in the north." in seen and "retries the model call" in seen)
    assert "It is lost" not in seen
    (home / "gate4").touch()
    seen = terminal.see(lambda seen: "done" in seen and "\nthe north." in seen)
    assert seen.count("the north.") == 1  # the picture lets go of it, as the answer stands below


def run_of(home: Path, *words: str) -> tuple[str, str]:
    """Standard output and standard error of a run."""
    open_gates(home)
    done = in_a_process("run", "Where?", *words, "--db", "a.db", home=home, env={"PYTHONPATH": str(home)})
    assert done.code == 0
    return done.out, done.err


def test_without_a_terminal_it_comes_in_lines(home: Path) -> None:
    """What is said on the way stands beside the other lines; the answer goes to standard output alone."""
    out, err = run_of(home, "--agent", "ag:clerk")
    assert out == "It is in\nthe north.\n"
    assert [line.partition("│ ")[2] for line in err.splitlines() if "│" in line] == ["I look for it."]
    assert "the north." not in err


def test_quiet_shows_the_answer_only(home: Path) -> None:
    """For scripts: nothing of what goes on."""
    assert run_of(home, "--agent", "ag:clerk", "--quiet") == ("It is in\nthe north.\n", "")
