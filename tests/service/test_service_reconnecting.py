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
from hypothesis import given
from hypothesis import strategies as st
from test_service_attach import Terminal, command, environment
from test_service_process import Served, until
from test_service_verbs import begin

from patience import PATIENCE, hear
from repertory.cli.attaching import Heard
from repertory.runs.streaming import Piece, StreamRestarted, TextStreamed

AGENTS = [word for name in ("payer", "walker", "talker") for word in ("--agent", f"serve_agents:{name}")]


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
    own = {name: value or "" for name, value in environment(folder).items()}
    following = subprocess.Popen(
        [sys.executable, "-m", "repertory", "logs", run_id, "-f", "--json", "--db", str(folder / "a.db")],
        env=own,
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
    assert "went away; waiting up to 60 s for it" in said
    assert events[-1]["body"]["state"] == "done"
    recorded = [json.loads(line) for line in command(served[-1], "logs", run_id, "--json").stdout.splitlines()]
    assert [event["seq"] for event in events] == [event["seq"] for event in recorded]


def test_who_is_attached_goes_on_with_the_next_service(served: list[Served]) -> None:
    """What was shown is not shown again, what was missed is, and a line that was typed meanwhile is said once."""
    folder, run_id = served[0].folder, begin(served[0], "walker")
    terminal = Terminal(folder, "attach", run_id)
    terminal.expect("step number=3")
    served[0].kill()
    terminal.expect("went away; waiting up to 60 s for it]")
    terminal.type("Hurry.\r")
    restart(served).hear("serving")
    said = until(lambda: heard(served[-1], run_id))
    (folder / "go").touch()
    seen = terminal.expect("[done]")
    assert "answers]" in seen
    assert seen.count("6 steps") == 1
    # The call that was under way is made again, as it may be; it may be shown behind the answer.
    shown = [seen.count(f"step number={number}") for number in range(4)]
    assert shown in ([0, 0, 0, 1], [0, 0, 0, 0]), seen
    terminal.type("\x04")
    assert terminal.end() == 0
    assert heard(served[-1], run_id) == said == ["Hurry."]


def test_attached_without_a_terminal_it_ends_with_the_run_over_a_kill(served: list[Served]) -> None:
    """With the answer, and 0."""
    folder, run_id = served[0].folder, begin(served[0], "walker")
    own = {name: value or "" for name, value in environment(folder).items()}
    attached = subprocess.Popen(
        [sys.executable, "-m", "repertory", "attach", run_id, "--db", str(folder / "a.db")],
        env=own,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    hear(attached.stdout, "step number=3")
    restart(served)
    (folder / "go").touch()
    said, _ = attached.communicate(timeout=PATIENCE)
    assert attached.returncode == 0
    # Once; a call's line may come behind it, as answers and events are two streams.
    assert said.count("6 steps") == 1


def test_it_gives_up_after_the_time_that_it_says(served: list[Served]) -> None:
    """With how to go on, and the exit code of something that may be tried again."""
    run_id = begin(served[0], "walker")
    terminal = Terminal(served[0].folder, "attach", run_id, "--reconnect", "0")
    terminal.expect("step number=3")
    served[0].kill()
    assert terminal.end() == 75
    assert "repertory serve --resume" in terminal.seen


def test_a_run_that_nobody_takes_up_again_is_not_waited_for(served: list[Served]) -> None:
    """The next service may do without it."""
    folder, run_id = served[0].folder, begin(served[0], "walker")
    terminal = Terminal(folder, "logs", "-f", run_id, COLUMNS="200")
    terminal.expect("step number=3")
    served[0].kill()
    served.append(Served(folder, *AGENTS))
    assert terminal.end() == 1
    assert f"repertory resume {run_id}" in terminal.seen


# --- what is new of what a run says ----------------------------------------------------------------------


async def _pieces(parts: list[Piece]) -> AsyncIterator[Piece]:
    for part in parts:
        yield part


def _shown(*sources: list[Piece]) -> str:
    """What is shown of pieces that come from one service after the other; "#" where something is void."""
    heard, shown = Heard(), list[str]()

    async def read() -> None:
        for source in sources:
            async for piece in heard.new_of(_pieces(source)):
                shown.append("#" if isinstance(piece, StreamRestarted) else getattr(piece, "text", ""))

    anyio.run(read)
    return "".join(shown)


def _text(iteration: int, text: str) -> Piece:
    return TextStreamed(iteration=iteration, text=text)


@given(
    texts=st.lists(st.text("ab\n", min_size=1, max_size=6), min_size=1, max_size=5),
    cut=st.tuples(st.integers(0, 4), st.integers(0, 6)),
    back=st.integers(0, 4),
)
def test_each_answer_is_shown_once_however_it_was_cut(texts: list[str], cut: tuple[int, int], back: int) -> None:
    """One service says some of it, and the next begins anywhere at or before that."""
    answers = [_text(number, text) for number, text in enumerate(texts, start=1)]
    last, characters = min(cut[0], len(texts) - 1), cut[1]
    first = [*answers[:last], _text(last + 1, texts[last][:characters])]
    assert _shown(first, answers[min(back, last) :]) == "".join(texts)


def test_another_answer_than_the_one_that_broke_off_is_marked() -> None:
    """Nobody can take the two for one."""
    assert _shown([_text(1, "It is")], [_text(1, "The ship")]) == "It is#The ship"
    assert _shown([_text(1, "It is"), StreamRestarted(iteration=1, reason=""), _text(1, "It was")]) == "It is#It was"
    assert _shown([_text(1, "a\nb")], [_text(1, "ab, whole")]) == "a\nb, whole"
