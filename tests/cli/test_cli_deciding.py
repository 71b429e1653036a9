"""``repertory run`` where calls wait for a person: at a real terminal, and where there is none."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from cli_support import at_a_terminal, invoke, settings

import repertory as rp
from patience import PATIENCE
from repertory.cli.conversing import who_decides
from repertory.cli.reading import asked_line
from repertory.runs.events import ApprovalRequested
from repertory.testing import FunctionModel, call

AGENT = '''\
import repertory as rp
from repertory.llm.messages import Text, ToolResult
from repertory.testing import FunctionModel, call

@rp.tool(approval="always")
def pay(to: str, amount: int = 1) -> str:
    """Pay somebody."""
    return f"paid {to} {amount}"

def answer(request):
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    if len(results) < 3:
        return Text("I pay."), call("pay", to=("ann", "bob", "cyn")[len(results)])
    return " | ".join(str(block.content).partition("[")[0].strip() for block in results)

clerk = rp.Agent("clerk", "Pay.", tools=[pay], model=FunctionModel(answer), context=None)
'''
CLERK = ("--agent", "ag:clerk", "--db", "a.db")


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with an agent that asks."""
    (tmp_path / "ag.py").write_text(AGENT)
    return tmp_path


@pytest.mark.parametrize("words", [["run", "Pay all."], ["run", "Pay all.", "--plain"], ["chat"]])
def test_the_person_at_the_terminal_is_asked(home: Path, words: list[str]) -> None:
    """Yes, no with a reason, and other arguments; what makes no sense is asked again."""
    with at_a_terminal(*words, *CLERK, home=home, columns=100) as terminal:
        for asked, typed in [
            *([("> ", "Pay all.\r")] if words == ["chat"] else []),
            ("change the arguments", "what?\r"),
            ("change the arguments", "y\r"),
            ("change the arguments", "yes, but less\r"),
            *(
                [("change the arguments", "n not him\r")]
                if "--plain" in words
                else [("change the arguments", "n\r"), ("why not?", "not him\r")]
            ),
            ("change the arguments", "e\r"),
            ("JSON object", "[1]\r"),
            ("change the arguments", "e\r"),
            ("JSON object", '{"to": "cyn", "amount": "much"}\r'),
            ("change the arguments", "e\r"),
            ("JSON object", '{"to": "cyn", "amount": 50}\r'),
            ("not him | paid cyn 50", ""),
            *([("> ", "\x04")] if words == ["chat"] else []),
        ]:
            terminal.expect(asked)
            terminal.type(typed)
        assert terminal.end() == 0
        shown = terminal.see(lambda shown: '"amount": 50}' in shown)  # nothing was drawn over the question
    assert "\nclerk wants to call" in shown


@pytest.mark.parametrize("words", [["run", "Order."], ["run", "Order.", "--plain"], ["chat"]])
def test_what_a_call_waits_for_is_said_with_who_takes_it(tmp_path: Path, words: list[str]) -> None:
    """Nothing can be given to this command, so it does not wait in silence; and to that end the run is left."""
    agent = AGENT.replace('@rp.tool(approval="always")', "@rp.tool").replace("-> str:", "-> rp.ResultLater:")
    (tmp_path / "ag.py").write_text(agent.replace('return f"paid {to} {amount}"', 'return rp.ResultLater("how much?")'))
    with at_a_terminal(*words, *CLERK, home=tmp_path, columns=200) as terminal:
        if words == ["chat"]:
            terminal.expect("> ")
            terminal.type("Order.\r")
        terminal.expect("pay waits for its result: how much?; to give one, end this command, then repertory serve --db")
        terminal.type("\x03")
        if words == ["chat"]:
            terminal.expect("[stopped]")
            terminal.expect("> ")
            terminal.type("\x04")
        assert terminal.end() == (0 if words == ["chat"] else 130)
    if words == ["chat"]:
        return
    listed = invoke("approvals", "--db", tmp_path / "a.db", home=tmp_path, env={"COLUMNS": "80"})
    assert "\npay waits for its result: how much?\n" in listed.out
    assert "--resume starts one, which takes results as well" in listed.err


