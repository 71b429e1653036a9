"""What a model says while it says it, as ``repertory run`` shows it: on a terminal, and in lines."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from cli_support import EVIL, EVIL_SHOWN, at_a_terminal, in_a_process
from rich.console import Console

from repertory.cli.speech import Speech
from repertory.runs.streaming import (
    Piece,
    StreamRestarted,
    TextStreamed,
    ThinkingStreamed,
    ToolCallStreamed,
)
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
    """Below the tree: its thinking, then its text with the thinking folded; after a retry only what is valid now."""
    seen = terminal.see(lambda seen: "Where may the gate be?" in seen)
    assert "thinking" in seen
    (home / "gate1").touch()
    seen = terminal.see(lambda seen: "I look for it." in seen)
    assert "Where may" not in seen
    assert "thought 22 characters" in seen
    (home / "gate2").touch()
    terminal.see(lambda seen: "It is lost" in seen)
    (home / "gate3").touch()
    seen = terminal.see(lambda seen: "the north." in seen and "retries the model call" in seen)
    assert "It is lost" not in seen
    (home / "gate4").touch()
    seen = terminal.see(lambda seen: "done" in seen and "the north." in seen)
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


# --- pieces -----------------------------------------------------------------------------------------------


def text(words: str, iteration: int = 1) -> Piece:
    """A piece of text."""
    return TextStreamed(iteration=iteration, text=words)


def thought(words: str, iteration: int = 1) -> Piece:
    """A piece of thinking."""
    return ThinkingStreamed(iteration=iteration, text=words)


def called(iteration: int = 1) -> Piece:
    """The beginning of a call."""
    return ToolCallStreamed(iteration=iteration, call_id="1", tool="look")


def void(iteration: int = 1) -> Piece:
    """A new beginning."""
    return StreamRestarted(iteration=iteration, reason=f"broke {EVIL}")


def drawn(speech: Speech, lines: int, width: int = 40) -> list[str]:
    """What is drawn of it."""
    screen = Console(file=io.StringIO(), width=width, color_system=None)
    with screen.capture() as capture:
        screen.print(*speech.draw(screen, lines), sep="\n")
    return [line.rstrip() for line in capture.get().removesuffix("\n").split("\n")]


def test_the_end_of_a_long_answer_is_drawn() -> None:
    """In no more lines and columns than there are, whatever the letters; nothing in it steers the terminal."""
    speech = Speech()
    speech.hear(thought("hm " * 10))
    for number in range(3_000):
        speech.hear(text(f"word {number} 語語語 "))
    lines = drawn(speech, 5)
    assert lines[0] == "thought 30 characters"
    assert len(lines) == 5
    assert "word 2999" in " ".join(lines)
    speech.hear(text(f"\n\n{EVIL}", iteration=2))
    assert "".join(drawn(speech, 5, width=200)) == EVIL_SHOWN
    assert drawn(speech, 0) == [""]
    assert drawn(Speech(), 5) == [""]


def test_a_new_answer_and_one_begun_anew_take_the_place_of_what_was_heard() -> None:
    """A reader is never shown two attempts as one."""
    speech = Speech()
    for piece in (thought("deep"), text("First"), void(), text("Second")):
        speech.hear(piece)
    assert (speech.text, speech.thought_length) == ("Second", 0)
    speech.hear(called())
    assert speech.calling == "look"
    speech.hear(thought("What next?", iteration=2))
    assert (speech.text, speech.calling, speech.tail(20)) == ("", "", "What next?")
    speech.hear(text("x" * 50 + " the end", iteration=2))
    assert speech.tail(20) == f"…{'x' * 11} the end"
