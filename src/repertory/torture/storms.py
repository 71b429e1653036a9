"""Storms of ``repertory.testing`` as scenarios: mutated answers, cancelled calls, signals at a terminal."""

from __future__ import annotations

import signal
import sys
from collections.abc import Awaitable, Callable, Iterable

import anyio

from repertory.record import EventLogged, RunStarted
from repertory.supervisor import open_supervisor
from repertory.testing.answers import play_answers, unread_answers
from repertory.testing.interrupts import interrupt_storm, judge, shoot
from repertory.testing.storms import cancel_storm, disagreements, limit_storm
from repertory.torture.frame import Case, Outcome

_ANSWERS = 48
_CALLS = 150
_TREES = 4
_SIGNALS = 6

# Takes SIGTERM over, which is when it is shot at, and leaves Ctrl-C to Python.
_CARELESS = (sys.executable, "-c", "import signal, time; signal.signal(15, lambda *_: None); time.sleep(60)")


def answers(case: Case) -> Outcome:
    """Answers made by a grammar that goes wrong on purpose, in runs that are cut off and resumed."""
    found = _run(case, lambda: play_answers(case.seed, _ANSWERS, case.folder))
    return _outcome(found, "mutated answers", _ANSWERS)


def answers_as_they_came(case: Case) -> Outcome:
    """Negative control: answers that are kept without being read first."""
    return _outcome(unread_answers(case.seed, _ANSWERS), "mutated answers", _ANSWERS)


def runs(case: Case) -> Outcome:
    """``spawn`` and ``send``, side by side, cancelled at random; and trees of runs that are cut off, with limits."""
    outcome = _outcome(_run(case, lambda: cancel_storm(case.seed, _CALLS)), "cancelled calls", _CALLS)
    outcome.failures += _run(case, lambda: limit_storm(case.seed, _TREES))
    outcome.count("trees with limits", _TREES)
    return outcome


def half_begun(case: Case) -> Outcome:
    """Negative control: a run and a message that are on record, and that no process knows of."""

    async def begin() -> list[str]:
        async with open_supervisor() as supervisor:
            said = EventLogged(run_id="run", type="UserSaid", body={"message_id": "m", "text": "x"}, at=0.0)
            await supervisor.journal.write([RunStarted(run_id="run", agent="a", task="t", at=0.0), said])
            return await disagreements(supervisor)

    return _outcome(_run(case, begin), "cancelled calls", 1)


def interrupts(case: Case) -> Outcome:
    """Ctrl-C and SIGTERM at random instants, to commands on a terminal."""
    return _outcome(interrupt_storm(case.seed, _SIGNALS), "interrupted commands", _SIGNALS)


def careless(case: Case) -> Outcome:
    """Negative control: a program that leaves Ctrl-C to Python."""
    shot = shoot([], [(0.0, signal.SIGINT)], home=case.folder, program=_CARELESS)
    return _outcome(judge(shot), "interrupted commands", 1)


def _run(case: Case, storm: Callable[[], Awaitable[list[str]]]) -> list[str]:
    return anyio.run(storm, backend="trio" if case.seed % 2 else "asyncio")


def _outcome(found: Iterable[str], what: str, count: int) -> Outcome:
    return Outcome(counts={what: count}, failures=list(found))