def test_the_end_of_the_input_in_place_of_an_answer_ends_a_chat(home: Path) -> None:
    """As Ctrl-D does behind its prompt; whoever continues it is asked again."""
    with at_a_terminal("chat", *CLERK, home=home, columns=100) as terminal:
        terminal.expect("> ")
        terminal.type("Pay all.\r")
        terminal.expect("change the arguments")
        terminal.type("\x04")
        terminal.expect("continue with: repertory chat run-")
        run_id = f"run-{terminal.expect(' --db a.db')}"
        assert terminal.end() == 0
    with at_a_terminal("chat", run_id, "--db", "a.db", home=home, columns=100) as terminal:
        terminal.expect('wants to call pay to="ann"')


def test_a_question_is_taken_back_once_its_call_has_expired(home: Path) -> None:
    """The next call is asked about, and nobody has to answer for one that is over."""
    (home / "ag.py").write_text(AGENT.replace("context=None", "approvals=rp.Approvals(approval_timeout=1)"))
    with at_a_terminal("run", "Pay all.", *CLERK, home=home, columns=100) as terminal:
        for payee in ("ann", "bob", "cyn"):
            terminal.expect(f'wants to call pay to="{payee}"')
        terminal.expect("change the arguments \r\n")
        assert terminal.end() == 0


def test_a_call_that_waits_is_listed_whole(tmp_path: Path) -> None:
    """However long it is and however narrow the terminal: nobody should allow what he cannot see."""
    path, payee = tmp_path / "a.db", "x" * 5000 + "end"

    @rp.tool(approval="always")
    def pay(to: str) -> str:
        """Pay."""
        return to

    async def main() -> None:
        model = FunctionModel(lambda _: call("pay", to=payee))
        async with rp.open_supervisor(path, model=model) as supervisor:
            agent = rp.Agent("a", tools=[pay], approvals=rp.Approvals(approval_timeout=36 * 3600))
            run = await supervisor.spawn(agent, "task")
            async for event in run.events():
                if isinstance(event, ApprovalRequested):
                    return

    rp.run(main)
    listed = invoke("approvals", "--db", path, home=tmp_path, env={"COLUMNS": "20"})
    assert f'payto="{payee}"' in "".join(listed.out.split())
    assert "forapproval,1dleft:" in "".join(listed.out.split())
    assert max(map(len, listed.out.splitlines())) <= 20


def test_what_is_not_shown_of_a_long_call_is_said() -> None:
    """Nobody allows what he does not know of."""
    shown = asked_line("shell", {"command": "x" * 5000 + "; rm -r /"})
    assert re.search(r"x… \(3,0\d\d more characters: repertory approvals shows all\)$", shown)
    assert asked_line("shell", {"command": "ls"}) == 'shell command="ls"'


def test_who_has_no_name_decides_by_his_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in containers whose user is in no list."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)
    assert who_decides() == f"user {2**31 - 7}"


def test_without_a_terminal_the_call_stays_waiting_and_it_is_said_how_to_decide(home: Path) -> None:
    """The run can be ended and taken up where somebody is."""
    environment = {**settings(home), "PYTHONPATH": str(home)}
    with subprocess.Popen(
        [sys.executable, "-m", "repertory", "run", "Pay all.", *CLERK],
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        heard = next(line for line in process.stderr if "waits for approval: end this" in line)
        assert re.search("repertory resume run-[^ ]+ --db a.db at a terminal, or repertory serve --db a.db", heard)
        process.terminate()
        assert process.wait(timeout=PATIENCE) == 143
    listed = subprocess.run(
        [sys.executable, "-m", "repertory", "ps", "--db", "a.db", "--json"],
        env=environment,
        cwd=home,
        capture_output=True,
        check=True,
    )
    (run,) = json.loads(listed.stdout)["runs"]
    assert run["state"] == "interrupted"
