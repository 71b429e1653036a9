"""Runs of a service at a terminal: what they do, what is said to them, and who leaves."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from service_commands import AtTerminal, about, environment
from test_service_process import HERE, Served, until
from test_service_verbs import begin

from patience import PATIENCE, hear


@pytest.fixture
def served(short: Path) -> Iterator[Served]:
    """A service with agents that stand still until they are let go, and one that talks."""
    names = ("payer", "walker", "talker", "orderer")
    served = Served(short, *(word for name in names for word in ("--agent", f"serve_agents:{name}")))
    served.hear("serving")
    yield served
    if served.process.poll() is None:
        served.process.terminate()
        served.end()


def test_two_are_attached_to_a_run_and_one_leaves(served: Served, at_terminal: AtTerminal) -> None:
    """Each sees what the other says, and the answers; Ctrl-C ends one of them, and neither the run nor the other."""
    run_id = begin(served, "talker")
    first, second = (at_terminal(served.folder, "attach", run_id[-6:]) for _ in range(2))
    for terminal in (first, second):
        terminal.expect("type to send it messages, Ctrl-C leaves")
        terminal.expect("I heard: Go.")
        terminal.expect("[done]")
    first.type("And \x1b[2Jnow?\r")
    first.expect("I heard: And \\x1b[2Jnow?")
    if "> And \\x1b[2Jnow?" not in second.expect("I heard: And \\x1b[2Jnow?"):  # answers and events are two streams
        second.expect("> And \\x1b[2Jnow?")
    first.expect("[done]")
    first.type("\x03")
    assert first.end() == 0
    assert f"left; the run is done: repertory attach {run_id}" in first.seen
    second.type("More.\r")
    second.expect("I heard: More.")
    assert (
        served.ask("GET", f"/runs/{run_id}/result?wait=60")["state"] == "done"
    )  # what it says is shown before its end
    second.expect("[done]")
    second.type("\x04")
    assert second.end() == 0
    for terminal in (first, second):
        assert "\x1b[2J" not in terminal.seen
        assert "Traceback" not in terminal.seen


def test_who_leaves_a_run_that_was_asked_again_is_told_that_it_continues(
    served: Served, at_terminal: AtTerminal
) -> None:
    """It was done when it was attached to, and is at work on what was typed."""
    (served.folder / "go").touch()
    run_id = begin(served, "walker")
    terminal = at_terminal(served.folder, "attach", run_id)
    terminal.expect("[done]")
    (served.folder / "hang").touch()
    terminal.type("More.\r")
    until((served.folder / "hanging").exists)
    served.ask("POST", f"/runs/{run_id}/messages", {"text": "Hurry."})
    terminal.expect("> Hurry.")
    terminal.type("\x03")
    assert terminal.end() == 0
    assert f"left; the run continues: repertory attach {run_id}" in terminal.seen
    served.kill()


def test_each_answer_is_shown_once_however_fast_a_run_is_asked_again(served: Served, at_terminal: AtTerminal) -> None:
    """And no end is said twice, though what happens is heard of behind what is said."""
    run_id = begin(served, "talker")
    terminal = at_terminal(served.folder, "attach", run_id)
    seen = terminal.expect("[done]")
    for number in range(8):
        served.ask("POST", f"/runs/{run_id}/messages", {"text": f"More {number}."})
        served.ask("GET", f"/runs/{run_id}/result?wait=60")
        seen += terminal.expect(f"I heard: More {number}.") + f"I heard: More {number}."
    if "> More 7." not in seen:  # answers and events are two streams
        seen += terminal.expect("> More 7.")
    terminal.type("\x04")
    assert terminal.end() == 0
    seen += terminal.seen
    assert [seen.count(f"I heard: More {number}.") for number in range(8)] == [1] * 8
    assert not re.search(r"\[done\]\s*\[done\]", re.sub("\x1b\\[[0-9;]*m", "", seen))


def test_calls_that_wait_are_decided_where_somebody_is_attached(served: Served, at_terminal: AtTerminal) -> None:
    """As at ``repertory run``; what is decided elsewhere is said; anything else goes to the run and allows nothing."""
    run_id = begin(served, "payer")
    terminal = at_terminal(served.folder, "attach", run_id, COLUMNS="100")
    asked = []
    for _ in range(3):
        terminal.expect("wants to call pay to=")
        asked.append(int(terminal.expect("; y: allow").rpartition("=")[2]))
    assert sorted(asked) == [0, 1, 2]
    assert about(served, "approve", f"c{asked[2]}").returncode == 0
    terminal.expect("[pay was allowed by ")
    terminal.type("yes, but less\re\r")
    terminal.expect("all arguments, as one JSON object")
    terminal.type('{"to": "somebody", "amount": 50}\r')
    terminal.expect("[pay was allowed by ")
    terminal.type("n\r")
    terminal.expect("why not?")
    terminal.type("not him\r")
    terminal.expect("[pay was denied by ")
    terminal.expect("[done]")
    terminal.type("\x03")
    assert terminal.end() == 0
    answers = served.ask("GET", f"/runs/{run_id}")["result"].split(" | ")
    assert ["not him" in answer for answer in answers] == [number == asked[1] for number in range(3)]


def test_what_a_call_waits_for_is_shown_with_how_to_give_it(served: Served, at_terminal: AtTerminal) -> None:
    """To who was there when it began to wait, and to who comes later; a yes is none of its results."""
    run_id = begin(served, "orderer")
    terminal = at_terminal(served.folder, "attach", run_id, COLUMNS="100")
    terminal.expect("[order waits for its result: the shop; repertory give c9 RESULT")
    later = at_terminal(served.folder, "attach", run_id, COLUMNS="100")
    later.expect("[order waits for its result: the shop; repertory give c9 RESULT")
    later.type("y\r")
    terminal.expect("> y")
    assert about(served, "give", "c9", "two boxes").returncode == 0
    assert "waits for its result" not in terminal.expect("[done]")


def test_what_is_said_to_a_run_that_was_ended_answers_none_of_its_calls(
    served: Served, at_terminal: AtTerminal
) -> None:
    """They wait no more, so a message may begin as an answer does; the run goes on, and leaving it is no failure."""
    run_id = begin(served, "payer")
    terminal = at_terminal(served.folder, "attach", run_id)
    for _ in range(3):
        terminal.expect("; y: allow")
    assert about(served, "kill", run_id).returncode == 0
    terminal.expect("[stopped]")
    terminal.type("no that is wrong\r")
    until(lambda: served.ask("GET", f"/runs/{run_id}")["run"]["state"] == "waiting")
    terminal.type("\x04")
    assert terminal.end() == 0
    assert "not sent" not in terminal.seen


def test_the_last_question_is_shown_however_busy_other_runs_were_since(served: Served) -> None:
    """It is looked for among the events of its own run."""
    asked, other = begin(served, "talker"), begin(served, "talker")
    served.ask("POST", f"/runs/{asked}/messages", {"text": "And the soup?"})
    served.ask("GET", f"/runs/{asked}/result?wait=60")
    since = served.ask("GET", "/runs?limit=1")["seq"]
    while served.ask("GET", "/runs?limit=1")["seq"] < since + 500:
        served.ask("POST", f"/runs/{other}/messages", {"text": "More."})
        served.ask("GET", f"/runs/{other}/result?wait=60")
    assert "> And the soup?" in about(served, "attach", asked).stdout


def test_attached_without_a_terminal_it_ends_with_the_run(served: Served) -> None:
    """With the answer, and 0; of one that was stopped with why, and 1."""
    (served.folder / "go").touch()
    done = about(served, "attach", begin(served, "walker"))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.rstrip().endswith("6 steps")
    (served.folder / "go").unlink()
    run_id = begin(served, "walker")
    served.ask("POST", f"/runs/{run_id}/kill", {})
    stopped = about(served, "attach", run_id)
    assert stopped.returncode == 1
    assert f"run {run_id} stopped" in stopped.stderr


def test_what_another_process_runs_can_be_followed_and_takes_nothing(served: Served, at_terminal: AtTerminal) -> None:
    """``repertory run`` in another terminal is no service: its run takes no messages, and the way to see it is said."""
    served.process.terminate()
    served.end()
    path = os.pathsep.join(map(str, (HERE, HERE.parent)))
    at = ("--db", str(served.folder / "a.db"))
    running = subprocess.Popen(
        [sys.executable, "-m", "repertory", "run", "Go.", "--agent", "serve_agents:walker", "--plain", *at],
        env={**os.environ, **environment(served.folder), "PYTHONPATH": path},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
    )
    hear(running.stderr, "step number=3")
    refused = about(served, "attach")
    assert refused.returncode == 1
    assert "is not run by a service, so it takes no messages; repertory logs -f run-" in refused.stderr
    terminal = at_terminal(served.folder, "logs", "-f")
    terminal.expect("step number=3")
    refused = about(served, "pause", "run-")
    assert refused.returncode == 75
    assert f"in use by process {running.pid}" in refused.stderr
    (served.folder / "go").touch()
    terminal.expect("step number=5")
    terminal.expect("done")
    assert terminal.end() == 0
    running.communicate(timeout=PATIENCE)


def test_logs_follow_a_run_to_its_end(served: Served, at_terminal: AtTerminal) -> None:
    """What has happened, then what happens; as lines, and as events for a program."""
    run_id = begin(served, "walker")
    terminal = at_terminal(served.folder, "logs", run_id, "-f")
    terminal.expect("starts: Go.")
    terminal.expect("step number=3")
    (served.folder / "go").touch()
    terminal.expect("step number=5")
    terminal.expect("done")
    assert terminal.end() == 0
    events = [json.loads(line) for line in about(served, "logs", run_id, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == sorted({event["seq"] for event in events})
    assert {event["agent"] for event in events} == {"walker"}
    assert events[-1]["body"]["state"] == "done"
    lines = about(served, "logs", run_id).stdout.splitlines()
    assert lines[-1].endswith("done")
    for count in (1, 4):  # lines, not events: of many there is nothing to say
        assert about(served, "logs", run_id, "-n", str(count)).stdout.splitlines() == lines[-count:]
    assert "starts: Go." in about(served, "logs", "--all").stdout


def test_top_shows_what_waits_and_leaves_the_terminal_as_it_was(served: Served, at_terminal: AtTerminal) -> None:
    """At a terminal a picture, which Ctrl-C ends; elsewhere it is written once."""
    begin(served, "payer")
    assert "1 waiting   3 calls wait" in about(served, "top").stdout
    terminal = at_terminal(served.folder, "top", COLUMNS="70", LINES="12")
    terminal.expect("3 calls wait")
    terminal.expect("payer")
    terminal.type("\x03")
    assert terminal.end() in (0, 130)
    assert "\x1b[?25h" in terminal.seen
