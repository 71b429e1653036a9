"""``repertory chat``, at a real terminal and through pipes."""

from __future__ import annotations

import json
import subprocess
import sys
import termios
from pathlib import Path

import pytest
from cli_support import at_a_terminal, in_a_process, settings

from patience import PATIENCE

AGENT = '''\
import anyio
import repertory as rp
from repertory.llm.messages import text_of
from repertory.testing import FunctionModel, call

@rp.tool
def look_up(word: str) -> str:
    """Look a word up."""
    return f"about {word}"

async def answer(request):
    last = text_of(request.messages[-1].content).splitlines()[-1]
    if last.endswith("look"):
        return call("look_up", word="tides")
    if last.endswith("hang"):
        return call("look_up", word="hanging")
    if last == "about hanging":
        await anyio.sleep_forever()
    if last.endswith("odd"):
        return "\x9b31m\u202e\x7f"
    if last.endswith("fail"):
        raise rp.errors.ModelUnavailable("gone")
    return "I heard: " + last

@rp.tool(approval="always")
def pay(to: str) -> str:
    """Pay."""
    return "paid"

clerk = rp.Agent("clerk", "Answer.", tools=[look_up], model=FunctionModel(answer))
payer = rp.Agent("payer", tools=[pay], model=FunctionModel(lambda _: call("pay", to="ann")))
typed = rp.Agent("typed", output=list[int], model=FunctionModel(lambda _: call("final_result", result=[1, 2])))
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with agents to talk with."""
    (tmp_path / "ag.py").write_text(AGENT)
    return tmp_path


def test_a_talk_at_a_terminal(home: Path) -> None:
    """Answers and calls are shown; Ctrl-C stops an answer and not the talk; after Ctrl-D it can be taken up again."""
    with at_a_terminal("chat", "--agent", "ag:clerk", "--db", "a.db", home=home) as terminal:
        terminal.expect("> ")
        terminal.type("hello\r")
        terminal.expect("I heard: hello")
        terminal.expect("> ")
        terminal.type("look\r")
        terminal.expect('· look_up word="tides"')
        terminal.expect("I heard: about tides")
        terminal.expect("> ")
        terminal.type("hang\r")
        terminal.expect('· look_up word="hanging"')
        terminal.type("\x03")
        terminal.expect("[stopped]")
        terminal.expect("> ")
        terminal.type("hexlo\x02\x02\x7fl\r")  # two to the left, one away, another in its place
        terminal.expect("I heard: hello")
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.end() == 0
        assert termios.tcgetattr(terminal.theirs)[3] & termios.ECHO  # as the shell needs it
        run = terminal.seen.partition("continue with: repertory chat ")[2].split()[0]
    with at_a_terminal("chat", run, "--agent", "ag:clerk", "--db", "a.db", home=home) as terminal:
        assert "hello" in terminal.expect("I heard: hello")
        terminal.expect("> ")
        terminal.type("\x03")
        terminal.expect("Ctrl-C again")
        terminal.type("\x03")
        assert terminal.end() == 130
        assert termios.tcgetattr(terminal.theirs)[3] & termios.ECHO  # as the shell needs it


def test_the_signal_that_ends_a_chat_is_its_exit_code(home: Path) -> None:
    """Not a Ctrl-C before it, which ended nothing."""
    with at_a_terminal("chat", "--agent", "ag:clerk", "--db", "a.db", home=home) as terminal:
        terminal.expect("> ")
        terminal.type("\x03")
        terminal.expect("Ctrl-C again")
        terminal.process.terminate()
        assert terminal.end() == 143


def test_what_is_said_at_the_end_begins_a_line(home: Path) -> None:
    """Not behind the prompt."""
    with at_a_terminal("chat", "--agent", "ag:clerk", "--db", "a.db", home=home) as terminal:
        terminal.expect("> ")
        terminal.process.terminate()
        assert terminal.end() == 143
        assert "\r\nrepertory: ended" in terminal.seen


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_after_a_question_that_was_left_open_the_keyboard_is_the_chats(backend: str, home: Path) -> None:
    """Nothing still reads for an answer that nobody waits for any more, and takes what is typed next."""
    words = ("chat", "--agent", "ag:payer", "--db", "a.db", "--backend", backend)
    with at_a_terminal(*words, home=home) as terminal:
        for asked, typed in (("change the arguments", "\x03"), ("change the arguments", "n\r"), ("why not?", "\x03")):
            if asked == "change the arguments":
                terminal.expect("> ")
                terminal.type("pay\r")
            terminal.expect(asked)
            terminal.type(typed)
        terminal.expect("> ")
        terminal.type("\x04")
        assert terminal.end() == 0


def test_no_colours_where_none_are_wanted(home: Path) -> None:
    """``NO_COLOR`` is heeded, and what a model says cannot steer the terminal."""
    with at_a_terminal("chat", "--agent", "ag:clerk", "--db", "a.db", home=home, NO_COLOR="1", TERM="dumb") as terminal:
        terminal.expect("> ")
        terminal.type("look\r")
        assert "\x1b[2m" not in terminal.expect("I heard")


def talk(home: Path, questions: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Talk through pipes."""
    return subprocess.run(
        [sys.executable, "-m", "repertory", "chat", "--db", "a.db", *words],
        input=questions,
        capture_output=True,
        text=True,
        env={**settings(home), "PYTHONPATH": str(home)},
        cwd=home,
        timeout=PATIENCE,
        check=False,
    )


@pytest.mark.parametrize("backend", ["trio", "asyncio"])
def test_through_a_pipe_each_line_is_a_question(backend: str, home: Path) -> None:
    """Nothing but the answers comes out; a line without an end counts, an empty one does not."""
    done = talk(home, "one\n\ntwo", "--agent", "ag:clerk", "--backend", backend)
    assert (done.returncode, done.stdout, done.stderr) == (0, "I heard: one\nI heard: two\n", "")


def test_through_a_pipe_it_is_said_that_a_call_waits(home: Path) -> None:
    """And how to decide, as nobody is there to be asked."""
    process = subprocess.Popen(
        [sys.executable, "-m", "repertory", "chat", "--agent", "ag:payer", "--db", "a.db"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**settings(home), "PYTHONPATH": str(home)},
        cwd=home,
        text=True,
    )
    assert process.stdin is not None
    assert process.stderr is not None
    process.stdin.write("pay\n")
    process.stdin.flush()
    said = process.stderr.readline()
    assert 'pay to="ann" waits for approval: end this' in said
    assert "repertory approve" in said
    process.terminate()
    process.communicate(timeout=PATIENCE)
    assert process.returncode == 143


def test_a_talk_can_be_had_as_json_and_taken_up_by_part_of_its_id(home: Path) -> None:
    """One object a line; what fails has an error and goes on, and the exit code says so."""
    done = talk(home, "one\nfail\ntwo\n", "--agent", "ag:clerk", "--json")
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["answer"] for answer in answers] == ["I heard: one", None, "I heard: two"]
    assert "gone" in answers[1]["error"]
    assert done.returncode == 1
    done = talk(home, "three\n", answers[0]["run_id"][-6:])
    assert (done.returncode, done.stdout) == (0, "I heard: three\n")
    shown = in_a_process("ps", "-a", "--json", "--db", "a.db", home=home).json
    assert len(shown) == 1 or len(shown["runs"]) == 1


def test_json_of_a_talk_cannot_steer_the_terminal(home: Path) -> None:
    """It is ASCII, as all JSON is, whatever the model says."""
    done = talk(home, "odd\n", "--agent", "ag:clerk", "--json")
    assert json.loads(done.stdout)["answer"] == "\x9b31m\u202e\x7f"
    assert all(" " <= letter <= "~" for letter in done.stdout.rstrip("\n"))


def test_a_typed_agent_answers_with_its_results(home: Path) -> None:
    """As JSON, each time."""
    done = talk(home, "one\ntwo\n", "--agent", "ag:typed", "--json")
    assert [json.loads(line)["result"] for line in done.stdout.splitlines()] == [[1, 2], [1, 2]]
