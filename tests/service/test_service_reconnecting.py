"""Who follows a run while its service is killed and started again."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from service_commands import AtTerminal, about, environment
from test_service_process import Served, until
from test_service_verbs import begin

from patience import PATIENCE
from repertory.cli.conversing import Screen
from repertory.runs.streaming import Piece, StreamRestarted, TextStreamed

AGENTS = [word for name in ("halting", "walker", "talker") for word in ("--agent", f"serve_agents:{name}")]


@pytest.fixture
def served(short: Path) -> Iterator[list[Served]]:
    """A service, and those that come after it."""
    all_of_them = [Served(short, *AGENTS)]
    all_of_them[0].hear("serving")
    yield all_of_them
    all_of_them[-1].kill()


def restart(served: list[Served], *options: str) -> Served:
    """Kill the service as it stands, and start another one on its database."""
    served[-1].kill()
    served.append(Served(served[0].folder, *AGENTS, "--resume", *options))
    return served[-1]


def heard(served: Served, run_id: str) -> list[str]:
    """What was said to a run."""
    events = served.ask("GET", f"/runs/{run_id}/events?follow=no")
    return [event["body"]["text"] for event in events if event["type"] == "UserSaid"]


def test_logs_follow_a_run_over_a_kill(served: list[Served]) -> None:
    """Each event that is on record is there once, in order, though the next service listens elsewhere."""
    folder, run_id = served[0].folder, begin(served[0], "walker")
    following = subprocess.Popen(
        [sys.executable, "-m", "repertory", "logs", run_id, "-f", "--json", "--db", str(folder / "a.db")],
        env=environment(folder),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    events: list[Any] = []
    while not events or (events[-1]["type"], events[-1]["body"].get("arguments")) != ("ToolStarted", {"number": 3}):
        events.append(json.loads(following.stdout.readline()))
    restart(served, "--socket", str(folder / "other"))
    (folder / "go").touch()
    rest, said = following.communicate(timeout=PATIENCE)
    events += map(json.loads, rest.splitlines())
    assert following.returncode == 0, said
    assert "waiting up to 60 s for the next one" in said
    assert events[-1]["body"]["state"] == "done"
    recorded = [json.loads(line) for line in about(served[-1], "logs", run_id, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == [event["seq"] for event in recorded]


def test_logs_give_up_after_the_time_that_they_say(served: list[Served], at_terminal: AtTerminal) -> None:
    """With how to go on, and the exit code of something that may be tried again."""
    run_id = begin(served[0], "walker")
    terminal = at_terminal(served[0].folder, "logs", "-f", run_id, "--reconnect", "0", COLUMNS="200")
    terminal.expect("step number=3")
    served[0].kill()
    assert terminal.end() == 75
    assert "repertory serve --resume" in terminal.seen


@pytest.mark.parametrize("orderly", [True, False])
def test_who_is_attached_is_told_how_to_go_on_without_the_service(
    served: list[Served], at_terminal: AtTerminal, orderly: bool
) -> None:
    """However the service ends; the next one has the run where it was."""
    run_id = begin(served[0], "walker")
    terminal = at_terminal(served[0].folder, "attach", run_id, COLUMNS="200")
    terminal.expect("step number=3")
    if orderly:
        served[0].process.terminate()
    else:
        served[0].kill()
    assert terminal.end() == 75
    assert f"once a service runs it again: repertory attach {run_id} --db " in terminal.seen
    restart(served).hear("serving")
    (served[0].folder / "go").touch()
    until(lambda: served[-1].ask("GET", f"/runs/{run_id}/result")["state"] == "done")
    again = about(served[-1], "attach", run_id)
    assert (again.returncode, again.stdout.count("6 steps")) == (0, 1)


def test_what_is_said_of_the_end_of_a_service_begins_a_line(served: list[Served], at_terminal: AtTerminal) -> None:
    """Also if it came in the middle of an answer."""
    terminal = at_terminal(served[0].folder, "attach", begin(served[0], "halting"), COLUMNS="200")
    terminal.expect("Half an ans")
    served[0].process.terminate()
    assert terminal.end() == 75
    assert "\r\nrepertory: the service at " in terminal.seen


# --- what is new of what a run says ----------------------------------------------------------------------


async def _pieces(parts: list[Piece]) -> AsyncIterator[Piece]:
    for part in parts:
        yield part


def _shown(capsys: pytest.CaptureFixture[str], *sources: list[Piece]) -> str:
    """What a screen shows of pieces that come from one service after the other."""
    screen = Screen()

    async def read() -> None:
        for source in sources:
            await screen.show_text(_pieces(source))

    anyio.run(read)
    return capsys.readouterr().out


def _text(iteration: int, text: str) -> Piece:
    return TextStreamed(iteration=iteration, text=text)


def test_each_answer_is_shown_once_however_often_it_is_streamed(capsys: pytest.CaptureFixture[str]) -> None:
    """A stream begins anywhere at or before what was shown; one that answers anew is marked."""
    again, broken = "\n[ignore the text above: the run was resumed]\n", StreamRestarted(iteration=1, reason="it broke")
    for sources, shown in (
        ([[_text(1, "It is"), _text(2, "a")], [_text(1, "It is"), _text(2, "a b")]], "It is\na b"),
        ([[_text(1, "It"), _text(1, " is")], [_text(1, "It is"), _text(1, " so")]], "It is so"),
        ([[_text(1, "It is")], [_text(1, "The ship")]], f"It is{again}The ship"),
        ([[_text(1, "It is"), broken, _text(1, "It was")]], "It is\n[ignore the text above: it broke]\nIt was"),
    ):
        assert _shown(capsys, *sources) == shown
