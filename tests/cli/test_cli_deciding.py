"""``repertory run`` where calls wait for a person: at a real terminal, and where there is none."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli_support import settings

AGENT = '''\
import repertory as rp
from repertory.llm.messages import ToolResult
from repertory.testing import FunctionModel, call

@rp.tool(approval="always")
def pay(to: str, amount: int = 1) -> str:
    """Pay somebody."""
    return f"paid {to} {amount}"

def answer(request):
    results = [block for message in request.messages for block in message.content if isinstance(block, ToolResult)]
    if len(results) < 3:
        return call("pay", to=("ann", "bob", "cyn")[len(results)])
    return " | ".join(str(block.content).partition("[")[0].strip() for block in results)

clerk = rp.Agent("clerk", "Pay.", tools=[pay], model=FunctionModel(answer), context=None)
'''


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with an agent that asks."""
    (tmp_path / "ag.py").write_text(AGENT)
    return tmp_path


def command(*words: str) -> list[str]:
    """``repertory run`` of that agent."""
    return [sys.executable, "-m", "repertory", *words, "--agent", "ag:clerk", "--db", "a.db"]


@pytest.mark.parametrize("words", [["run", "Pay all."], ["run", "Pay all.", "--plain"], ["chat"]])
def test_the_person_at_the_terminal_is_asked(home: Path, words: list[str]) -> None:
    """Yes, no with a reason, and other arguments; what makes no sense is asked again."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        command(*words),
        preexec_fn=lambda: os.login_tty(theirs),  # noqa: PLW1509 - there are no threads here
        env={**settings(home), "TERM": "xterm", "COLUMNS": "100", "PYTHONPATH": str(home)},
        cwd=home,
    )
    seen, end = "", time.monotonic() + 40
    try:
        for asked, typed in [
            *([("> ", "Pay all.\r")] if words == ["chat"] else []),
            ("change the arguments", "what?\r"),
            ("change the arguments", "y\r"),
            ("change the arguments", "n\r"),
            ("why not?", "not him\r"),
            ("change the arguments", "e\r"),
            ("JSON object", "[1]\r"),
            ("change the arguments", "e\r"),
            ("JSON object", '{"to": "cyn", "amount": "much"}\r'),
            ("change the arguments", "e\r"),
            ("JSON object", '{"to": "cyn", "amount": 50}\r'),
            ("not him | paid cyn 50", ""),
            *([("> ", "\x04")] if words == ["chat"] else []),
        ]:
            while asked not in seen:
                assert time.monotonic() < end, f"no {asked!r} in {seen!r}"
                if select.select([ours], [], [], 0.05)[0]:
                    seen += os.read(ours, 65_536).decode()
            seen = seen.partition(asked)[2]
            os.write(ours, typed.encode())
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait()
        os.close(theirs)
        os.close(ours)


def test_without_a_terminal_the_call_stays_waiting_and_it_is_said_how_to_decide(home: Path) -> None:
    """The run can be ended and taken up where somebody is."""
    environment = {**settings(home), "PYTHONPATH": str(home)}
    with subprocess.Popen(
        command("run", "Pay all."),
        env=environment,
        cwd=home,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stderr is not None
        heard = next(line for line in process.stderr if "waits until it is allowed" in line)
        assert "repertory resume run-" in heard
        process.terminate()
        assert process.wait(timeout=20) == 143
    listed = subprocess.run(
        [sys.executable, "-m", "repertory", "ps", "--db", "a.db", "--json"],
        env=environment,
        cwd=home,
        capture_output=True,
        check=True,
    )
    (run,) = json.loads(listed.stdout)["runs"]
    assert run["state"] == "interrupted"
